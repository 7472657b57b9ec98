"""Taking windows so that they can be compared: interleaved, neighbour against neighbour.

```text
 contenders A B C, cases 1 2, rounds 2:
   round 1: case 1: A B C   case 2: A B C
   round 2: case 1: C B A   case 2: C B A       (what drifts, drifts for all)
 ping-pong before and after each window ─▶ near, far, mixed
 ratio A/B of a round: only of windows at the same distance
```
"""

import dataclasses
from collections.abc import Iterator, Sequence

from .model import Contender, Machine, Sample, Window, samples


def interleave(
    machine: Machine | None, contenders: Sequence[Contender], cases: Sequence[str], rounds: int
) -> list[Window]:
    """One window of every contender for every case and round. `machine`, if any, measures the ping-pong."""
    windows: list[Window] = []
    for turn in range(rounds):
        order = contenders if turn % 2 == 0 else list(reversed(contenders))
        for case in cases:
            before = machine.ping_pong_ns() if machine else 0.0
            for contender in order:
                contender.wake()
                try:
                    values = contender.measure(case)
                finally:
                    contender.rest()
                after = machine.ping_pong_ns() if machine else 0.0
                disturbed = str(values.pop("disturbed", ""))
                windows.append(Window(contender.name, case, len(windows), values, disturbed, (before, after)))
                before = after
    return windows


def turns(names: Sequence[str], cases: Sequence[str], rounds: int) -> Iterator[tuple[int, str, str]]:
    """Round, case and contender of each window, in the order of `interleave`."""
    for turn in range(rounds):
        order = names if turn % 2 == 0 else list(reversed(names))
        for case in cases:
            for name in order:
                yield turn, case, name


def ratios(windows: Sequence[Window], ours: str, theirs: str, case: str, value: str) -> tuple[Sample, ...]:
    """`ours` / `theirs`, one per round.

    Windows at different distances are not comparable: such a pair is `disturbed`, as is one of whose windows
    either was.
    """
    of_ours = [w for w in windows if w.contender == ours and w.case == case]
    of_theirs = [w for w in windows if w.contender == theirs and w.case == case]
    return tuple(_ratio(a, b, value) for a, b in zip(of_ours, of_theirs, strict=False))


def _ratio(a: Window, b: Window, value: str) -> Sample:
    reasons = [reason for reason in (a.disturbed, b.disturbed) if reason]
    if a.distance != b.distance:
        reasons.append(f"cores {a.distance} in one window, {b.distance} in the other")
    over, under = a.sample(value), b.sample(value)
    kept = None if over.kept is None or under.kept is None else _quotient(over.kept, under.kept)
    distance = a.distance if a.distance == b.distance else "mixed"
    return Sample(_quotient(over.value, under.value), "; ".join(reasons), distance, kept)


def _quotient(over: float, under: float) -> float:
    return over / under if under else float("inf")


def against_first(
    windows: Sequence[Window], contender: str, first: str, case: str, value: str
) -> tuple[Sample, ...]:
    """The same contender in two cases, `case` / `first`, one per round: the cost of growing."""
    renamed = [
        dataclasses.replace(w, contender=w.case, case="")
        for w in windows
        if w.contender == contender and w.case in (first, case)
    ]
    return ratios(renamed, case, first, "", value)


__all__ = ["against_first", "interleave", "ratios", "samples", "turns"]
