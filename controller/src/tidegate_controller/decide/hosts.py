"""The registry of hosts: who is there, what counts of what hosts announce, what each is to know.

```text
 Registration ─▶ allowed? ─▶ Claims ─▶ counted vNICs, uplink ─┐
 lease over, leave ─▶ nothing announced ──────────────────────┴▶ versions of the hosts that see a difference
                                                                    └─▶ Surroundings: peers, remotes, refused
```

A registration replaces the one before. The time comes in as an argument. Versions begin at a number of the
caller's, and grow exactly when something has changed that the host sees.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate_controller.decide.claims import MOST_VNICS, Claims
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

MOST_REFUSED = 4096
"""Announcements of one host that are listed as refused."""


@dataclass
class _Shown:
    """What others and the host itself have seen of its announcements."""

    uplink: Uplink | None = None
    vnics: dict[str, Vnic] = field(default_factory=dict)
    """Those that count."""
    refused: tuple[NotCounted, ...] = ()

    def visible(self, without: Mapping[str, Vnic]) -> set[int]:
        """Segments with vNICs that others see and that are not the same there."""
        if self.uplink is None:
            return set()
        return {vnic.segment for name, vnic in self.vnics.items() if without.get(name) != vnic}


@dataclass
class _Host:
    """What is known of a registered host."""

    until: float
    """When its lease ends."""
    registration: Registration
    uplink: Uplink | None = None
    vnics: dict[str, Vnic] = field(default_factory=dict)
    """Those that it may have; whether they count is in the claims."""
    faults: tuple[NotCounted, ...] = ()
    """Of announcements that it may not make."""
    arrivals: dict[str, tuple[int, Arrival]] = field(default_factory=dict)
    """With the change of the remote that each is about."""
    shown: _Shown = field(default_factory=_Shown)


class Registry:
    """All hosts."""

    def __init__(
        self,
        allowed: Mapping[str, Allowed],
        lease: float,
        began: float,
        first: int = 0,
        most: int = MOST_VNICS,
    ) -> None:
        """`lease` in s; the controller began at `began`; `first` is the first version; `most` vNICs count."""
        self._allowed, self.lease, self._began = allowed, lease, began
        self._first = first
        self._claims = Claims(most)
        self._hosts: dict[str, _Host] = {}
        self._versions: dict[str, int] = {}
        self._in: dict[int, dict[str, int]] = {}
        """How many counted vNICs each host has in a segment."""
        self._terms: dict[str, tuple[int, Vnic]] = {}
        """Of each counted vNIC: the change that brought what it announces now."""
        self._parted: dict[str, tuple[int, Vnic]] = {}
        """Those that have just gone: one that moves to another host at once has the same terms."""
        self._changes = 0
        self._seen: dict[str, int] = {}
        """The change that each host was last told of."""
        self.bumped: set[str] = set()
        """Hosts whose version has grown; the caller empties it."""

    # What is known.

    def registered(self, host: str) -> bool:
        """Whether its lease holds; `expire` ends leases."""
        return host in self._hosts

    def allows(self, host: str) -> bool:
        """Whether it may announce itself."""
        return host in self._allowed

    def run(self, host: str) -> str | None:
        """The process of its agent."""
        there = self._hosts.get(host)
        return there.registration.run if there else None

    def until(self, host: str) -> float | None:
        """When its lease ends."""
        there = self._hosts.get(host)
        return there.until if there else None

    def vnics(self, host: str) -> int:
        """How many of its vNICs count."""
        there = self._hosts.get(host)
        return len(there.shown.vnics) if there else 0

    def uplink(self, host: str) -> Uplink | None:
        """Its uplink that counts."""
        there = self._hosts.get(host)
        return there.uplink if there else None

    def holder(self, name: str) -> tuple[str, Vnic] | None:
        """The host of a vNIC that counts, and the vNIC."""
        return self._claims.holder(name)

    def counts(self, host: str, name: str) -> bool:
        """Whether a vNIC counts as one of a host."""
        return self._claims.counts(host, name)

    def why_not(self, host: str, name: str) -> str:
        """Why a vNIC does not count at a host; empty if it does."""
        there = self._hosts.get(host)
        if there is None:
            return "the host is not registered"
        if name in there.vnics:
            return self._claims.reason(host, name)
        item = f"vnic {name}"
        return next((one.reason for one in there.faults if one.item == item), "it is not announced")

    def arrival(self, host: str, remote: str) -> Arrival | None:
        """What a host says about frames of a remote as it is now; `None`: nothing yet."""
        there, terms = self._hosts.get(host), self._terms.get(remote)
        change, arrival = there.arrivals.get(remote, (0, None)) if there else (0, None)
        return arrival if terms is not None and terms[0] == change else None

    def version(self, host: str) -> int:
        """Of what the host is to know."""
        return self._versions.get(host, self._first)

    def surroundings(self, host: str) -> Surroundings:
        """What a registered host is to know of others."""
        there = self._hosts[host]
        self._seen[host] = self._changes
        found: dict[str, set[int]] = {}
        for segment in {vnic.segment for vnic in there.shown.vnics.values()}:
            for other in self._in.get(segment, ()):
                if other != host and self._hosts[other].uplink is not None:
                    found.setdefault(other, set()).add(segment)
        peers, remotes = [], []
        for other, segments in found.items():
            one = self._hosts[other]
            assert one.uplink is not None
            address, port, budget = one.uplink.address, one.uplink.port, one.uplink.arrival_budget
            peers.append(Peer(other, address, port, tuple(sorted(segments)), budget))
            remotes += [Remote(vnic, other) for vnic in one.shown.vnics.values() if vnic.segment in segments]
        peers.sort(key=lambda peer: peer.host)
        remotes.sort(key=lambda remote: remote.vnic.name)
        return Surroundings(tuple(peers), tuple(remotes), there.shown.refused)

    # What happens.

    def register(self, host: str, registration: Registration, now: float) -> None:
        """A host announces itself, anew or again."""
        there, before = self._hosts.get(host), None
        if there is None:
            there = self._hosts[host] = _Host(now, registration)
            self._bump([host])
        else:
            before, there.registration = there.registration, registration
        there.until = now + self.lease
        if before is None or (before.uplinks, before.vnics) != (registration.uplinks, registration.vnics):
            self._replace(host, there)
        seen = self._seen.get(host, -1)
        there.arrivals = {
            one.remote: (terms[0], one)
            for one in registration.arrivals
            if (terms := self._terms.get(one.remote)) is not None and terms[0] <= seen
        }

    def allow(self, allowed: Mapping[str, Allowed]) -> None:
        """Takes what hosts may announce from now on; those that may nothing any more leave."""
        for host in sorted(self._hosts.keys() - allowed.keys()):
            self.leave(host)
        before, self._allowed = self._allowed, allowed
        for host, there in sorted(self._hosts.items()):
            if allowed[host] != before[host]:
                self._replace(host, there)

    def leave(self, host: str) -> None:
        """A host ends its registration."""
        there = self._hosts.get(host)
        if there is not None:
            there.registration = Registration(there.registration.run)
            self._replace(host, there)
            self._bump([host])
            del self._hosts[host]
            self._seen.pop(host, None)

    def expire(self, now: float) -> list[str]:
        """Ends leases. Returns their hosts."""
        over = sorted(host for host, there in self._hosts.items() if there.until <= now)
        for host in over:
            self.leave(host)
        return over

    def changed(self, host: str) -> None:
        """A path of the host has changed, or why it is as it is."""
        if host in self._hosts:
            self._bump([host])

    def grace(self, now: float) -> bool:
        """Whether hosts may not have had the time to register since the controller began."""
        return now < self._began + self.lease

    # How.

    def _replace(self, host: str, there: _Host) -> None:
        before = set(there.vnics)
        self._parted.clear()
        there.uplink, there.vnics, there.faults = _checked(self._allowed[host], there.registration)
        others = self._claims.replace(host, before, there.vnics)
        # Reasons name the holder, which may be another one now.
        others |= {name for name, one in self._hosts.items() if len(one.vnics) > len(one.shown.vnics)}
        for one in [host, *sorted(others - {host})]:
            self._show(one, self._hosts[one])

    def _show(self, host: str, there: _Host) -> None:
        """Lets others and the host itself see what counts, and makes new versions where that differs."""
        claims, before = self._claims, there.shown
        counted = {name: vnic for name, vnic in there.vnics.items() if claims.counts(host, name)}
        waiting = [name for name in there.vnics if name not in counted]
        faults = [*there.faults, *(NotCounted(f"vnic {name}", claims.reason(host, name)) for name in waiting)]
        after = there.shown = _Shown(there.uplink, counted, tuple(sorted(faults)[:MOST_REFUSED]))
        had, has = (
            {vnic.segment for vnic in before.vnics.values()},
            {vnic.segment for vnic in counted.values()},
        )
        # What this host sees of others begins and ends with its segments.
        own = any(self._visible(segment, host) for segment in had ^ has)
        if own or after.refused != before.refused:
            self._bump([host])
        self._put(host, before.vnics, counted)
        same = _as_peer(before.uplink) == _as_peer(after.uplink)
        differ = before.visible(counted if same else {}) | after.visible(before.vnics if same else {})
        self._bump({other for segment in differ for other in self._in.get(segment, ()) if other != host})

    def _put(self, host: str, before: dict[str, Vnic], counted: dict[str, Vnic]) -> None:
        """Keeps in mind what counts now."""
        gone = [vnic for name, vnic in before.items() if counted.get(name) != vnic]
        come = [vnic for name, vnic in counted.items() if before.get(name) != vnic]
        self._changes += bool(gone or come)
        for vnic in gone:
            self._count(vnic.segment, host, -1)
            self._parted[vnic.name] = self._terms.pop(vnic.name)
        for vnic in come:
            self._count(vnic.segment, host, 1)
            was = self._parted.get(vnic.name)
            self._terms[vnic.name] = was if was is not None and was[1] == vnic else (self._changes, vnic)

    def _visible(self, segment: int, without: str) -> bool:
        return any(
            other != without and self._hosts[other].uplink is not None for other in self._in.get(segment, ())
        )

    def _count(self, segment: int, host: str, by: int) -> None:
        inside = self._in.setdefault(segment, {})
        inside[host] = inside.get(host, 0) + by
        if not inside[host]:
            del inside[host]
        if not inside:
            del self._in[segment]

    def _bump(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._versions[host] = self.version(host) + 1
            self.bumped.add(host)


def _as_peer(uplink: Uplink | None) -> tuple[int, int] | None:
    """What others see of an uplink, beside the address, which is always that of the configuration."""
    return (uplink.port, uplink.arrival_budget) if uplink else None


def _checked(
    allowed: Allowed, registration: Registration
) -> tuple[Uplink | None, dict[str, Vnic], tuple[NotCounted, ...]]:
    """What a host may announce, and the rest with reasons."""
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
        if text:
            faults.append(NotCounted(f"vnic {vnic.name}", text))
        else:
            vnics[vnic.name] = vnic
    return uplink, vnics, tuple(faults)


def _fault(allowed: Allowed, vnic: Vnic) -> str:
    if vnic.segment not in allowed.segments:
        return f"segment {vnic.segment} is not in `segments` of this host in the controller's configuration"
    if not any(macs.has(vnic.mac) for macs in allowed.macs):
        return f"MAC {vnic.mac} is not in `macs` of this host in the controller's configuration"
    if int(vnic.mac[:2], 16) & 1:
        return f"MAC {vnic.mac} is one of a group"
    return ""
