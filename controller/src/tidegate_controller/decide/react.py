"""What to do about late frames, and about queues that run short before frames are late.

```text
 Missed ──▶ Calm: before the last change, or within the hold time? ─▶ KEPT
   │ counts
   ▼
 1. a queue on the way is below what is reserved, or ran short ─▶ its rate, up to what is reservable
 2. the same way at a more urgent level  ─┐ the first that the arithmetic admits
 3. another way                          ─┘ beside the old one, so no other path is touched
 4. VIOLATED

 QueueSample ─▶ Trends: drops, or a backlog that grows ─▶ 1. and 3. for a path of that queue
```
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.decide.queues import LEAST, Load
from tidegate_controller.events import QueueSample
from tidegate_controller.model.paths import Path, Route
from tidegate_controller.model.topology import Port

HOLD = 5.0
"""s: a path is changed at most once in that time."""
GROWING = 4
"""So many samples in which the backlog grows are a trend."""
FILLED = 16_000
"""Bytes: a smaller backlog is no trend."""


class Remedy(StrEnum):
    """What may be done about late frames; the operator may leave some out."""

    RATE = "rate"
    LEVEL = "level"
    ROUTE = "route"


ALL = frozenset(Remedy)


class Calm:
    """Which paths may be changed, and which misses count."""

    def __init__(self, hold: float = HOLD) -> None:
        self._hold = hold
        self._since: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def changed(self, path: str, time: float) -> None:
        """Notes a change of a path; frames of before may arrive until this time."""
        self._since[path] = time

    def forget(self, path: str) -> None:
        """Forgets a path that is gone."""
        self._since.pop(path, None)
        self._told.pop(path, None)

    def kept(self, path: str, missed: float, now: float) -> str | None:
        """Returns why a miss at that time leads to no change; `None`: it may."""
        since = self._since.get(path)
        if since is None:
            return None
        if missed <= since:
            return f"the frames were under way before the last change, {since - missed:.3f} s earlier"
        if now < since + self._hold:
            return f"the last change was {now - since:.3f} s ago; paths are kept for {self._hold:g} s"
        return None

    def may(self, name: str, now: float) -> bool:
        """Returns whether a path, or a port, was left alone for the hold time."""
        since = self._since.get(name)
        return since is None or now >= since + self._hold

    def tell(self, path: str, now: float) -> bool:
        """Returns whether a decision that changes nothing is worth a record: once per hold time."""
        told = self._told.get(path)
        if told is not None and now < told + self._hold:
            return False
        self._told[path] = now
        return True


@dataclass(frozen=True)
class Shortage:
    """A queue that runs short."""

    port: Port
    queue: int
    text: str


class Trends:
    """The last samples of each queue that carries paths."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Port, int], deque[QueueSample]] = {}

    def add(self, sample: QueueSample) -> None:
        """Adds a sample; they come in order of time."""
        seen = self._seen.setdefault((sample.port, sample.queue), deque(maxlen=GROWING))
        if seen and sample.drops < seen[-1].drops:
            # The switch counts anew.
            seen.clear()
        seen.append(sample)

    def forget(self, port: Port, queue: int) -> None:
        """Forgets all samples of a queue but the last: after a reaction they do not count again."""
        seen = self._seen.get((port, queue))
        while seen and len(seen) > 1:
            seen.popleft()

    def minimum(self, port: Port, queue: int) -> int | None:
        """Returns the minimum that a queue was last seen with (bit/s)."""
        seen = self._seen.get((port, queue))
        return seen[-1].minimum if seen else None

    def shortage(self, port: Port, queue: int) -> Shortage | None:
        """Returns the shortage of a queue that dropped frames or fills."""
        seen = self._seen.get((port, queue))
        if not seen:
            return None
        lost = seen[-1].drops - seen[0].drops
        if lost:
            return Shortage(port, queue, f"{port} queue {queue}: {lost} frames dropped")
        backlogs = [sample.backlog for sample in seen]
        grows = all(before < after for before, after in pairwise(backlogs))
        if len(seen) == GROWING and grows and backlogs[-1] > FILLED:
            text = f"{port} queue {queue}: backlog grew from {backlogs[0]} to {backlogs[-1]} bytes"
            return Shortage(port, queue, text)
        return None


@dataclass(frozen=True)
class MoreRate:
    """The minimum that a queue is to have."""

    link: str
    level: int
    minimum: int
    text: str


def more_rate(
    link: LinkTerms,
    level: int,
    loads: Mapping[int, Load],
    raised: Mapping[int, int],
    seen: int | None,
    shortage: Shortage | None,
) -> MoreRate | None:
    """Returns what to set if a queue is below what is reserved, or short; mappings are by level.

    It never takes what other levels have reserved, nor what best effort is left with.
    """
    reserved = loads.get(level, Load()).rate
    now = max(reserved, raised.get(level, 0), LEAST)
    if seen is not None and seen < min(now, link.capacity):
        return MoreRate(
            link.name, level, now, f"{link.name} level {level}: {seen} bit/s are set, {now} are needed"
        )
    if shortage is None:
        return None
    others = sum(
        max(loads.get(other, Load()).rate, raised.get(other, 0))
        for other in range(len(link.levels))
        if other != level
    )
    minimum = min(now + now // 4, link.reservable - others)
    if minimum <= now:
        return None
    return MoreRate(link.name, level, minimum, f"{shortage.text}; minimum {now} to {minimum} bit/s")


def remedies(path: Path, ways: Iterable[tuple[str, ...]], allowed: frozenset[Remedy] = ALL) -> list[Route]:
    """Returns the same way at more urgent levels, the nearest first; then others, at its level or such ones.

    Another way without a raise keeps the level.
    """
    own, level = path.route.links, path.route.level
    urgent = range(level - 1, -1, -1) if Remedy.LEVEL in allowed else ()
    found = [Route(own, one) for one in urgent]
    if Remedy.ROUTE in allowed:
        found += [Route(way, one) for way in ways if way != own for one in (level, *urgent)]
    return found


def elsewhere(
    path: Path, ways: Iterable[tuple[str, ...]], link: str, allowed: frozenset[Remedy] = ALL
) -> list[Route]:
    """Returns what `remedies` has of ways without this link."""
    others = remedies(path, ways, allowed)
    return [route for route in others if link not in route.links]


def between(route: Route) -> frozenset[str]:
    """Returns both directions of the links between switches: a backup takes none of them."""
    links = route.links[1:-1]
    return frozenset({*links, *(">".join(reversed(link.split(">"))) for link in links)})
