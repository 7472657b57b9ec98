"""What a vNIC keeps of its worker beside ports that want all of it."""

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from harness.model import Context, Figure, Json, Missing, Result, Sample, Scene, Target
from peers.synthetic import PRIORITY

SECONDS = 0.7
"""Length of each of the three measurements of a run: alone, beside, alone."""
ROUNDS = 3
LOADS = {"flood": "64 B floods", "tiny": "tiny buffers", "kicks": "kicks without end"}
WEIGHTS = (1, 9)
HOSTILE = (1, 4)
KEPT = 0.9
"""Goodput beside hostile ports, of the weight's share of that alone: at least."""
LATER = 1.5
"""p99.9 beside hostile ports, of that alone: at most."""


@dataclass(frozen=True)
class Case:
    """One crowd."""

    load: str
    weight: int
    hostile: int

    @property
    def name(self) -> str:
        """As in the tables."""
        ports = "one port" if self.hostile == 1 else f"{self.hostile} ports"
        return f"weight {self.weight} beside {ports}, {LOADS[self.load]}"


def cases() -> Iterator[Case]:
    """Every crowd."""
    for load in LOADS:
        for weight in WEIGHTS:
            for hostile in HOSTILE:
                yield Case(load, weight, hostile)


def measure(context: Context, case: Case) -> Json:
    """One run, on a switch and an agent of its own."""
    binary = context.tidegate.with_name("tidegate-bench")
    if not binary.exists():
        raise Missing(f"{binary} is missing: cargo build --release")
    cpus = context.machine
    command = ["setpriv", "--pdeathsig", "TERM", "nice", "-n", str(PRIORITY), str(binary), "--json"]
    command += ["--cpu", str(cpus.generator_cpu), "worker-share", "--switch-cpu", str(cpus.switch_cpu)]
    command += ["--tidegate", str(context.tidegate), "--time", str(context.seconds(SECONDS))]
    command += ["--load", case.load, "--weight", str(case.weight), "--hostile", str(case.hostile)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    context.cleanup.callback(child.send_signal, signal.SIGTERM)
    output, errors = child.communicate(timeout=120)
    if child.returncode != 0:
        raise RuntimeError(f"{case.name}: {errors.strip()}")
    report: Json = json.loads(output)
    return report


def figures(case: Case, reports: list[Json]) -> list[Figure]:
    """What was kept, and how much later frames came."""
    last = reports[-1]
    note = (
        f"alone {last['alone']['bulk_mbit'] / 1e3:.0f} Gbit/s and {last['alone']['voice_p999_us']:,.0f} us, "
        f"beside them {last['beside']['bulk_mbit'] / 1e3:.1f} and {last['beside']['voice_p999_us']:,.0f} us; "
        f"its share is {last['share']:.2f}; {last['hostile_per_second'] / 1e6:.2f} million of theirs a second"
    )
    kept = tuple(Sample(report["kept"]) for report in reports)
    later = tuple(Sample(report["p999"]) for report in reports)
    return [
        Figure(f"{case.name}: goodput, of its share", "tidegate", "x", kept, note=note),
        Figure(f"{case.name}: p99.9, of that alone", "tidegate", "x", later),
    ]


def targets(seen: dict[Case, list[Json]]) -> list[Target]:
    """For each crowd, what is asked."""
    found = []
    for case, reports in seen.items():
        kept = tuple(Sample(report["kept"]) for report in reports)
        later = tuple(Sample(report["p999"]) for report in reports)
        found += [
            Target(f"{case.name}: goodput, of its share", f"at least {KEPT:g}x", "x", KEPT, "more", kept),
            Target(f"{case.name}: p99.9, of that alone", f"at most {LATER:g}x", "x", LATER, "less", later),
        ]
    return found


def run(context: Context) -> Result:
    """Every crowd once, then every crowd again."""
    wanted = [case for case in cases() if context.wants(case.name)]
    if not wanted:
        raise Missing(f"no case's name contains '{context.only}'")
    seen: dict[Case, list[Json]] = {case: [] for case in wanted}
    rounds = context.rounds(ROUNDS)
    for number in range(rounds):
        for case in wanted:
            report = measure(context, case)
            seen[case].append(report)
            context.say(
                f"{number + 1} of {rounds}: {case.name}: {report['kept']:.2f} of its share, "
                f"p99.9 {report['p999']:.1f} times"
            )
    result = Result(targets=targets(seen))
    for case, reports in seen.items():
        result.figures += figures(case, reports)
    if len(context.machine.cpus) < 3:
        result.notes.append("The hostile ports run on the honest guests' core: this machine has no other.")
    return result


SCENE = Scene(
    name="worker_share",
    title="Beside ports that want all of a worker",
    about=(
        "`tidegate-bench worker-share`: one worker has two pairs of honest guests, all of the same weight "
        "w, and n hostile ports of weight 1. The first pair sends 1514 B frames as fast as it may; of the "
        "second, one sends a 200 B frame each 200 us, without a deadline. The hostile ports send 64 B "
        "frames as fast as they can, or receive 1514 B frames into mergeable buffers of 64 B, or kick a "
        "queue that has nothing. Goodput is told as a part of w / (w + n) of what the first pair had alone, "
        "the mean of before and after; the delay is the second pair's, as a multiple of that alone."
    ),
    order=96,
    run=run,
    has_cases=True,
)
