"""Pairs whose ports start on different workers: how the switch moves them together.

```text
 guests p0000, p0001, ... ─▶ ports in turn to two workers: the two of each pair are apart
       │                                         └─▶ moved while they run (--placement auto)
       └─▶ tidegate-bench stall, rounds one after the other: the first and the last ones are compared
```
"""

import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.machine import hugepages
from harness.model import Context, Figure, Json, Result, Sample, Scene
from peers.synthetic import Synthetic, vnics

from . import stalls

PAIRS = (1, 2, 4)
SIZES = (64, 1518, 9014)
ROUND_S = 0.5
FIRST = 2
"""Rounds that end before the switch has counted long enough to move a port."""
LAST = 6
SETTLED = 16
"""Rounds before those, in which ports move."""


PAUSED = re.compile(r"paused_us=(\d+)")


def rounds_of(context: Context, pairs: int, size: int) -> tuple[list[Json], list[int | None], list[float]]:
    """All rounds of one load on a switch of its own, each port's last worker, the times of moves (us)."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="together-")))
        cpus = stalls.placed(context.machine, 2)
        own = replace(context, folder=folder, cleanup=cleanup)
        load = Synthetic(own, cpus=cpus.workers, placement="auto")
        load.apply(vnics(folder, 2 * pairs, stalls.MTU))
        sink = ("--sink-cpu", cpus.sink) if cpus.sink is not None else ()
        rounds = FIRST + SETTLED + LAST
        options = ("--pairs", pairs, "--stride", 1, "--frame", size, "--rounds", rounds, "--round", ROUND_S)
        report = load.run("stall", *options, *sink, timeout=60)
        ports: Sequence[Json] = json.loads(load.host.get("/v1/vnics"))
        workers = {port["name"]: port.get("worker") for port in ports}
        pauses = [float(us) for us in PAUSED.findall(load.host.switch.output())]
        return report["rounds"], [workers[name] for name in sorted(workers)], pauses


def run(context: Context) -> Result:
    """Each load once."""
    context.cleanup.enter_context(hugepages(stalls.PAGES))
    result = Result()
    paused: list[float] = []
    for pairs in PAIRS[1:2] if context.quick else PAIRS:
        for size in SIZES:
            name = f"{pairs} x {size} B"
            if not context.wants(name):
                continue
            rounds, workers, pauses = rounds_of(context, pairs, size)
            paused += pauses
            speeds = [stalls.mpps(seen["before"]) for seen in rounds]
            cost = [seen["frames_per_cpu_second"] / 1e6 for seen in rounds]
            apart = sum(a != b for a, b in zip(workers[::2], workers[1::2], strict=True))
            note = f"workers at the end {workers}: {apart} pairs apart"
            for when, part in (("apart", slice(0, FIRST)), ("in the end", slice(-LAST, None))):
                result.figures += [
                    Figure(
                        f"{name}, {when}", "tidegate", "Mpps", tuple(map(Sample, speeds[part])), note=note
                    ),
                    Figure(
                        f"{name}, {when}: a CPU-second",
                        "tidegate",
                        "million frames",
                        tuple(map(Sample, cost[part])),
                    ),
                ]
            first, last = statistics.median(speeds[:FIRST]), statistics.median(speeds[-LAST:])
            context.say(
                f"{name}: {first:.2f} Mpps apart, {last:.2f} in the end; {note}; moves took {pauses} us"
            )
    result.figures.append(
        Figure("a port is not served while it moves", "tidegate", "us", tuple(map(Sample, paused)))
    )
    return result


SCENE = Scene(
    name="together",
    title="Pairs that are apart come onto one worker",
    about=(
        "Pairs of synthetic guests, one sends to the other as fast as it may, on two workers. Ports are made "
        "in turn, so the two of each pair are on different workers at first. The switch sees that they talk "
        "with each other and moves them while they run. Figures are of the first second, and of the last "
        "three of twelve."
    ),
    order=26,
    run=run,
    has_cases=True,
)
