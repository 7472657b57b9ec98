"""Whether memory, descriptors and threads of a process stay the same over equal cycles. Pure.

samples (one a cycle, at rest) -> per process and quantity -> findings: what grew, by how much, since when
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SETTLE = 2
"""The first samples of a process, which are not compared: it still allocates what it keeps."""
RSS_SLACK = 2 << 20
RSS_SHARE = 0.02
"""Memory may grow by this, and this share of itself: allocators keep freed memory."""
DISK_SLACK = 64 << 10


@dataclass(frozen=True)
class Sample:
    """Memory, descriptors and threads of one process, or size of a folder, at the end of a cycle."""

    cycle: int
    process: str
    """`agent`, `switch`, or a folder's name."""
    life: int
    """Number of the process among those of this name: a new one follows a killed one."""
    rss: int
    """Bytes."""
    fds: int
    """Descriptors; entries of a folder."""
    threads: int
    kind: str = ""
    """Samples are compared only with those of the same kind; empty if the process has one kind."""


@dataclass(frozen=True)
class Finding:
    """A quantity that did not stay the same."""

    process: str
    what: str
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.process}: {self.what} went from {self.before} to {self.after}"


def lives(samples: Sequence[Sample]) -> dict[tuple[str, int], list[Sample]]:
    """The samples of each process, in order."""
    found: dict[tuple[str, int], list[Sample]] = {}
    for sample in sorted(samples, key=lambda s: s.cycle):
        found.setdefault((sample.process, sample.life), []).append(sample)
    return found


def growth(values: Sequence[int]) -> int:
    """From the median of the first half to the median of the second."""
    half = len(values) // 2
    return int(median(values[-half:]) - median(values[:half])) if half else 0


def rss_growth(samples: Sequence[Sample], process: str) -> int:
    """The most that one life of a process grew, bytes."""
    grown = [
        growth([s.rss for s in life[SETTLE:]])
        for (name, _), life in lives(samples).items()
        if name == process
    ]
    return max(grown, default=0)


def judge(samples: Sequence[Sample]) -> list[Finding]:
    """Every quantity that did not stay the same."""
    findings: list[Finding] = []
    counts: dict[tuple[str, str, str], int] = {}
    for (process, _), life in lives(samples).items():
        rest = life[SETTLE:]
        if not rest:
            continue
        # Counts are exact, and the same for every process of a name: each rests with the same ports.
        for sample in rest:
            for what, count in (("descriptors", sample.fds), ("threads", sample.threads)):
                first = counts.setdefault((process, sample.kind, what), count)
                if count != first and not any((f.process, f.what) == (process, what) for f in findings):
                    findings.append(Finding(process, what, first, count))
        memory = [s.rss for s in rest]
        slack = DISK_SLACK if rest[0].threads == 0 else RSS_SLACK + int(RSS_SHARE * memory[0])
        if growth(memory) > slack:
            findings.append(Finding(process, "bytes", memory[0], memory[-1]))
    return findings
