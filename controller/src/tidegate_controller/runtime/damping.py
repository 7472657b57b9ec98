"""Which links count, of those that work now: down at once, up late if they come and go.

```text
 links that work ─▶ ┌ Damping ┐ ─▶ those that count
             time ─▶└─────────┘ ─▶ due: when to look again
```

Each change of a link changes trees and paths all over the network. So a link that was down has to work for a
while before it counts again: `FIRST` seconds, and twice as long each time that it goes, until it was quiet.
A link that was never down since the start counts at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate_controller.model.topology import Link

FIRST = 1.0
"""s after the first time that a link was down."""
LONGEST = 64.0
"""s at most; also for how long a link has to count before its past is forgotten."""


@dataclass
class _Past:
    """Of a link that was down."""

    hold: float
    """s for which it has to work."""
    counts_from: float | None = None
    """When it counts, if it goes on to work; `None` while it is down."""


class Damping:
    """The past of links. Times are in s."""

    def __init__(self) -> None:
        self._works: frozenset[Link] = frozenset()
        self._past: dict[Link, _Past] = {}
        self.due: float | None = None
        """When the next link will count; `None`: none is held."""

    def take(self, works: Iterable[Link], now: float) -> set[Link]:
        """Takes all links that work now; returns those that count."""
        before, self._works = self._works, frozenset(works)
        for link in before - self._works:
            past = self._past.get(link)
            known = past is not None and past.counts_from is not None and now < past.counts_from + LONGEST
            hold = min(2 * past.hold, LONGEST) if past is not None and known else FIRST
            self._past[link] = _Past(hold)
        held = set()
        self.due = None
        for link, past in self._past.items():
            if link not in self._works:
                continue
            if past.counts_from is None:
                past.counts_from = now + past.hold
            if now < past.counts_from:
                held.add(link)
                self.due = min(self.due or past.counts_from, past.counts_from)
        return set(self._works - held)
