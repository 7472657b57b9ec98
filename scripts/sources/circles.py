"""Circles of a directed graph, the shortest way around each, and edges whose removal opens them."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

Graph = Mapping[str, Sequence[str]]


def graph(edges: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Every node with its successors, both in alphabetical order."""
    found: dict[str, set[str]] = {}
    for start, end in edges:
        found.setdefault(start, set()).add(end)
        found.setdefault(end, set())
    return {node: sorted(found[node]) for node in sorted(found)}


def circles(of: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan's algorithm, without recursion)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for start in of:
        if start in order:
            continue
        work = [(start, iter(of[start]))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(of[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], order[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    at = stack.index(node)
                    component = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
    return sorted(found)


def shortest_way_around(of: Graph, component: Sequence[str]) -> list[str]:
    """The shortest cycle in a component: its nodes in order, without the first again."""
    inside = set(component)
    best: list[str] = []
    for start in component:
        came_from: dict[str, str] = {}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            if start in of[node]:
                way = [node]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                if not best or len(way) < len(best):
                    best = way[::-1]
                break
            for successor in of[node]:
                if successor in inside and successor not in came_from and successor != start:
                    came_from[successor] = node
                    queue.append(successor)
        if len(best) == 2:
            break
    return best


def cuts(weights: Mapping[tuple[str, str], int], component: Sequence[str]) -> list[tuple[str, str]]:
    """Edges without which the component has no circle; few and light ones, not always the fewest.

    The heuristic of Eades, Lin and Smyth: an order of the nodes with few edges that point back.
    """
    left = set(component)
    inside = {pair: weight for pair, weight in weights.items() if left >= set(pair)}
    head: list[str] = []
    tail: list[str] = []
    while left:
        out = dict.fromkeys(left, 0)
        into = dict.fromkeys(left, 0)
        for (start, end), weight in inside.items():
            if start in left and end in left:
                out[start] += weight
                into[end] += weight
        sinks = sorted(node for node in left if out[node] == 0)
        sources = sorted(node for node in left if into[node] == 0)
        if sinks:
            tail += sinks
            left -= set(sinks)
        elif sources:
            head += sources
            left -= set(sources)
        else:
            chosen = max(sorted(left), key=lambda node: out[node] - into[node])
            head.append(chosen)
            left.remove(chosen)
    place = {node: at for at, node in enumerate([*head, *reversed(tail)])}
    back = [pair for pair in inside if place[pair[0]] > place[pair[1]]]
    # What need not go stays: an edge is given back if no circle comes of it.
    kept = {pair for pair in inside if pair not in back}
    removed = []
    for pair in sorted(back, key=lambda pair: (-inside[pair], pair)):
        if circles(graph([*kept, pair])):
            removed.append(pair)
        else:
            kept.add(pair)
    return sorted(removed)
