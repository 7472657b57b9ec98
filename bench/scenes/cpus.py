"""A CPU of its own for the worker that carries real-time frames, and none, in turns.

```text
 voice ─ 1,000 frames/s ─┐
 bulk1 ─ TCP ────────────┼─ Tidegate, --cpus auto │ --cpus none ── 1 Gbit/s ─ sink
 bulk2 ─ TCP ────────────┘        beside busy loops of other programs
```
"""

import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness.machine import threads
from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Result, Scene, samples
from lab.process import Process
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

QUIET = "nothing else"
EACH = "a busy loop on each CPU"
ONE = "a busy loop on the worker's CPU"
CASES = (QUIET, EACH, ONE)
FIFO = ("--fifo-priority", str(WORKER_PRIORITY))
ROWS = {
    "inside p50": "us",
    "inside p99": "us",
    "inside p99.9": "us",
    "inside max": "us",
    "misses": "",
    "p99.9": "us",
    "timer p99.9": "us",
    "bulk": "Mbit/s",
    "CPU of the worker": "%",
}
NAMED = {"p99.9": "application to application p99.9", "bulk": "everything received"}


def busy(cpus: set[int], fabric: Tidegate, cleanup: ExitStack) -> None:
    """Runs an ordinary program that never sleeps on each of these CPUs."""
    for cpu in cpus:
        command = ("taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done")
        cleanup.enter_context(Process(command, fabric.folder / f"busy-{cpu}.log"))


def worker_ns(fabric: Tidegate) -> int:
    """CPU time of the only worker, ns."""
    pid = fabric.host.switch.pid
    task = next(task for task, name in threads(pid).items() if name == "worker-0")
    return int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])


def under_load(context: Context, fabric: Tidegate, case: str) -> Json:
    """One window of one contender."""
    all_cpus = os.sched_getaffinity(0)
    with ExitStack() as cleanup:
        sink = fabric.act("sink", "drain", fabric.address("sink"), str(BULK_PORT))
        cleanup.callback(sink.kill)
        for who in ("bulk1", "bulk2"):
            words = ("bulk", fabric.address("sink"), str(BULK_PORT), str(CONNECTIONS))
            cleanup.callback(fabric.act(who, *words).kill)
        # The one that `auto` takes where it may take any; without a CPU of its own the worker can flee it.
        busy({QUIET: set(), EACH: all_cpus, ONE: {max(all_cpus)}}[case], fabric, cleanup)
        # The switch looks each second, and leaves a CPU that others use.
        time.sleep(3.0)
        before, used, began = fabric.stats("voice"), worker_ns(fabric), time.monotonic()
        found = values(hear(fabric, 2.0 if context.quick else 4.0))
        span, after = time.monotonic() - began, fabric.stats("voice")
        found |= inner(gained(before, after))
        found["misses"] = float(sum(after["misses"].values()) - sum(before["misses"].values()))
        found["CPU of the worker"] = (worker_ns(fabric) - used) / span / 1e7
        return found


def run(context: Context) -> Result:
    """Both, under ordinary scheduling and under SCHED_FIFO, in turns."""
    contenders = []
    for number, options in enumerate([("none",), ("auto",), ("none", *FIFO), ("auto", *FIFO)]):
        fabric = Tidegate(
            context.folder / str(number),
            NAMES,
            context.cleanup,
            switch_options=("--cpus", *options),
        )
        fabric.start(CONTRACT)
        name = f"--cpus {options[0]}" + (", SCHED_FIFO" if len(options) > 1 else "")
        contenders.append(Contender(name, partial(under_load, context, fabric)))
    cases = [case for case in CASES if context.wants(case)]
    windows = interleave(None, contenders, cases, context.rounds(5))
    result = Result(windows=list(windows))
    for case in cases:
        for row, unit in ROWS.items():
            result.figures += [
                Figure(
                    f"{NAMED.get(row, row)}, {case}",
                    one.name,
                    unit,
                    samples(windows, one.name, case, row),
                )
                for one in contenders
            ]
    return result


SCENE = Scene(
    name="cpus",
    title="A CPU of its own for a worker with deadlines to keep",
    about=(
        "The traffic of scene `delay`, all threads of the tenants anywhere; one worker, with a CPU of its "
        "own (`--cpus auto`) and without (`--cpus none`). Once nothing else runs, once an ordinary program "
        "that never sleeps is bound to each CPU, once to the CPU that the switch would choose. `inside` is "
        "Tr - Ts as the switch measures it."
    ),
    order=65,
    run=run,
    has_cases=True,
)
