"""The keys of a segment, and when they change. Pure.

```text
            began + overlap:             began + overlap:
 QUIET ───▶ ANNOUNCED ─────────────────▶ SETTLING ────────▶ QUIET
   │        key g, next g+1              key g+1, next g     key g+1
   └ since + rotate - overlap, or a host lost the segment
```

**Why hosts read each other's stamps**: a host that asked less than an overlap ago has, before a change, the
key to come, since that was announced an overlap earlier; and after it, the one before. `began` is when a
phase took effect, not when it was due. `resume` begins windows anew: while no controller answered, no host
could ask.

The generation is the parity of its key: a stamp tells its key by that bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tidegate_controller.trust.secret import Secret

KEY = 16
"""Bytes."""


class Phase(StrEnum):
    """Which keys count."""

    QUIET = "quiet"
    ANNOUNCED = "announced"
    SETTLING = "settling"


@dataclass(frozen=True)
class Times:
    """s; `overlap` is at most a third of `rotate`."""

    rotate: float = 86400.0
    overlap: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < 3 * self.overlap <= self.rotate:
            raise ValueError(
                f"overlap {self.overlap:g} s is not above 0 and at most a third of {self.rotate:g} s"
            )


@dataclass(frozen=True)
class Ring:
    """The keys of a segment; times are Unix time, s."""

    segment: int
    generation: int
    keys: Mapping[int, Secret]
    """By generation: the one in use, and another beside it unless it is quiet."""
    phase: Phase
    began: float
    """When the phase did."""
    since: float
    """When the generation came into use."""
    hosts: frozenset[str]
    """The hosts that may have it."""
    hurry: bool = False
    """A host that may have had a key is not among them any more: the next change is due."""


def fresh(generation: int, random: Callable[[int], bytes]) -> Secret:
    """Returns a key whose lowest bit is that of the generation."""
    value = bytearray(random(KEY))
    value[-1] = value[-1] & 0xFE | generation & 1
    return Secret(bytes(value))


def first(segment: int, hosts: frozenset[str], now: float, random: Callable[[int], bytes]) -> Ring:
    """The ring of a new segment."""
    return Ring(segment, 0, {0: fresh(0, random)}, Phase.QUIET, now, now, hosts)


def due(ring: Ring, times: Times) -> float:
    """When `turn` does something next."""
    if ring.phase != Phase.QUIET:
        return ring.began + times.overlap
    return ring.began if ring.hurry else ring.since + times.rotate - times.overlap


def turn(ring: Ring, now: float, times: Times, random: Callable[[int], bytes]) -> Ring:
    """Returns the ring after the change that is due, or the same one."""
    if now < due(ring, times):
        return ring
    generation = ring.generation
    if ring.phase == Phase.QUIET:
        keys = {generation: ring.keys[generation], generation + 1: fresh(generation + 1, random)}
        return replace(ring, keys=keys, phase=Phase.ANNOUNCED, began=now, hurry=False)
    if ring.phase == Phase.ANNOUNCED:
        return replace(ring, generation=generation + 1, phase=Phase.SETTLING, began=now, since=now)
    return replace(ring, keys={generation: ring.keys[generation]}, phase=Phase.QUIET, began=now)


def resume(ring: Ring, now: float) -> Ring:
    """Returns the ring after a time in which no host could ask."""
    # The clock of another controller may be ahead.
    return replace(ring, began=now, since=min(ring.since, now))


def stored(ring: Ring, made: float, now: float) -> Ring:
    """Returns a ring that `turn` has made at `made`, and that hosts can have from `now` on."""
    return replace(ring, began=now) if ring.began == made else ring


def share(ring: Ring, hosts: frozenset[str]) -> Ring:
    """Returns the ring with other hosts."""
    return replace(ring, hosts=hosts, hurry=ring.hurry or not ring.hosts <= hosts)


def answer(ring: Ring) -> tuple[Secret, Secret | None]:
    """The key in use, and the other one that counts."""
    other = {Phase.QUIET: None, Phase.ANNOUNCED: ring.generation + 1, Phase.SETTLING: ring.generation - 1}
    number = other[ring.phase]
    return ring.keys[ring.generation], None if number is None else ring.keys[number]
