"""The demo's scene, repeated: voice against bulk traffic, a plain FIFO and then contracts."""

import json
import subprocess
from collections.abc import Callable

from harness.model import Context, Figure, Json, Result, Sample, Scene

ROUNDS = 10
"""The tail differs from run to run: what is told is the median, and the worst."""
ROWS: list[tuple[str, str, Callable[[Json], float], str]] = [
    ("voice p50", "FIFO", lambda r: r["fifo"]["voice_delay_us"]["p50"], "us"),
    ("voice p99", "FIFO", lambda r: r["fifo"]["voice_delay_us"]["p99"], "us"),
    ("voice p99.9", "FIFO", lambda r: r["fifo"]["voice_delay_us"]["p999"], "us"),
    ("voice max", "FIFO", lambda r: r["fifo"]["voice_delay_us"]["max"], "us"),
    ("voice p50", "contracts", lambda r: r["edf"]["voice_delay_us"]["p50"], "us"),
    ("voice p99", "contracts", lambda r: r["edf"]["voice_delay_us"]["p99"], "us"),
    ("voice p99.9", "contracts", lambda r: r["edf"]["voice_delay_us"]["p999"], "us"),
    ("voice max", "contracts", lambda r: r["edf"]["voice_delay_us"]["max"], "us"),
    ("inside the switch, p50", "contracts", lambda r: r["edf"]["switch_delay_us"]["p50"], "us"),
    ("inside the switch, p99", "contracts", lambda r: r["edf"]["switch_delay_us"]["p99"], "us"),
    ("inside the switch, p99.9", "contracts", lambda r: r["edf"]["switch_delay_us"]["p999"], "us"),
    ("p99.9 of a bare timer, same window", "contracts", lambda r: r["edf"]["host_wakeup_us"]["p999"], "us"),
    ("p99.9 of voice", "FIFO / contracts", lambda r: _ratio(r, "p999"), "x"),
    ("p99 of voice", "FIFO / contracts", lambda r: _ratio(r, "p99"), "x"),
    ("voice frames lost", "contracts", lambda r: r["edf"]["voice_lost"], ""),
    ("voice misses", "contracts", lambda r: r["edf"]["voice_misses"], ""),
    ("bulk", "FIFO", lambda r: r["fifo"]["bulk_mbps"], "Mbit/s"),
    ("bulk", "contracts / FIFO", lambda r: r["edf"]["bulk_mbps"] / r["fifo"]["bulk_mbps"], "x"),
]


def _ratio(run: Json, percentile: str) -> float:
    delay = [float(run[queue]["voice_delay_us"][percentile]) for queue in ("fifo", "edf")]
    return delay[0] / delay[1]


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
    figures = [
        Figure(name, who, unit, tuple(Sample(float(value(one))) for one in runs))
        for name, who, value, unit in ROWS
    ]
    return Result(figures)


SCENE = Scene(
    name="demo",
    title="The demo: voice against bulk traffic",
    about=(
        "`tidegate demo --json`: kernel stacks on taps; `voice` sends 1,000 frames a second towards an "
        "egress of 1 Gbit/s that two bulk senders fill over TCP; a plain FIFO, then contracts. "
        "`voice` rows count the datagrams sent in the window, from right before the send call to the read; "
        "`inside the switch` counts all frames from voice's tap that were delivered in the window and 0.1 s "
        "around it, each from when the switch last saw the tap empty, so a worker that comes late adds to it "
        "even before the frame was there."
    ),
    order=90,
    run=run,
)
