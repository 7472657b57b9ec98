"""Real-time paths: the flow's key on the wire, what it asks for, and what it has."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, order=True)
class FlowKey:
    """What switches can see of a flow: outer addresses, and the outer UDP source port that the host chose."""

    source: str
    """IP address of the sending host's uplink."""
    target: str
    """IP address of the receiving host's uplink."""
    source_port: int
    """1 to 65535, of this flow alone."""
    target_port: int = 4789
    """VXLAN's (RFC 7348, 5)."""


@dataclass(frozen=True, order=True)
class EthernetKey:
    """The same of a plain NIC's frames, which have no outer headers: their tag and their own addresses."""

    vlan: int
    """VLAN id of the frames as hosts send and receive them, 1 to 4094: their segment."""
    priority: int
    """Priority in that tag (PCP, IEEE 802.1Q, 9.6), 1 to 7: the host gives it to frames of the path alone."""
    source_mac: str
    """MAC of the sending vNIC, in lower case."""
    target_mac: str
    """MAC of the receiving vNIC."""


Key = FlowKey | EthernetKey


@dataclass(frozen=True)
class PathRequest:
    """What a host asks for; sizes in bytes, rates in bit/s, times in nanoseconds, as on the host's wire."""

    name: str
    """Unique: `VNIC>REMOTE`."""
    source: str
    """The sending host."""
    target: str
    """The receiving host."""
    key: Key
    dscp: int
    """The mark of its frames as the host sends them, 0 to 63 (RFC 2474); 0 with an `EthernetKey`."""
    rate: int
    burst: int
    smallest_frame: int
    largest_frame: int
    budget: int
    """What the network may take of the deadline."""
    lasting: bool = False
    """An operator asked for it: it does not end with its host's lease."""


class PathState(StrEnum):
    """How a path is."""

    INSTALLING = "installing"
    ACTIVE = "active"
    MOVING = "moving"
    BROKEN = "broken"
    """A link of it is down, and no other route fits."""


@dataclass(frozen=True)
class Route:
    """Links by name, the host's own first, and the level at all of them."""

    links: tuple[str, ...]
    level: int


@dataclass(frozen=True)
class Path:
    """An admitted path."""

    request: PathRequest
    route: Route
    generation: int
    """1 for the first route, one more for each move."""
    tag: int
    """VLAN id of (path, generation), 1 to 4094."""
    bound: int
    """Longest time in the network, ns."""
    far_burst: int
    """The burst as it arrives at the receiving host, bytes."""
    state: PathState = PathState.INSTALLING
    number: int = 0
    """Of the path, for cookies: unique, the same for all generations, 1 to 2^32 - 1."""
    backup: Route | None = None
    """Reserved, too: a way over other links between the switches, at the same level."""

    @property
    def reservation(self) -> str:
        """Its name in the arithmetic: while it moves, both generations are reserved."""
        return f"{self.request.name}#{self.generation}"

    @property
    def backup_reservation(self) -> str:
        """The name of the backup's reservation."""
        return f"{self.reservation}/backup"

    @property
    def reservations(self) -> tuple[str, ...]:
        """All that is reserved for it."""
        return (self.reservation,) if self.backup is None else (self.reservation, self.backup_reservation)
