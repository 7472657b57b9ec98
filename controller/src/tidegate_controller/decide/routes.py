"""The routes that a path may take, the best first.

```text
 Topology ─▶ graph of switches ─▶ k shortest ways, no loops ─▶ x levels, the least urgent first ─▶ Route, ...
```
"""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

import networkx

from tidegate_controller.model.paths import Route
from tidegate_controller.model.topology import Link, Topology

MOST_WAYS = 8
"""So many ways are tried for one request."""


class Routes:
    """Ways between hosts; made anew when the topology changes."""

    def __init__(self, topology: Topology) -> None:
        self._hosts = dict(topology.hosts)
        self._graph: networkx.DiGraph[str] = networkx.DiGraph()
        self._graph.add_nodes_from(topology.switches)
        self._links: dict[tuple[str, str], Link] = {}
        # Of parallel links the first counts: the others are found when that is down.
        for link in sorted(topology.links, reverse=True):
            ends = (link.source.switch, link.target.switch)
            self._links[ends] = link
            self._graph.add_edge(*ends)

    def ways(
        self, source: str, target: str, without: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, ...]]:
        """Names of links from a host to another one, the fewest first; at most `MOST_WAYS`.

        Ways over the links `without` are left out. There are none between hosts that are not known, or apart.
        """
        begin, end = self._hosts.get(source), self._hosts.get(target)
        if begin is None or end is None or source == target:
            return
        first, last = begin.port.switch, end.port.switch
        if first == last:
            switches: Iterable[list[str]] = [[first]]
        elif networkx.has_path(self._graph, first, last):
            switches = networkx.shortest_simple_paths(self._graph, first, last)
        else:
            return
        named = ((begin.to_switch, *self._between(way), end.to_host) for way in switches)
        yield from islice((way for way in named if without.isdisjoint(way)), MOST_WAYS)

    def _between(self, switches: list[str]) -> Iterator[str]:
        pairs = pairwise(switches)
        return (self._links[pair].name for pair in pairs)


def candidates(ways: Iterable[tuple[str, ...]], levels: int, at_most: int | None = None) -> list[Route]:
    """All ways at all levels: a short way at any level before a longer one, the least urgent level first.

    An urgent level is left to flows that need it. `at_most` leaves out less urgent levels than this one.
    """
    least = levels - 1 if at_most is None else min(at_most, levels - 1)
    return [Route(way, level) for way in ways for level in range(least, -1, -1)]
