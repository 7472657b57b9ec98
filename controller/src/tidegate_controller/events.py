"""What the core is told, and what it wants done.

```text
 Requested, Missed, Sampled, TopologyChanged, SwitchDone ... ─▶ core ─▶ Install, SetQueues, Answer ...
```

Effects of one switch are carried out in their order. Each `Install` is answered by `SwitchDone` after its
barrier, or by `SwitchFailed`: the switch refused, or is not there, or vanished.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate_controller.decide.admission import LinkTerms, Wanted
from tidegate_controller.decide.flood import Tree
from tidegate_controller.decide.move import Update
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.intent import Queue, SwitchIntent
from tidegate_controller.model.paths import Path, PathRequest
from tidegate_controller.model.plain import Behind, Tagged
from tidegate_controller.model.topology import Port, Topology


@dataclass(frozen=True)
class Ticket:
    """Which change an order to a switch is part of."""

    owner: str
    """The path, or empty: rules of no path."""
    change: int
    serial: int


@dataclass(frozen=True)
class Requested:
    """A host asks for a path, or for other terms of one that it has."""

    asker: int
    """Number of the question; the answer carries it."""
    request: PathRequest


@dataclass(frozen=True)
class Released:
    """A host needs a path no more."""

    asker: int
    name: str


@dataclass(frozen=True)
class Missed:
    """Frames of a path that were late, in one batch."""

    path: str
    count: int
    worst: int
    """The longest time beyond the deadline, ns."""
    time: float
    """When the last of them arrived, Unix time (s)."""


@dataclass(frozen=True)
class QueueSample:
    """One queue of a port, as its switch reports it."""

    port: Port
    queue: int
    drops: int
    """Since the switch began."""


@dataclass(frozen=True)
class Sampled:
    """Statistics of queues."""

    samples: tuple[QueueSample, ...]


@dataclass(frozen=True)
class Dropped:
    """A port has dropped frames that no queue has: all its paths are in danger."""

    port: Port
    frames: int
    """Since the look before."""


@dataclass(frozen=True)
class TopologyChanged:
    """All that works now, and terms of links that may be new."""

    topology: Topology
    terms: tuple[LinkTerms, ...]


@dataclass(frozen=True)
class VlansAnnounced:
    """VLANs of all plain NICs that hosts announce now."""

    vlans: frozenset[int]


@dataclass(frozen=True)
class PlainNics:
    """What is behind plain NICs of hosts; `NOTHING`: no more. Others are as they were."""

    hosts: Mapping[str, Behind]


@dataclass(frozen=True)
class SwitchDone:
    """A barrier was answered."""

    switch: str
    ticket: Ticket


@dataclass(frozen=True)
class SwitchFailed:
    """A switch refused an order, or vanished with it."""

    switch: str
    ticket: Ticket
    error: str


@dataclass(frozen=True)
class QueuesDone:
    """Queues are set."""

    number: int


@dataclass(frozen=True)
class QueuesFailed:
    """A switch did not take queues, or is not there."""

    number: int
    error: str


@dataclass(frozen=True)
class SwitchBack:
    """A switch is connected, perhaps with old rules."""

    switch: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Requested
    | Released
    | Missed
    | Sampled
    | Dropped
    | TopologyChanged
    | VlansAnnounced
    | PlainNics
    | SwitchDone
    | SwitchFailed
    | QueuesDone
    | QueuesFailed
    | SwitchBack
    | Tick
)


@dataclass(frozen=True)
class Install:
    """Change rules of a switch."""

    ticket: Ticket
    update: Update


@dataclass(frozen=True)
class Sync:
    """Make a switch hold this and nothing else of ours."""

    switch: str
    intent: SwitchIntent


@dataclass(frozen=True)
class SetQueues:
    """Set the queues of ports, in the order of the numbers; answered by `QueuesDone` or `QueuesFailed`."""

    number: int
    queues: dict[Port, tuple[Queue, ...]] = field(default_factory=dict)
    watched: frozenset[Port] = frozenset()
    """Ports among these with a link to another switch: BFD runs there."""


@dataclass(frozen=True)
class SavePath:
    """Keep a path beyond the process."""

    path: Path


@dataclass(frozen=True)
class SaveChange:
    """Keep a change that is under way, before any later effect: a successor goes on with it.

    It is over with the next `SavePath`, `DropPath` or `DropChange` of this path.
    """

    old: Path | None
    new: Path
    reserved: tuple[Wanted, ...]
    """All that is reserved for both."""
    narrow: tuple[Wanted, ...]
    freed: frozenset[str]


@dataclass(frozen=True)
class DropChange:
    """A change has failed; the path is as it was."""

    name: str


@dataclass(frozen=True)
class SaveNetwork:
    """Keep the topology that rules follow: a successor begins with it, not with nothing."""

    topology: Topology
    terms: tuple[LinkTerms, ...]
    """Of all links that were ever seen."""
    tree: Tree


@dataclass(frozen=True)
class SaveBehind:
    """Keep what is behind a host's plain NIC; `NOTHING`: forget it."""

    host: str
    behind: Behind


@dataclass(frozen=True)
class SaveTagged:
    """Keep the ids of best effort between plain NICs."""

    tagged: Tagged


@dataclass(frozen=True)
class DropPath:
    """Forget a path."""

    name: str


@dataclass(frozen=True)
class SaveDecision:
    """Keep a decision."""

    decision: Decision


@dataclass(frozen=True)
class Answer:
    """To a host's question: the path, or why not."""

    asker: int
    path: Path | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class TellHost:
    """A path of a host has changed without its question."""

    host: str
    path: Path
    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Wake:
    """Send a `Tick` at this time."""

    at: float


Effect = (
    Install
    | Sync
    | SetQueues
    | SavePath
    | DropPath
    | SaveChange
    | DropChange
    | SaveNetwork
    | SaveBehind
    | SaveTagged
    | SaveDecision
    | Answer
    | TellHost
    | Wake
)
