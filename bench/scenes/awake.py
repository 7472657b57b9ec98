"""Waiting awake for real-time frames: its cost in CPU time, and its gain in delay.

```text
 voice ─ 1,000 frames/s ─┐
 bulk1 ─ TCP ────────────┼─ Tidegate, busy-poll of 0 to 1 s in each second ── 1 Gbit/s ─ sink
 bulk2 ─ TCP ────────────┘
                  └─▶ delay inside the switch and between applications; CPU time of the worker, awake of that
```
"""

import json
import os
import time
from functools import partial

from harness.machine import threads
from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Result, Scene, samples
from scenes.delay import (
    BULK_PORT,
    CONNECTIONS,
    CONTRACT,
    NAMES,
    UNITS,
    WORKER_PRIORITY,
    gained,
    hear,
    inner,
    values,
)
from scenes.stacks.counters import thread_ns
from scenes.stacks.fabric import Tidegate

BUDGETS = ("0ms", "100ms", "250ms", "500ms", "1s")
"""Of `busy-poll`: in each second."""
ALONE, BULK = "voice alone", "beside bulk traffic"
SHOWN = {
    "inside p50": "inside the switch, p50",
    "inside p99": "inside the switch, p99",
    "inside p99.9": "inside the switch, p99.9",
    "inside max": "inside the switch, worst",
    "p50": "application to application, p50",
    "p99.9": "application to application, p99.9",
    "max": "application to application, worst",
    "timer p99.9": "a bare timer beside it, p99.9",
    "misses": "deadline misses",
    "cpu": "CPU time of the worker",
    "awake": "of that, awake with nothing to do",
}


class Stage:
    """One switch, one worker, as in `tidegate demo`: voice and the worker on one CPU, bulk on another."""

    def __init__(self, context: Context) -> None:
        self.seconds = 2.0 if context.quick else 5.0
        self.prompt, self.other = str(context.machine.switch_cpu), str(context.machine.generator_cpu)
        options = ("--workers", "1", "--fifo-priority", str(WORKER_PRIORITY))
        self.tidegate = Tidegate(context.folder / "t", NAMES, context.cleanup, switch_options=options)
        self.tidegate.start(CONTRACT)
        named = threads(self.tidegate.host.switch.pid).items()
        self.worker = next(thread for thread, called in named if called.startswith("worker"))
        os.sched_setaffinity(self.worker, {context.machine.switch_cpu})

    def account(self) -> tuple[int, int]:
        """CPU time of the worker, and time awake with nothing to do, ns."""
        host: Json = json.loads(self.tidegate.host.get("/v1/host"))
        return thread_ns(self.tidegate.host.switch.pid, self.worker), int(host["workers"][0]["awake_ns"])

    def window(self, budget: str, case: str) -> Json:
        """Voice for a while, with this budget."""
        fabric = self.tidegate
        fabric.apply(CONTRACT, f'[host]\nbusy-poll = "{budget}"\n')
        to = (fabric.address("sink"), str(BULK_PORT))
        actors = []
        if case == BULK:
            actors.append(fabric.act("sink", "drain", *to, cpus=self.other))
            actors += [
                fabric.act(who, "bulk", *to, str(CONNECTIONS), cpus=self.other) for who in ("bulk1", "bulk2")
            ]
        try:
            time.sleep(1.0)
            before, began, account = fabric.stats("voice"), time.monotonic_ns(), self.account()
            heard = hear(fabric, self.seconds, self.prompt)
            used, span = self.account(), time.monotonic_ns() - began
            after = fabric.stats("voice")
        finally:
            for actor in actors:
                actor.kill()
        found = values(heard) | inner(gained(before, after))
        found["misses"] = float(sum(after["misses"].values()) - sum(before["misses"].values()))
        found["cpu"] = 100 * (used[0] - account[0]) / span
        found["awake"] = 100 * (used[1] - account[1]) / span
        return found


def run(context: Context) -> Result:
    """All budgets in turns, without and with bulk."""
    stage = Stage(context)
    contenders = [Contender(f"busy-poll {budget}", partial(stage.window, budget)) for budget in BUDGETS]
    windows = interleave(None, contenders, (ALONE, BULK), context.rounds(5))
    units = UNITS | {"cpu": "% of a core", "awake": "% of a core"}
    figures = [
        Figure(f"{label}, {case}", contender.name, units.get(key, "us"), taken)
        for case in (ALONE, BULK)
        for key, label in SHOWN.items()
        for contender in contenders
        if (taken := samples(windows, contender.name, case, key))
    ]
    return Result(figures, windows=list(windows))


SCENE = Scene(
    name="awake",
    title="Waiting awake for real-time frames",
    about=(
        "`voice` sends 1,000 frames of 200 bytes a second over kernel stacks on taps, alone and beside TCP "
        "bulk that fills the sink's 1 Gbit/s. The switch may wait awake for so much of each second "
        "(`busy-poll`). Voice, its receiver and the worker have one CPU, bulk another. `inside the switch` "
        "is Tr - Ts as the switch counts it."
    ),
    order=61,
    run=run,
)
