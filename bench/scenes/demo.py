"""The demo, repeated: voice against bulk traffic, a plain FIFO and then contracts."""

import json
import subprocess
from collections.abc import Callable, Iterable, Sequence

from harness.model import Context, Figure, Json, Result, Sample, Scene, Target

ROUNDS = 10
"""The tail differs from run to run: the table has the median and the worst of all runs."""
PHASES = {"fifo": "FIFO", "edf": "contracts"}
QUANTILES = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "worst"}
DELAYS = {
    "switch_delay_us": "inside the switch",
    "voice_delay_us": "application to application",
    "timer_us": "a bare timer, same window and CPU",
    "host_wakeup_us": "voice's sender woken late",
}
COUNTS = {
    "voice_misses": "deadline misses inside the switch (1 ms)",
    "voice_late": "frames later than 1 ms, application to application",
    "voice_lost": "frames lost",
}
BLAMES = {"misses_blame": "misses inside", "late_blame": "late frames"}


def figures(runs: Sequence[Json]) -> list[Figure]:
    """Every row of the demo's table, inside the switch first."""
    found: list[Figure] = []

    def add(name: str, who: str, unit: str, values: Iterable[float]) -> None:
        found.append(Figure(name, who, unit, tuple(Sample(float(value)) for value in values)))

    for key, what in DELAYS.items():
        for quantile, called in QUANTILES.items():
            for phase, who in PHASES.items():
                add(f"{what}, {called}", who, "us", (run[phase][key][quantile] for run in runs))
    for key, what in COUNTS.items():
        for phase, who in PHASES.items():
            add(what, who, "", (run[phase][key] for run in runs))
    for key, what in BLAMES.items():
        blames = [run["edf"][key] for run in runs]
        add(f"{what}: the host machine's", "contracts", "", (b["steal"] + b["stalled"] for b in blames))
        add(f"{what}: unexplained", "contracts", "", (b["unexplained"] for b in blames))
    for phase, who in PHASES.items():
        add("CPU of the switch's worker", who, "%", (100 * run[phase]["worker_cpu"] for run in runs))
        add("bulk", who, "Mbit/s", (run[phase]["bulk_mbps"] for run in runs))
    return found


def targets(runs: Sequence[Json]) -> list[Target]:
    """The targets of the tail, one sample a run."""

    def samples(value: Callable[[Json], float]) -> tuple[Sample, ...]:
        return tuple(Sample(value(one)) for one in runs)

    return [
        Target(
            "inside the switch, p99.9: the FIFO's against the contract's",
            "at least 100x",
            *("x", 100, "more"),
            samples(lambda r: r["fifo"]["switch_delay_us"]["p999"] / r["edf"]["switch_delay_us"]["p999"]),
        ),
        Target(
            "application to application, p99.9, against a bare timer in the same window",
            "at most 2x",
            *("x", 2, "less"),
            samples(lambda r: r["edf"]["voice_delay_us"]["p999"] / r["edf"]["timer_us"]["p999"]),
        ),
        Target(
            "misses inside and frames later than 1 ms that nothing of the host explains",
            "none",
            *("", 0, "less"),
            samples(lambda r: float(sum(r["edf"][key]["unexplained"] for key in BLAMES))),
        ),
        Target(
            "bulk, of the FIFO's goodput",
            "at least 0.95x",
            *("x", 0.95, "more"),
            samples(lambda r: r["edf"]["bulk_mbps"] / r["fifo"]["bulk_mbps"]),
        ),
    ]


def run(context: Context) -> Result:
    """`tidegate demo --json`, ten times (about 20 s each), in a quick run once."""
    runs: list[Json] = []
    for number in range(context.rounds(ROUNDS)):
        context.say(f"demo {number + 1}")
        child = context.cleanup.enter_context(
            subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", context.tidegate, "demo", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        context.cleanup.callback(child.kill)
        output, _ = child.communicate(timeout=120)
        if child.returncode != 0:
            raise RuntimeError(f"tidegate demo ended with {child.returncode}")
        runs.append(json.loads(output))
    return Result(figures(runs), targets(runs))


SCENE = Scene(
    name="demo",
    title="The demo: voice against bulk traffic",
    about=(
        "`tidegate demo --json`: kernel stacks on taps; `voice` sends 1,000 frames a second towards an "
        "egress of 1 Gbit/s that two bulk senders fill over TCP; a plain FIFO, then contracts. "
        "`inside the switch` counts all frames from voice's tap that were delivered in the window and 0.1 s "
        "around it, each from when the switch last saw the tap empty, so a worker that comes late adds to it "
        "even before the frame was there. `application to application` counts the datagrams sent in the "
        "window, from right before the send call to the read. `a bare timer` is a thread on the worker's "
        "CPU, above all others, that only wakes each millisecond. A late frame is the host machine's where "
        "steal time or a stall of that thread made it late; all else is unexplained, and counts as "
        "the switch's."
    ),
    order=90,
    run=run,
)
