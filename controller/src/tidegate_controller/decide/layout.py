"""Ways and trees of best effort between plain NICs, and their tags.

```text
 Topology, Places ─▶ arrange ─▶ Layout: of each host the shortest ways of all switches to it, with a tag
   the layout before ─┘            └ of each VLAN a tree over the switches that have it, with a tag
```

Ways that change get another tag, and so do trees: a frame follows the ways or the tree whose tag it got when
it came in, so no mixture of old and new rules sends a frame in a circle. If no tag is free, what was there
stays until one is.

The last switch of a way tells the VLAN by the MAC. So a MAC has one VLAN as long as a tag lives: else a frame
that an edge with old rules has sent would arrive in the other VLAN.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tidegate_controller.decide import base
from tidegate_controller.decide.flood import Tree, spanning
from tidegate_controller.decide.tags import MOST
from tidegate_controller.model.plain import Behind, HostTag, Place, Tagged, VlanTag
from tidegate_controller.model.topology import Link, Port, Topology

Take = Callable[[str], int | None]
"""Takes a tag for an owner; `None`: none is free."""
SPARE = 64
"""MACs beyond twice those that are there, which a tag remembers."""


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
    vlans: Mapping[str, int]
    """The VLAN of each MAC that frames with this tag may be for, of now and of before."""


@dataclass(frozen=True)
class Layout:
    """All ways and trees."""

    ways: Mapping[str, Way] = field(default_factory=dict)
    """By host."""
    trees: Mapping[int, Tree] = field(default_factory=dict)
    """By VLAN. The links are those of all switches; rules take the part that leads to hosts of the VLAN."""
    short: bool = False
    """Tags were missing: something is not as it is to be."""
    last: int = 0
    """The number that was given last: numbers of hosts that have gone rest."""

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


def to_host(host: str) -> str:
    """Returns the owner of the tag of a host's ways."""
    return f"best effort to {host}"


def of_vlan(vlan: int) -> str:
    """Returns the owner of the tag of a VLAN's tree."""
    return f"broadcast of VLAN {vlan}"


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
    last, free = before.last, _free(before)
    for host, end in ends.items():
        if all(len(inside[place.vlan]) == 1 for place in behind[host].places):
            # No host at another switch sends to it.
            continue
        ports, old = base.towards(end.switch, arriving), before.ways.get(host)
        vlans = told(behind[host].places)
        kept = _kept(old, end, vlans)
        if kept is not None and kept.ports == ports:
            ways[host] = kept
            continue
        number = old.number if old is not None else next(free, None)
        tag = take(to_host(host)) if number is not None else None
        if number is not None and tag is not None:
            ways[host] = Way(number, tag, end, ports, vlans)
            last = last if old is not None else number
        else:
            missing = True
            if kept is not None:
                ways[host] = kept
    trees, wanting = _trees(before, topology, inside, take)
    return Layout(ways, trees, missing or wanting, last)


def told(places: Iterable[Place]) -> dict[str, int]:
    """Returns the VLAN of each MAC that is in one VLAN alone."""
    places = list(places)
    count = Counter(place.mac for place in places)
    return {place.mac: place.vlan for place in places if count[place.mac] == 1}


def _kept(old: Way | None, end: Port, vlans: Mapping[str, int]) -> Way | None:
    """Returns the way if its tag may be for these MACs, too."""
    if old is None or old.end != end or any(old.vlans.get(mac, vlan) != vlan for mac, vlan in vlans.items()):
        return None
    if vlans.keys() <= old.vlans.keys():
        return old
    both = {**old.vlans, **vlans}
    return replace(old, vlans=both) if len(both) <= 2 * len(vlans) + SPARE else None


def _free(before: Layout) -> Iterator[int]:
    """Yields numbers for hosts, those that were given the longest ago first."""
    used = {way.number for way in before.ways.values()}
    for number in (*range(before.last + 1, MOST + 1), *range(1, before.last + 1)):
        if number not in used:
            yield number


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
        elif (tag := take(of_vlan(vlan))) is not None:
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
        host: Way(
            hosts[host].number,
            hosts[host].tag,
            end,
            base.towards(end.switch, arriving),
            told(behind[host].places),
        )
        for host, end in ends.items()
        if host in hosts
    }
    links = spanning(topology) if vlans else frozenset[Link]()
    trees = {vlan: Tree(vlans[vlan], links) for vlan in members(ends, behind) if vlan in vlans}
    return Layout(ways, trees, last=max((way.number for way in ways.values()), default=0))


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
