"""Frames and TCP from host to host: how many for each second of CPU time, that of both hosts.

```text
 idle window ─▶ CPU time that others take          contenders in turns, for each case:
 window ─▶ frames or bytes that arrive at b  ÷  busy time of both hosts' CPUs, less the idle one
```
"""

import json
import subprocess
import time
from dataclasses import dataclass
from functools import partial

from harness.measure import interleave, ratios, samples
from harness.model import Contender, Context, Figure, Json, Result, Target, Window
from scenes.uplinks.hosts import (
    TAPS,
    VETHS,
    Network,
    Pair,
    busy_s,
    kernel_threads,
    processes_s,
)

DISTURBED = 0.05
"""More than this share of the CPUs busy with something else, and a window is marked."""
WARM_UP = 0.3


@dataclass(frozen=True)
class Frames:
    """As many frames of a length (bytes without FCS) as go, in this number of flows."""

    length: int
    flows: int


@dataclass(frozen=True)
class Tcp:
    """TCP by iperf3."""

    connections: int
    reverse: bool = False


FRAMES = {
    "64 B, 1 flow": Frames(64, 1),
    "64 B, 16 flows": Frames(64, 16),
    "1,464 B, 16 flows": Frames(1464, 16),
}
TCP = {
    "TCP, 1 connection": Tcp(1),
    "TCP, 1 connection, from host 2": Tcp(1, reverse=True),
    "TCP, 4 connections": Tcp(4),
    "TCP, 4 connections, from host 2": Tcp(4, reverse=True),
}
CASES: dict[str, Frames | Tcp] = {**FRAMES, **TCP}


class Meter:
    """Takes windows of one pair of guests."""

    def __init__(self, network: Network, pair: Pair, seconds: float) -> None:
        self.cpus, self.pair, self.seconds = network.cpus, pair, seconds
        self.all_cpus = sorted(set(network.cpus))
        self.helpers = kernel_threads(self.all_cpus)
        server = pair.b.spawn("iperf3", "--server", "--forceflush")
        server.wait_for("iperf3", lambda: "listening" in server.output())
        self.server = server

    def window(self, case: str) -> Json:
        """Amount a second, CPUs busy with it, and the amount for each second of CPU time."""
        what = CASES[case]
        elsewhere = self.idle()
        values = self.frames(what) if isinstance(what, Frames) else self.tcp(what)
        # Other work may have ended: it was at least what the processes took.
        busy = max(values["busy"] - elsewhere * values["seconds"], values["own"])
        result: Json = {
            "rate": values["amount"] / values["seconds"],
            "cores": busy / values["seconds"],
            "per_core": values["amount"] / busy,
            "per_core_of_processes": values["amount"] / values["own"],
            "lost": values["lost"],
        }
        if elsewhere > DISTURBED:
            result["disturbed"] = f"others used {elsewhere:.2f} CPUs before"
        return result

    def idle(self) -> float:
        """CPUs that are busy without this measurement."""
        before, began = busy_s(self.all_cpus), time.monotonic()
        time.sleep(min(0.5, self.seconds))
        return (busy_s(self.all_cpus) - before) / (time.monotonic() - began)

    def frames(self, what: Frames) -> Json:
        """Million frames from a to b."""
        sender = self.pair.send(WARM_UP + self.seconds + 0.3, what.length, what.flows)
        pids = [
            sender.pid,
            *(process.pid for process in self.pair.processes),
            *self.helpers,
        ]
        time.sleep(WARM_UP)
        began, busy, own, first = (
            time.monotonic(),
            busy_s(self.all_cpus),
            processes_s(pids),
            self.arrived(),
        )
        time.sleep(self.seconds)
        last, took = self.arrived(), time.monotonic() - began
        found = {
            "amount": (last - first) / 1e6,
            "seconds": took,
            "busy": busy_s(self.all_cpus) - busy,
            "own": processes_s(pids) - own,
        }
        sender.popen.wait(10)
        totals = json.loads(sender.output().splitlines()[-1])
        return {**found, "lost": 1 - totals["arrived"] / totals["sent"]}

    def arrived(self) -> int:
        """Frames at b's interface."""
        text = (self.pair.b.stack.path.parent.parent / "net/dev").read_text()
        line = next(line for line in text.splitlines() if line.strip().startswith("eth0:"))
        return int(line.split(":")[1].split()[1])

    def tcp(self, what: Tcp) -> Json:
        """Gigabits of payload; the CPU time is that of the whole run."""
        words = [
            "iperf3",
            "--client",
            self.pair.b.address,
            "--time",
            f"{max(1, round(self.seconds))}",
        ]
        words += [
            "--parallel",
            str(what.connections),
            "--json",
            *(["--reverse"] if what.reverse else []),
        ]
        pids = [
            self.server.pid,
            *(process.pid for process in self.pair.processes),
            *self.helpers,
        ]
        began, busy, own = time.monotonic(), busy_s(self.all_cpus), processes_s(pids)
        with subprocess.Popen(
            ["nsenter", f"--net={self.pair.a.stack.path}", *self.pair.a.pinned(*words)],
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            printed = client.communicate(timeout=60)[0]
        after, own = busy_s(self.all_cpus), processes_s(pids) - own
        took = time.monotonic() - began
        end = json.loads(printed)["end"]
        own += took * end["cpu_utilization_percent"]["host_total"] / 100
        return {
            "amount": end["sum_received"]["bytes"] * 8 / 1e9,
            "seconds": took,
            "busy": after - busy,
            "own": own,
            "lost": 0.0,
        }


def contenders(network: Network, pairs: list[Pair], seconds: float) -> list[Contender]:
    """All pairs."""
    return [Contender(pair.name, partial(Meter(network, pair, seconds).window)) for pair in pairs]


def measure(context: Context, network: Network, pairs: list[Pair], rounds: int, seconds: float) -> Result:
    """All cases, some rounds, in turns; fewer if it gets late."""
    result = Result()
    everyone = contenders(network, pairs, seconds)
    cases = [case for case in CASES if context.wants(case)]
    for done in range(rounds):
        order = everyone if done % 2 == 0 else everyone[::-1]
        for case in cases:
            if context.is_late():
                break
            result.windows += interleave(None, order, [case], 1)
        context.say(f"round {done + 1} of {rounds}")
        judge(result, [pair.name for pair in pairs])
        context.keep(result)
    return result


def judge(result: Result, names: list[str]) -> None:
    """Figures and targets of the windows so far."""
    result.figures, result.targets = [], []
    cases = list(dict.fromkeys(window.case for window in result.windows))
    for case in cases:
        result.figures += figures(result.windows, case, names)
        for ours in names:
            if ours not in (TAPS, VETHS):
                result.targets.append(target(result.windows, case, ours, TAPS))
                beside = ratios(result.windows, ours, VETHS, case, "per_core")
                title = f"{case}: for each busy CPU, against {VETHS}"
                result.figures.append(Figure(title, ours, "x", beside, filterable=True))


def target(windows: list[Window], case: str, ours: str, theirs: str) -> Target:
    """Ours against the kernel's, for each second of CPU time."""
    limit = 0.8 if case in TCP else 4.0 if "xdp" in ours else 2.0
    return Target(
        f"{case}: {ours} against {theirs}, for each second of CPU time",
        f"at least {limit:g}x",
        "x",
        limit,
        "more",
        ratios(windows, ours, theirs, case, "per_core"),
        filterable=True,
        note="by the processes' CPU time alone: "
        + ", ".join(
            f"{sample.value:.2f}x" for sample in ratios(windows, ours, theirs, case, "per_core_of_processes")
        ),
    )


def figures(windows: list[Window], case: str, names: list[str]) -> list[Figure]:
    """What arrived, the CPUs busy with it, and what arrived for each second of CPU time."""
    unit = "Mpps" if case in FRAMES else "Gbit/s"
    kinds = (
        ("arrived", unit, "rate"),
        ("CPUs busy", "CPUs", "cores"),
        ("for each busy CPU", unit, "per_core"),
    )
    return [
        Figure(
            f"{case}: {what}",
            name,
            of,
            samples(windows, name, case, value),
            filterable=True,
        )
        for what, of, value in kinds
        for name in names
    ]
