"""Rates of the queues of each port, from what is reserved there.

```text
 paths ─▶ each link and level: sum of rates and bursts, with tag and overhead ─▶ minimum, burst ─┐
 LinkTerms ─▶ capacity ──────────────────────────────────────────────────────────────────────────┴▶ Queue, ...
```

A real-time queue has at least what is reserved for its level; more where a port was found short. Best effort
may take what is left. Only sums: whether they fit was decided by the arithmetic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.decide.marks import BEST_EFFORT, Marks
from tidegate_controller.model.intent import Queue
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


def loads(terms: Iterable[LinkTerms], paths: Iterable[Path]) -> dict[tuple[str, int], Load]:
    """What is reserved, by link and level."""
    overhead = {link.name: link.overhead for link in terms}
    found: dict[tuple[str, int], Load] = {}
    for path in paths:
        request, small = path.request, path.request.smallest_frame
        for route in (path.route, path.backup):
            if route is None:
                continue
            for link in route.links:
                before = found.get((link, route.level), Load())
                rate = -(-request.rate * (small + TAG + overhead.get(link, 0)) // small)
                # The burst at the end is the largest on the way.
                burst = -(-path.far_burst * (small + TAG) // small)
                found[link, route.level] = Load(before.rate + rate, before.burst + burst)
    return found


def queues(
    terms: Iterable[LinkTerms],
    paths: Iterable[Path],
    marks: Marks,
    raised: Mapping[tuple[str, int], int] | None = None,
) -> dict[Port, tuple[Queue, ...]]:
    """Queues of the ports of all links that begin at a switch.

    `raised` has the least rate (bit/s) for a link and level where more is needed than what is reserved.
    """
    terms = list(terms)
    reserved, raised = loads(terms, paths), raised or {}
    found = {}
    for link in terms:
        text = link.name.partition(">")[0]
        if ":" not in text:
            continue
        real = []
        for level in range(min(len(link.levels), len(marks.levels))):
            load = reserved.get((link.name, level), Load())
            minimum = max(load.rate, raised.get((link.name, level), 0), LEAST)
            burst = max(load.burst, link.largest_frame)
            real.append(Queue(marks.queue(level), min(minimum, link.capacity), link.capacity, burst, level))
        left = max(link.capacity - sum(queue.minimum for queue in real), LEAST)
        best = Queue(BEST_EFFORT, min(left, link.capacity), link.capacity, link.largest_frame, len(real))
        found[Port.parse(text)] = (best, *real)
    return found
