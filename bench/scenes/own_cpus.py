"""What the agent keeps off a worker's CPU: nothing, the stack of taps, halts, or both, in turns.

```text
 voice ─ 1,000 frames/s ─┐
 bulk1 ─ TCP ────────────┼─ Tidegate, agent --own-cpus none │ softirqs │ halts │ all ── 1 Gbit/s ─ sink
 bulk2 ─ TCP ────────────┘      once with bulk, once without
```
"""

import os
from contextlib import ExitStack
from functools import partial

from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Result, Scene, samples
from lab.process import wait_for
from scenes.delay import (
    BULK_PORT,
    CONNECTIONS,
    CONTRACT,
    NAMES,
    WORKER_PRIORITY,
    gained,
    hear,
    inner,
    values,
)
from scenes.stacks.fabric import Tidegate

BULK = "with bulk"
ALONE = "voice alone"
WHAT = ("none", "softirqs", "halts", "all")
ROWS = {
    "inside p50": "us",
    "inside p99": "us",
    "inside p99.9": "us",
    "inside max": "us",
    "misses": "",
    "p99.9": "us",
    "timer p99.9": "us",
    "bulk": "Mbit/s",
}
NAMED = {"p99.9": "application to application p99.9", "bulk": "everything received"}
PINGS = 12
"""Pings before a window: the agent checks twice a second whether real-time frames flow."""


def under(context: Context, fabric: Tidegate, what: str, case: str) -> Json:
    """One window, with an agent of `--own-cpus what`."""
    fabric.host.agent.stop()
    fabric.host.agent_options = ("--own-cpus", what)
    fabric.host.start_agent()
    fabric.host.wait_up(*NAMES)
    with ExitStack() as cleanup:
        if case == BULK:
            sink = fabric.act("sink", "drain", fabric.address("sink"), str(BULK_PORT))
            cleanup.callback(sink.kill)
            for who in ("bulk1", "bulk2"):
                words = (
                    "bulk",
                    fabric.address("sink"),
                    str(BULK_PORT),
                    str(CONNECTIONS),
                )
                cleanup.callback(fabric.act(who, *words).kill)
        # Real-time frames flow before the window begins.
        fabric.stacks["voice"].run(f"ping -q -c {PINGS} -i 0.1 -W 1 {fabric.address('sink')}")
        before = fabric.stats("voice")
        found = values(hear(fabric, 2.5 if context.quick else 4.0))
        after = fabric.stats("voice")
    found |= inner(gained(before, after))
    found["misses"] = float(sum(after["misses"].values()) - sum(before["misses"].values()))
    return found


def run(context: Context) -> Result:
    """All four, in turns."""
    last = max(os.sched_getaffinity(0))
    options = ("--cpus", str(last), "--fifo-priority", str(WORKER_PRIORITY))
    fabric = Tidegate(context.folder / "t", NAMES, context.cleanup, switch_options=options)
    fabric.start(CONTRACT)
    wait_for("the first look", lambda: bool(fabric.stats("voice")))
    contenders = [Contender(f"--own-cpus {what}", partial(under, context, fabric, what)) for what in WHAT]
    cases = [case for case in (BULK, ALONE) if context.wants(case)]
    windows = interleave(None, contenders, cases, context.rounds(5))
    result = Result(windows=list(windows))
    for case in cases:
        for row, unit in ROWS.items():
            name = f"{NAMED.get(row, row)}, {case}"
            result.figures += [
                Figure(name, one.name, unit, samples(windows, one.name, case, row)) for one in contenders
            ]
    return result


SCENE = Scene(
    name="own_cpus",
    title="What the agent keeps off a worker's CPU",
    about=(
        "The traffic of scene `delay`, all threads of the tenants anywhere; one worker, bound to the last "
        "CPU, under SCHED_FIFO. The agent steers the stack of taps off that CPU (`softirqs`), keeps it from "
        "halting while real-time frames flow (`halts`), does both (`all`) or neither. Once with bulk, once "
        "with voice alone, when the CPU has time to halt. `inside` is Tr - Ts as the switch measures it."
    ),
    order=66,
    run=run,
    has_cases=True,
)
