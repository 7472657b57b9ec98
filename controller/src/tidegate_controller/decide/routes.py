"""The routes that a path may take, the best first.

```text
 Topology ─▶ graph of switches ─▶ k shortest ways, no loops ─▶ parallel links ─▶ x levels ─▶ Route, ...
```
"""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

import networkx

from tidegate_controller.model.paths import Route
from tidegate_controller.model.topology import Topology

MOST_WAYS = 8
"""So many ways are looked at for one request."""
Links = dict[tuple[str, str], list[str]]
"""Names of the parallel links from a switch to another one, in order."""


class Routes:
    """Ways between hosts; made anew when the topology changes."""

    def __init__(self, topology: Topology) -> None:
        self._hosts = dict(topology.hosts)
        self._graph: networkx.DiGraph[str] = networkx.DiGraph()
        # In order, so that each process prefers the same one of equal ways.
        self._graph.add_nodes_from(sorted(topology.switches))
        self._links: Links = {}
        for link in sorted(topology.links):
            ends = (link.source.switch, link.target.switch)
            self._links.setdefault(ends, []).append(link.name)
            self._graph.add_edge(*ends)

    def ways(
        self, source: str, target: str, without: frozenset[str] = frozenset()
    ) -> Iterator[tuple[str, ...]]:
        """Yields names of links from a host to another one, the fewest first; at most `MOST_WAYS`.

        Ways over the links `without` are left out. There are none between hosts that are not known, or apart.
        """
        begin, end = self._hosts.get(source), self._hosts.get(target)
        if begin is None or end is None or source == target:
            return
        if begin.to_switch in without or end.to_host in without:
            return
        first, last = begin.port.switch, end.port.switch
        if first == last:
            yield (begin.to_switch, end.to_host)
            return
        graph, links = self._left(without)
        if networkx.has_path(graph, first, last):
            between = _parallel(networkx.shortest_simple_paths(graph, first, last), links)
            yield from ((begin.to_switch, *way, end.to_host) for way in islice(between, MOST_WAYS))

    def _left(self, without: frozenset[str]) -> tuple["networkx.DiGraph[str]", Links]:
        """Returns what is left: each way that is found there counts, so that few are looked at."""
        if not without:
            return self._graph, self._links
        left = {ends: [one for one in names if one not in without] for ends, names in self._links.items()}
        graph = self._graph.copy()
        graph.remove_edges_from([ends for ends, names in left.items() if not names])
        return graph, left


def _parallel(ways: Iterable[list[str]], links: Links) -> Iterator[tuple[str, ...]]:
    """Yields each way over the first of parallel links everywhere, then over the second ones, and so on.

    So each of the links is on one of the ways; mixtures of first and second links are not tried.
    """
    for switches in ways:
        steps = [links[pair] for pair in pairwise(switches)]
        for number in range(max(map(len, steps))):
            yield tuple(names[number % len(names)] for names in steps)


def candidates(ways: Iterable[tuple[str, ...]], levels: int) -> list[Route]:
    """Returns all ways at all levels: a short way at any level before a longer one, the least urgent first.

    An urgent level is left to flows that need it.
    """
    return [Route(way, level) for way in ways for level in range(levels - 1, -1, -1)]
