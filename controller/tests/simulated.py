"""Packets on the routes that admission granted: does any take longer than its bound?

```text
 flows (request, route, bound) ─▶ bursts at once, then at their rates ─▶ ports: strict priority ─▶ worst times
```

Each idle port has just begun a frame of best effort of the largest size, and each switch is as slow as it
may be. Times are ps, which are whole for links of 1, 2, 4 or 8 Gbit/s.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.model.paths import PathRequest, Route

PICO = 1000
"""ps in a ns."""
TAG = 4


@dataclass(frozen=True)
class Flow:
    """A path that was granted."""

    request: PathRequest
    route: Route
    bound: int
    """ns."""


@dataclass
class Worst:
    """What was seen."""

    frames: int = 0
    beyond: int = 0
    """Frames beyond their bound, or beyond the delay of a level at one link."""
    nearest: float = 0.0
    """The longest time, as a part of its bound."""
    nearest_hop: float = 0.0
    """The longest time at one link, as a part of its level's delay."""


@dataclass
class _Port:
    queues: list[deque[tuple[int, int, int, int]]]
    busy: bool = False


@dataclass
class _Run:
    links: Mapping[str, LinkTerms]
    flows: Sequence[Flow]
    worst: Worst = field(default_factory=Worst)
    events: list[tuple[int, int, str, tuple[int, int, int, int] | None]] = field(default_factory=list)
    count: int = 0

    def at(self, time: int, port: str, frame: tuple[int, int, int, int] | None) -> None:
        self.count += 1
        heappush(self.events, (time, self.count, port, frame))


def arrivals(request: PathRequest, frames: int, random: Random) -> list[tuple[int, int]]:
    """When frames enter (ps), and their bytes: as early as the token bucket allows, some with pauses."""
    nano = 10**12
    depth = request.burst * 8 * nano
    tokens, now, found = depth, random.choice([0, 0, random.randrange(300_000)]) * PICO, []
    pauses = random.random() < 0.3
    for _ in range(frames):
        size = random.choice([request.smallest_frame, request.largest_frame])
        pause = random.randrange(100_000) * PICO if pauses else 0
        tokens = min(depth, tokens + request.rate * pause)
        wait = max(0, -(-(size * 8 * nano - tokens) // request.rate))
        tokens = min(depth, tokens + request.rate * wait) - size * 8 * nano
        now += pause + wait
        found.append((now, size))
    return found


def simulated(links: Mapping[str, LinkTerms], flows: Sequence[Flow], frames: int, random: Random) -> Worst:
    """Sends frames of all flows. Times at a port are exact for links whose bits take whole picoseconds."""
    run = _Run(links, flows)
    ports = {name: _Port([deque() for _ in link.levels]) for name, link in links.items()}
    for number, flow in enumerate(flows):
        first = flow.route.links[0]
        for sent, size in arrivals(flow.request, frames, random):
            # Flow, bytes, when it was sent, when it came to this link; the hop is found by the port.
            run.at(sent + links[first].latency * PICO, first, (number, size, sent, sent))
    while run.events:
        now, _, name, frame = heappop(run.events)
        port, link = ports[name], links[name]
        bit = 10**12 // link.capacity
        if frame is not None:
            port.queues[flows[frame[0]].route.level].append(frame)
            if not port.busy:
                port.busy = True
                run.at(now + (link.largest_frame + link.overhead) * 8 * bit, name, None)
            continue
        queue = next((queue for queue in port.queues if queue), None)
        port.busy = queue is not None
        if queue is None:
            continue
        number, size, sent, came = queue.popleft()
        left = now + (size + TAG + link.overhead) * 8 * bit
        run.at(left, name, None)
        _leave(run, name, (number, size, sent, came), left)
    return run.worst


def _leave(run: _Run, name: str, frame: tuple[int, int, int, int], left: int) -> None:
    """A frame has left a link: it comes to the next one, or has arrived."""
    number, size, sent, came = frame
    flow, link, worst = run.flows[number], run.links[name], run.worst
    most = link.levels[flow.route.level].delay * PICO
    worst.nearest_hop = max(worst.nearest_hop, (left - came) / most)
    worst.beyond += left - came > most
    there = left + link.propagation * PICO
    hop = flow.route.links.index(name) + 1
    if hop < len(flow.route.links):
        after = flow.route.links[hop]
        run.at(there + run.links[after].latency * PICO, after, (number, size, sent, there))
        return
    worst.frames += 1
    worst.nearest = max(worst.nearest, (there - sent) / (flow.bound * PICO))
    worst.beyond += there - sent > flow.bound * PICO
