"""A vNIC's share of its worker beside ports that want all of it."""

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from harness.model import Context, Figure, Json, Missing, Result, Sample, Scene, Target
from peers.synthetic import PRIORITY

SECONDS = 0.2
"""Length of a window: alone, beside, alone at that pace."""
WINDOWS = 4
"""Windows of each kind in a run, in turn."""
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
    command = [
        "setpriv",
        "--pdeathsig",
        "TERM",
        "nice",
        "-n",
        str(PRIORITY),
        str(binary),
        "--json",
    ]
    command += [
        "--cpu",
        str(cpus.generator_cpu),
        "worker-share",
        "--switch-cpu",
        str(cpus.switch_cpu),
    ]
    command += [
        "--tidegate",
        str(context.tidegate),
        "--time",
        str(context.seconds(SECONDS)),
    ]
    command += ["--rounds", str(WINDOWS)]
    command += [
        "--load",
        case.load,
        "--weight",
        str(case.weight),
        "--hostile",
        str(case.hostile),
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    context.cleanup.callback(child.send_signal, signal.SIGTERM)
    output, errors = child.communicate(timeout=120)
    if child.returncode != 0:
        raise RuntimeError(f"{case.name}: {errors.strip()}")
    report: Json = json.loads(output)
    return report


def _of_rounds(reports: list[Json], key: str) -> tuple[Sample, ...]:
    return tuple(Sample(window[key]) for report in reports for window in report["rounds"])


def figures(case: Case, reports: list[Json]) -> list[Figure]:
    """Kept goodput, time of a frame, and delay."""
    last = reports[-1]
    alone, beside, window = last["alone"], last["beside"], last["rounds"][-1]
    goodput = (
        f"alone {window['alone_mbit'] / 1e3:.0f} Gbit/s, beside them {window['beside_mbit'] / 1e3:.1f}; "
        f"its share is {last['share']:.2f}; "
        f"{window['hostile_per_second'] / 1e6:.2f} million of theirs a second"
    )
    delay = (
        f"alone p50 {alone['p50_us']:,.0f} and p99.9 {alone['p999_us']:,.0f} us, beside them "
        f"{beside['p50_us']:,.0f} and {beside['p999_us']:,.0f}; "
        f"{alone['undisturbed']:.0%} and {beside['undisturbed']:.0%} of the frames"
    )

    def figure(what: str, unit: str, samples: tuple[Sample, ...], note: str = "") -> Figure:
        return Figure(f"{case.name}: {what}", "tidegate", unit, samples, note=note)

    return [
        figure("goodput, of its share", "x", _of_rounds(reports, "kept"), goodput),
        figure("worker's time, of its share", "x", _of_rounds(reports, "time")),
        figure("a frame, alone", "ns", _of_rounds(reports, "frame_ns_alone")),
        figure("a frame, alone at that pace", "ns", _of_rounds(reports, "frame_ns_paced")),
        figure("a frame, beside them", "ns", _of_rounds(reports, "frame_ns_beside")),
        figure("p99.9 while no CPU was taken away, of that alone", "x", _of_rounds(reports, "p999"), delay),
        figure("p99.9 of all frames, of that alone", "x", _of_rounds(reports, "p999_of_all")),
    ]


def targets(seen: dict[Case, list[Json]]) -> list[Target]:
    """The targets of each crowd."""
    found = []
    for case, reports in seen.items():
        kept = _of_rounds(reports, "kept")
        later = _of_rounds(reports, "p999")
        found += [
            Target(
                f"{case.name}: goodput, of its share",
                f"at least {KEPT:g}x",
                "x",
                KEPT,
                "more",
                kept,
            ),
            Target(
                f"{case.name}: p99.9, of that alone",
                f"at most {LATER:g}x",
                "x",
                LATER,
                "less",
                later,
            ),
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
            kept, later = (median(window[key] for window in report["rounds"]) for key in ("kept", "p999"))
            context.say(
                f"{number + 1} of {rounds}: {case.name}: {kept:.2f} of its share, p99.9 {later:.1f} times"
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
        "the mean of before and after; beside tiny buffers as a part of w / (w + n + 1), since one more port "
        "sends to them. The time that the switch charged is told the same way. What a frame takes of the "
        "worker is told beside them, alone, and alone where the guest sends no more than it did beside "
        "them: memory that is used seldom leaves the cache with no hostile port, too. The delay is the "
        "second pair's, of the frames that were under way while neither the worker nor the guests lost "
        "their CPU for more than 10 us in 2 ms, and of all frames."
    ),
    order=96,
    run=run,
    has_cases=True,
)
