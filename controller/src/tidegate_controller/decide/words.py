"""Far hosts that take back their word: paths whose frames are admitted at their end no more.

```text
 path ─▶ the far host admits its vNIC as it is announced ─▶ nothing
          the far host refuses it                        ─▶ the reason, at once
          it says nothing for one lease                  ─▶ the reason
```

Such a path stays: its frames do no harm in the network, and the far host may give its word again. Its host is
told that the promise is violated. Paths that an operator asked for need no far host.
"""

from collections.abc import Iterable

from tidegate_controller.decide.hosts import Registry
from tidegate_controller.model.paths import PathRequest


class Words:
    """Since when far hosts say nothing."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def withdrawn(self, registry: Registry, requests: Iterable[PathRequest], now: float) -> dict[str, str]:
        """Names of paths without the word of their far host, with the reason."""
        if registry.grace(now):
            return {}
        before, self._since = self._since, {}
        found = {}
        for request in requests:
            name, far = request.name, request.target
            vnic = name.partition(">")[0]
            if request.lasting or not registry.counts(request.source, vnic):
                continue
            arrival = registry.arrival(far, vnic)
            if arrival is None:
                self._since[name] = since = before.get(name, now)
                if now >= since + registry.lease:
                    found[name] = f"host {far} does not say any more that it admits vNIC {vnic}"
            elif arrival.refused is not None:
                found[name] = f"host {far} admits vNIC {vnic} no more: {arrival.refused}"
        return found
