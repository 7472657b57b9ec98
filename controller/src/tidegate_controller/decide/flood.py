"""Broadcast frames over a spanning tree with a tag of its own, so that trees that change make no loop.

```text
 host ─▶ untagged broadcast ─▶ ports of hosts here, + the tree's tag ─▶ the tree's links
 the tree's tag from a link ─▶ the tree's other links, - tag ─▶ ports of hosts here
```

A frame follows the tree whose tag it got when it came in. The rules of a tree are a part of a tree even if
some switches do not have them yet, so no mixture of old and new rules sends a frame in a circle; two trees
never mix, since they have different tags. (Consistent updates: Reitblatt et al., SIGCOMM 2012.)
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate_controller.decide.marks import BROADCAST, ICMPV6, Priority
from tidegate_controller.model.intent import (
    ARP,
    IPV6,
    OURS,
    Action,
    Match,
    Output,
    PopTag,
    PushTag,
    Rule,
    Table,
)
from tidegate_controller.model.topology import Link, Topology


@dataclass(frozen=True)
class Tree:
    """Links that reach each switch in one way, and the tag of frames on them."""

    tag: int
    links: frozenset[Link]
    """Both directions of each."""


def spanning(topology: Topology) -> frozenset[Link]:
    """Returns links of a spanning tree, of each part if the network is in parts."""
    reached: set[str] = set()
    tree: set[Link] = set()
    for root in sorted(topology.switches):
        if root in reached:
            continue
        reached.add(root)
        edge = [root]
        for switch in edge:
            for link in topology.leaving(switch):
                if link.target.switch not in reached and link.back in topology.links:
                    reached.add(link.target.switch)
                    edge.append(link.target.switch)
                    tree |= {link, link.back}
    return frozenset(tree)


def carry(tree: Tree, topology: Topology) -> dict[str, set[Rule]]:
    """Returns rules for frames with the tree's tag."""
    return {
        switch: {_rule(Priority.PATH, Match(tag=tree.tag), (*outputs(links), PopTag(), *outputs(hosts)))}
        for switch, links, hosts in _ports(tree, topology)
    }


def begin(tree: Tree, topology: Topology) -> dict[str, set[Rule]]:
    """Returns rules that put broadcast frames of hosts onto the tree; below those of known destinations."""
    kinds = (
        (Priority.BROADCAST, Match(tag=0, eth_dst=BROADCAST)),
        (Priority.ARP, Match(tag=0, eth_type=ARP)),
        (Priority.NEIGHBOUR, Match(tag=0, eth_type=IPV6, protocol=ICMPV6)),
    )
    rules: dict[str, set[Rule]] = {}
    for switch, links, hosts in _ports(tree, topology):
        actions = (*outputs(hosts), PushTag(tree.tag), *outputs(links))
        rules[switch] = {_rule(priority, match, actions) for priority, match in kinds}
    return rules


def outputs(ports: Iterable[int]) -> tuple[Action, ...]:
    """Returns one output for each port. A switch never sends a frame back by the port that it came by."""
    return tuple(Output(port) for port in ports)


def _ports(tree: Tree, topology: Topology) -> list[tuple[str, list[int], list[int]]]:
    """Returns for each switch ports of the tree, and of hosts."""
    between = {port for link in topology.links for port in (link.source, link.target)}
    hosts = {host.port for host in topology.hosts.values()} - between
    return [
        (
            switch,
            sorted(link.source.number for link in tree.links if link.source.switch == switch),
            sorted(port.number for port in hosts if port.switch == switch),
        )
        for switch in sorted(topology.switches)
    ]


def _rule(priority: Priority, match: Match, actions: tuple[Action, ...]) -> Rule:
    return Rule(Table.WAY, priority, match, actions, OURS)
