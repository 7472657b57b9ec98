"""Views as text: each announcement is written once for all hosts, each view once for its version.

```text
 Registry: version ─▶ Views ─▶ peers, remotes, refused of a host, as a part of its View
                        └ texts of remotes, the newest texts of views
```
"""

import json
from collections import OrderedDict

from tidegate_controller.api import write
from tidegate_controller.decide.claims import MOST_VNICS
from tidegate_controller.decide.hosts import Registry
from tidegate_controller.model.hosts import Remote, Vnic

MOST_KEPT = 32 << 20
"""Characters of all texts of views."""


class Views:
    """Texts of one registry."""

    def __init__(self, registry: Registry, most: int = MOST_KEPT) -> None:
        self._registry, self._most = registry, most
        self._remotes: dict[tuple[str, bool], tuple[Vnic, str, str]] = {}
        self._texts: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._kept = 0

    def text(self, host: str) -> str:
        """Returns the members `peers`, `remotes` and `refused` of a host's View."""
        version = self._registry.version(host)
        there = self._texts.get(host)
        if there is not None and there[0] == version:
            self._texts.move_to_end(host)
            return there[1]
        one = self._registry.surroundings(host)
        peers = json.dumps([write.peer(each) for each in one.peers])
        refused = json.dumps([write.refused(each) for each in one.refused])
        remotes = ", ".join(self._remote(each) for each in one.remotes)
        text = f'"peers": {peers}, "remotes": [{remotes}], "refused": {refused}'
        self._kept += len(text) - (len(there[1]) if there is not None else 0)
        self._texts[host] = (version, text)
        self._texts.move_to_end(host)
        while self._kept > self._most:
            _, (_, oldest) = self._texts.popitem(last=False)
            self._kept -= len(oldest)
        return text

    def _remote(self, one: Remote) -> str:
        # The same vNIC may be behind a plain NIC for one host, and not for another one.
        key = one.vnic.name, one.plain
        there = self._remotes.get(key)
        if there is not None and there[0] is one.vnic and there[1] == one.host:
            return there[2]
        if len(self._remotes) >= 2 * MOST_VNICS:
            self._remotes.clear()
        text = json.dumps(write.remote(one))
        self._remotes[key] = (one.vnic, one.host, text)
        return text
