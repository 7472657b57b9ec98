"""Changes under way in a session, with the barriers behind them.

```text
 chunk of changes, barrier ─▶ put ─▶ ┌ Barriers ┐ ─▶ Update.done with the refusals
 barrier reply, error ─────────────▶ └──────────┘ ─▶ room for those that wait
```

Barriers are answered in order, and only the first error of a change counts: so a switch can neither leave one
without answer for ever, nor fill the memory with errors.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from tidegate_controller.openflow.replies import SwitchError
from tidegate_controller.openflow.wire import Malformed


@dataclass
class Update:
    """Done when all its barriers are answered."""

    done: asyncio.Future[None]
    refusals: dict[int, SwitchError] = field(default_factory=dict)
    barriers: int = 0
    complete: bool = False


@dataclass
class _Chunk:
    """Consecutive transactions of one update, until their barrier."""

    update: Update
    first: int
    count: int
    index: int


class Barriers:
    """All that are under way in one session."""

    def __init__(self, most: int) -> None:
        """At most so many barriers without an answer."""
        self._most = most
        self._chunks: dict[int, _Chunk] = {}
        """By the transaction of the barrier, in order."""
        self._room: deque[asyncio.Future[None]] = deque()
        self._since = 0.0

    def __len__(self) -> int:
        """Barriers without an answer."""
        return len(self._chunks)

    @property
    def since(self) -> float:
        """When the oldest barrier was sent, or the one before it was answered; if there is one."""
        return self._since

    @property
    def full(self) -> bool:
        """Whether there is no room for a chunk."""
        return len(self._chunks) >= self._most

    async def room(self) -> None:
        """Waits until a barrier is answered."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(turn)
        await turn

    def put(self, barrier: int, update: Update, index: int, count: int, now: float) -> None:
        """Takes a chunk that was sent: `count` changes from the `index`-th of the update on, then a barrier.

        `barrier` is its transaction; the changes have those before it.
        """
        if not self._chunks:
            self._since = now
        self._chunks[barrier] = _Chunk(update, (barrier - count) & 0xFFFF_FFFF, count, index)
        update.barriers += 1

    def answered(self, xid: int, now: float) -> bool:
        """Takes a barrier's answer; returns whether it belongs to one. `Malformed` if it came too early."""
        if xid not in self._chunks:
            return False
        if xid != next(iter(self._chunks)):
            raise Malformed("a barrier was answered before an earlier one")
        update = self._chunks.pop(xid).update
        self._since = now
        update.barriers -= 1
        if update.complete and not update.barriers and not update.done.done():
            update.done.set_result(None)
        # All look again: one that has given up meanwhile would keep the room from the others.
        while self._room:
            turn = self._room.popleft()
            if not turn.done():
                turn.set_result(None)
        return True

    def refused(self, xid: int, error: SwitchError) -> bool:
        """Takes an error; returns whether it belongs to a change."""
        for chunk in self._chunks.values():
            at = (xid - chunk.first) & 0xFFFF_FFFF
            if at < chunk.count:
                chunk.update.refusals.setdefault(chunk.index + at, error)
                return True
        return False

    def end(self) -> list[asyncio.Future[None]]:
        """Returns all that wait: the session is over."""
        waiting = [*self._room, *(chunk.update.done for chunk in self._chunks.values())]
        self._chunks.clear()
        return waiting
