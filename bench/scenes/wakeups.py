"""Every late wake-up of the switch's worker, by cause: with this build, and with another one beside it.

```text
 the delay scene, bulk on a CPU of its own ─▶ tracefs: waking, switch, softirq, interrupt of the worker's CPU
   ─▶ wake-ups above 200 us: idle CPU woken late │ softirq NET_RX │ task ... │ interrupt ...
```
"""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.machine import threads
from harness.model import Context, Figure, Missing, Result, Sample, Scene
from scenes.delay import APART, EARLIER, NOW, Contenders
from scenes.stacks.fabric import Tidegate
from scenes.stacks.wakeups import LATE, Wakeup, wakeups

ROUNDS = 3
TRACEFS = Path("/sys/kernel/tracing")
TASK = "another task"
ALL, ABOVE = "wake-ups of the worker", f"of those above {LATE * 1e6:.0f} us"


@contextmanager
def tracing(cpu: int, thread: int, into: list[str]) -> Iterator[None]:
    """The events of a CPU, and each wake-up of a thread, as lines of the kernel's trace."""
    instance = TRACEFS / "instances" / f"tidegate-{os.getpid()}"
    try:
        instance.mkdir()
    except OSError as error:
        raise Missing(f"no trace of the kernel ({error}): as root, with tracefs at {TRACEFS}") from None
    try:
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text("8192")
        here = f"CPU == {cpu}"
        events = {
            "sched/sched_switch": here,
            "sched/sched_waking": f"pid == {thread}",
            # Not every switch from the idle task is in the trace; a worker that ran has left a system call.
            "raw_syscalls/sys_exit": f"common_pid == {thread}",
        }
        for event in ("softirq_entry", "softirq_exit", "irq_handler_entry", "irq_handler_exit"):
            events[f"irq/{event}"] = here
        for event, only in events.items():
            (instance / "events" / event / "filter").write_text(only)
            (instance / "events" / event / "enable").write_text("1")
        yield
        (instance / "tracing_on").write_text("0")
        into += (instance / "trace").read_text().splitlines()
    finally:
        instance.rmdir()


def worker(fabric: Tidegate) -> int:
    """The thread id of its one worker."""
    called = threads(fabric.host.switch.pid)
    return next(thread for thread, name in called.items() if name.startswith("worker"))


def kind(cause: str) -> str:
    """Causes that stand in one row: other tasks, whatever their names."""
    return TASK if cause.startswith("task ") else cause


def tasks(seen: Sequence[Wakeup]) -> str:
    """The tasks that were causes, most frequent first."""
    names = Counter(wakeup.cause.removeprefix("task ") for wakeup in seen if kind(wakeup.cause) == TASK)
    names_text = ", ".join(f"{name} {count}" for name, count in names.most_common(5))
    return f"; tasks that were causes: {names_text}" if names_text else ""


def longest_text(seen: Sequence[Wakeup]) -> str:
    """The longest wake-up, and the parts of its time."""
    longest = max(seen, key=lambda wakeup: wakeup.took)
    spent = sorted(longest.spent.items(), key=lambda part: -part[1])
    parts = ", ".join(f"{what} {took * 1e6:.0f} us" for what, took in spent)
    return f"the longest took {longest.took * 1e6:.0f} us: {parts}{tasks(seen)}"


def run(context: Context) -> Result:
    """Each contender in turn, with bulk traffic, under the trace."""
    if not (TRACEFS / "instances").is_dir():
        # It stays mounted, as systemd leaves it at boot.
        subprocess.run(["mount", "-t", "tracefs", "nodev", TRACEFS], capture_output=True, check=False)
    if not (TRACEFS / "instances").is_dir():
        raise Missing(f"no tracefs at {TRACEFS}: as root, mount -t tracefs nodev {TRACEFS}")
    stage = Contenders(context)
    contenders = {NOW: stage.tidegate} | ({EARLIER: stage.before} if stage.before else {})
    rounds = context.rounds(ROUNDS)
    counts: dict[str, list[Counter[str]]] = {name: [] for name in contenders}
    late: dict[str, list[Wakeup]] = {name: [] for name in contenders}
    under = {contender.name: contender.measure for contender in stage.all()}
    for name in contenders:
        # The switch chooses its worker's CPU where it can.
        under[name](APART)
    for number in range(rounds):
        for name, fabric in contenders.items():
            context.say(f"{number + 1} of {rounds}: {name}")
            lines: list[str] = []
            (cpu,) = os.sched_getaffinity(worker(fabric))
            with tracing(cpu, worker(fabric), lines):
                under[name](APART)
            seen = list(wakeups(lines, worker(fabric)))
            slow = [wakeup for wakeup in seen if wakeup.took > LATE]
            late[name] += slow
            counts[name].append(Counter([kind(wakeup.cause) for wakeup in slow]))
            counts[name][-1].update({ALL: len(seen), ABOVE: len(slow)})
    result = Result()
    causes = sorted({cause for each in counts.values() for count in each for cause in count} - {ALL, ABOVE})
    for row in (ALL, ABOVE, *causes):
        for name, each in counts.items():
            taken = tuple(Sample(float(count[row])) for count in each)
            result.figures.append(Figure(row, name, "", taken))
    result.notes += [f"{name}: {longest_text(slow)}." for name, slow in late.items() if slow]
    if stage.before is None:
        result.notes.append("Without another build beside it: TIDEGATE_BEFORE names none.")
    return result


SCENE = Scene(
    name="wakeups",
    title="Late wake-ups of the worker, by cause",
    about=(
        "The load of `delay`, with bulk on a CPU of its own, while the kernel's trace has every wake-up of "
        "the worker and all that its CPU did: from the waking to the switch to the worker. A wake-up that "
        f"takes longer than {LATE * 1e6:.0f} us has as its cause what most of that time went into. Counts of "
        "windows of 5 s and their warm-up of 1 s; the trace itself costs time. `before` is the program that "
        "TIDEGATE_BEFORE names."
    ),
    order=64,
    run=run,
)
