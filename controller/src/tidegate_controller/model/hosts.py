"""What hosts announce, and what they are told of each other.

```text
 Allowed: by the operator ─┐
 Registration: by a host ──┴▶ (decide/hosts.py) ─▶ Surroundings: peers, remotes, refused
```

Sizes in bytes, rates in bit/s, times in ns, points in time in Unix seconds.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class MacRange:
    """MACs with the same first bits."""

    first: int
    """Its first MAC, as a number."""
    bits: int
    """How many of the 48 bits are the same, 0 to 48."""

    def has(self, mac: str) -> bool:
        """Whether a MAC such as `02:00:00:00:00:01` is in it."""
        shift = 48 - self.bits
        return number_of(mac) >> shift == self.first >> shift


def number_of(mac: str) -> int:
    """Returns a MAC as a number."""
    return int(mac.replace(":", ""), 16)


@dataclass(frozen=True)
class Allowed:
    """What a host may announce, by the configuration."""

    address: str
    """IP address of its outer frames."""
    segments: frozenset[int] = frozenset()
    macs: tuple[MacRange, ...] = ()
    vnics: tuple[str, ...] | None = None
    """Patterns of its vNICs' names, with `*`; `None`: any name."""
    most_vnics: int = 256
    addresses: tuple[Network, ...] | None = None
    """Where its vNICs' addresses are; `None`: anywhere."""
    most_paths: int = 500
    most_rate: int | None = None
    """Of all its paths, on its wire, bit/s; `None`: as much as its link has."""

    def has_name(self, name: str) -> bool:
        """Whether one of the patterns fits a vNIC's name."""
        return self.vnics is None or any(fnmatchcase(name, pattern) for pattern in self.vnics)

    def has_address(self, address: str) -> bool:
        """Whether a vNIC may announce an IP address."""
        if self.addresses is None:
            return True
        there = ip_address(address)
        return any(there in one for one in self.addresses if one.version == there.version)


@dataclass(frozen=True, order=True)
class Uplink:
    """An uplink of a host."""

    name: str
    address: str
    port: int
    """UDP port where it receives VXLAN."""
    arrival_budget: int
    """What the host needs of a deadline after a frame's arrival, ns."""


@dataclass(frozen=True, order=True)
class PlainNic:
    """An uplink of a host whose frames have no outer headers, but a VLAN tag: their segment."""

    name: str
    vlans: tuple[int, ...]
    """Segments that it carries, 1 to 4094."""


@dataclass(frozen=True, order=True)
class Vnic:
    """A vNIC, and what it sends with a deadline."""

    name: str
    mac: str
    segment: int
    addresses: tuple[str, ...] = ()
    rate: int | None = None
    burst: int | None = None
    deadline: int | None = None
    to: tuple[str, ...] = ()
    """vNICs of other hosts to which the deadline holds."""


@dataclass(frozen=True)
class Arrival:
    """Whether a host has admitted frames of a remote."""

    remote: str
    refused: str | None = None
    """Why not; `None`: admitted."""


@dataclass(frozen=True)
class Registration:
    """All that a host announces."""

    run: str
    """Of its agent's process."""
    uplinks: tuple[Uplink, ...] = ()
    vnics: tuple[Vnic, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    view: int = 0
    """The version of the view that `arrivals` were made from; 0: none."""
    plain_nics: tuple[PlainNic, ...] = ()


@dataclass(frozen=True, order=True)
class Peer:
    """Another host with a common segment."""

    host: str
    address: str
    port: int
    segments: tuple[int, ...]
    arrival_budget: int


@dataclass(frozen=True, order=True)
class Remote:
    """A vNIC of another host."""

    vnic: Vnic
    host: str
    plain: bool = False
    """It is behind a plain NIC, and so is the host that is told: frames for it have its segment as VLAN."""


@dataclass(frozen=True, order=True)
class NotCounted:
    """An announcement that does not count."""

    item: str
    """Such as `vnic a1`."""
    reason: str


@dataclass(frozen=True)
class Surroundings:
    """What a host is to know of others, each in order."""

    peers: tuple[Peer, ...] = ()
    remotes: tuple[Remote, ...] = ()
    refused: tuple[NotCounted, ...] = ()
