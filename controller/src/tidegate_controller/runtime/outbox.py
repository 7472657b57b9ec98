"""Effects wait here until what they follow from is durable.

```text
 handle ─▶ effects ─▶ ┌ in their order ┐ ─ durable ─▶ carry_out, one after the other
                      └ saves ─▶ Store.write: all that wait, in one transaction
```

Effects of one event are carried out only after all its saves are durable, and after those of earlier events:
so a switch never holds what a successor would not know of. Without saves before them they go on at once.
While a write is under way the core goes on deciding; what gathers meanwhile is written together.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from tidegate_controller import events as ev
from tidegate_controller.runtime.kept import Save
from tidegate_controller.state.store import MOST_SAVES, Fenced, Store, Unwritable

CROWDED = 2_000
"""Effects that may wait before new questions are refused."""
MOST = 200_000
"""Effects that may wait: more of them end the process. They follow from what switches and hosts say."""
SAVES = get_args(Save)


@dataclass
class _Batch:
    """Effects of one event."""

    effects: deque[ev.Effect]
    saves: list[Save]
    """Those that are not durable yet."""


class Outbox:
    """Between a core and the edges."""

    def __init__(
        self,
        store: Store | None,
        carry_out: Callable[[ev.Effect], None],
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """Without a store nothing has to wait. `may` is asked before each effect: whether it may be done."""
        self._store, self._carry_out, self._may = store, carry_out, may
        self._waiting: deque[_Batch] = deque()
        self._count = 0
        self._draining = False
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def crowded(self) -> bool:
        """Whether the store does not keep up."""
        return self._count > CROWDED

    def put(self, effects: Iterable[ev.Effect]) -> None:
        """Takes the effects of one event; carries out what has to wait for nothing. Raises `Fenced`."""
        held = deque(effects)
        if not held:
            return
        saves = [one for one in held if isinstance(one, SAVES)] if self._store else []
        self._waiting.append(_Batch(held, saves))
        self._count += len(held)
        if self._count > MOST:
            raise Unwritable(f"{self._count} effects wait for the store; at most {MOST} were expected")
        if saves:
            self._idle.clear()
            self._more.set()
        self._drain()

    def withdraw(self, switch: str) -> list[ev.Install]:
        """Takes back what waits for a switch whose session has begun or ended; returns what has to fail."""
        taken: list[ev.Install] = []
        for batch in self._waiting:
            left: deque[ev.Effect] = deque()
            for one in batch.effects:
                if isinstance(one, ev.Install) and one.update.switch == switch:
                    taken.append(one)
                elif not isinstance(one, ev.Sync) or one.switch != switch:
                    left.append(one)
            self._count -= len(batch.effects) - len(left)
            batch.effects = left
        return taken

    async def run(self) -> None:
        """Writes until it is cancelled. Raises what the store raises."""
        assert self._store is not None
        while True:
            await self._more.wait()
            self._more.clear()
            while batches := self._next():
                saves = [save for batch in batches for save in batch.saves]
                for first in range(0, len(saves), MOST_SAVES):
                    await self._store.write(saves[first : first + MOST_SAVES])
                for batch in batches:
                    batch.saves = []
                self._drain()
            self._idle.set()

    async def flushed(self) -> None:
        """Returns when all that was put is durable."""
        await self._idle.wait()

    def _next(self) -> list[_Batch]:
        """The next events that fit into one transaction; one event that does not is alone."""
        found: list[_Batch] = []
        count = 0
        for batch in self._waiting:
            count += len(batch.saves)
            if found and count > MOST_SAVES:
                break
            if batch.saves:
                found.append(batch)
        return found

    def _drain(self) -> None:
        if self._draining:
            # An effect has led to this one: it comes after those that are there.
            return
        self._draining = True
        try:
            while self._waiting and not self._waiting[0].saves:
                batch = self._waiting[0]
                while batch.effects:
                    if not self._may():
                        raise Fenced("the lead is over, or may be over by now: nothing more is done")
                    self._count -= 1
                    self._carry_out(batch.effects.popleft())
                self._waiting.popleft()
        finally:
            self._draining = False
