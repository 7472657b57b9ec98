"""Real-time frames among bulk traffic, application to application.

```text
 voice ─ 1,000 frames/s ─┐
 bulk1 ─ TCP ────────────┼─ Tidegate contract │ Tidegate FIFO │ kernel bridge, HTB ── 1 Gbit/s ─ sink
 bulk2 ─ TCP ────────────┘

 due ── woke, sends ── send returned ── kernel's receive stamp ── read by the application
  └ sender woke ┘└── send call ──┘└──────── between ────────┘└─ receiver woke ─┘
```
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from harness import plot
from harness.machine import threads
from harness.measure import interleave
from harness.model import (
    Contender,
    Context,
    Figure,
    Json,
    Plot,
    Result,
    Sample,
    Scene,
    Target,
    Window,
    samples,
)
from lab.host import BINARY
from scenes.stacks.counters import Cpus, edge, tcp_wire_bytes, workers_ns
from scenes.stacks.fabric import Bridge, Fabric, Tidegate, load
from scenes.stacks.figures import percentile

NAMES = ("voice", "bulk1", "bulk2", "sink")
VOICE_PORT, BULK_PORT = 5002, 5001
CONNECTIONS = 8
WORKER_PRIORITY = 2
"""SCHED_FIFO priority of the switch's worker, as in `tidegate demo`; voice has 3."""
AWAY_NS = 100_000
"""A bare timer, above everything else on its CPU, that is later than this: the CPU was away."""
STALL_NS = 500_000
"""A bare timer that is this late speaks for a late frame, as in `tidegate demo`."""
DEADLINE_NS = 1_000_000
EDGE_S = 0.05
"""How long a window waits for a frame to begin and end with: without bulk there may be none."""
BEFORE = "TIDEGATE_BEFORE"
"""Environment: another `tidegate` that is measured beside this one, as the contender `before`."""

RATE = "1gbit"
BURSTS = "burst 125000 cburst 125000"
"""As the default of `rx.burst`: 1 ms at the rate."""
CONTRACT: dict[str, Sequence[str]] = {
    "voice": (
        'tx = { max = "4mbit", burst = "2kB" }',
        'deadline = "1ms"',
        'to = ["sink"]',
    ),
    "sink": (f'rx = {{ max = "{RATE}" }}',),
}
FIFO: dict[str, Sequence[str]] = {
    "voice": ('tx = { max = "4mbit", burst = "2kB" }',),
    "sink": (f'rx = {{ max = "{RATE}", discipline = "fifo", queue = "1500kB" }}',),
}
HTB = (
    "qdisc add dev DEV root handle 1: htb default 20",
    f"class add dev DEV parent 1: classid 1:1 htb rate {RATE} {BURSTS}",
    f"class add dev DEV parent 1:1 classid 1:10 htb rate 4mbit ceil {RATE} {BURSTS} prio 0",
    f"class add dev DEV parent 1:1 classid 1:20 htb rate 996mbit ceil {RATE} {BURSTS} prio 1",
    "filter add dev DEV parent 1: protocol ip u32 match ip protocol 17 0xff"
    f" match ip dport {VOICE_PORT} 0xffff flowid 1:10",
)
PARTS = ("sender woke", "send call", "between", "receiver woke")


@dataclass(frozen=True)
class Frame:
    """One frame of voice, ns of one clock."""

    due: int
    sent: int
    returned: int
    stamped: int
    read: int

    @property
    def delay(self) -> int:
        """From application to application."""
        return self.read - self.sent

    @property
    def way(self) -> int:
        """From the send call to the receiver's kernel: without the receiver's wake-up."""
        return self.stamped - self.sent

    def parts(self) -> dict[str, int]:
        """The parts of the delay by name; `sender woke` comes before the delay, the others add up to it."""
        # The receiver's stamp may come before the send call returns: the frame overtook it.
        returned = min(self.returned, self.stamped)
        return {
            "sender woke": self.sent - self.due,
            "send call": returned - self.sent,
            "between": self.stamped - returned,
            "receiver woke": self.read - self.stamped,
        }


@dataclass(frozen=True)
class Away:
    """Moments at which a CPU did not run even its most important thread: from due to woken."""

    cpu: int
    spans: tuple[tuple[int, int], ...]
    lates: tuple[int, ...]

    def overlaps(self, frame: Frame) -> bool:
        """Whether it was away during a frame's delay."""
        return any(begin < frame.read and frame.sent < end for begin, end in self.spans)

    def excuses(self, frame: Frame) -> bool:
        """Whether the frame would have been in time without the spans of half a millisecond and more."""
        spans = [(begin, end) for begin, end in self.spans if end - begin >= STALL_NS]
        covered, last = 0, frame.sent
        for begin, end in sorted(spans):
            covered += max(0, min(end, frame.read) - max(begin, last))
            last = max(last, end)
        return frame.delay - covered <= DEADLINE_NS


@dataclass(frozen=True)
class Heard:
    """One window."""

    frames: tuple[Frame, ...]
    lost: int
    away: tuple[Away, ...]
    bulk: float
    """bit/s at the sink, voice included."""
    stolen: float


def hear(fabric: Fabric, seconds: float, cpus: str = "") -> Heard:
    """Voice for a while, on `cpus` alone where given, with bare timers beside it."""
    files = {what: fabric.file() for what in ("sent", "heard")}
    timers = [(cpu, fabric.file()) for cpu in sorted(os.sched_getaffinity(0))]
    address, port = fabric.address("sink"), str(VOICE_PORT)
    ear = fabric.act(
        "sink",
        "listen",
        address,
        port,
        str(seconds + 0.7),
        str(files["heard"]),
        cpus=cpus,
    )
    # Until after the last frame: a program that ends earlier disturbs the others.
    clocks = [fabric.act("sink", "timer", str(cpu), str(seconds + 0.7), str(file)) for cpu, file in timers]
    before = Cpus.now()
    first = edge(fabric.stacks["sink"], EDGE_S)
    mouth = fabric.act("voice", "voice", address, port, str(seconds), str(files["sent"]), cpus=cpus)
    mouth.popen.wait(seconds + 30)
    last = edge(fabric.stacks["sink"], EDGE_S)
    after = Cpus.now()
    for process in (*clocks, ear):
        process.popen.wait(30)
    sent, heard = load(files["sent"]), load(files["heard"])
    frames: dict[int, Frame] = {}
    for at in range(0, len(heard), 4):
        number, began, stamped, read = heard[at : at + 4]
        due, _, returned = sent[3 * number : 3 * number + 3]
        frames.setdefault(number, Frame(due, began, returned, stamped, read))
    away = []
    for cpu, file in timers:
        times = load(file)
        pairs = [(times[i], times[i + 1]) for i in range(0, len(times), 2)]
        spans = tuple((due, due + late) for due, late in pairs if late > AWAY_NS)
        away.append(Away(cpu, spans, tuple(late for _, late in pairs)))
    return Heard(
        tuple(frames[number] for number in sorted(frames)),
        len(sent) // 3 - len(frames),
        tuple(away),
        tcp_wire_bytes(first, last) * 8 / (last.at - first.at),
        (after.stolen - before.stolen) / (after.at - before.at),
    )


def values(heard: Heard, cpu: int | None = None) -> Json:
    """The figures of one window, us; `cpu` is the CPU of voice and the worker, if they have one."""
    delays = [frame.delay / 1e3 for frame in heard.frames]
    near = [away for away in heard.away if cpu in (None, away.cpu)]
    timer = [late / 1e3 for away in near for late in away.lates]
    late = [frame for frame in heard.frames if frame.delay > DEADLINE_NS]
    result: Json = {
        "p50": percentile(delays, 0.5),
        "p99": percentile(delays, 0.99),
        "p99.9": percentile(delays, 0.999),
        "max": max(delays),
        "lost": float(heard.lost),
        "bulk": heard.bulk / 1e6,
        "steal": heard.stolen * 100,
        "way p99.9": percentile([frame.way / 1e3 for frame in heard.frames], 0.999),
        "late": float(len(late)),
        "unexplained": float(sum(not any(away.excuses(frame) for away in near) for frame in late)),
        "timer p99.9": percentile(timer, 0.999),
        "timer max": max(timer),
    }
    for part in PARTS:
        own = [frame.parts()[part] / 1e3 for frame in heard.frames]
        result[f"{part} p50"] = percentile(own, 0.5)
        result[f"{part} p99.9"] = percentile(own, 0.999)
    # The frames of the tail, and the part of each that took longest.
    for share in (0.99, 0.999):
        limit = percentile(delays, share) * 1e3
        tail = [frame for frame in heard.frames if frame.delay >= limit]
        for part in PARTS[1:]:
            spent = sum(frame.parts()[part] for frame in tail)
            result[f"tail above p{100 * share:g}: {part}"] = 100 * spent / sum(f.delay for f in tail)
        beside = sum(any(away.overlaps(frame) for away in heard.away) for frame in tail)
        result[f"tail above p{100 * share:g}: a CPU was away"] = 100 * beside / len(tail)
    return result


class Contenders:
    """All of them, each with its namespaces and its bulk traffic, started for its windows alone."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.tidegate = self.make(context, "t", BINARY)
        before = os.environ.get(BEFORE)
        self.before = self.make(context, "b", Path(before)) if before else None
        self.bridge = Bridge(context.folder / "k", NAMES, context.cleanup)
        self.bridge.qdisc("to-sink", *HTB)
        self.misses: list[str] = []
        self.pools: dict[tuple[str, str], list[Frame]] = {}
        self.prompt_cpu = context.machine.switch_cpu
        self.other_cpu = context.machine.generator_cpu
        self.placed: dict[int, set[int]] = {}

    @staticmethod
    def make(context: Context, folder: str, binary: Path) -> Tidegate:
        """As `tidegate demo` does: one worker, above ordinary threads."""
        options = ("--workers", "1", "--fifo-priority", str(WORKER_PRIORITY))
        fabric = Tidegate(
            context.folder / folder,
            NAMES,
            context.cleanup,
            switch_options=options,
            binary=binary,
        )
        fabric.start(CONTRACT)
        return fabric

    def all(self) -> list[Contender]:
        """For `interleave`."""
        rows: list[tuple[str, Fabric, dict[str, Sequence[str]] | None]] = [
            (NOW, self.tidegate, CONTRACT),
            (FIRST_COME, self.tidegate, FIFO),
            (KERNEL, self.bridge, None),
            (ALONE, self.tidegate, CONTRACT),
        ]
        if self.before:
            rows.insert(0, (EARLIER, self.before, CONTRACT))
        return [Contender(name, partial(self.under, fabric, terms, name)) for name, fabric, terms in rows]

    def place_worker(self, fabric: Tidegate, cpu: int | None) -> None:
        """Keeps the switch's worker to a CPU; without one, the switch chooses."""
        for thread, called in threads(fabric.host.switch.pid).items():
            if not called.startswith("worker"):
                continue
            if cpu is not None:
                self.placed.setdefault(thread, os.sched_getaffinity(thread))
                os.sched_setaffinity(thread, {cpu})
            elif thread in self.placed:
                os.sched_setaffinity(thread, self.placed.pop(thread))

    def under(
        self,
        fabric: Fabric,
        contract: dict[str, Sequence[str]] | None,
        name: str,
        case: str,
    ) -> Json:
        """One window of one contender; with bulk traffic, but for the one that has none."""
        seconds = 2.0 if self.context.quick else 5.0
        apart = case == APART
        prompt, others = (str(self.prompt_cpu), str(self.other_cpu)) if apart else ("", "")
        if isinstance(fabric, Tidegate) and contract is not None:
            fabric.apply(contract)
            self.place_worker(fabric, self.prompt_cpu if apart else None)
        with ExitStack() as bulk:
            if name != ALONE:
                sink = fabric.act("sink", "drain", fabric.address("sink"), str(BULK_PORT), cpus=others)
                bulk.callback(sink.kill)
                for who in ("bulk1", "bulk2"):
                    words = (
                        "bulk",
                        fabric.address("sink"),
                        str(BULK_PORT),
                        str(CONNECTIONS),
                    )
                    bulk.callback(fabric.act(who, *words, cpus=others).kill)
            time.sleep(1.0)
            first = Inside.of(fabric)
            heard = hear(fabric, seconds, prompt)
            found = values(heard, self.prompt_cpu if apart else None)
            if first and (last := Inside.of(fabric)):
                found |= first.until(last)
            if name == NOW:
                self.misses += misses(self.tidegate)
        self.pools.setdefault((case, name), []).extend(heard.frames)
        return found


@dataclass(frozen=True)
class Inside:
    """A switch's counters of voice, and the time of its workers, at one moment."""

    at: float
    stats: Json
    workers_ns: int

    @classmethod
    def of(cls, fabric: Fabric) -> "Inside | None":
        """Empty without a switch."""
        if not isinstance(fabric, Tidegate):
            return None
        stats = fabric.stats("voice")
        return cls(time.monotonic(), stats, workers_ns(fabric.host.switch.pid))

    def until(self, last: "Inside") -> Json:
        """The figures between two moments."""
        missed = [float(sum(when.stats["misses"].values())) for when in (self, last)]
        used = (last.workers_ns - self.workers_ns) / 1e9 / (last.at - self.at)
        return inner(gained(self.stats, last.stats)) | {
            "misses": missed[1] - missed[0],
            "cpu": 100 * used,
        }


def gained(before: Json, after: Json) -> dict[int, int]:
    """The frames that a delay histogram gained, by delay, ns."""
    old = {int(ns): int(count) for ns, count in before["delay"]["buckets"]}
    new = {int(ns): int(count) for ns, count in after["delay"]["buckets"]}
    return {ns: count - old.get(ns, 0) for ns, count in new.items() if count > old.get(ns, 0)}


def inner(buckets: dict[int, int]) -> Json:
    """Percentiles of a frame's time in the switch, as the switch measures it, us."""
    total, seen, found = sum(buckets.values()), 0, {}
    marks = [
        ("inside p50", 0.5),
        ("inside p99", 0.99),
        ("inside p99.9", 0.999),
        ("inside max", 1.0),
    ]
    for ns in sorted(buckets):
        seen += buckets[ns]
        for name, share in marks:
            if name not in found and seen >= share * total:
                found[name] = ns / 1e3
    return found


def misses(tidegate: Tidegate) -> list[str]:
    """The latest misses of voice: delay, cause, and the time (us) that the frame waited for each cause."""
    found = json.loads(tidegate.host.cli("why", "voice", "--json"))["latest_misses"]
    return [miss_text(miss) for miss in found]


def miss_text(miss: Json) -> str:
    """One miss of `tidegate why --json`, whose times are in ns."""
    waits = [f"{cause} {miss[cause] / 1e3:.0f} us" for cause in ("queue", "worker", "buffers", "tokens")]
    longer = ", ".join(wait for wait in waits if " 0 us" not in wait)
    return f"{miss['delay'] / 1e3:.0f} us, cause {miss['cause']} ({longer})"


UNITS = {
    "lost": "",
    "misses": "",
    "late": "",
    "unexplained": "",
    "bulk": "Mbit/s",
    "steal": "%",
    "cpu": "%",
}


def run(context: Context) -> Result:
    """Measures all contenders in turns."""
    stage = Contenders(context)
    contenders = stage.all()
    cases = (ANYWHERE,) if context.quick else (ANYWHERE, APART)
    windows = interleave(None, contenders, cases, context.rounds(5))
    result = Result(windows=list(windows))
    keys = list(dict.fromkeys(key for window in windows for key in window.values))
    for case in cases:
        for key in keys:
            for contender in contenders:
                own = [w for w in windows if w.contender == contender.name and key in w.values]
                if taken := samples(own, contender.name, case, key):
                    unit = "%" if key.startswith("tail ") else UNITS.get(key, "us")
                    result.figures.append(
                        Figure(
                            f"{LABELS.get(key, key)}, {case}",
                            contender.name,
                            unit,
                            taken,
                        )
                    )
        result.targets += targets(windows, case)
    result.plots += [
        Plot(
            f"delay-cdf-{number}",
            f"Real-time frames among bulk traffic, {case}",
            "delay, application to application [us]",
            "share of frames",
            tuple(
                plot.cdf(name, [max(frame.delay, 1) / 1e3 for frame in frames])
                for (where, name), frames in stage.pools.items()
                if where == case
            ),
            log_x=True,
        )
        for number, case in enumerate(cases, 1)
    ]
    result.notes += worst(stage)
    return result


EARLIER, NOW, FIRST_COME, KERNEL, ALONE = (
    "before",
    "tidegate",
    "tidegate, FIFO",
    "kernel HTB",
    "tidegate, no bulk",
)
ANYWHERE = "threads anywhere"
APART = "bulk on a CPU of its own"
LABELS = {
    "p50": "delay p50",
    "p99": "delay p99",
    "p99.9": "delay p99.9",
    "max": "delay max",
    "lost": "frames of voice lost",
    "misses": "deadline misses, by the switch",
    "bulk": "everything received",
    "steal": "CPU time taken away by the host",
    "cpu": "CPU of the switch's worker, of a core",
    "late": "frames later than 1 ms",
    "unexplained": "frames later than 1 ms that no stalled bare timer explains",
    "way p99.9": "from the send call to the receiver's kernel, p99.9",
    "timer p99.9": "a bare timer beside it, p99.9",
    "timer max": "a bare timer beside it, max",
}


def targets(windows: Sequence[Window], case: str) -> list[Target]:
    """Inside against the FIFO, the kernel and no load; between applications against a bare timer."""

    def against(ours: tuple[str, str], theirs: tuple[str, str]) -> tuple[Sample, ...]:
        pairs = (
            [window.values[key] for window in windows if (window.contender, window.case) == (who, case)]
            for who, key in (ours, theirs)
        )
        return tuple(Sample(a / max(b, 0.001)) for a, b in zip(*pairs, strict=False))

    inside = (NOW, "inside p99.9")
    found: list[tuple[str, float, Literal["more", "less"], tuple[str, str], tuple[str, str]]] = [
        (
            f"inside the switch, p99.9: a FIFO's against the contract's, {case}",
            100,
            "more",
            (FIRST_COME, inside[1]),
            inside,
        ),
        (
            f"inside the switch, p99.9, against kernel HTB from send call to receiver's kernel, {case}",
            1,
            "less",
            inside,
            (KERNEL, "way p99.9"),
        ),
        (
            f"inside the switch, p99.9, against the same without bulk, {case}",
            3,
            "less",
            inside,
            (ALONE, inside[1]),
        ),
        (
            f"application to application, p99.9, against a bare timer in the same window, {case}",
            2,
            "less",
            (NOW, "p99.9"),
            (NOW, "timer p99.9"),
        ),
        (
            f"application to application, p99.9, against kernel HTB with strict priority, {case}",
            1,
            "less",
            (NOW, "p99.9"),
            (KERNEL, "p99.9"),
        ),
    ]
    asked = {"more": "at least {}x", "less": "at most {}x"}
    return [
        Target(name, asked[better].format(f"{limit:g}"), "x", limit, better, against(ours, theirs))
        for name, limit, better, ours, theirs in found
    ]


def worst(stage: Contenders) -> list[str]:
    """Sentences about the worst frame of each contender, and the switch's own log of misses."""
    notes = []
    for (case, name), frames in stage.pools.items():
        frame = max(frames, key=lambda f: f.delay)
        parts = ", ".join(
            f"{part} {ns / 1e3:.0f} us" for part, ns in frame.parts().items() if part != "timer"
        )
        notes.append(
            f"{name}, {case}: the worst of {len(frames)} frames took {frame.delay / 1e3:.0f} us: {parts}."
        )
    if stage.misses:
        notes.append(
            "The last misses by `tidegate why voice` (deadline 1 ms): " + "; ".join(stage.misses[-5:])
        )
    else:
        notes.append("`tidegate why voice` has no miss: no frame passed its deadline inside the switch.")
    return notes


SCENE = Scene(
    name="delay",
    title="Real-time frames among bulk traffic",
    about=(
        "`voice` sends 1,000 frames of 200 bytes a second while `bulk1` and `bulk2` fill the sink's 1 "
        "Gbit/s with eight TCP connections each. Every tenant has its own kernel stack. Times are taken "
        "by the applications: right before the send call, and when the receiver has read the frame. The "
        "kernel's contender is a bridge with HTB on the sink's port: voice in a class of priority 0, "
        "all else in priority 1. Voice's threads run under SCHED_FIFO everywhere, and so does the "
        "switch's worker. Once the scheduler places all threads; once voice, its receiver and the worker "
        "have one CPU and bulk the other: where the kernel is not preemptible, a thread that wakes on a CPU "
        "waits until the kernel is through with what it does there for bulk."
    ),
    order=60,
    run=run,
)
