"""A server for switches that are played by tests.

```text
 FakeSwitch ─TCP─ Server ─▶ events, which the test reads
```
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fake_switch import FakeSwitch

from tidegate_controller.openflow.limits import Limits
from tidegate_controller.openflow.server import Event, Server, SwitchDown, SwitchUp
from tidegate_controller.openflow.session import Session

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds after which something that has to happen has not."""


@dataclass
class Bench:
    """A server, and what it told."""

    server: Server
    events: list[Event] = field(default_factory=list)
    switches: list[FakeSwitch] = field(default_factory=list)
    """Kept: asyncio ends connections without a reference."""

    async def until(self, what: Callable[[], T]) -> T:
        """Waits until something is true."""
        async with asyncio.timeout(PATIENCE):
            while not (found := what()):
                await asyncio.sleep(0.005)
        return found

    def of(self, kind: type[T]) -> list[T]:
        """Events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    async def join(self, datapath: int = 1, ports: tuple[int, ...] = (1, 2)) -> tuple[FakeSwitch, Session]:
        """A switch with a session."""
        before = len(self.of(SwitchUp))
        switch = await (await FakeSwitch.connect(self.server.port)).greet(datapath, ports)
        self.switches.append(switch)
        await self.until(lambda: len(self.of(SwitchUp)) > before)
        return switch, self.of(SwitchUp)[-1].session

    async def reason(self) -> str:
        """Why the first session ended."""
        await self.until(lambda: self.of(SwitchDown))
        return self.of(SwitchDown)[0].reason


@asynccontextmanager
async def bench(limits: Limits | None = None, **settings: Any) -> AsyncIterator[Bench]:  # noqa: ANN401
    """A server at a port of its own."""
    events: list[Event] = []
    server = Server(events.append, limits=limits, **settings)
    await server.start("127.0.0.1", 0)
    try:
        yield Bench(server, events)
    finally:
        await server.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Runs a test in an event loop of its own."""

    async def limited() -> None:
        async with asyncio.timeout(2 * PATIENCE):
            await test()

    asyncio.run(limited())
