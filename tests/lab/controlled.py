"""A fabric with the whole controller: its loop runs in the fabric's namespace, beside the switches.

```text
 Fabric ─▶ configuration (text of the file) ─▶ Runtime ─OpenFlow, OVSDB─ bridges
                                  test ─▶ path, missed ─┘ └─▶ answers, decisions (Kept)
```
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tidegate_controller import events as ev
from tidegate_controller.config import Config, parse
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.intent import BEST_EFFORT, queue_of
from tidegate_controller.model.paths import FlowKey, Path, PathRequest
from tidegate_controller.openflow import sync
from tidegate_controller.ovsdb import events as db
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime

from . import rendered
from .fabric import Fabric, address

MBIT = 1_000_000
MARKS = (46, 34)
DSCP = 40
"""The mark of the host's frames."""
HOLD = 0.3
MOST_TOLD = 10
MOST_COMPARED = 10
TERMS = """
[openflow]
listen = "127.0.0.1:0"
[discovery]
interval = "200ms"
[paths]
marks = [46, 34]
hold = "300ms"
[terms]
capacity = "100Mbit"
reservable = "50Mbit"
levels = [{ delay = "3ms", frames = 5000 }, { delay = "10ms", frames = 5000 }]
"""


def configuration(fabric: Fabric, terms: str = TERMS, uplinks: str = 'reservable = "90Mbit"') -> Config:
    """The file of a network; `uplinks` are the terms of each host's uplink."""

    def port(name: str) -> str:
        return name.replace(".", ":")

    text = [terms]
    for switch in fabric.ports:
        database = f'database = "{fabric.switch_of(switch).remote}"'
        text.append(f'[switches.{switch}]\ndatapath = "{fabric.datapath(switch):016x}"\n{database}')
    for one, other in fabric.links:
        text.append(f'[[links]]\nbetween = ["{port(one)}", "{port(other)}"]')
    for number, (host, edge) in enumerate(fabric.edges.items(), 1):
        own = f'address = "{address(number)}"\nmac = "02:00:00:00:00:{number:02x}"'
        text.append(f'[hosts.{host}]\nport = "{port(edge)}"\n{own}\n{uplinks}')
    return parse("\n".join(text), "network.toml")


class Counting(Runtime):
    """A runtime that notes when BFD lost the other end of a port."""

    def __init__(self, config: Config, kept: Kept) -> None:
        self.silent: list[float] = []
        """Unix time of each loss."""
        super().__init__(config, kept)

    def _of_database(self, event: db.Event) -> None:
        if isinstance(event, db.LinkDown):
            self.silent.append(self.now)
        super()._of_database(event)


class Controller:
    """A runtime with its network."""

    def __init__(self, fabric: Fabric, kept: Kept, config: Config | None = None) -> None:
        self.fabric, self.kept = fabric, kept
        self.config = config or configuration(fabric)
        self.runtime = Counting(self.config, kept)

    async def until(self, what: str, ready: Callable[[], object], timeout: float = 30) -> None:
        """Waits, and lets the controller work."""
        try:
            async with asyncio.timeout(timeout):
                while not ready():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}") from None

    def quiet(self) -> bool:
        """All links are seen, and all rules are there."""
        return self.runtime.core.engine.newest.links == self.config.links and self.still()

    def still(self) -> bool:
        """All rules are there, for the links that are seen.

        The core waits for no comparison of a switch that is back: it ends when the switch has no order left.
        """
        core = self.runtime.core
        ordered = any(one._orders for one in self.runtime.switches.values())
        return core.is_still and not core.engine.running and not core.stale and not ordered

    @property
    def heard(self) -> int:
        """Ports at which BFD hears the other end."""
        return sum(list(one._links.values()).count(True) for one in self.runtime.databases.values())

    async def begin(self, short: dict[int, int] | None = None, *, steer: bool = True) -> None:
        """Starts, and waits until the network is ready. `short` has lengths of queues, as in `steer`."""
        await self.runtime.start()
        await asyncio.to_thread(self.fabric.connect, f"tcp:127.0.0.1:{self.runtime.server.port}")
        sessions = self.runtime.server.sessions
        await self.until("all switches", lambda: len(sessions) == len(self.fabric.ports))
        await self.until("all links", self.quiet)
        for remote, numbers in self.config.databases.items():
            for number in numbers:
                assert await self.runtime.databases[remote].settled(self.config.datapaths[number]) == {}
        if not steer:
            return
        marks = {mark: queue_of(level) for level, mark in enumerate(self.config.settings.marks.levels)}
        await asyncio.to_thread(self.fabric.steer, marks, BEST_EFFORT, short=short)

    def request(
        self, name: str = "v", rate: int = 2 * MBIT, port: int = 9001, ends: tuple[str, str] = ("h1", "h3")
    ) -> PathRequest:
        """A request between two hosts: small frames, any budget."""
        source, target = ends
        places = [list(self.fabric.hosts).index(host) + 1 for host in ends]
        key = FlowKey(address(places[0]), address(places[1]), port, 9000)
        return PathRequest(
            f"{source}/{name}>{target}", source, target, key, DSCP, rate, 3000, 100, 1500, 10**9
        )

    async def path(self, name: str = "v", rate: int = 2 * MBIT, port: int = 9001) -> ev.Answer:
        """Asks for a path from h1 to h3."""
        return await self.ask(self.request(name, rate, port))

    async def ask(self, request: PathRequest, **other: int) -> ev.Answer:
        """Asks for a path, with other terms than those of the request if they are named."""
        async with asyncio.timeout(30):
            return await self.runtime.ask(replace(request, **other))  # type: ignore[arg-type]

    def there(self, name: str) -> Path:
        """A path that is there."""
        return self.runtime.core.engine.paths[name]

    async def as_intended(self) -> None:
        """All switches hold what they are to hold: as `sync` compares it, and as `ovs-ofctl` prints it.

        BFD may lose the other end at any time. A difference that is found amid the change that follows tells
        nothing: all is compared again when that change has ended.
        """
        for _ in range(MOST_COMPARED):
            before = self._changed
            try:
                await self._compare()
            except AssertionError:
                if self.still() and self._changed == before:
                    raise
                await self.until("the end of the change", self.still)
            else:
                return
        raise AssertionError(f"compared {MOST_COMPARED} times in vain: changes came amid each comparison")

    @property
    def _changed(self) -> int:
        """Rules and groups that came, changed or went."""
        return sum(one.changed for one in self.runtime.switches.values())

    async def _compare(self) -> None:
        for switch, intent in self.runtime.core.intents().items():
            held = await sync.read(self.runtime.server.sessions[switch])
            changes = [str(change) for stage in sync.plan(held, intent).stages for change in stage]
            assert not changes, f"{switch} is not as intended: {changes}"
            lines = await asyncio.to_thread(self.fabric.dump_flows, switch)
            assert rendered.lines(lines) == {rendered.rule(rule) for rule in intent.rules}
            lines = await asyncio.to_thread(self.fabric.dump_groups, switch)
            assert rendered.groups(lines) == {rendered.group(group) for group in intent.groups}

    async def decided(self, verdict: Verdict, after: int, path: str = "") -> Decision:
        """Waits for a decision with a greater number, about a path if one is named."""

        await self.until(f"a decision {verdict}", lambda: self._found(verdict, after, path))
        return self._found(verdict, after, path)[0]

    def _found(self, verdict: Verdict, after: int, path: str) -> list[Decision]:
        return [
            one
            for one in self.kept.decisions
            if one.verdict == verdict and one.number > after and path in ("", one.path)
        ]

    async def missed(self, name: str, verdict: Verdict) -> None:
        """Late frames, and what follows; told again if a link went meanwhile: then they count later."""
        before = self.kept.decided
        for _ in range(MOST_TOLD):
            await asyncio.sleep(self.config.settings.hold * 1.5)
            self.runtime.happened(ev.Missed(name, 3, 1000, self.runtime.now))
            await self.until("the end of the change", self.quiet)
            if self._found(verdict, before, name):
                return
        raise AssertionError(f"told {MOST_TOLD} times of late frames in vain: no decision {verdict}")


def run(
    fabric: Fabric,
    kept: Kept,
    test: Callable[[Controller], Awaitable[None]],
    config: Config | None = None,
    *,
    seconds: float = 60,
    short: dict[int, int] | None = None,
    steer: bool = True,
) -> None:
    """Runs a test with a controller of its own, for so long at most; without traffic it need not `steer`."""

    async def limited() -> None:
        controller = Controller(fabric, kept, config)
        async with asyncio.timeout(seconds):
            try:
                await controller.begin(short, steer=steer)
                await test(controller)
            finally:
                # It says nothing to switches: as if the process were killed.
                await controller.runtime.stop()

    fabric.net.call(lambda: asyncio.run(limited()))
