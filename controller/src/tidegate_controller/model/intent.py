"""What a switch is to hold: rules, groups, queues and watched ports, without any protocol.

Queues have the same numbers at all ports:

| queue | traffic | priority |
|---|---|---|
| 0, `CONTROL` | what switches send by themselves: BFD, LLDP | last, with a minimum of its own |
| 1 to 7, `queue_of` | real-time level 0 to 6 | the level |
| 8, `BEST_EFFORT` | all other frames, by a rule | last |

No rule can give BFD frames a queue: a switch sends them by queue 0. If best effort were there, too, its
congestion would lose them, and links that work would count as broken. The maximum of queue 0 is low, so that
frames which a rule forgot are slow, and harm no other.
"""

from dataclasses import dataclass, field
from enum import IntEnum

IPV4, ARP, TAG_TYPE, IPV6, LLDP = 0x0800, 0x0806, 0x8100, 0x86DD, 0x88CC
"""EtherTypes (IEEE 802 numbers)."""
TCP, UDP = 6, 17
"""Protocols (IANA)."""
CONTROL = 0
"""The queue of frames that no rule has put into another one."""
CONTROL_RATE = 2_000_000
"""bit/s: minimum and maximum of that queue; BFD and LLDP of a port take 20 kbit/s."""
MOST_LEVELS = 7
"""Real-time levels (`LEVELS` in crates/contract/src/path/network.rs)."""
BEST_EFFORT = MOST_LEVELS + 1
"""The queue of best effort."""


def queue_of(level: int) -> int:
    """Returns the number of a real-time level's queue."""
    return level + 1


class Table(IntEnum):
    """The tables of the pipeline."""

    EDGE = 0
    """Frames from hosts get their path's mark and tag; marks of others are cleared."""
    QUEUE = 1
    """The mark chooses the queue: static."""
    WAY = 2
    """The tag, or the destination of best effort, chooses the port."""
    PLACE = 3
    """Best effort of a plain NIC, from a host here: VLAN and destination choose the host."""
    ONTO = 4
    """The same: the host, by its number in the place of the VLAN, chooses tag and port."""


@dataclass(frozen=True)
class Output:
    """Send by a port."""

    port: int


@dataclass(frozen=True)
class ToController:
    """Send to the controller."""


@dataclass(frozen=True)
class ToGroup:
    """Send as a group says."""

    group: int


@dataclass(frozen=True)
class SetQueue:
    """Choose the queue of the port."""

    queue: int


@dataclass(frozen=True)
class SetDscp:
    """Write the mark (IPv4 or IPv6)."""

    dscp: int


@dataclass(frozen=True)
class PushTag:
    """Add a VLAN tag (0x8100) with this id."""

    tag: int


@dataclass(frozen=True)
class PopTag:
    """Remove the VLAN tag."""


@dataclass(frozen=True)
class SetTag:
    """Write another id into the tag that is there."""

    tag: int


@dataclass(frozen=True)
class SetPriority:
    """Write the priority of the tag that is there (PCP)."""

    priority: int


@dataclass(frozen=True)
class Goto:
    """Go on at a later table; the last action."""

    table: Table


Action = Output | ToController | ToGroup | SetQueue | SetDscp | PushTag | PopTag | SetTag | SetPriority | Goto
ANY_TAG = -1
"""In the place of a VLAN id: a tag with any id."""


@dataclass(frozen=True)
class Match:
    """Fields of a frame; `None` matches every value. Addresses are IPv4 or IPv6 by their text."""

    in_port: int | None = None
    eth_type: int | None = None
    eth_src: str | None = None
    eth_dst: str | None = None
    tag: int | None = None
    """VLAN id; 0: without a tag; `ANY_TAG`."""
    priority: int | None = None
    """Of the tag, 0 to 7; only beside a `tag` that is there."""
    dscp: int | None = None
    protocol: int | None = None
    source: str | None = None
    target: str | None = None
    source_port: int | None = None
    target_port: int | None = None


OURS = 0x7469_6465 << 32
"""The upper half of the cookies of all our rules: "tide". The lower half says what a rule belongs to."""
OURS_MASK = 0xFFFF_FFFF << 32
OUR_GROUPS = range(1, 4095)
"""Numbers of our groups, which have no cookie: those of tags."""


@dataclass(frozen=True)
class Rule:
    """One entry of a table. Table, priority and match are its key, as in OpenFlow 1.3, 6.4."""

    table: Table
    priority: int
    match: Match
    actions: tuple[Action, ...]
    """None: drop."""
    cookie: int
    """Tells ours (`OURS`) from others', and which path it belongs to."""


@dataclass(frozen=True)
class Group:
    """Fast failover: the first port that is up is taken (OpenFlow 1.3, 5.6.1)."""

    number: int
    """Of `OUR_GROUPS`."""
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Queue:
    """A queue of a port (linux-htb): rates in bit/s, burst in bytes."""

    number: int
    minimum: int
    """At least what is reserved. Of minima beyond the port's rate together, the last priorities get less."""
    maximum: int
    """The greatest maximum of a port's queues is the rate of the port."""
    burst: int
    priority: int
    """0 goes first; at most 7 (linux-htb has eight)."""


def control_queue(levels: int) -> Queue:
    """Returns queue 0 of a port with so many levels."""
    return Queue(CONTROL, CONTROL_RATE, CONTROL_RATE, 16_000, levels)


@dataclass
class SwitchIntent:
    """All of one switch."""

    rules: set[Rule] = field(default_factory=set)
    groups: set[Group] = field(default_factory=set)
    queues: dict[int, tuple[Queue, ...]] = field(default_factory=dict)
    """By port."""
    watched: set[int] = field(default_factory=set)
    """Ports with a link to another switch, whose silence is a failure (BFD, RFC 5880)."""
