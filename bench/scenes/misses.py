"""Injected delays between two hosts, beside the misses that the hosts report.

```text
 a: a frame each ms, numbered ─ switch 1: stamp ─ network: delays, recorded ─ switch 2: judged ─ b: read
                                                        └── truth: low, high of each frame ──┘
                     counts of switch 2, reports at switch 1 ──▶ compared with the truth
```
"""

import os
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.model import Context, OptionGroup, Result, Scene
from harness.report import table
from lab.process import Process, wait_for
from lab.two_hosts import TwoHosts
from scenes.between import skew
from scenes.between.truth import CAUSES, Compared, Counts, Frame, Report, compare
from scenes.stacks.fabric import ACTOR, load

MS = 1_000_000
DEADLINE = 5 * MS
TERMS = {
    "a": ('tx = { max = "8mbit", burst = "4kB" }', 'deadline = "5ms"', 'to = ["b"]'),
    "b": ('rx = { max = "1gbit" }',),
}
LINES = ('latency = "1ms"',)
PORT = 9000
EXCHANGED = 40
"""Exchanges after which the clocks' drift is known."""
SETTLE = 3.0
"""Time in which late frames and their reports arrive, s."""
EXCHANGES = {"name": "exchange", "udp_port": 29796, "delay_ns": [0, 200_000], "record": False}
"""Notices take their time, each way another."""


def rules(beyond: float, near: float) -> list[dict[str, Any]]:
    """Delays of these shares of frames beyond and near the deadline, and of all others below it."""
    of_a = {"from": "eth1", "stamped": True}
    return [
        EXCHANGES,
        {**of_a, "name": "beyond", "share": beyond, "delay_ns": [6 * MS, 20 * MS]},
        {**of_a, "name": "near", "share": near / (1 - beyond), "delay_ns": [4_600_000, 5_400_000]},
        {**of_a, "name": "below", "delay_ns": [200_000, 3 * MS]},
    ]


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument(
        "--injected", type=int, default=100_000, metavar="N", help="delays beyond the deadline; 100000"
    )
    group.add_argument("--stalls", type=int, default=200, metavar="N", help="of the receiving switch; 200")
    skew.add_options(group)


@dataclass(frozen=True)
class Clocks:
    """CLOCK_REALTIME against CLOCK_MONOTONIC_RAW, at several moments."""

    moments: list[tuple[int, int]]

    def raw(self, real: int) -> int:
        """The raw time of a moment, between its neighbours."""
        at = bisect_right(self.moments, (real, 0)) - 1
        at = min(max(at, 0), len(self.moments) - 2)
        (real_0, raw_0), (real_1, raw_1) = self.moments[at : at + 2]
        return raw_0 + (real - real_0) * (raw_1 - raw_0) // (real_1 - real_0)


class Watch(threading.Thread):
    """Takes the clocks' difference, reports of late frames, and the largest error of the offset."""

    def __init__(self, hosts: TwoHosts) -> None:
        super().__init__(daemon=True)
        self.hosts = hosts
        self.moments: list[tuple[int, int]] = []
        self.reports: dict[int, dict[str, Any]] = {}
        self.error = 0
        self._over = threading.Event()

    def look(self) -> None:
        """One look."""
        raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        self.moments.append((time.time_ns(), raw))
        for report in self.hosts.status(1)["far_misses"]:
            self.reports[report["number"]] = report
        for peer in self.hosts.status(2)["peers"]:
            if peer.get("clock"):
                self.error = max(self.error, peer["clock"]["error_ns"])

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.wait(0.5):
            self.look()

    def stop(self) -> None:
        """After a last look."""
        self._over.set()
        self.join()
        self.look()


@dataclass(frozen=True)
class Phase:
    """A part of the scene and its comparison."""

    name: str
    injected: int
    compared: Compared
    counts: Counts
    error: int
    lost: int


def difference(before: dict[str, Any], after: dict[str, Any]) -> Counts:
    """What was counted in between."""

    def grown(key: str) -> list[int]:
        return [after[key][cause] - before[key][cause] for cause in CAUSES]

    late, uncertain = grown("late"), grown("uncertain")
    both = [certain + perhaps for certain, perhaps in zip(late, uncertain, strict=True)]
    met = after["met"] - before["met"]
    return Counts(met, sum(late), sum(uncertain), dict(zip(CAUSES, both, strict=True)))


def report(told: dict[str, Any]) -> Report:
    """A report in the terms of the comparison."""
    cause = told["cause"] if told["cause"] in CAUSES else "receiver"
    return Report(told["sequence"], told["late_ns"], told["error_ns"], cause)


class Stage:
    """The hosts, and frames from a to b."""

    def __init__(self, context: Context) -> None:
        self.hosts = TwoHosts(
            context.folder,
            ["a", "b"],
            context.cleanup,
            network=("--fifo-priority", "3"),
            options=skew.switches(context),
        )
        self.hosts.apply(TERMS, LINES)
        self.hosts.settle()
        self.rules = self.hosts.underlay.rules
        self.rules.plan(EXCHANGES)
        wait_for("the offset of the clocks", self.knows_clocks, 60)
        self.files = 0

    def knows_clocks(self) -> bool:
        """Whether both hosts have asked the other's clock often."""
        peers = [peer for number in (1, 2) for peer in self.hosts.status(number)["peers"]]
        return all(peer.get("clock") and peer["counts"]["exchanges"] >= EXCHANGED for peer in peers)

    def file(self) -> str:
        """A new file for an actor's values."""
        self.files += 1
        return str(self.hosts.folder / f"values-{self.files}")

    def act(self, name: str, *words: str) -> Process:
        """Start an actor in the namespace of a vNIC, and wait until it is ready."""
        program = (sys.executable, "-E", "-S", str(ACTOR))
        # Ordinary threads: a receiver that takes the worker's CPU as soon as the frame is there would read it
        # before the worker knows that it has delivered it.
        process = self.hosts.stacks[name].spawn("setpriv", "--bounding-set=-sys_nice", *program, *words)
        process.wait_for(f"actor {words[0]}", lambda: "ready" in process.output())
        return process

    def phase(self, name: str, seconds: float, plan: Sequence[dict[str, Any]], stalls: int = 0) -> Phase:
        """Frames for a while under these rules, while the receiving switch is stopped so often."""
        hosts, seen = self.hosts, sum(1 for _ in self.rules.records())
        self.rules.plan(*plan)
        before, watch = hosts.pair(2), Watch(hosts)
        watch.look()
        watch.reports.clear()
        known = {told["number"] for told in hosts.status(1)["far_misses"]}
        watch.start()
        sent, heard = self.file(), self.file()
        address = hosts.address("b")
        ear = self.act("b", "listen", address, str(PORT), str(seconds + SETTLE + 2), heard)
        with stalled(hosts.hosts[1].switch.pid, stalls, seconds) as halts:
            mouth = self.act("a", "voice", address, str(PORT), str(seconds), sent)
            mouth.popen.wait(seconds + 60)
        time.sleep(SETTLE)
        ear.popen.wait(30)
        watch.stop()
        after = hosts.pair(2)
        records = [record for number, record in enumerate(self.rules.records()) if number >= seen]
        heard_at = self.heard(heard, Clocks(watch.moments))
        frames = list(self.frames(records, heard_at, halts))
        reports = [report(told) for number, told in watch.reports.items() if number not in known]
        return Phase(
            name,
            sum(record["rule"] == "beyond" for record in records) or len(halts),
            compare(frames, DEADLINE, watch.error, difference(before, after), reports),
            difference(before, after),
            watch.error,
            len(records) - len(frames),
        )

    @staticmethod
    def heard(file: str, clocks: Clocks) -> dict[int, int]:
        """When each frame was read, by its number (ns, raw)."""
        values = load(Path(file))
        return {values[at]: clocks.raw(values[at + 3]) for at in range(0, len(values), 4)}

    @staticmethod
    def frames(
        records: Sequence[dict[str, Any]], heard: dict[int, int], halts: Sequence[tuple[int, int]]
    ) -> Iterator[Frame]:
        """Each frame that arrived, with its bounds."""
        for record in records:
            if record["fate"] != "sent" or record["payload"] not in heard:
                continue
            leaves = record["arrived_ns"] + record["planned_ns"]
            read = heard[record["payload"]]
            halted = any(begin < read and leaves < end for begin, end in halts)
            cause = "receiver" if halted else "network" if record["rule"] == "beyond" else ""
            began = record["sent_ns"]
            yield Frame(record["sequence"], leaves - began, read - began, cause)


@contextmanager
def stalled(pid: int, times: int, seconds: float) -> Iterator[list[tuple[int, int]]]:
    """Stop a process so often, evenly over `seconds`, for 8 ms each: when (ns, raw)."""
    halts: list[tuple[int, int]] = []
    over = threading.Event()

    def halt() -> None:
        while len(halts) < times and not over.wait(seconds / times):
            begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.008)
            os.kill(pid, signal.SIGCONT)
            halts.append((begin, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)))

    thread = threading.Thread(target=halt, daemon=True)
    thread.start()
    try:
        yield halts
    finally:
        over.set()
        thread.join()


def accuracy(records: Iterator[dict[str, Any]]) -> str:
    """How exact the network itself was."""
    over = sorted(record["delay_ns"] - record["planned_ns"] for record in records if record["fate"] == "sent")
    at = [over[min(int(len(over) * share), len(over) - 1)] / 1e3 for share in (0.5, 0.99, 1)]
    figures = f"{at[0]:.1f} us (p50), {at[1]:.1f} us (p99), {at[2]:.1f} us (worst)"
    return f"The network sent its frames later than planned by {figures}."


def worst(beyond: Sequence[int]) -> str:
    """How many, and by how much at most."""
    return f"{len(beyond)}, by {max(beyond) / 1e3:,.0f} us at most" if beyond else "0"


HEADS = ("", "injected", "late for sure", "in time for sure", "open", "counted late", "uncertain", "met")
CHECKS = (
    "",
    "not found",
    "invented",
    "not certain",
    "reports",
    "too early",
    "too late",
    "false",
    "other cause",
)


def run(context: Context) -> Result:
    """Frames without delays beyond the deadline, with them, and with stalls of the receiver."""
    options, stage = context.options, Stage(context)
    share = 0.5
    seconds = options.injected / share / 1000
    context.say(f"{options.injected} delays take {seconds:.0f} s")
    phases = [
        stage.phase("below the deadline", min(10.0, seconds), rules(0.0, 0.0)),
        stage.phase("beyond and below", seconds, rules(share, 0.0)),
        stage.phase("beyond, near, below", min(20.0, seconds), rules(0.3, 0.4)),
    ]
    if options.stalls:
        quiet = rules(0.0, 0.0)
        phases.append(stage.phase("the receiver stalls", options.stalls / 5, quiet, options.stalls))
    rows, checks, failures = [], [], []
    for part in phases:
        found, counts = part.compared, part.counts
        rows.append(
            (
                part.name,
                *(f"{n:,}" for n in (part.injected, found.missed, found.kept, found.open)),
                *(f"{n:,}" for n in (counts.late, counts.uncertain, counts.met)),
            )
        )
        other = ", ".join(f"{n} {cause}" for cause, n in sorted(found.other_cause.items())) or "0"
        checks.append(
            (
                part.name,
                *(f"{n:,}" for n in (found.not_found, found.invented, found.not_certain, found.reports)),
                worst(found.early),
                worst(found.after),
                f"{found.false}",
                other,
            )
        )
        wrong = (found.not_found, found.invented, found.not_certain, found.false, found.strange)
        if any(wrong) or found.early or found.after or found.other_cause:
            failures.append(f"{part.name}: {found}")
    stage.rules.end()
    errors = ", ".join(f"{part.name}: {part.error / 1e3:.1f} us" for part in phases)
    causes = "; ".join(f"{part.name}: {part.counts.by_cause}" for part in phases)
    return Result(
        tables=[table(HEADS, rows), table(CHECKS, checks)],
        notes=[
            f"Largest error of the clocks' offset: {errors}.",
            f"Counted by cause: {causes}.",
            f"Frames that did not arrive: {', '.join(str(part.lost) for part in phases)}.",
            accuracy(iter(list(stage.rules.records()))),
        ],
        failures=failures,
        data={"phases": [vars(part.compared) for part in phases]},
    )


SCENE = Scene(
    name="misses",
    title="Injected delays and the misses that are reported",
    about=(
        "A frame of 200 bytes each ms from one host to another, with a deadline of 5 ms. A network between "
        "the hosts delays each frame, and records how long. The hosts' counts and reports are compared with "
        "that record and with the receiver's, which bound the true delay of each frame from both sides."
    ),
    order=960,
    run=run,
    default=False,
    add_options=add_options,
    programs=("tidegate", "tidegate-bench"),
)
