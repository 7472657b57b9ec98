"""Ways and trees of best effort between plain NICs, and their tags.

```text
 Topology, Places ─▶ arrange ─▶ Layout: of each host the shortest ways of all switches to it, with a tag
   the layout before ─┘            └ of each VLAN a tree over the switches that have it, with a tag
```

Ways that change get another tag, and so do trees: a frame follows the ways or the tree whose tag it got when
it came in, so no mixture of old and new rules sends a frame in a circle. If no tag is free, what was there
stays until one is.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tidegate_controller.decide import base
from tidegate_controller.decide.flood import Tree, spanning
from tidegate_controller.decide.tags import MOST
from tidegate_controller.model.plain import Behind, HostTag, Tagged, VlanTag
from tidegate_controller.model.topology import Link, Port, Topology

Take = Callable[[str], int | None]
"""Takes a tag for an owner; `None`: none is free."""


@dataclass(frozen=True)
class Way:
    """How frames come to a host from all other switches."""

    number: int
    """Of the host, in `Table.ONTO`."""
    tag: int
    end: Port
    """The host's."""
    ports: Mapping[str, int]
    """By switch: where the way goes on."""


@dataclass(frozen=True)
class Layout:
    """All ways and trees."""

    ways: Mapping[str, Way] = field(default_factory=dict)
    """By host."""
    trees: Mapping[int, Tree] = field(default_factory=dict)
    """By VLAN. The links are those of all switches; rules take the part that leads to hosts of the VLAN."""
    short: bool = False
    """Tags were missing: something is not as it is to be."""

    @property
    def tags(self) -> frozenset[int]:
        """Returns all tags."""
        ways, trees = self.ways.values(), self.trees.values()
        return frozenset(way.tag for way in ways) | frozenset(tree.tag for tree in trees)

    @property
    def tagged(self) -> Tagged:
        """Returns all ids, as they are kept beyond the process."""
        hosts = (HostTag(host, way.number, way.tag) for host, way in self.ways.items())
        vlans = (VlanTag(vlan, tree.tag) for vlan, tree in self.trees.items())
        return Tagged(tuple(sorted(hosts)), tuple(sorted(vlans)))


def at_switches(topology: Topology, hosts: Iterable[str]) -> dict[str, Port]:
    """Returns ports of those hosts that are at a switch; where a link was seen there is no host."""
    between = {port for link in topology.links for port in (link.source, link.target)}
    there = ((host, topology.hosts[host].port) for host in sorted(hosts) if host in topology.hosts)
    return {host: port for host, port in there if port not in between and port.switch in topology.switches}


def members(ends: Mapping[str, Port], behind: Mapping[str, Behind]) -> dict[int, dict[str, list[int]]]:
    """Returns for each VLAN the switches that have it, and the ports of its hosts there, in order."""
    found: dict[int, dict[str, list[int]]] = {}
    for host, end in ends.items():
        for vlan in behind[host].vlans:
            found.setdefault(vlan, {}).setdefault(end.switch, []).append(end.number)
    for switches in found.values():
        for ports in switches.values():
            ports.sort()
    return found


def arrange(before: Layout, topology: Topology, behind: Mapping[str, Behind], take: Take) -> Layout:
    """Returns the layout for this topology. What stays the same keeps its tag."""
    ends = at_switches(topology, behind)
    inside = members(ends, behind)
    missing = False
    ways: dict[str, Way] = {}
    arriving = base.arrivals(topology) if ends else {}
    numbers = {way.number for host, way in before.ways.items() if host in ends}
    free = (number for number in range(1, MOST + 1) if number not in numbers)
    for host, end in ends.items():
        if all(len(inside[place.vlan]) == 1 for place in behind[host].places):
            # No host at another switch sends to it.
            continue
        ports, old = base.towards(end.switch, arriving), before.ways.get(host)
        if old is not None and (old.end, old.ports) == (end, ports):
            ways[host] = old
            continue
        number = old.number if old is not None else next(free, None)
        tag = take(f"best effort to {host}") if number is not None else None
        if number is not None and tag is not None:
            ways[host] = Way(number, tag, end, ports)
        else:
            missing = True
            if old is not None and old.end == end:
                ways[host] = old
    trees, wanting = _trees(before, topology, inside, take)
    return Layout(ways, trees, missing or wanting)


def _trees(
    before: Layout, topology: Topology, inside: Mapping[int, Mapping[str, object]], take: Take
) -> tuple[dict[int, Tree], bool]:
    wide = sorted(vlan for vlan, switches in inside.items() if len(switches) > 1)
    links = spanning(topology) if wide else frozenset[Link]()
    links = next((tree.links for tree in before.trees.values() if tree.links == links), links)
    trees, missing = dict[int, Tree](), False
    for vlan in wide:
        old = before.trees.get(vlan)
        if old is not None and old.links is links:
            trees[vlan] = old
        elif (tag := take(f"broadcast of VLAN {vlan}")) is not None:
            trees[vlan] = Tree(tag, links)
        else:
            missing = True
            if old is not None:
                trees[vlan] = old
    return trees, missing


def as_kept(tagged: Tagged, topology: Topology, behind: Mapping[str, Behind]) -> Layout:
    """Returns the layout of a process that followed this topology with these ids."""
    hosts, vlans = {one.host: one for one in tagged.hosts}, {one.vlan: one.tag for one in tagged.vlans}
    ends = at_switches(topology, behind)
    arriving = base.arrivals(topology) if hosts else {}
    ways = {
        host: Way(hosts[host].number, hosts[host].tag, end, base.towards(end.switch, arriving))
        for host, end in ends.items()
        if host in hosts
    }
    links = spanning(topology) if vlans else frozenset[Link]()
    trees = {vlan: Tree(vlans[vlan], links) for vlan in members(ends, behind) if vlan in vlans}
    return Layout(ways, trees)


def pruned(tree: Tree, switches: Iterable[str]) -> dict[str, list[int]]:
    """Returns the part of a tree that joins these switches: ports of each switch that has any, in order."""
    wanted, around = set(switches), dict[str, list[Link]]()
    for link in tree.links:
        around.setdefault(link.source.switch, []).append(link)
    leaves = [switch for switch, links in around.items() if len(links) == 1 and switch not in wanted]
    for switch in leaves:
        # Taken off from the outside: a switch that becomes a leaf by that is the next one.
        links = around.pop(switch)
        if not links:
            continue
        left = around[links[0].target.switch]
        left.remove(links[0].back)
        if len(left) == 1 and links[0].target.switch not in wanted:
            leaves.append(links[0].target.switch)
    return {switch: sorted(link.source.number for link in links) for switch, links in around.items() if links}
