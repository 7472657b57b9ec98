"""Best effort between plain NICs: the rules of each switch, and how they follow topology and hosts.

```text
 host ─▶ EDGE   its port, VLAN, own MAC ─▶ priority 0, queue of best effort      (else it does not come in)
         PLACE  VLAN, MAC of a host here ─▶ its port
                VLAN, MAC of a host elsewhere ─▶ VLAN = number of the host
                VLAN, any other MAC ─▶ its hosts here, VLAN = tag of its tree ─▶ the tree's links
         ONTO   number ─▶ VLAN = tag of the ways to the host ─▶ the next link
 link ─▶ WAY    tag of ways ─▶ the next link ... the last switch: MAC ─▶ VLAN as it was ─▶ host
                tag of a tree ─▶ its other links, VLAN as it was ─▶ its hosts here
```

Between switches there are tags alone, at hosts VLANs alone, in tables of their own: neither is taken for the
other. The last switch tells the VLAN by the MAC; one that a host has in several VLANs has no rules of its
own, so its frames are broadcast.

Rules of ways are few, and the only ones that follow the topology. Those of vNICs are in PLACE, of which Open
vSwitch has the room for each table apart: a table that is full takes none from paths.
"""

from collections.abc import Callable, Mapping
from functools import partial

from tidegate_controller.decide.flood import outputs
from tidegate_controller.decide.layout import Layout, at_switches, members, pruned, told
from tidegate_controller.decide.marks import RESERVED, Priority
from tidegate_controller.decide.move import Order, Update, key
from tidegate_controller.decide.phases import Phase, Phases
from tidegate_controller.model.intent import (
    BEST_EFFORT,
    OURS,
    Action,
    Goto,
    Match,
    Output,
    Rule,
    SetPriority,
    SetQueue,
    SetTag,
    Table,
)
from tidegate_controller.model.plain import Behind, Place
from tidegate_controller.model.topology import Port, Topology

Name = tuple[str, object]
"""Of a part: rules that come and go together."""
Parts = dict[str, dict[Name, frozenset[Rule]]]
"""By switch. No two parts have rules with one key."""
Make = Callable[..., frozenset[Rule]]
"""Makes a part; with the maker as the first argument, the one that remembers what it made."""


class Plain(Phases):
    """The rules of best effort between plain NICs, on all switches."""

    def __init__(self) -> None:
        super().__init__()
        self.layout = Layout()
        self._old = Layout()
        self._front: Parts = {}
        """How frames come in."""
        self._ways: Parts = {}
        """What is done with tags."""
        self._next: tuple[Parts, Parts] = {}, {}
        self._leaving: dict[str, frozenset[Rule]] = {}
        """Rules for tags that are no more given."""
        self._made: dict[tuple[object, ...], frozenset[Rule]] = {}
        """Rules by what they were made of."""

    @property
    def tags(self) -> frozenset[int]:
        """Returns ids that frames may carry now."""
        return self.layout.tags | self._old.tags

    @property
    def there(self) -> set[str]:
        """Returns switches that are to hold something."""
        parts = {switch for kind in (self._front, self._ways) for switch, has in kind.items() if has}
        return parts | self._leaving.keys()

    def held(self, switch: str) -> set[Rule]:
        """Returns what a switch is to hold now."""
        parts = (*self._front.get(switch, {}).values(), *self._ways.get(switch, {}).values())
        return set(self._leaving.get(switch, ())).union(*parts)

    def follow(self, topology: Topology, behind: Mapping[str, Behind], layout: Layout) -> list[Order]:
        """Begins to follow, while it is idle. What differs in the layout has other tags."""
        assert self.phase == Phase.IDLE
        self._old, self.layout = self.layout, layout
        self._next = self._made_of(topology, behind, layout)
        return self._enter(Phase.CARRY)

    def assume(self, topology: Topology, behind: Mapping[str, Behind], layout: Layout) -> None:
        """Takes over from a process that followed this."""
        self.layout = layout
        self._front, self._ways = self._made_of(topology, behind, layout)

    def _over(self) -> None:
        self._old = Layout()

    def _drains(self) -> bool:
        return bool(self._leaving)

    def _updates(self, phase: Phase) -> list[Update]:
        front, ways = self._next
        come: dict[str, frozenset[Rule]] = {}
        gone: dict[str, frozenset[Rule]] = {}
        if phase == Phase.CARRY:
            come, self._leaving = _difference(self._ways, ways)
            self._ways = ways
        elif phase == Phase.BEGIN:
            come, gone = _difference(self._front, front)
            self._front = front
        else:
            gone, self._leaving = self._leaving, {}
        nothing = frozenset[Rule]()
        return [
            Update(self._serial, switch, come.get(switch, nothing), gone.get(switch, nothing))
            for switch in sorted(come.keys() | gone.keys())
        ]

    def _made_of(
        self, topology: Topology, behind: Mapping[str, Behind], layout: Layout
    ) -> tuple[Parts, Parts]:
        """Returns the parts of both kinds. They are many, so those that stay the same are not made anew."""
        ends = at_switches(topology, behind)
        inside = members(ends, behind)
        sets: dict[str, set[int]] = {}
        for vlan, switches in inside.items():
            for switch in switches:
                sets.setdefault(switch, set()).add(vlan)
        carried = {switch: frozenset(vlans) for switch, vlans in sets.items()}
        made, self._made = self._made, {}
        once = partial(self._once, made)
        front: Parts = {switch: {("reserved", None): _reserved()} for switch in carried}
        ways: Parts = {switch: {} for switch in topology.switches}
        for host, end in ends.items():
            _of_host(host, end, behind[host].places, layout, carried, front, ways, once)
        for vlan, switches in inside.items():
            _of_vlan(vlan, switches, layout, front, ways, once)
        return front, ways

    def _once(
        self, before: dict[tuple[object, ...], frozenset[Rule]], make: Make, *of: object
    ) -> frozenset[Rule]:
        """Returns what was made of the same before."""
        at = (make, *of)
        self._made[at] = made = before[at] if at in before else make(*of)
        return made


def _difference(before: Parts, after: Parts) -> tuple[dict[str, frozenset[Rule]], dict[str, frozenset[Rule]]]:
    """Returns by switch rules that come, also in the place of others, and rules that only go."""
    come: dict[str, frozenset[Rule]] = {}
    gone: dict[str, frozenset[Rule]] = {}
    for switch in before.keys() | after.keys():
        had, has = before.get(switch, {}), after.get(switch, {})
        both = ((name, had.get(name), has.get(name)) for name in had.keys() | has.keys())
        # Most are the same objects: comparing sets takes longer.
        names = [name for name, one, other in both if one is not other and one != other]
        old = frozenset[Rule]().union(*(had[name] for name in names if name in had))
        new = frozenset[Rule]().union(*(has[name] for name in names if name in has))
        keys = {key(rule) for rule in new}
        left = frozenset(rule for rule in old if key(rule) not in keys)
        if new - old:
            come[switch] = new - old
        if left:
            gone[switch] = left
    return come, gone


def _of_host(
    host: str,
    end: Port,
    places: frozenset[Place],
    layout: Layout,
    carried: Mapping[str, frozenset[int]],
    front: Parts,
    ways: Parts,
    once: Make,
) -> None:
    """Adds the parts of one host."""
    front[end.switch]["host", host] = once(_here, end.number, places)
    way = layout.ways.get(host)
    if way is None:
        return
    for switch, port in way.ports.items():
        if switch in carried:
            front[switch]["host", host] = once(_elsewhere, way.number, places, carried[switch])
            front[switch]["onto", host] = once(_onto, way.number, way.tag, port)
        if switch in ways:
            ways[switch]["way", way.tag] = once(_further, way.tag, port)
    ways[end.switch]["way", way.tag] = once(_arrived, way.tag, end.number, places)


def _here(port: int, places: frozenset[Place]) -> frozenset[Rule]:
    """Returns rules for frames from and to a host of this switch."""
    onward = SetPriority(0), SetQueue(BEST_EFFORT), Goto(Table.PLACE)
    sent = (Match(in_port=port, tag=place.vlan, eth_src=place.mac) for place in places)
    meant = (Match(tag=place.vlan, eth_dst=place.mac) for place in places)
    return frozenset(
        [
            *(_rule(Table.EDGE, Priority.HOST, match, *onward) for match in sent),
            *(_rule(Table.PLACE, Priority.UNICAST, match, Output(port)) for match in meant),
        ]
    )


def _elsewhere(number: int, places: frozenset[Place], vlans: frozenset[int]) -> frozenset[Rule]:
    """Returns rules for frames to a host of another switch, from hosts with these VLANs."""
    return frozenset(
        _rule(
            Table.PLACE,
            Priority.UNICAST,
            Match(tag=vlan, eth_dst=mac),
            SetTag(number),
            Goto(Table.ONTO),
        )
        for mac, vlan in told(places).items()
        if vlan in vlans
    )


def _onto(number: int, tag: int, port: int) -> frozenset[Rule]:
    """Returns the rule that sends such frames onto the ways to the host."""
    return frozenset({_rule(Table.ONTO, Priority.UNICAST, Match(tag=number), SetTag(tag), Output(port))})


def _further(tag: int, port: int) -> frozenset[Rule]:
    """Returns the rule of a switch in between."""
    return frozenset({_rule(Table.WAY, Priority.PATH, Match(tag=tag), SetQueue(BEST_EFFORT), Output(port))})


def _arrived(tag: int, port: int, places: frozenset[Place]) -> frozenset[Rule]:
    """Returns rules for frames that come from other switches to a host of this one."""
    return frozenset(
        _rule(
            Table.WAY,
            Priority.PATH,
            Match(tag=tag, eth_dst=mac),
            SetQueue(BEST_EFFORT),
            SetTag(vlan),
            Output(port),
        )
        for mac, vlan in told(places).items()
    )


def _of_vlan(
    vlan: int,
    switches: Mapping[str, list[int]],
    layout: Layout,
    front: Parts,
    ways: Parts,
    once: Make,
) -> None:
    """Adds the parts of one VLAN's broadcasts."""
    tree = layout.trees.get(vlan)
    links = pruned(tree, switches) if tree is not None else {}
    tag = tree.tag if tree is not None else 0
    for switch, here in switches.items():
        front[switch]["flood", vlan] = once(_begun, vlan, tag, tuple(here), tuple(links.get(switch, ())))
    for switch, ports in links.items():
        if switch in ways:
            here = switches.get(switch, [])
            ways[switch]["tree", vlan] = once(_carried, vlan, tag, tuple(here), tuple(ports))


def _begun(vlan: int, tag: int, here: tuple[int, ...], links: tuple[int, ...]) -> frozenset[Rule]:
    """Returns the rule for frames of hosts `here` to all others, onto the tree if it has links here."""
    onto: tuple[Action, ...] = (SetTag(tag), *outputs(links)) if links else ()
    return frozenset({_rule(Table.PLACE, Priority.BROADCAST, Match(tag=vlan), *outputs(here), *onto)})


def _carried(vlan: int, tag: int, here: tuple[int, ...], links: tuple[int, ...]) -> frozenset[Rule]:
    """Returns the rule for such frames on the tree."""
    off: tuple[Action, ...] = (SetTag(vlan), *outputs(here)) if here else ()
    carry = SetQueue(BEST_EFFORT), *outputs(links), *off
    return frozenset({_rule(Table.WAY, Priority.PATH, Match(tag=tag), *carry)})


def _reserved() -> frozenset[Rule]:
    return frozenset(_rule(Table.PLACE, Priority.RESERVED, Match(eth_dst=mac)) for mac in RESERVED)


def _rule(table: Table, priority: Priority, match: Match, *actions: Action) -> Rule:
    return Rule(table, priority, match, actions, OURS)
