"""A receiver that stalls, and what it leaves behind: throughput and losses once it is over."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from harness.machine import hugepages
from harness.model import Context, Figure, Json, Machine, Result, Sample, Scene, Target
from peers.synthetic import Synthetic, vnics

MTU = "mtu = 9000"
SIZES = (64, 1518, 4096, 9014)
PAIRS = (1, 2, 4, 8)
PAGES = 300
"""Hugepages (2 MB): 16 guests with two rings of 256 jumbo frames."""
KEPT = 0.95
"""Throughput from 100 ms after a stall on, of what it was before: at least."""
LOST = 0.1
"""Frames lost then, while all receivers have buffers, %: at most."""


@dataclass(frozen=True)
class Case:
    """One load."""

    workers: int
    pairs: int
    size: int
    packed: bool

    @property
    def name(self) -> str:
        """As in the tables."""
        rings = "packed" if self.packed else "split"
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{workers}, {self.pairs} x {self.size} B, {rings}"


def cases(*, quick: bool) -> Iterator[Case]:
    """Every load."""
    for workers in (1, 2):
        for packed in (False, True):
            for pairs in PAIRS if not quick else (2,):
                for size in SIZES if not quick else (1518,):
                    yield Case(workers, pairs, size, packed)


def _cpus(machine: Machine, workers: int) -> str:
    """The CPUs of so many workers: the switch's own, and the one before it that the generator leaves."""
    if workers == 1:
        return str(machine.switch_cpu)
    others = [cpu for cpu in machine.cpus if cpu not in (machine.switch_cpu, machine.generator_cpu)]
    return f"{machine.switch_cpu},{others[-1] if others else machine.generator_cpu}"


def _dropped(load: Synthetic, case: Case) -> dict[str, int]:
    """Frames that the switch dropped since the contracts are in force, by reason."""
    total: dict[str, int] = {}
    for number in range(2 * case.pairs):
        for reason, count in load.host.show(f"p{number:04}").dropped("tx").items():
            total[reason] = total.get(reason, 0) + count
    return total


def _measure(context: Context, case: Case, rounds: int) -> tuple[Json, str]:
    """One load on a switch of its own: what the generator saw, and what the switch says of it."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="stalls-")))
        own = replace(context, folder=folder, cleanup=cleanup)
        load = Synthetic(own, cpus=_cpus(context.machine, case.workers))
        load.apply(vnics(load.folder, 2 * case.pairs, MTU))
        options = ("--pairs", case.pairs, "--frame", case.size, "--rounds", rounds)
        packed = ("--packed",) if case.packed else ()
        report = load.run("stall", *options, *packed, timeout=30 + 3 * rounds)
        dropped = {reason: count for reason, count in _dropped(load, case).items() if count}
        told = ", ".join(f"{reason} {count:,}" for reason, count in sorted(dropped.items())) or "nothing"
        return report, f"dropped {told}; longest loop {load.longest_loop_us():.0f} us"


def run(context: Context) -> Result:
    """Every load, for as many rounds of a second."""
    context.cleanup.enter_context(hugepages(PAGES))
    rounds = 3 if context.quick else 60
    result = Result()
    kept: list[tuple[float, str]] = []
    lost: list[tuple[float, str]] = []
    for case in cases(quick=context.quick):
        report, told = _measure(context, case, rounds)
        before, after = report["before_frames_per_second"], report["after_frames_per_second"]
        context.say(
            f"{case.name}: {before / 1e6:.3f} Mpps, then {after / 1e6:.3f}; lost then "
            f"{report['after_lost_percent']:.3f} %; {told}"
        )
        each = [round_["after"]["received"] / round_["after"]["seconds"] / 1e6 for round_ in report["rounds"]]
        note = (
            f"before {before / 1e6:.2f}; lost before {report['before_lost_percent']:.3f} %, "
            f"then {report['after_lost_percent']:.3f} %; in all, {told}"
        )
        result.figures.append(Figure(case.name, "tidegate", "Mpps", tuple(map(Sample, each)), note=note))
        kept.append((after / before, case.name))
        lost.append((report["after_lost_percent"], case.name))
    worst, most = min(kept), max(lost)
    result.targets += [
        Target(
            "throughput from 100 ms after a stall on, of what it was: the least",
            f"at least {KEPT:g}x",
            "x",
            KEPT,
            "more",
            (Sample(worst[0]),),
            note=worst[1],
        ),
        Target(
            "frames lost from 100 ms after a stall on: the most",
            f"at most {LOST:g} %",
            "%",
            LOST,
            "less",
            (Sample(most[0]),),
            note=most[1],
        ),
    ]
    return result


SCENE = Scene(
    name="stalls",
    title="A receiver that stalls, and after it",
    about=(
        "Pairs of synthetic guests, rings of 256, one sends to the other as fast as it may; all on one "
        "generator core. In each round of a second the first receiver takes nothing and gives no buffers for "
        "5 ms. Shown are the frames per second from 100 ms after that on. With two workers sender and "
        "receiver of a pair are on different ones. On a machine of two CPUs the second worker shares the "
        "generator's."
    ),
    order=25,
    run=run,
)
