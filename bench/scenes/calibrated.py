"""How often the host-latency that `tidegate calibrate` proposes does not hold afterwards.

Each round starts the demo's traffic anew (voice among two bulk TCP senders), calibrates under that
load, and then watches as long: how many loops of the workers took longer than each value it said, and how
many frames of voice were later than that inside the switch. Beside the proposal stand the values that are to
cover 99 % and 99.9 % of wake-ups and loops.
"""

import json
import re
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.api import get
from harness.model import Context, OptionGroup, Result, Scene
from harness.options import add_binary, binary
from harness.report import table

START = 60.0
"""Longest wait for the demo's traffic, seconds."""
Row = tuple[str, int, int, int, int, int]
HEAD = ("round", "covers", "host-latency", "loops", "longer", "frames", "later")


@contextmanager
def scene(binary: Path) -> Iterator[Path]:
    """The demo's traffic under contracts; yields the socket of its API."""
    command: list[str | Path] = [binary, "demo", "--serve", "--seconds", "1"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield started(demo)
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=30)


def started(demo: "subprocess.Popen[str]") -> Path:
    """Waits until the demo's traffic runs without end; returns the socket of its API."""
    end = time.monotonic() + START
    assert demo.stderr is not None
    while time.monotonic() < end:
        line = demo.stderr.readline()
        if said := re.search(r"Its API: (\S+)", line):
            return Path(said[1])
        assert line, "the demo ended"
    raise TimeoutError("the demo does not go on")


def counted(api: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Loops of the workers, and frames of voice, by how long they took, ns."""
    loops: Counter[int] = Counter()
    for worker in get(api, "/v1/host")["workers"]:
        loops.update(dict(worker["loop_time"]["buckets"]))
    return loops, dict(get(api, "/v1/vnics/voice")["stats"]["delay"]["buckets"])


def gained(before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    """The counts of `after` without those of `before`."""
    return {ns: count - before.get(ns, 0) for ns, count in after.items()}


def above(histogram: dict[int, int], ns: int) -> int:
    """Number of entries above `ns`; a bucket is 3 % wide."""
    return sum(count for end, count in histogram.items() if end > ns * 33 // 32)


def measure(binary: Path, seconds: int) -> list[Row]:
    """Of one round, for each value: what it covers, ns, loops, those longer, frames, those later."""
    with scene(binary) as api:
        command: list[str | Path] = [
            binary,
            "--api",
            api,
            "calibrate",
            "--json",
            "--seconds",
            str(seconds),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        choices = json.loads(done.stdout)["choices"]
        before = counted(api)
        time.sleep(seconds)
        loops, frames = (gained(*pair) for pair in zip(before, counted(api), strict=True))
    values = [(str(choice["covers"]), int(choice["host_latency_ns"])) for choice in choices]
    return [
        (
            covers,
            ns,
            sum(loops.values()),
            above(loops, ns),
            sum(frames.values()),
            above(frames, ns),
        )
        for covers, ns in values
    ]


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    add_binary(group)
    group.add_argument("--rounds", type=int, default=5, metavar="N", help="5")
    group.add_argument(
        "--seconds", type=int, default=10, metavar="N", help="of calibration, and then of watching; 10"
    )


def median_worst(values: list[int], unit: float = 1) -> str:
    """`median (worst)`."""
    return f"{statistics.median(values) / unit:.0f} ({max(values) / unit:.0f})"


def run(context: Context) -> Result:
    """Measure each round; medians and worst values of all."""
    program = binary(context)
    rounds: list[list[Row]] = []
    lines = []
    for number in range(1, context.options.rounds + 1):
        rounds.append(measure(program, context.options.seconds))
        for covers, ns, *counts in rounds[-1]:
            lines.append([str(number), covers, f"{ns / 1e3:.0f} us", *map(str, counts)])
            context.say(", ".join(f"{name} {cell}" for name, cell in zip(HEAD, lines[-1], strict=True)))
    summary = [
        (
            found[0][0],
            f"{median_worst([row[1] for row in found], 1e3)} us",
            median_worst([row[3] for row in found]),
            median_worst([row[5] for row in found]),
        )
        for found in zip(*rounds, strict=True)
    ]
    head = ("covers", "host-latency, median (worst)", "loops longer", "frames later")
    return Result(tables=[table(HEAD, lines), table(head, summary)], data={"rounds": rounds})


SCENE = Scene(
    name="calibrated",
    title="Whether a calibrated host-latency holds",
    about=(
        "How often the `host-latency` that `tidegate calibrate` proposes does not hold afterwards, beside "
        "the demo's traffic: loops of the workers that took longer, and frames of voice that were later."
    ),
    order=910,
    run=run,
    default=False,
    add_options=add_options,
)
