"""Far hosts that take back their word: paths whose frames are admitted at their end no more.

```text
 path ─▶ the far host admits its vNIC as it is announced ─▶ nothing
          the far host refuses it                        ─▶ the reason, at once
          it says nothing for one lease                  ─▶ the reason
```

Behind a plain NIC the far host admits nothing: its word is that it announces the receiver, and the VLAN.

Such a path stays: its frames do no harm in the network, and the far host may give its word again. Its host is
told that the promise is violated. Paths that an operator asked for need no far host.
"""

from collections.abc import Iterable

from tidegate_controller.decide.hosts import Registry
from tidegate_controller.model.paths import EthernetKey, PathRequest


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
            key, why = request.key, ""
            if isinstance(key, EthernetKey):
                remote = name.partition(">")[2]
                if not (registry.counts(far, remote) and key.vlan in registry.vlans(far)):
                    what = f"vNIC {remote} behind a plain NIC with VLAN {key.vlan}"
                    why = f"host {far} announces {what} no more"
            else:
                arrival = registry.arrival(far, vnic)
                if arrival is None:
                    why = f"host {far} does not say any more that it admits vNIC {vnic}"
                elif arrival.refused is not None:
                    found[name] = f"host {far} admits vNIC {vnic} no more: {arrival.refused}"
            if why:
                self._since[name] = since = before.get(name, now)
                if now >= since + registry.lease:
                    found[name] = why
        return found
