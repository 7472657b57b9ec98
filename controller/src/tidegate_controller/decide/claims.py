"""Which announced vNIC counts: one of a name in the network, one of a MAC in a segment.

```text
 vNICs of a host, that it may have ─▶ Claims ─▶ counted
                                         ▲ └──▶ waiting: another one has the name or the MAC
                                         └ free again: those that waited for it, the first one first
```

What counts stays as long as it is announced; a newer announcement takes nothing away from an older one. A
name that is let go is kept for one lease for the MAC that had it, wherever that is announced, and for its
host: a VM that moves, or whose host begins anew, finds its name again.
"""

from collections import Counter
from dataclasses import dataclass

from tidegate_controller.model.hosts import Vnic

MOST_VNICS = 65_536
"""vNICs that count, in the network: as many as a host's view can have."""

MOST_KEPT = 4096
"""Names of a host that are kept; further ones are free at once."""

Key = tuple[str, str]
"""Host and name of a vNIC."""
Resource = tuple[str, int]
"""A name (with segment 0), or a MAC in a segment."""


@dataclass(frozen=True)
class _Kept:
    """Who had a name."""

    host: str
    mac: str
    until: float


class Claims:
    """All vNICs of all hosts that are allowed."""

    def __init__(self, most: int, keep: float) -> None:
        """At most `most` count; names are kept for `keep` s."""
        self._most, self._keep = most, keep
        self._kept: dict[str, _Kept] = {}
        """By name, in the order of their ends."""
        self._kept_of: Counter[str] = Counter()
        """How many names of each host are kept."""
        self._claims: dict[Key, tuple[int, Vnic]] = {}
        """With the number of each, in the order in which they were announced."""
        self._numbered = 0
        self._holders: dict[Resource, Key] = {}
        self._waiting: dict[Resource, set[Key]] = {}
        self._counted: set[Key] = set()
        self._crowded: set[Key] = set()
        """Waiting for room."""

    def holder(self, name: str) -> tuple[str, Vnic] | None:
        """The host of a vNIC that counts, and what it announced."""
        key = self._holders.get((name, 0))
        return (key[0], self._claims[key][1]) if key else None

    def counts(self, host: str, name: str) -> bool:
        """Whether it counts as a vNIC of this host."""
        return (host, name) in self._counted

    def replace(self, host: str, before: set[str], vnics: dict[str, Vnic], now: float) -> set[str]:
        """Puts vNICs in place of those that the host had. Returns hosts with others that count now."""
        freed: set[Resource] = set()
        room = False
        for name in sorted(before):
            key = (host, name)
            there, vnic = self._claims[key][1], vnics.get(name)
            if vnic is not None and (vnic.mac, vnic.segment) == (there.mac, there.segment):
                self._claims[key] = (self._claims[key][0], vnic)
                continue
            if key in self._counted:
                room = True
                self._keep_name(name, _Kept(host, there.mac, now + self._keep))
            freed |= self._drop(key, there)
        fresh: set[Key] = set()
        for name, vnic in vnics.items():
            key = (host, name)
            if key not in self._claims:
                self._numbered += 1
                self._claims[key] = (self._numbered, vnic)
                fresh.add(key)
        tried = fresh.union(*(self._waiting.get(one, ()) for one in freed))
        if room:
            tried |= self._crowded
        return self._try_all(tried) - {host}

    def expire(self, now: float) -> set[str]:
        """Keeps names no longer than their time. Returns hosts with vNICs that count now."""
        tried: set[Key] = set()
        while self._kept and (name := next(iter(self._kept))) and self._kept[name].until <= now:
            self._unkeep(name)
            tried |= self._waiting.get((name, 0), set())
        return self._try_all(tried)

    def reason(self, host: str, name: str) -> str:
        """Why one does not count; empty if it does."""
        key = (host, name)
        if key in self._counted:
            return ""
        vnic = self._claims[key][1]
        kept = self._kept_from(key, vnic)
        if kept is not None and (name, 0) not in self._holders:
            had = f"MAC {kept.mac} of host {kept.host}"
            return f"its name was that of {had}, and is kept for these for one lease"
        for resource in _resources(vnic):
            holder = self._holders.get(resource)
            if holder is not None:
                what = "its name" if resource[1] == 0 else f"its MAC {vnic.mac} in segment {vnic.segment}"
                own = "this host" if holder[0] == host else f"host {holder[0]}"
                return f"{what} is that of vNIC {holder[1]} of {own}; one has to go"
        return f"{len(self._counted)} vNICs are in the network; at most {self._most} are served"

    def _try_all(self, tried: set[Key]) -> set[str]:
        """Lets those count that can, the first ones first. Returns their hosts."""
        return {key[0] for key in sorted(tried, key=lambda key: self._claims[key][0]) if self._try(key)}

    def _kept_from(self, key: Key, vnic: Vnic) -> _Kept | None:
        """For whom else the name of a vNIC is kept."""
        kept = self._kept.get(key[1])
        return None if kept is None or kept.host == key[0] or kept.mac == vnic.mac else kept

    def _keep_name(self, name: str, kept: _Kept) -> None:
        self._unkeep(name)
        if self._kept_of[kept.host] < MOST_KEPT:
            self._kept[name] = kept
            self._kept_of[kept.host] += 1

    def _unkeep(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._kept_of[kept.host] -= 1

    def _try(self, key: Key) -> bool:
        """Lets one count if it can; else it waits."""
        vnic = self._claims[key][1]
        resources = _resources(vnic)
        taken = [one for one in resources if one in self._holders]
        full = len(self._counted) >= self._most
        is_kept = self._kept_from(key, vnic) is not None
        if taken or is_kept or full:
            for resource in resources:
                self._waiting.setdefault(resource, set()).add(key)
            if not taken and not is_kept:
                self._crowded.add(key)
            return False
        self._unwait(key, resources)
        self._counted.add(key)
        self._unkeep(key[1])
        for resource in resources:
            self._holders[resource] = key
        return True

    def _drop(self, key: Key, vnic: Vnic) -> set[Resource]:
        """Forgets one. Returns what is free now."""
        resources = _resources(vnic)
        del self._claims[key]
        self._unwait(key, resources)
        if key not in self._counted:
            return set()
        self._counted.discard(key)
        for resource in resources:
            del self._holders[resource]
        return set(resources)

    def _unwait(self, key: Key, resources: tuple[Resource, ...]) -> None:
        self._crowded.discard(key)
        for resource in resources:
            waiting = self._waiting.get(resource)
            if waiting is not None:
                waiting.discard(key)
                if not waiting:
                    del self._waiting[resource]


def _resources(vnic: Vnic) -> tuple[Resource, ...]:
    return ((vnic.name, 0), (vnic.mac, vnic.segment))
