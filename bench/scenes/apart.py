"""Real-time frames, and writes into best-effort taps: by one worker, or by two.

```text
 voice ─ 1,000 frames/s ─▶ sink       bulk1, bulk2 ─ TCP ─▶ sink │ bulk1 ─ TCP ─▶ bulk2

 one worker: all       two, in turn: bulk1, sink │ bulk2, voice       two, apart: voice, sink │ bulk1, bulk2
```
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from harness.machine import threads
from harness.measure import interleave, ratios
from harness.model import (
    Contender,
    Context,
    Figure,
    Json,
    Missing,
    Result,
    Scene,
    Target,
    samples,
)
from lab.process import Process
from scenes.delay import BULK_PORT, CONNECTIONS, CONTRACT, NAMES, gained, hear, inner
from scenes.stacks.fabric import Tidegate
from scenes.stacks.figures import percentile

PATIENCE_S = 30.0
"""Until the switch has parted them: a vNIC that could not be moved stays for 10 s."""


@dataclass(frozen=True)
class Case:
    """The traffic beside voice."""

    rate: str
    """`rx.max` of the sink."""
    receiver: str
    senders: Sequence[str]


CASES = {
    "bulk to the sink, 1 Gbit/s": Case("1gbit", "sink", ("bulk1", "bulk2")),
    "bulk to the sink, 4 Gbit/s": Case("4gbit", "sink", ("bulk1", "bulk2")),
    "bulk between other taps": Case("1gbit", "bulk2", ("bulk1",)),
}
ONE, IN_TURN, APART = "one worker", "two, in turn", "two, apart"
# This scene pins the workers itself.
OPTIONS = {
    ONE: ("--cpus", "none", "--workers", "1"),
    IN_TURN: ("--cpus", "none", "--workers", "2", "--placement", "fixed"),
    APART: ("--cpus", "none", "--workers", "2", "--placement", "auto"),
}


class Load:
    """One switch, and the traffic on it."""

    def __init__(self, context: Context, number: int, name: str) -> None:
        self.context = context
        self.fabric = Tidegate(
            context.folder / str(number),
            NAMES,
            context.cleanup,
            switch_options=OPTIONS[name],
        )
        self.fabric.start(CONTRACT)
        self.prompt = context.machine.switch_cpu
        self.others = sorted(set(os.sched_getaffinity(0)) - {self.prompt})
        if name == APART:
            self.part()

    def workers(self) -> dict[str, int]:
        """The worker of each vNIC."""
        return {name: int(self.fabric.host.show(name).document["worker"]) for name in NAMES}

    def part(self) -> None:
        """Lets traffic flow until real-time vNICs and taps are apart."""
        playing = self.play(CASES["bulk to the sink, 1 Gbit/s"])
        end = time.monotonic() + PATIENCE_S
        while not is_apart(self.workers()):
            if time.monotonic() > end:
                raise RuntimeError(f"the switch did not part them: {self.workers()}")
            time.sleep(0.5)
        stop(playing)

    def play(self, case: Case) -> list[Process]:
        """Bulk traffic, off the CPU of voice."""
        cpus = ",".join(map(str, self.others))
        to = self.fabric.address(case.receiver)
        drain = self.fabric.act(case.receiver, "drain", to, str(BULK_PORT), cpus=cpus)
        words = ("bulk", to, str(BULK_PORT), str(CONNECTIONS))
        return [
            *(self.fabric.act(who, *words, cpus=cpus) for who in case.senders),
            drain,
        ]

    def pin(self) -> None:
        """The worker of voice has voice's CPU; another one has the others."""
        own = self.workers()["voice"]
        for thread, called in threads(self.fabric.host.switch.pid).items():
            if called.startswith("worker-"):
                is_own = called == f"worker-{own}"
                os.sched_setaffinity(thread, {self.prompt} if is_own else set(self.others))

    def measure(self, name: str) -> Json:
        """One window."""
        case = CASES[name]
        terms = {**CONTRACT, "sink": (f'rx = {{ max = "{case.rate}" }}',)}
        self.fabric.apply(terms)
        self.pin()
        playing = self.play(case)
        try:
            time.sleep(1.0)
            before, bytes_before, at = (
                self.fabric.stats("voice"),
                self.received(case),
                time.monotonic(),
            )
            heard = hear(self.fabric, 1.0 if self.context.quick else 4.0, str(self.prompt))
            bulk = (self.received(case) - bytes_before) * 8 / (time.monotonic() - at)
            after = self.fabric.stats("voice")
        finally:
            stop(playing)
        delays = [frame.delay / 1e3 for frame in heard.frames]
        return {
            **inner(gained(before, after)),
            "p50": percentile(delays, 0.5),
            "p99.9": percentile(delays, 0.999),
            "max": max(delays),
            "misses": float(sum(after["misses"].values()) - sum(before["misses"].values())),
            "bulk": bulk / 1e6,
        }

    def received(self, case: Case) -> int:
        """Bytes that came to the receiver of bulk."""
        return self.fabric.host.show(case.receiver).rx_bytes


def is_apart(workers: dict[str, int]) -> bool:
    """Whether no best-effort tap has a worker of voice or the sink, and those have one."""
    realtime = {workers["voice"], workers["sink"]}
    return len(realtime) == 1 and not realtime & {workers["bulk1"], workers["bulk2"]}


def stop(playing: Sequence[Process]) -> None:
    """Ends bulk traffic."""
    for process in playing:
        process.kill()


def run(context: Context) -> Result:
    """All in turns."""
    if len(os.sched_getaffinity(0)) < 3:
        raise Missing("two workers and traffic beside them take three CPUs")
    loads = {name: Load(context, number, name) for number, name in enumerate(OPTIONS)}
    contenders = [Contender(name, partial(Load.measure, load)) for name, load in loads.items()]
    cases = [case for case in CASES if context.wants(case)]
    windows = interleave(None, contenders, cases[:1] if context.quick else cases, context.rounds(5))
    result = Result(windows=list(windows))
    for case in dict.fromkeys(window.case for window in windows):
        for key in dict.fromkeys(key for window in windows if window.case == case for key in window.values):
            unit = {"misses": "", "bulk": "Mbit/s"}.get(key, "us")
            for name in OPTIONS:
                own = [window for window in windows if window.contender == name and key in window.values]
                result.figures.append(Figure(f"{key}, {case}", name, unit, samples(own, name, case, key)))
        against = ratios(windows, ONE, APART, case, "inside p99.9")
        result.targets.append(
            Target(
                f"p99.9 inside, one worker against two apart, {case}",
                "at least 1x",
                "x",
                1,
                "more",
                against,
            )
        )
    result.notes += [f"{name}: workers {load.workers()}." for name, load in loads.items()]
    return result


SCENE = Scene(
    name="apart",
    title="Real-time vNICs and best-effort taps on different workers",
    about=(
        "`voice` sends 1,000 frames of 200 bytes a second to the sink, with a deadline. Beside it `bulk1` "
        "and `bulk2` fill the sink's rate by TCP, or `bulk1` sends to `bulk2` as fast as it can. Every "
        "tenant has a kernel stack on a tap, which runs in the worker's writes. Voice, its receiver and "
        "the worker that has them have a CPU of their own, bulk and the other worker the others. Workers "
        "have no real-time priority. `inside` is Tr - Ts as the switch counts it, the rest is from "
        "application to application."
    ),
    order=62,
    run=run,
    has_cases=True,
)
