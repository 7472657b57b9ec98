"""Late wake-ups of one thread in the kernel's trace, each with the work of its CPU meanwhile. Pure.

```text
 waking ──────────────── 1.3 ms ───────────────── switched in
   └ idle 1.1 ms ┘└ softirq TIMER 0.1 ms ┘└ task 0.1 ms ┘   ─▶ cause: idle
```
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LATE = 200e-6
"""A wake-up that takes longer than this is listed, s."""
IDLE, OWN = "idle CPU woken late", "interrupt"
UNKNOWN = "unknown"
LINE = re.compile(r"^.*\[\d+\].*?\s(?P<at>\d+\.\d+): (?P<event>\w+): (?P<rest>.*)$")
FIELD = re.compile(r"(\w+)=(\S+)")


@dataclass
class Wakeup:
    """One."""

    at: float
    """When the thread was to run, s of the trace's clock."""
    ran: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    """The work of its CPU until then, s by name."""

    @property
    def took(self) -> float:
        """Until it ran, s."""
        return self.ran - self.at

    @property
    def cause(self) -> str:
        """The work that took most of it."""
        return max(self.spent, key=lambda what: self.spent[what], default=UNKNOWN)


@dataclass
class Cpu:
    """What the thread's CPU does."""

    task: str = ""
    nested: list[str] = field(default_factory=list)
    """Interrupts and softirqs, the innermost last."""

    @property
    def doing(self) -> str:
        """The innermost of all, by name."""
        return self.nested[-1] if self.nested else self.task or UNKNOWN


def events(trace: Iterable[str]) -> Iterator[tuple[float, str, str]]:
    """When each event was, s, its name, and the rest of its line."""
    for line in trace:
        if found := LINE.match(line):
            yield float(found["at"]), found["event"], found["rest"]


def wakeups(trace: Iterable[str], thread: int) -> Iterator[Wakeup]:
    """All wake-ups of `thread` of which the trace has what its CPU did.

    All events are of its CPU alone, but `sched_waking`, and of itself `sys_exit`.
    """
    cpu, waiting, last, runs = Cpu(), None, 0.0, False
    for at, event, rest in events(trace):
        if waiting and at > last:
            waiting.spent[cpu.doing] = waiting.spent.get(cpu.doing, 0.0) + at - max(last, waiting.at)
        last = at
        if event == "sched_waking":
            # One that still runs does not go to sleep: it waits for nothing.
            if waiting is None and not runs and f" pid={thread} " in f" {rest} ":
                waiting = Wakeup(at)
            continue
        follow(cpu, event, rest)
        if event in ("sched_switch", "sys_exit"):
            # The trace may lack the switch from the idle task; what returns from a system call runs.
            runs = event == "sys_exit" or f"next_pid={thread} " in f"{rest} "
            if runs and waiting:
                waiting.ran = at
                if UNKNOWN not in waiting.spent:
                    yield waiting
                waiting = None


def follow(cpu: Cpu, event: str, rest: str) -> None:
    """What the CPU does after an event."""
    fields = dict(FIELD.findall(rest))
    if event == "sched_switch":
        comm = rest.partition("next_comm=")[2].partition(" next_pid=")[0]
        cpu.task = IDLE if fields.get("next_pid") == "0" else f"task {comm}"
        cpu.nested.clear()
    elif event == "softirq_entry":
        cpu.nested.append(f"softirq {rest.partition('action=')[2].strip(']')}")
    elif event == "irq_handler_entry":
        cpu.nested.append(f"interrupt {rest.partition('name=')[2]}")
    elif event in ("softirq_exit", "irq_handler_exit") and cpu.nested:
        cpu.nested.pop()
