"""Late frames by totals: what is new in a report.

```text
 host, run, path, total ─▶ Totals ─▶ how many more than before
                             └ a smaller total of the same run: an old report, nothing
```

A report that is lost is made good by the next one; one that comes twice changes nothing.
"""

MOST_AT_ONCE = 1_000_000_000
"""Frames; a greater difference is a fault of the host, and counts as this."""


class Totals:
    """The last totals of each host's agent."""

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}
        self._totals: dict[str, dict[str, int]] = {}

    def begin(self, host: str, run: str) -> None:
        """The agent registers; with another run its totals begin anew."""
        if self._runs.get(host) != run:
            self._runs[host] = run
            self._totals[host] = {}

    def knows(self, host: str, path: str) -> bool:
        """Whether the agent has reported late frames of a path before."""
        return path in self._totals.get(host, ())

    def take(self, host: str, path: str, total: int) -> int:
        """Takes a total of a path that there is. Returns how many frames are new."""
        totals = self._totals.setdefault(host, {})
        before = totals.get(path, 0)
        if total <= before:
            return 0
        totals[path] = total
        return min(total - before, MOST_AT_ONCE)

    def forget(self, paths: set[str]) -> None:
        """Keeps no totals but of paths that there are, so memory is bounded."""
        for totals in self._totals.values():
            for gone in totals.keys() - paths:
                del totals[gone]
