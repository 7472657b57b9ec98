"""The registry of hosts: who is there, what counts of what hosts announce, what each is to know.

```text
 Registration ─▶ allowed? ─▶ Claims ─▶ counted vNICs, uplink ─┐
 leave ─▶ nothing announced ──────────────────────────────────┼▶ versions of the hosts that see a difference
 lease over ─▶ the same, but it stays a peer: frames go on ───┘
                                                                    └─▶ Surroundings: peers, remotes, refused
```

A registration replaces the one before. The time comes in as an argument. All changes have numbers, beginning
at a number of the caller's; the version of a host is that of the newest change before its view was published.
So the word of a host about a remote is about what it was told exactly if the view that it names is no older
than the change of the remote. Between two views of a host is some time, so that one host that changes again
and again does not make all others read new views all the time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidegate_controller.decide.claims import MOST_VNICS, Claims
from tidegate_controller.decide.places import Places, permitted, without_room
from tidegate_controller.model.hosts import (
    Allowed,
    Arrival,
    NotCounted,
    Peer,
    Registration,
    Remote,
    Surroundings,
    Uplink,
    Vnic,
)
from tidegate_controller.model.plain import NOTHING, Behind, Place

MOST_REFUSED = 4096
"""Announcements of one host that are listed as refused."""
PACE = 0.2
"""s between two versions of a host's view, unless the host itself announces something else."""


@dataclass
class _Shown:
    """What others and the host itself have seen of its announcements."""

    uplink: Uplink | None = None
    vlans: frozenset[int] = frozenset()
    vnics: dict[str, Vnic] = field(default_factory=dict)
    """Those that count."""
    refused: tuple[NotCounted, ...] = ()

    def visible(self, without: Mapping[str, Vnic]) -> set[int]:
        """Finds segments with vNICs that others see and that are not the same there."""
        differ = {vnic.segment for name, vnic in self.vnics.items() if without.get(name) != vnic}
        return differ if self.uplink is not None else differ & self.vlans


@dataclass
class _Host:
    """What is known of a registered host."""

    until: float
    """When its lease ends."""
    registration: Registration
    uplink: Uplink | None = None
    vlans: frozenset[int] = frozenset()
    """Of its plain NIC."""
    vnics: dict[str, Vnic] = field(default_factory=dict)
    """Those that it may have; whether they count is in the claims."""
    faults: tuple[NotCounted, ...] = ()
    """Of announcements that it may not make."""
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    view: int = 0
    """The version that they were made from; 0: none of this registry."""
    shown: _Shown = field(default_factory=_Shown)
    is_over: bool = False
    """Its lease has ended: its plain NIC keeps what is behind it."""


class Registry:
    """All hosts."""

    def __init__(
        self,
        allowed: Mapping[str, Allowed],
        lease: float,
        began: float,
        first: int = 0,
        most: int = MOST_VNICS,
        behind: Mapping[str, Behind] | None = None,
    ) -> None:
        """`lease` in s; the controller began at `began`; `first` is the first version; `most` vNICs count.

        `behind` is known of plain NICs from before.
        """
        self._allowed, self.lease, self._began = allowed, lease, began
        self._claims = Claims(most, lease)
        self._hosts: dict[str, _Host] = {}
        self._versions: dict[str, int] = {}
        self._in: dict[int, dict[str, int]] = {}
        """How many counted vNICs each host has in a segment."""
        self._terms: dict[str, tuple[int, Vnic]] = {}
        """Of each counted vNIC: the change that brought what it announces now."""
        self._parted: dict[str, tuple[int, Vnic]] = {}
        """Those that have just gone: one that moves to another host at once has the same terms."""
        self._carried: Counter[int] = Counter()
        """How many hosts have a plain NIC with a VLAN."""
        self.places = Places()
        """What is behind plain NICs; that of hosts that are away, too."""
        for host, there in sorted((behind or {}).items()):
            self.places.tell(host, there)
        self.moved: set[str] = set()
        """Hosts where that has changed, until the caller has taken it."""
        self._crowded: set[str] = set()
        """Hosts where something found no room there."""
        self._away: dict[str, tuple[Uplink, frozenset[int]]] = {}
        """Hosts whose lease ended, with the segments of their vNICs: these may still send and receive."""
        self._first = self._changes = first
        self._time = began
        """Of the last look."""
        self._published: dict[str, float] = {}
        """When each host's version grew last."""
        self.bumped: set[str] = set()
        """Hosts that are to see something else; `publish` makes versions of that."""

    # What is known.

    def registered(self, host: str) -> bool:
        """Tells whether its lease holds; `expire` ends leases."""
        return host in self._hosts

    def allows(self, host: str) -> bool:
        """Whether it may announce itself."""
        return host in self._allowed

    def run(self, host: str) -> str | None:
        """Returns the process of its agent."""
        there = self._hosts.get(host)
        return there.registration.run if there else None

    def until(self, host: str) -> float | None:
        """Returns when its lease ends."""
        there = self._hosts.get(host)
        return there.until if there else None

    def vnics(self, host: str) -> int:
        """Returns how many of its vNICs count."""
        there = self._hosts.get(host)
        return len(there.shown.vnics) if there else 0

    def uplink(self, host: str) -> Uplink | None:
        """Returns its uplink that counts."""
        there = self._hosts.get(host)
        return there.uplink if there else None

    def vlans(self, host: str) -> frozenset[int]:
        """Returns the VLANs that its plain NIC carries; none without one."""
        there = self._hosts.get(host)
        return there.vlans if there else frozenset()

    def all_vlans(self) -> frozenset[int]:
        """Returns the VLANs of all plain NICs."""
        return frozenset(self._carried)

    def holder(self, name: str) -> tuple[str, Vnic] | None:
        """Returns the host of a vNIC that counts, and the vNIC."""
        return self._claims.holder(name)

    def counts(self, host: str, name: str) -> bool:
        """Tells whether a vNIC counts as one of a host."""
        return self._claims.counts(host, name)

    def why_not(self, host: str, name: str) -> str:
        """Says why a vNIC does not count at a host; empty if it does."""
        there = self._hosts.get(host)
        if there is None:
            return "the host is not registered"
        if name in there.vnics:
            return self._claims.reason(host, name)
        item = f"vnic {name}"
        return next((one.reason for one in there.faults if one.item == item), "it is not announced")

    def arrival(self, host: str, remote: str) -> Arrival | None:
        """Returns what a host says about frames of a remote as it is now; `None`: nothing yet."""
        there, terms = self._hosts.get(host), self._terms.get(remote)
        if there is None or terms is None or there.view < terms[0]:
            return None
        return there.arrivals.get(remote)

    def refused(self, host: str) -> tuple[NotCounted, ...]:
        """Returns what does not count of its announcements."""
        there = self._hosts.get(host)
        return there.shown.refused if there else ()

    def version(self, host: str) -> int:
        """Returns the version of what the host is to know."""
        return self._versions.get(host, self._first)

    def surroundings(self, host: str) -> Surroundings:
        """Returns what a registered host is to know of others."""
        there = self._hosts[host]
        found: dict[str, set[int]] = {}
        peers, remotes = [], []
        own = {vnic.segment for vnic in there.shown.vnics.values()}
        for segment in own:
            for other in self._in.get(segment, {}).keys() - {host}:
                far = self._hosts[other]
                if segment in there.vlans & far.vlans:
                    behind = (vnic for vnic in far.shown.vnics.values() if vnic.segment == segment)
                    remotes += [Remote(vnic, other, True) for vnic in behind]
                elif far.uplink is not None:
                    found.setdefault(other, set()).add(segment)
        for other, segments in found.items():
            one = self._hosts[other]
            assert one.uplink is not None
            address, port, budget = one.uplink.address, one.uplink.port, one.uplink.arrival_budget
            peers.append(Peer(other, address, port, tuple(sorted(segments)), budget))
            remotes += [Remote(vnic, other) for vnic in one.shown.vnics.values() if vnic.segment in segments]
        for other, (uplink, inside) in self._away.items():
            if common := tuple(sorted(own & inside)):
                peers.append(Peer(other, uplink.address, uplink.port, common, uplink.arrival_budget))
        peers.sort(key=lambda peer: peer.host)
        remotes.sort(key=lambda remote: remote.vnic.name)
        return Surroundings(tuple(peers), tuple(remotes), there.shown.refused)

    # What happens.

    def register(self, host: str, registration: Registration, now: float) -> int:
        """Takes what a host announces, anew or again. Returns how many other hosts see a difference."""
        self._time = now
        there, before = self._hosts.get(host), None
        if there is None:
            there = self._hosts[host] = _Host(now, registration)
            _, segments = self._away.pop(host, (None, frozenset[int]()))
            self._bump([host, *(other for segment in segments for other in self._in.get(segment, ()))])
        else:
            before, there.registration = there.registration, registration
        there.until = now + self.lease
        there.arrivals = {one.remote: one for one in registration.arrivals}
        # A greater one is of another controller, whose clock is ahead of ours.
        there.view = registration.view if registration.view <= self.version(host) else 0
        if before is not None and _announced(before) == _announced(registration):
            return 0
        others = self._replace(host, there)
        # The answer shows the host what became of its words.
        self._published.pop(host, None)
        return others

    def allow(self, allowed: Mapping[str, Allowed]) -> None:
        """Takes what hosts may announce from now on; those that may nothing any more leave."""
        for host in sorted(self._hosts.keys() - allowed.keys()):
            self.leave(host)
        before, self._allowed = self._allowed, allowed
        # An operator's word is seen at once.
        self._published.clear()
        for host, there in sorted(self._hosts.items()):
            if allowed[host] != before[host]:
                self._replace(host, there)
        for host in sorted(self.places.all().keys() - self._hosts.keys()):
            left = permitted(self.places.behind(host), allowed.get(host))
            self.moved |= self.places.tell(host, left)[0]

    def leave(self, host: str) -> int:
        """Ends a host's registration. Returns how many other hosts see a difference."""
        there = self._hosts.get(host)
        if there is None:
            # What is behind its plain NIC has outlived its lease.
            self.moved |= self.places.tell(host, NOTHING)[0]
            return 0
        there.registration = Registration(there.registration.run)
        others = self._replace(host, there)
        self._bump([host])
        del self._hosts[host]
        return others

    def expire(self, now: float) -> list[str]:
        """Ends leases, and the time of names that were kept. Returns hosts whose lease is over."""
        self._time = now
        for host in sorted(self._claims.expire(now)):
            self._show(host, self._hosts[host])
        over = sorted(host for host, there in self._hosts.items() if there.until <= now)
        for host in over:
            shown = self._hosts[host].shown
            self._hosts[host].is_over = True
            self.leave(host)
            if shown.uplink is not None and shown.vnics:
                segments = frozenset(vnic.segment for vnic in shown.vnics.values())
                self._away[host] = (shown.uplink, segments)
        return over

    def changed(self, host: str) -> None:
        """Notes that a path of the host has changed, or why it is as it is."""
        if host in self._hosts:
            self._bump([host])
            # The core lets a path rest after a change, so this has a pace already.
            self._published.pop(host, None)

    def publish(self, now: float) -> list[str]:
        """Makes new versions for hosts that are to see something else. Returns these hosts."""
        due = [host for host in self.bumped if now >= self._published.get(host, now - PACE) + PACE]
        for host in due:
            self._versions[host] = self._changes
            self._published[host] = now
        self.bumped.difference_update(due)
        return due

    def grace(self, now: float) -> bool:
        """Tells whether hosts may not have had the time to register since the controller began."""
        return now < self._began + self.lease

    # How.

    def _replace(self, host: str, there: _Host) -> int:
        """Puts an announcement in place of the one before. Returns how many other hosts see a difference."""
        waiting, self.bumped = self.bumped, set()
        before = set(there.vnics)
        self._parted.clear()
        there.uplink, there.vnics, faults = _checked(self._allowed[host], there.registration)
        carried, (there.vlans, more) = there.vlans, _plain(self._allowed[host], there.registration)
        self._carried.update(there.vlans)
        self._carried.subtract(carried)
        for vlan in carried - there.vlans:
            if not self._carried[vlan]:
                del self._carried[vlan]
        there.faults = faults + more
        others = self._claims.replace(host, before, there.vnics, self._time)
        # Reasons name the holder, which may be another one now.
        others |= {name for name, one in self._hosts.items() if len(one.vnics) > len(one.shown.vnics)}
        others |= self._crowded & self._hosts.keys()
        for one in [host, *sorted(others - {host})]:
            self._show(one, self._hosts[one])
        found = len(self.bumped - {host})
        self.bumped |= waiting
        return found

    def _show(self, host: str, there: _Host) -> None:
        """Lets others and the host itself see what counts, and makes new versions where that differs."""
        claims, before = self._claims, there.shown
        counted = {name: vnic for name, vnic in there.vnics.items() if claims.counts(host, name)}
        waiting = [name for name in there.vnics if name not in counted]
        faults = [*there.faults, *(NotCounted(f"vnic {name}", claims.reason(host, name)) for name in waiting)]
        faults += self._place(host, there, counted)
        after = there.shown = _Shown(there.uplink, there.vlans, counted, tuple(sorted(faults)[:MOST_REFUSED]))
        had, has = (
            {vnic.segment for vnic in before.vnics.values()},
            {vnic.segment for vnic in counted.values()},
        )
        # What this host sees of others begins and ends with its segments, and VLANs of its plain NIC.
        turned = (before.vlans ^ after.vlans) & (had | has)
        own = any(self._visible(segment, host, before.vlans | after.vlans) for segment in had ^ has)
        own = own or any(self._behind(segment, host) for segment in turned)
        self._changes += 1
        if own or after.refused != before.refused:
            self._bump([host])
        self._put(host, before.vnics, counted)
        same = _as_peer(before.uplink) == _as_peer(after.uplink)
        differ = before.visible(counted if same else {}) | after.visible(before.vnics if same else {})
        outer = before.uplink is not None or after.uplink is not None
        for segment in differ | turned:
            others = self._in.get(segment, {}).keys() - {host} if outer and segment in differ else set[str]()
            self._bump(others | self._behind(segment, host))

    def _place(self, host: str, there: _Host, counted: dict[str, Vnic]) -> list[NotCounted]:
        """Puts what counts behind the host's plain NIC. Returns what found no room."""
        if there.is_over:
            return []
        vnics = [vnic for vnic in counted.values() if vnic.segment in there.vlans]
        places = frozenset(Place(vnic.segment, vnic.mac) for vnic in vnics)
        changed, rest = self.places.tell(host, Behind(there.vlans, places))
        self.moved |= changed
        if rest == NOTHING:
            self._crowded.discard(host)
            return []
        self._crowded.add(host)
        return without_room(rest, there.registration.plain_nics[0].name, vnics)

    def _put(self, host: str, before: dict[str, Vnic], counted: dict[str, Vnic]) -> None:
        """Keeps in mind what counts now."""
        gone = [vnic for name, vnic in before.items() if counted.get(name) != vnic]
        come = [vnic for name, vnic in counted.items() if before.get(name) != vnic]
        for vnic in gone:
            self._count(vnic.segment, host, -1)
            self._parted[vnic.name] = self._terms.pop(vnic.name)
        for vnic in come:
            self._count(vnic.segment, host, 1)
            was = self._parted.get(vnic.name)
            self._terms[vnic.name] = was if was is not None and was[1] == vnic else (self._changes, vnic)

    def _visible(self, segment: int, without: str, vlans: frozenset[int]) -> bool:
        """Whether a host with these VLANs sees others in a segment."""
        return (
            any(segment in segments for _, segments in self._away.values())
            or any(
                other != without and self._hosts[other].uplink is not None
                for other in self._in.get(segment, ())
            )
            or (segment in vlans and bool(self._behind(segment, without)))
        )

    def _behind(self, segment: int, without: str) -> set[str]:
        """Finds other hosts with vNICs in a segment whose plain NIC has it as VLAN."""
        inside = self._in.get(segment, ())
        return {other for other in inside if other != without and segment in self._hosts[other].vlans}

    def _count(self, segment: int, host: str, by: int) -> None:
        inside = self._in.setdefault(segment, {})
        inside[host] = inside.get(host, 0) + by
        if not inside[host]:
            del inside[host]
        if not inside:
            del self._in[segment]

    def _bump(self, hosts: Iterable[str]) -> None:
        self._changes += 1
        self.bumped.update(hosts)


def _as_peer(uplink: Uplink | None) -> tuple[int, int] | None:
    """Returns what others see of an uplink, beside the address, which is always that of the configuration."""
    return (uplink.port, uplink.arrival_budget) if uplink else None


def _announced(one: Registration) -> tuple[object, ...]:
    """Returns the part of a registration that others may see."""
    return one.uplinks, one.plain_nics, one.vnics


def _plain(allowed: Allowed, registration: Registration) -> tuple[frozenset[int], tuple[NotCounted, ...]]:
    """Returns the VLANs of a host's plain NIC that it may have, and why the rest does not count."""
    if not registration.plain_nics:
        return frozenset(), ()
    first, *others = registration.plain_nics
    one_port = f"plain NIC {first.name} counts; a host has one port at the switches of this network"
    faults = [NotCounted(f"uplink {one.name}", one_port) for one in others]
    vlans = allowed.segments.intersection(first.vlans)
    if foreign := sorted(set(first.vlans) - vlans):
        few = ", ".join(map(str, foreign[:8])) + (", ..." if len(foreign) > 8 else "")
        text = (
            f"VLANs {few} are not in `segments` of this host in the controller's configuration; others count"
        )
        faults.append(NotCounted(f"uplink {first.name}", text))
    return vlans, tuple(faults)


def _checked(
    allowed: Allowed, registration: Registration
) -> tuple[Uplink | None, dict[str, Vnic], tuple[NotCounted, ...]]:
    """Divides announcements into what a host may announce, and the rest with reasons."""
    faults: list[NotCounted] = []
    uplink: Uplink | None = None
    for one in registration.uplinks:
        if one.address != allowed.address:
            text = f"its address is {one.address}; the configuration has {allowed.address} for this host"
            faults.append(NotCounted(f"uplink {one.name}", text))
        elif uplink is not None:
            faults.append(NotCounted(f"uplink {one.name}", f"uplink {uplink.name} has the same address"))
        else:
            uplink = one
    vnics: dict[str, Vnic] = {}
    for vnic in registration.vnics:
        text = _fault(allowed, vnic)
        if vnic.name in vnics:
            text = "it is announced twice"
        elif len(vnics) >= allowed.most_vnics:
            text = f"it is one more than `vnics-at-most` of this host, {allowed.most_vnics}"
        if text:
            faults.append(NotCounted(f"vnic {vnic.name}", text))
            continue
        foreign = [address for address in vnic.addresses if not allowed.has_address(address)]
        if foreign:
            text = f"{', '.join(foreign)}: not in `addresses` of this host; the vNIC counts without"
            faults.append(NotCounted(f"addresses of vnic {vnic.name}", text))
            own = tuple(address for address in vnic.addresses if address not in foreign)
            vnics[vnic.name] = replace(vnic, addresses=own)
        else:
            vnics[vnic.name] = vnic
    return uplink, vnics, tuple(faults)


def _fault(allowed: Allowed, vnic: Vnic) -> str:
    if not allowed.has_name(vnic.name):
        return "its name fits no pattern of `vnics` of this host in the controller's configuration"
    if vnic.segment not in allowed.segments:
        return f"segment {vnic.segment} is not in `segments` of this host in the controller's configuration"
    if not any(macs.has(vnic.mac) for macs in allowed.macs):
        return f"MAC {vnic.mac} is not in `macs` of this host in the controller's configuration"
    if int(vnic.mac[:2], 16) & 1:
        return f"MAC {vnic.mac} is one of a group"
    return ""
