"""The time of leases, and which paths end without a request: their vNIC is announced no more.

```text
 path ─▶ its host is registered, its vNIC counts there ─▶ stays
          its host's lease is over                      ─▶ ends; not before one lease after the start
          the vNIC is not announced by its host         ─▶ ends one lease later: it may move, or come back
```

Paths that an operator asked for stay until an operator releases them. The time of leases stands still while
the controller does: hosts could not renew them then.
"""

from collections.abc import Iterable

from tidegate_controller.decide.hosts import Registry
from tidegate_controller.model.paths import PathRequest

STEP = 0.5
"""s by which the time of leases goes on at most between two looks at it."""


class Clock:
    """A time that stands still while the controller does, s: that of leases, and that of links' silence."""

    def __init__(self, now: float, step: float = STEP) -> None:
        self.time = self._seen = now
        self._step = step

    def look(self, now: float) -> float:
        """Goes on to `now`, or by one step. Returns this time."""
        self.time += min(max(0.0, now - self._seen), self._step)
        self._seen = now
        return self.time


class Unclaimed:
    """Since when paths have no vNIC."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def over(self, registry: Registry, requests: Iterable[PathRequest], now: float) -> list[str]:
        """Names of paths that end now."""
        if registry.grace(now):
            return []
        before, self._since = self._since, {}
        ended = []
        for request in requests:
            name = request.name
            vnic, host = name.partition(">")[0], request.source
            if request.lasting or registry.counts(host, vnic):
                continue
            self._since[name] = since = before.get(name, now)
            if not registry.registered(host) or now >= since + registry.lease:
                ended.append(name)
        return ended
