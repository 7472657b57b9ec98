"""What switches are to hold for a path.

```text
 Path, Marks ─▶ Placed ─▶ SwitchIntent of each switch

 a path:  host ─▶ EDGE of the first switch: key ─▶ level's mark, + tag
                  WAY of each switch:  (port, tag) ─▶ port ... the last one: - tag, the request's mark ─▶ host
 of a plain NIC:  EDGE: key ─▶ tag and priority rewritten ... the last one: those of the host again ─▶ host
```

The frames of a plain NIC have a tag already: no second one is pushed, so they do not grow.

A tagged frame is taken only from the port by which its way arrives, so a frame that strays ends there. Where
the path has a backup, the first switch chooses between the two ways by a fast-failover group; behind it, both
ways have rules, told apart by their ports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tidegate_controller.decide.marks import Marks, Priority, cookie, ethertype, priority_of
from tidegate_controller.model.intent import (
    UDP,
    Action,
    Goto,
    Group,
    Match,
    Output,
    PopTag,
    PushTag,
    Rule,
    SetDscp,
    SetPriority,
    SetTag,
    SwitchIntent,
    Table,
    ToGroup,
)
from tidegate_controller.model.paths import EthernetKey, Path, Route
from tidegate_controller.model.topology import Port


@dataclass(frozen=True)
class Hop:
    """A switch on a way."""

    switch: str
    arrive: int
    """The port by which frames come."""
    leave: int


@dataclass(frozen=True)
class Placed:
    """A generation of a path on switches."""

    ingress: tuple[str, Rule]
    """The one rule that sends the flow onto its way."""
    rules: Mapping[str, frozenset[Rule]]
    """All others, by switch."""
    groups: Mapping[str, frozenset[Group]] = field(default_factory=dict)

    @property
    def switches(self) -> frozenset[str]:
        """Returns all switches that have a rule of it."""
        return frozenset(self.rules)


def hops(route: Route) -> list[Hop]:
    """Returns the switches of a route, in order."""
    steps = pairwise(route.links)
    found = []
    for arriving, leaving in steps:
        arrive, leave = Port.parse(arriving.partition(">")[2]), Port.parse(leaving.partition(">")[0])
        found.append(Hop(arrive.switch, arrive.number, leave.number))
    return found


def place(path: Path, marks: Marks) -> Placed:
    """Returns the rules of a path."""
    number = cookie(path.number)
    way = hops(path.route)
    first, last = way[0], way[-1]
    rules: dict[str, set[Rule]] = {}
    groups: dict[str, frozenset[Group]] = {}
    key_match, onto, as_sent, last_type = _edges(path, marks)
    off = (*as_sent, Output(last.leave))

    def add(hop: Hop, actions: tuple[Action, ...]) -> None:
        kind = last_type if actions is off else None
        match = Match(in_port=hop.arrive, eth_type=kind, tag=path.tag)
        rules.setdefault(hop.switch, set()).add(Rule(Table.WAY, Priority.PATH, match, actions, number))

    for hop in way:
        add(hop, off if hop == last else (Output(hop.leave),))
    if path.backup is not None and len(way) > 1:
        other = hops(path.backup)
        rules[first.switch].clear()
        add(first, (ToGroup(path.tag),))
        groups[first.switch] = frozenset({Group(path.tag, (first.leave, other[0].leave))})
        for hop in other[1:]:
            add(hop, off if hop.switch == last.switch else (Output(hop.leave),))
    match = replace(key_match, in_port=first.arrive)
    ingress = Rule(Table.EDGE, Priority.PATH, match, (*onto, Goto(Table.QUEUE)), number)
    return Placed(
        (first.switch, ingress), {switch: frozenset(held) for switch, held in rules.items()}, groups
    )


def _edges(path: Path, marks: Marks) -> tuple[Match, tuple[Action, ...], tuple[Action, ...], int | None]:
    """Returns what tells a path's frames, what marks them, what undoes that, and the type that it needs.

    A DSCP is written into IP alone (OpenFlow 1.3, 7.2.3.8).
    """
    request, key, level = path.request, path.request.key, path.route.level
    if isinstance(key, EthernetKey):
        match = Match(eth_src=key.source_mac, eth_dst=key.target_mac, tag=key.vlan, priority=key.priority)
        onto = SetTag(path.tag), SetPriority(priority_of(level))
        return match, onto, (SetTag(key.vlan), SetPriority(key.priority)), None
    kind = ethertype(key.source)
    match = Match(
        eth_type=kind,
        tag=0,
        dscp=request.dscp,
        protocol=UDP,
        source=key.source,
        target=key.target,
        source_port=key.source_port,
        target_port=key.target_port,
    )
    return match, (SetDscp(marks.levels[level]), PushTag(path.tag)), (SetDscp(request.dscp), PopTag()), kind


def put(intents: dict[str, SwitchIntent], placed: Placed) -> None:
    """Adds a path's rules to what switches hold."""
    for switch, rules in placed.rules.items():
        intents.setdefault(switch, SwitchIntent()).rules |= rules
    for switch, groups in placed.groups.items():
        intents.setdefault(switch, SwitchIntent()).groups |= groups
    switch, rule = placed.ingress
    intents.setdefault(switch, SwitchIntent()).rules.add(rule)
