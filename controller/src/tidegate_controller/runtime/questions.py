"""Questions of hosts that wait for their answers.

```text
 ask(event) ─▶ number ─▶ core ─▶ Answer with this number ─▶ the host that waits
```
"""

import asyncio
from collections.abc import Callable

from tidegate_controller import events as ev

MOST_ASKED = 1000
"""Questions without an answer."""


class Busy(Exception):
    """Too many questions wait for an answer."""


class Questions:
    """All that wait."""

    def __init__(self, tell: Callable[[ev.Event], None]) -> None:
        self._tell = tell
        self._waiting: dict[int, asyncio.Future[ev.Answer]] = {}
        self._asked = 0

    async def ask(self, event: Callable[[int], ev.Event]) -> ev.Answer:
        """Tells an event with the number of a question; returns its answer. Raises `Busy`."""
        if len(self._waiting) >= MOST_ASKED:
            raise Busy(f"{MOST_ASKED} questions wait for an answer; ask again later")
        self._asked += 1
        asker = self._asked
        future: asyncio.Future[ev.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[asker] = future
        try:
            self._tell(event(asker))
            return await future
        finally:
            del self._waiting[asker]

    def answer(self, answer: ev.Answer) -> None:
        """Passes on an answer. Its question may have been given up."""
        future = self._waiting.get(answer.asker)
        if future is not None and not future.done():
            future.set_result(answer)

    def end(self) -> None:
        """No answer comes any more."""
        for future in self._waiting.values():
            future.cancel()
