"""What hosts found of late frames, beside what was done to the frames. Pure.

```text
 Ts ──── in the sending host ──── left the network ──── read by the receiver
  ├──────────── low ──────────────────┤                  │
  └──────────── high ────────────────────────────────────┘      Tr - Ts lies between the two
```

Both are of one clock, outside of the switches. A frame is late for sure if `low` exceeds its deadline, and in
time for sure if `high` does not. Between the two, no clock outside of the switches can tell.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

CAUSES = ("sender", "network", "receiver")


@dataclass(frozen=True)
class Frame:
    """One frame; times in ns."""

    sequence: int
    """Of its stamp."""
    low: int
    """Tr - Ts is at least this."""
    high: int
    """Tr - Ts is at most this."""
    cause: str
    """The part of its way that was made longer, of `CAUSES`; empty if none was."""


@dataclass(frozen=True)
class Report:
    """A late frame, as a host tells it; times in ns."""

    sequence: int
    late: int
    """Tr - Ts - Td."""
    error: int
    """Of `late`."""
    cause: str
    """Of `CAUSES`."""


@dataclass(frozen=True)
class Counts:
    """What the receiving host counted."""

    met: int
    late: int
    uncertain: int
    by_cause: dict[str, int]
    """Of the late and the uncertain ones."""


@dataclass
class Compared:
    """The comparison. Empty lists and zeros where everything is right."""

    missed: int = 0
    """Frames that were late for sure."""
    kept: int = 0
    """Frames that were in time for sure."""
    open: int = 0
    """Frames of which that cannot be told from outside."""
    not_found: int = 0
    """At least so many late frames were not counted."""
    invented: int = 0
    """At least so many frames were counted as late and were in time."""
    not_certain: int = 0
    """At least so many frames were late by more than the error, and not counted as certain."""
    reports: int = 0
    """Reports of single frames."""
    strange: int = 0
    """Reports of frames that were not sent."""
    early: list[int] = field(default_factory=list)
    """Reports of less than `low`, by more than their error: how much (ns)."""
    after: list[int] = field(default_factory=list)
    """Reports of more than `high`, by more than their error: how much (ns)."""
    false: int = 0
    """Reports of certain misses of frames that were in time for sure."""
    other_cause: dict[str, int] = field(default_factory=dict)
    """Reports with another cause than what was done, by the cause they have."""


def compare(
    frames: Sequence[Frame], deadline: int, error: int, counts: Counts, reports: Iterable[Report]
) -> Compared:
    """Compare; `error` is the largest error of the clocks' offset in that time (ns)."""
    found = Compared()
    found.missed = sum(frame.low > deadline for frame in frames)
    found.kept = sum(frame.high <= deadline for frame in frames)
    found.open = len(frames) - found.missed - found.kept
    # An offset that is wrong by its error moves a frame that far: it may be counted either way.
    surely = sum(frame.low > deadline + error for frame in frames)
    perhaps = sum(frame.high > deadline - error for frame in frames)
    certainly = sum(frame.low > deadline + 2 * error for frame in frames)
    counted = counts.late + counts.uncertain
    found.not_found = max(0, surely - counted)
    found.invented = max(0, counted - perhaps, counts.late - (found.missed + found.open))
    found.not_certain = max(0, certainly - counts.late)
    by_sequence = {frame.sequence: frame for frame in frames}
    for report in reports:
        found.reports += 1
        frame = by_sequence.get(report.sequence)
        if frame is None:
            found.strange += 1
            continue
        late_by = report.late + deadline
        if (less := frame.low - report.error - late_by) > 0:
            found.early.append(less)
        if (more := late_by - frame.high - report.error) > 0:
            found.after.append(more)
        if report.late > report.error and frame.high <= deadline:
            found.false += 1
        if frame.cause and report.cause != frame.cause:
            found.other_cause[report.cause] = found.other_cause.get(report.cause, 0) + 1
    return found
