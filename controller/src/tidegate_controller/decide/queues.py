"""Rates of the queues of each port, from what is reserved there.

```text
 paths ─▶ each link and level: sum of rates and bursts, with tag and overhead ─▶ minimum, burst ─┐
 LinkTerms ─▶ capacity ──────────────────────────────────────────────────────────────────────────┴▶ Queue, ...
```

A real-time queue has at least what is reserved for its level; more where a port was found short. Best effort
may take what is left. Only sums: whether they fit was decided by the arithmetic.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.decide.marks import Marks
from tidegate_controller.model.intent import BEST_EFFORT, CONTROL_RATE, Queue, control_queue
from tidegate_controller.model.paths import Path
from tidegate_controller.model.topology import Port

TAG = 4
"""Bytes (IEEE 802.1Q)."""
LEAST = 1_000_000
"""bit/s: the minimum of a queue with nothing reserved."""


@dataclass(frozen=True)
class Load:
    """What is reserved for a level of a link."""

    rate: int = 0
    burst: int = 0


class Loads:
    """What is reserved for each level of each link; kept as paths come and go."""

    def __init__(self, terms: Mapping[str, LinkTerms]) -> None:
        self._terms = terms
        self._loads: dict[tuple[str, int], Load] = {}
        self._paths = Counter[str]()
        """Ways over each link."""

    def know(self, terms: Mapping[str, LinkTerms]) -> None:
        """Counts with these links from now on."""
        self._terms = terms

    def add(self, path: Path) -> set[str]:
        """Adds a generation of a path. Returns its links."""
        return self._count(path, 1)

    def remove(self, path: Path) -> set[str]:
        """Removes one that was added. Returns its links."""
        return self._count(path, -1)

    def at(self, link: str, level: int) -> Load:
        """Returns what is reserved for a level of a link."""
        return self._loads.get((link, level), Load())

    def has(self, link: str) -> bool:
        """Returns whether any path has a way over a link."""
        return link in self._paths

    @property
    def links(self) -> Set[str]:
        """Links with ways of paths."""
        return self._paths.keys()

    def _count(self, path: Path, sign: int) -> set[str]:
        request, small = path.request, path.request.smallest_frame
        links: set[str] = set()
        for route in (path.route, path.backup):
            for link in route.links if route else ():
                overhead = self._terms[link].overhead if link in self._terms else 0
                rate = -(-request.rate * (small + TAG + overhead) // small)
                # The burst at the end is the largest on the way.
                burst = -(-path.far_burst * (small + TAG) // small)
                at = (link, route.level) if route else (link, 0)
                before = self._loads.pop(at, Load())
                after = Load(before.rate + sign * rate, before.burst + sign * burst)
                if after != Load():
                    self._loads[at] = after
                links.add(link)
                self._paths[link] += sign
                if not self._paths[link]:
                    del self._paths[link]
        return links


def watched(links: Iterable[str]) -> set[Port]:
    """Returns ports where a link between two switches begins."""
    between = {link for link in links if all(":" in end for end in link.split(">"))}
    return {port for link in between if (port := port_of(link)) is not None}


def end_of(link: str) -> Port | None:
    """Returns the port of a switch where a link between two switches ends; `None`: a host is at an end."""
    begin, _, end = link.partition(">")
    return Port.parse(end) if ":" in begin and ":" in end else None


def port_of(link: str) -> Port | None:
    """Returns the port of a switch where a link begins; `None`: it begins at a host."""
    begin = link.partition(">")[0]
    return Port.parse(begin) if ":" in begin else None


def queues_of(
    link: LinkTerms, loads: Loads, marks: Marks, raised: Mapping[tuple[str, int], int]
) -> tuple[Queue, ...]:
    """Returns queues of a link's first port: that of the switch's own frames, the levels, best effort.

    `raised` has the least rate (bit/s) for a link and level where more is needed than what is reserved.
    """
    real = []
    for level in range(min(len(link.levels), len(marks.levels))):
        load = loads.at(link.name, level)
        minimum = max(load.rate, raised.get((link.name, level), 0), LEAST)
        burst = max(load.burst, link.largest_frame)
        real.append(Queue(marks.queue(level), min(minimum, link.capacity), link.capacity, burst, level))
    left = max(link.capacity - CONTROL_RATE - sum(queue.minimum for queue in real), LEAST)
    best = Queue(BEST_EFFORT, min(left, link.capacity), link.capacity, link.largest_frame, len(real))
    return (control_queue(len(real)), *real, best)
