"""Which vNIC is behind which host's plain NIC.

```text
 Behind, of one host ─▶ Places.tell ─▶ what counts: a place has one host, the last one that was told
                                    └▶ what finds no room
```

The same of what hosts announce (`hosts.py`) and of what rules follow (`core.py`): that outlives the process,
so that a host whose agent is away, or has not registered at a new controller yet, keeps its frames.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tidegate_controller.model.hosts import Allowed, NotCounted, Vnic
from tidegate_controller.model.plain import NOTHING, Behind, Place

MOST_PLACES = 4096
"""vNICs in the network: a switch has a rule for each, at most."""
MOST_VLANS = 512
"""VLANs in the network: each takes a tag, two while its tree changes."""


class Places:
    """Of one network."""

    def __init__(self, most_places: int = MOST_PLACES, most_vlans: int = MOST_VLANS) -> None:
        self._most_places, self._most_vlans = most_places, most_vlans
        self._behind: dict[str, Behind] = {}
        self._holders: dict[Place, str] = {}
        self._carried: Counter[int] = Counter()
        """How many hosts have a VLAN."""

    def behind(self, host: str) -> Behind:
        """Returns what is behind a host's plain NIC."""
        return self._behind.get(host, NOTHING)

    def all(self) -> Mapping[str, Behind]:
        """Returns all hosts with plain NICs."""
        return self._behind

    def tell(self, host: str, wanted: Behind) -> tuple[set[str], Behind]:
        """Takes what is behind a host now, in place of what was there.

        What was there keeps its room; of what is new, the first ones in order get what is left. Returns hosts
        where something differs, and what found no room.
        """
        had = self.behind(host)
        others = {vlan for vlan, hosts in self._carried.items() if hosts > (vlan in had.vlans)}
        vlans = wanted.vlans & (others | had.vlans)
        room = max(0, self._most_vlans - len(others | vlans))
        vlans |= frozenset(sorted(wanted.vlans - vlans)[:room])
        may = {place for place in wanted.places if place.vlan in vlans}
        places = {place for place in may if place in self._holders}
        left = had.places - places
        room = max(0, self._most_places - (len(self._holders) - len(left)))
        places |= set(sorted(may - places)[:room])
        changed = self._take_from_others(host, places)
        now = Behind(vlans, frozenset(places))
        if now != had:
            changed.add(host)
            self._replace(host, had, now)
        return changed, Behind(wanted.vlans - vlans, wanted.places - places)

    def _take_from_others(self, host: str, places: set[Place]) -> set[str]:
        """A vNIC that is at a host now is at no other one. Returns these."""
        taken: dict[str, set[Place]] = {}
        for place in places:
            holder = self._holders.get(place, host)
            if holder != host:
                taken.setdefault(holder, set()).add(place)
        for other, gone in taken.items():
            there = self._behind[other]
            self._replace(other, there, Behind(there.vlans, there.places - gone))
        return set(taken)

    def _replace(self, host: str, had: Behind, now: Behind) -> None:
        for place in had.places - now.places:
            del self._holders[place]
        self._holders.update(dict.fromkeys(now.places, host))
        self._carried.update(now.vlans)
        self._carried.subtract(had.vlans)
        self._carried = +self._carried
        if now == NOTHING:
            self._behind.pop(host, None)
        else:
            self._behind[host] = now


def without_room(rest: Behind, uplink: str, vnics: Iterable[Vnic]) -> list[NotCounted]:
    """Says what of a host's announcements found no room."""
    lost = "without a path their frames do not pass"
    found = []
    if rest.vlans:
        few = ", ".join(map(str, sorted(rest.vlans)[:8])) + (", ..." if len(rest.vlans) > 8 else "")
        text = f"VLANs {few}: the network has {MOST_VLANS} VLANs of plain NICs already; {lost}"
        found.append(NotCounted(f"uplink {uplink}", text))
    for vnic in vnics:
        if Place(vnic.segment, vnic.mac) in rest.places and vnic.segment not in rest.vlans:
            text = f"{MOST_PLACES} vNICs are behind plain NICs already; {lost}, those to others are broadcast"
            found.append(NotCounted(f"vnic {vnic.name}", f"it counts, but {text}"))
    return found


def permitted(behind: Behind, allowed: Allowed | None) -> Behind:
    """Returns the part that a host may have by the configuration; `None`: it is not there."""
    if allowed is None:
        return NOTHING
    vlans = behind.vlans & allowed.segments
    places = (place for place in behind.places if place.vlan in vlans)
    return Behind(vlans, frozenset(one for one in places if any(macs.has(one.mac) for macs in allowed.macs)))
