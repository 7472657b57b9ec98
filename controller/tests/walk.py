"""A packet-walking simulator over what switches hold: the oracle of the tests of rules.

```text
 SwitchIntent of each switch, cables, ports that are down
   Frame at a port ─▶ tables of the switch ─▶ Frame at the port of the next one ... ─▶ Arrival at the edge
```

It follows OpenFlow 1.3: the rule of the highest priority, actions in order, never back by the port it came
by, the first live port of a group. Two rules of one priority that both match are an error: a switch may take
either.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tidegate_controller.model.intent import (
    ANY_TAG,
    Goto,
    Match,
    Output,
    PopTag,
    PushTag,
    Rule,
    SetDscp,
    SetPriority,
    SetQueue,
    SetTag,
    SwitchIntent,
    Table,
    ToController,
    ToGroup,
)
from tidegate_controller.model.paths import EthernetKey, PathRequest
from tidegate_controller.model.topology import Port, Topology

MOST_STEPS = 400


@dataclass(frozen=True)
class Frame:
    """What switches see of a frame."""

    eth_dst: str
    eth_type: int = 0x0800
    dscp: int | None = 0
    protocol: int | None = 17
    source: str | None = None
    target: str | None = None
    source_port: int | None = None
    target_port: int | None = None
    tag: int = 0
    """0: none."""
    eth_src: str | None = None
    priority: int = 0
    """Of the tag."""


@dataclass(frozen=True)
class Sent:
    """A frame that leaves a switch."""

    port: Port
    frame: Frame
    queue: int


CONTROLLER = Port("controller", 0)


def frame_of(request: PathRequest, mac: str) -> Frame:
    """A frame of a path as its host sends it; `mac` is that of the receiving host."""
    key = request.key
    if isinstance(key, EthernetKey):
        return Frame(key.target_mac, tag=key.vlan, eth_src=key.source_mac, priority=key.priority)
    addresses = (key.source, key.target, key.source_port, key.target_port)
    return Frame(mac, 0x0800, request.dscp, 17, *addresses)


def matches(match: Match, in_port: int, frame: Frame) -> bool:
    """Whether all fields that are given fit."""
    fields = (
        "eth_type",
        "eth_src",
        "eth_dst",
        "priority",
        "dscp",
        "protocol",
        "source",
        "target",
        "source_port",
        "target_port",
    )
    tags = (None, ANY_TAG, frame.tag) if frame.tag else (None, 0)
    return (
        match.in_port in (None, in_port)
        and match.tag in tags
        and all(getattr(match, field) in (None, getattr(frame, field)) for field in fields)
    )


def step(  # noqa: PLR0912 - one case each
    held: SwitchIntent, switch: str, in_port: int, frame: Frame, down: Collection[Port] = ()
) -> list[Sent]:
    """What one switch does with a frame."""
    groups = {group.number: group.ports for group in held.groups}
    sent: list[Sent] = []
    table: Table | None = Table.EDGE
    queue = 0

    def send(number: int) -> None:
        if number != in_port:
            sent.append(Sent(Port(switch, number), frame, queue))

    while table is not None:
        fitting = [rule for rule in held.rules if rule.table == table and matches(rule.match, in_port, frame)]
        highest = max((rule.priority for rule in fitting), default=0)
        chosen = [rule for rule in fitting if rule.priority == highest]
        assert len(chosen) <= 1, f"{switch}: either of {chosen}"
        rule: Rule | None = chosen[0] if chosen else None
        table = None
        for action in rule.actions if rule else ():
            match action:
                case Output(port):
                    send(port)
                case ToGroup(number):
                    live = [port for port in groups[number] if Port(switch, port) not in down]
                    if live:
                        send(live[0])
                case ToController():
                    sent.append(Sent(CONTROLLER, frame, queue))
                case SetQueue(number):
                    queue = number
                case SetDscp(dscp):
                    frame = replace(frame, dscp=dscp)
                case PushTag(tag):
                    assert frame.tag == 0, f"{switch}: a second tag"
                    frame = replace(frame, tag=tag, priority=0)
                case PopTag():
                    assert frame.tag != 0, f"{switch}: no tag to pop"
                    frame = replace(frame, tag=0, priority=0)
                case SetTag(tag):
                    assert frame.tag != 0, f"{switch}: no tag to rewrite"
                    frame = replace(frame, tag=tag)
                case SetPriority(priority):
                    assert frame.tag != 0, f"{switch}: no tag with a priority"
                    frame = replace(frame, priority=priority)
                case Goto(later):
                    assert rule is not None
                    assert later > rule.table
                    table = later
    return sent


class Cables:
    """Where a frame that leaves a port arrives."""

    def __init__(self, topology: Topology) -> None:
        self._ends = {link.source: link.target for link in topology.links}

    def next(self, port: Port) -> Port | None:
        """The port at the other end; none: the network ends here."""
        return self._ends.get(port)


def walk(
    intents: Mapping[str, SwitchIntent],
    cables: Cables,
    port: Port,
    frame: Frame,
    down: Collection[Port] = (),
) -> tuple[list[Sent], list[Sent]]:
    """Where a frame that comes by a port arrives at the edge, and all that was sent. A storm is an error."""
    arrived: list[Sent] = []
    seen: list[Sent] = []
    under_way = [(port, frame)]
    for _ in range(MOST_STEPS):
        if not under_way:
            return arrived, seen
        at, frame = under_way.pop()
        for sent in step(intents.get(at.switch, SwitchIntent()), at.switch, at.number, frame, down):
            seen.append(sent)
            if sent.port in down:
                continue
            further = cables.next(sent.port)
            if further is None:
                arrived.append(sent)
            else:
                under_way.append((further, sent.frame))
    raise AssertionError(f"a storm of {frame} from {port}")
