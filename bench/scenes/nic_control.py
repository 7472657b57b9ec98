"""One TCP sender on a link of 800 Mbit/s, joined by a UDP sender that asks for everything.

Three ways: without limits, with a fixed limit of half the link on the UDP sender, and with the loop
that shares a NIC's link out, which promises both half of it. Each in the simulator of `tidegate-bench nic`,
and with real traffic: the host switch stands in for the switch inside a NIC. Its ports are the functions, a
port with `rx.max` and a plain FIFO is the link; `tidegate-bench nic govern` counts and sets `tx.max` by the
agent's API. Counted is what arrives, in wire bytes: 1514 for each 1448 of TCP or 1472 of UDP.
`--page` writes the chart and the results to docs/places/nic.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import plot
from harness.machine import stolen_ticks
from harness.model import Context, Missing, OptionGroup, Plot, Result, Scene, Series
from harness.report import table
from lab.process import Process
from scenes.nic_place import ends
from scenes.stacks.fabric import Tidegate

PAGE = "docs/places/nic"
BUCKET = 0.5
DISTURBED = 0.01
"""Share of CPU time taken away: a run with more is made again, up to `--tries`."""
CASES = ("no control", "a fixed limit on B", "the loop")

COLUMNS = ("a_before", "a_after", "b_after", "a_worst_second")
HEAD = ("Mbit/s", "case", "A before", "A after", "B after", "A, worst second after", "taken away")

Buckets = list[tuple[float, float]]
"""Mbit/s of A and of B, a bucket after the other."""


def bench_program(context: Context) -> Path:
    """`tidegate-bench` beside the release binary."""
    return context.tidegate.with_name("tidegate-bench")


@dataclass(frozen=True)
class Run:
    """One case, simulated or real."""

    way: str
    case: str
    joined: float
    delivered: Buckets
    loop: dict[str, Any]
    stolen: float = 0.0
    """Share of CPU time that the host of this machine took away."""

    def row(self) -> dict[str, Any]:
        """The figures of the table. The second in which B joins shows in the worst, not in the median."""
        join = round(self.joined / BUCKET)
        seconds = [
            (sum(a for a, _ in two) / len(two), sum(b for _, b in two) / len(two))
            for two in (self.delivered[i : i + 2] for i in range(join, len(self.delivered) - 1, 2))
        ]
        settled = max(2, join // 5)
        before, after = self.delivered[settled:join], self.delivered[join:]

        def median(buckets: Buckets, who: int) -> float:
            return statistics.median(bucket[who] for bucket in buckets)

        return {
            "way": self.way,
            "case": self.case,
            "a_before": median(before, 0),
            "a_after": median(after, 0),
            "b_after": median(after, 1),
            "a_worst_second": min(a for a, _ in seconds),
            "stolen": self.stolen,
        }


def simulated(context: Context) -> list[Run]:
    """The three cases in the simulator."""
    arguments, program = context.options, bench_program(context)
    report = json.loads(
        subprocess.run(
            [
                *(program, "--json", "nic", "simulate", "--seconds", str(arguments.seconds)),
                *("--capacity", f"{arguments.capacity}mbit", "--half", f"{arguments.capacity // 2}mbit"),
                *("--rate", str(round(1 / arguments.period))),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert report["bucket"] == BUCKET
    return [
        Run(
            "simulated",
            case["name"],
            report["joined"],
            [(a, b) for a, b in case["delivered"]],
            {"changes": case["changes"], "turns": case["steps"]},
        )
        for case in report["cases"]
    ]


def buckets(log: str, start: float, count: int) -> list[float]:
    """Mbit/s in each bucket from `start` on, from the lines of a receiver; linear between two lines."""
    points = [(float(at), float(total)) for at, total in (line.split() for line in log.splitlines()[1:])]
    points = [(0.0, 0.0), *points] if points else [(0.0, 0.0)]

    def total(at: float) -> float:
        for (t0, b0), (t1, b1) in pairwise(points):
            if t0 <= at <= t1:
                return b0 + (b1 - b0) * (at - t0) / (t1 - t0)
        return points[-1][1] if at > points[-1][0] else 0.0

    marks = [total(start + BUCKET * i) for i in range(count + 1)]
    return [(after - before) * 8 / BUCKET / 1e6 for before, after in pairwise(marks)]


def ready(process: Process) -> bool:
    """Whether a receiver is ready."""
    return "ready" in process.output()


def real(context: Context, case: str) -> Run:
    """One case on a switch and an agent of its own."""
    arguments = context.options
    capacity, seconds = arguments.capacity, arguments.seconds
    joined = round(seconds / 3)
    half = f"{capacity // 2}mbit"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        fabric = Tidegate(Path(folder), ("a", "b", "link"), cleanup)
        terms = {"link": (f'rx = {{ max = "{capacity}mbit", discipline = "fifo" }}',)}
        if case == CASES[1]:
            terms["b"] = (f'tx = {{ max = "{half}" }}',)
        fabric.start(terms)
        start = time.monotonic() + 3
        stop = start + seconds
        me = (sys.executable, ends.__file__)
        receivers = {}
        for kind in ("tcp", "udp"):
            process = fabric.stacks["link"].spawn("env", *me, "receive", kind, str(stop + 0.1))
            process.wait_for(f"the receiver of {kind}", partial(ready, process))
            receivers[kind] = process
        governor = None
        if case == CASES[2]:
            governor = Process(
                [
                    *(bench_program(context), "--json", "nic", "govern", "--api", fabric.host.api),
                    *("--capacity", f"{capacity}mbit", "--vnic", f"a={half}", "--vnic", f"b={half}"),
                    *("--seconds", str(seconds + 2), "--period", str(arguments.period)),
                    *("--spare", str(arguments.spare)),
                ],
                Path(folder) / "governor.log",
            )
        to = fabric.address("link")
        fabric.stacks["a"].spawn("env", *me, "send", "tcp", to, str(start - 0.5), str(stop), "0")
        asks = str(capacity * 1.25)
        fabric.stacks["b"].spawn("env", *me, "send", "udp", to, str(start + joined), str(stop), asks)
        time.sleep(max(0.0, start - time.monotonic()))
        before = stolen_ticks()
        time.sleep(max(0.0, stop + 0.5 - time.monotonic()))
        taken, spent = (now - then for now, then in zip(stolen_ticks(), before, strict=True))
        count = round(seconds / BUCKET)
        a, b = (buckets(receivers[kind].output(), start, count) for kind in ("tcp", "udp"))
        loop: dict[str, Any] = {}
        if governor is not None:
            governor.popen.wait(timeout=30)
            loop = json.loads(governor.output())
            for limits in loop["limits"]:
                limits["at"] -= start
        return Run("real", case, float(joined), list(zip(a, b, strict=True)), loop, taken / spent)


def least_disturbed(context: Context, case: str) -> Run:
    """One case, repeated while the host took too much CPU time away; the least disturbed run."""
    runs: list[Run] = []
    while len(runs) < context.options.tries and not any(run.stolen < DISTURBED for run in runs):
        runs.append(real(context, case))
        context.say(f"{case}: {runs[-1].stolen:.1%} of CPU time taken away")
    return min(runs, key=lambda run: run.stolen)


def cells(run: Run) -> list[str]:
    """One line of the table."""
    row = run.row()
    figures = [f"{row[key]:.0f}" for key in COLUMNS]
    return [run.way, run.case, *figures, f"{run.stolen:.1%}" if run.way == "real" else ""]


def notes(runs: list[Run], arguments: argparse.Namespace) -> list[str]:
    """The loop's turns and times in each run, and B's demand."""
    said = []
    for run in runs:
        if not (loop := run.loop) or not loop["turns"]:
            continue
        words = f"{run.case}, {run.way}: {loop['turns']} turns, {loop['changes']} limits set"
        if run.way == "real":
            words += (
                f"; period {loop['period_ms']['median']:.0f} ms "
                f"(longest {loop['period_ms']['most']:.0f}), reading {loop['read_ms']['median']:.1f} ms, "
                f"setting one {loop['set_ms']['median']:.1f} ms"
            )
        said.append(words)
    said.append(
        f"link {arguments.capacity} Mbit/s, B asks for {arguments.capacity * 1.25:.0f}; "
        "taken away: CPU time, by the host of this machine"
    )
    return said


def chart(runs: list[Run], arguments: argparse.Namespace) -> Plot:
    """A's rate over time, in each case."""
    return Plot(
        "nic-control",
        f"TCP on a link of {arguments.capacity} Mbit/s, joined by UDP at {arguments.capacity * 1.25:.0f}",
        "time [s]",
        "what the TCP sender gets [Mbit/s]",
        tuple(
            Series(
                f"{run.case}, {run.way}",
                tuple((BUCKET * (i + 0.5), a) for i, (a, _) in enumerate(run.delivered)),
            )
            for run in runs
        ),
    )


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--capacity", type=int, default=800, metavar="N", help="Mbit/s of the link; 800")
    group.add_argument(
        "--seconds", type=float, default=30.0, metavar="N", help="of a case; B joins after a third; 30"
    )
    group.add_argument(
        "--period", type=float, default=0.1, metavar="S", help="shortest period of the loop, s; 0.1"
    )
    group.add_argument(
        "--spare", type=int, default=10, metavar="N", help="the loop may spend one part in N of its time; 10"
    )
    group.add_argument(
        "--tries", type=int, default=3, metavar="N", help="runs of a case, while the machine is disturbed; 3"
    )


def run(context: Context) -> Result:
    """The simulator, then the cases on a switch."""
    if os.geteuid() != 0:
        raise Missing("needs root, for network namespaces and taps")
    arguments = context.options
    runs = [*simulated(context), *(least_disturbed(context, case) for case in CASES)]
    everything = {"capacity": arguments.capacity, "runs": [vars(run) | run.row() for run in runs]}
    drawn = chart(runs, arguments)
    if arguments.page:
        page = context.root / PAGE
        (page / "control.svg").write_text(plot.svg(drawn))
        (page / "control.json").write_text(json.dumps(everything, indent=1) + "\n")
    return Result(
        tables=[table(HEAD, map(cells, runs))], notes=notes(runs, arguments), plots=[drawn], data=everything
    )


SCENE = Scene(
    name="nic_control",
    title="A NIC's link, shared out by the loop",
    about=(
        "TCP on one link, joined by UDP: no control, a fixed limit, and the loop that shares a link out; "
        "simulated, and on a switch, as root. --page writes docs/places/nic/control.{svg,json}."
    ),
    order=950,
    run=run,
    default=False,
    add_options=add_options,
    writes_page=True,
    programs=("tidegate", "tidegate-bench"),
)
