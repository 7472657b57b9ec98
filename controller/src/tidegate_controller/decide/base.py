"""Rules of a switch that belong to no path: what may come in, which queue a mark has, best effort.

```text
 EDGE   port of a host: LLDP ─▶ drop · a tag ─▶ drop (but `plain.py`) · a level's mark ─▶ mark 0, go on · else
        port of a link: LLDP ─▶ controller · else ─▶ go on           any other port: LLDP ─▶ controller
 QUEUE  priority of a level in the tag ─▶ its queue · mark of a level ─▶ its queue · else ─▶ best effort
 WAY    a host's MAC ─▶ next port of the shortest way
```

The rules are the same whichever paths there are, so a path that comes, goes or moves touches none of them.
"""

from collections.abc import Set

from tidegate_controller.decide.marks import Marks, Priority, priority_of
from tidegate_controller.model.intent import (
    ANY_TAG,
    BEST_EFFORT,
    IPV4,
    IPV6,
    LLDP,
    OURS,
    Action,
    Goto,
    Match,
    Output,
    Rule,
    SetDscp,
    SetQueue,
    Table,
    ToController,
)
from tidegate_controller.model.topology import Link, Port, Topology


def rules(topology: Topology, marks: Marks, used: Set[Port] = frozenset()) -> dict[str, set[Rule]]:
    """Returns all rules of no path but those of broadcast, for each switch.

    Ports that are `used` stay ports of links, though the topology has no link there.
    """
    found = {switch: {*_edge(switch, topology, marks, used), *_queue(marks)} for switch in topology.switches}
    for switch, addresses in _best_effort(topology).items():
        found[switch] |= {
            _rule(Table.WAY, Priority.UNICAST, Match(tag=0, eth_dst=mac), Output(port))
            for mac, port in addresses.items()
        }
    return found


def _edge(switch: str, topology: Topology, marks: Marks, used: Set[Port]) -> set[Rule]:
    links = {link.target.number for link in topology.links if link.target.switch == switch}
    links |= {port.number for port in used if port.switch == switch}
    ends = {link.source.number for link in topology.links if link.source.switch == switch}
    hosts = {host.port.number for host in topology.hosts.values() if host.port.switch == switch}
    onward = Goto(Table.QUEUE)
    found = {_rule(Table.EDGE, Priority.LLDP, Match(eth_type=LLDP), ToController())}
    for port in links:
        found.add(_rule(Table.EDGE, Priority.LINK, Match(in_port=port), onward))
    # Where a link was seen there is no host, whatever an agent says.
    for port in hosts - links - ends:
        found.add(_rule(Table.EDGE, Priority.HOST_LLDP, Match(in_port=port, eth_type=LLDP)))
        found.add(_rule(Table.EDGE, Priority.HOST, Match(in_port=port, tag=0), onward))
        for kind in (IPV4, IPV6):
            for mark in marks.levels:
                match = Match(in_port=port, eth_type=kind, tag=0, dscp=mark)
                found.add(_rule(Table.EDGE, Priority.CLEAR, match, SetDscp(0), onward))
    return found


def _queue(marks: Marks) -> set[Rule]:
    onward = Goto(Table.WAY)
    found = {_rule(Table.QUEUE, Priority.DEFAULT, Match(), SetQueue(BEST_EFFORT), onward)}
    for level, mark in enumerate(marks.levels):
        # The edge writes it: no frame of a host has one that the edge has not allowed.
        tagged = Match(tag=ANY_TAG, priority=priority_of(level))
        found.add(_rule(Table.QUEUE, Priority.TAG_MARK, tagged, SetQueue(marks.queue(level)), onward))
        for kind in (IPV4, IPV6):
            match = Match(eth_type=kind, dscp=mark)
            found.add(_rule(Table.QUEUE, Priority.MARK, match, SetQueue(marks.queue(level)), onward))
    return found


def _best_effort(topology: Topology) -> dict[str, dict[str, int]]:
    """Returns for each switch the port of each host's MAC."""
    arriving = arrivals(topology)
    ports: dict[str, dict[str, int]] = {switch: {} for switch in topology.switches}
    ways: dict[str, dict[str, int]] = {}
    for host in sorted(topology.hosts.values()):
        end = host.port.switch
        if end not in ports:
            continue
        if end not in ways:
            ways[end] = towards(end, arriving)
        for switch, port in ways[end].items():
            ports[switch][host.mac] = port
        ports[end][host.mac] = host.port.number
    return ports


def arrivals(topology: Topology) -> dict[str, list[Link]]:
    """Returns for each switch the links that end there, in order."""
    arriving: dict[str, list[Link]] = {switch: [] for switch in topology.switches}
    for link in sorted(topology.links):
        arriving[link.target.switch].append(link)
    return arriving


def towards(end: str, arriving: dict[str, list[Link]]) -> dict[str, int]:
    """Returns the port of each other switch by which its shortest way to a switch leaves."""
    ports: dict[str, int] = {}
    edge = [end]
    for switch in edge:
        for link in arriving[switch]:
            before = link.source.switch
            if before != end and before not in ports:
                ports[before] = link.source.number
                edge.append(before)
    return ports


def _rule(table: Table, priority: Priority, match: Match, *actions: Action) -> Rule:
    return Rule(table, priority, match, actions, OURS)
