#!/usr/bin/env python3
"""One TCP sender on a link of 800 Mbit/s, joined by a UDP sender that asks for everything.

bench/nic-control [--capacity 800] [--seconds 30] [--period 0.1] [--page]

As root. Three ways: without limits, with a fixed limit of half the link on the UDP sender, and with the loop
that shares a NIC's link out, which promises both half of it. Each in the simulator of `tidegate-bench nic`,
and with real traffic: the host switch stands in for the switch inside a NIC. Its ports are the functions, a
port with `rx.max` and a plain FIFO is the link; `tidegate-bench nic govern` counts and sets `tx.max` by the
agent's API. Counted is what arrives, in wire bytes: 1514 for each 1448 of TCP or 1472 of UDP.
`--page` writes the chart and the results to docs/places. Needs `cargo build --release`.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from harness import plot  # noqa: E402
from harness.model import Plot, Series  # noqa: E402
from lab.process import Process  # noqa: E402
from scenes.stacks.fabric import Tidegate  # noqa: E402

BENCH = ROOT / "target/release/tidegate-bench"
PAGE = ROOT / "docs/places"
PORT = 5001
TCP_WIRE, UDP_WIRE = 1514 / 1448, 1514 / 1472
DATAGRAM, UDP_SEGMENT, UDP_GRO = 1472, 103, 104
BUCKET = 0.5
DISTURBED = 0.01
"""Of processor time taken away: a run with more is made again, if it may be."""
CASES = ("no control", "a fixed limit on B", "the loop")

COLUMNS = ("a_before", "a_after", "b_after", "a_worst_second")

Buckets = list[tuple[float, float]]
"""Mbit/s of A and of B, a bucket after the other."""


@dataclass(frozen=True)
class Run:
    """One case, simulated or real."""

    way: str
    case: str
    joined: float
    delivered: Buckets
    loop: dict[str, Any]
    stolen: float = 0.0
    """Share of processor time that whoever runs this machine took away."""

    def row(self) -> dict[str, Any]:
        """What the table says. What happens in the second in which B joins is the worst, not the median."""
        join = round(self.joined / BUCKET)
        seconds = [
            (sum(a for a, _ in two) / len(two), sum(b for _, b in two) / len(two))
            for two in (self.delivered[i : i + 2] for i in range(join, len(self.delivered) - 1, 2))
        ]
        settled = max(2, join // 5)
        before, after = self.delivered[settled:join], self.delivered[join:]

        def median(buckets: Buckets, who: int) -> float:
            return statistics.median(bucket[who] for bucket in buckets)

        return {
            "way": self.way,
            "case": self.case,
            "a_before": median(before, 0),
            "a_after": median(after, 0),
            "b_after": median(after, 1),
            "a_worst_second": min(a for a, _ in seconds),
            "stolen": self.stolen,
        }


def simulated(arguments: argparse.Namespace) -> list[Run]:
    """The three cases in the simulator."""
    report = json.loads(
        subprocess.run(
            [
                *(BENCH, "--json", "nic", "simulate", "--seconds", str(arguments.seconds)),
                *("--capacity", f"{arguments.capacity}mbit", "--half", f"{arguments.capacity // 2}mbit"),
                *("--rate", str(round(1 / arguments.period))),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert report["bucket"] == BUCKET
    return [
        Run(
            "simulated",
            case["name"],
            report["joined"],
            [(a, b) for a, b in case["delivered"]],
            {"changes": case["changes"], "turns": case["steps"]},
        )
        for case in report["cases"]
    ]


def send(kind: str, to: str, start: float, stop: float, mbps: float) -> None:
    """Sends from one moment of the clock to another: TCP all it can, UDP so much, in super-frames."""
    time.sleep(max(0.0, start - time.monotonic()))
    if kind == "tcp":
        stream = socket.create_connection((to, PORT))
        stream.settimeout(1.0)
        piece = bytes(256 * 1024)
        while time.monotonic() < stop:
            with suppress(TimeoutError):
                stream.send(piece)
        return
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.connect((to, PORT))
    datagrams.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, DATAGRAM)
    piece = bytes(DATAGRAM * 44)
    due = time.monotonic()
    while (now := time.monotonic()) < stop:
        # What was missed for want of a processor is made up for up to 20 ms.
        due = max(due, now - 0.02)
        while due < now:
            with suppress(OSError):
                datagrams.send(piece)
            due += len(piece) * UDP_WIRE * 8 / (mbps * 1e6)
        time.sleep(0.0005)


def receive(kind: str, stop: float) -> None:
    """Prints when how many wire bytes had come, every 20 ms or so: the clock, and bytes."""
    buffer = bytearray(1 << 20)
    if kind == "tcp":
        listener = socket.create_server(("", PORT))
        print("ready", flush=True)
        source, _ = listener.accept()
        wire = TCP_WIRE
    else:
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        source.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 16 << 20)
        source.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        source.bind(("", PORT))
        print("ready", flush=True)
        wire = UDP_WIRE
    source.settimeout(0.02)
    total, last = 0.0, 0.0
    while (now := time.monotonic()) < stop:
        if now > last + 0.02:
            print(now, round(total), flush=True)
            last = now
        with suppress(TimeoutError):
            total += source.recv_into(buffer) * wire
    print(stop, round(total), flush=True)


def buckets(log: str, start: float, count: int) -> list[float]:
    """Mbit/s in each bucket from `start` on, by what a receiver printed; between its lines evenly."""
    points = [(float(at), float(total)) for at, total in (line.split() for line in log.splitlines()[1:])]
    points = [(0.0, 0.0), *points] if points else [(0.0, 0.0)]

    def total(at: float) -> float:
        for (t0, b0), (t1, b1) in pairwise(points):
            if t0 <= at <= t1:
                return b0 + (b1 - b0) * (at - t0) / (t1 - t0)
        return points[-1][1] if at > points[-1][0] else 0.0

    marks = [total(start + BUCKET * i) for i in range(count + 1)]
    return [(after - before) * 8 / BUCKET / 1e6 for before, after in pairwise(marks)]


def ready(process: Process) -> bool:
    """Whether a receiver can be sent to."""
    return "ready" in process.output()


def ticks() -> tuple[int, int]:
    """Processor time that was taken away, and all of it."""
    words = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return words[7], sum(words)


def real(arguments: argparse.Namespace, case: str) -> Run:
    """One case on a switch and an agent of its own."""
    capacity, seconds = arguments.capacity, arguments.seconds
    joined = round(seconds / 3)
    half = f"{capacity // 2}mbit"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        fabric = Tidegate(Path(folder), ("a", "b", "link"), cleanup)
        terms = {"link": (f'rx = {{ max = "{capacity}mbit", discipline = "fifo" }}',)}
        if case == CASES[1]:
            terms["b"] = (f'tx = {{ max = "{half}" }}',)
        fabric.start(terms)
        start = time.monotonic() + 3
        stop = start + seconds
        me = (sys.executable, __file__)
        receivers = {}
        for kind in ("tcp", "udp"):
            process = fabric.stacks["link"].spawn("env", *me, "receive", kind, str(stop + 0.1))
            process.wait_for(f"the receiver of {kind}", partial(ready, process))
            receivers[kind] = process
        governor = None
        if case == CASES[2]:
            governor = Process(
                [
                    *(BENCH, "--json", "nic", "govern", "--api", fabric.host.api),
                    *("--capacity", f"{capacity}mbit", "--vnic", f"a={half}", "--vnic", f"b={half}"),
                    *("--seconds", str(seconds + 2), "--period", str(arguments.period)),
                    *("--spare", str(arguments.spare)),
                ],
                Path(folder) / "governor.log",
            )
        to = fabric.address("link")
        fabric.stacks["a"].spawn("env", *me, "send", "tcp", to, str(start - 0.5), str(stop), "0")
        asks = str(capacity * 1.25)
        fabric.stacks["b"].spawn("env", *me, "send", "udp", to, str(start + joined), str(stop), asks)
        time.sleep(max(0.0, start - time.monotonic()))
        before = ticks()
        time.sleep(max(0.0, stop + 0.5 - time.monotonic()))
        taken, spent = (now - then for now, then in zip(ticks(), before, strict=True))
        count = round(seconds / BUCKET)
        a, b = (buckets(receivers[kind].output(), start, count) for kind in ("tcp", "udp"))
        loop: dict[str, Any] = {}
        if governor is not None:
            governor.popen.wait(timeout=30)
            loop = json.loads(governor.output())
            for limits in loop["limits"]:
                limits["at"] -= start
        return Run("real", case, float(joined), list(zip(a, b, strict=True)), loop, taken / spent)


def least_disturbed(arguments: argparse.Namespace, case: str) -> Run:
    """One case, again where this machine was taken away for too long; at last the least disturbed of all."""
    runs: list[Run] = []
    while len(runs) < arguments.tries and not any(run.stolen < DISTURBED for run in runs):
        runs.append(real(arguments, case))
    return min(runs, key=lambda run: run.stolen)


def table(runs: list[Run], arguments: argparse.Namespace) -> str:
    """For people, as Markdown."""
    lines = [
        "| Mbit/s | case | A before | A after | B after | A, worst second after | taken away |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        row = run.row()
        figures = " | ".join(
            f"{row[key]:.0f}" for key in ("a_before", "a_after", "b_after", "a_worst_second")
        )
        taken = f"{run.stolen:.1%}" if run.way == "real" else ""
        lines.append(f"| {run.way} | {run.case} | {figures} | {taken} |")
    for run in runs:
        if loop := run.loop:
            words = f"{run.case}, {run.way}: {loop['turns']} turns, {loop['changes']} limits set"
            if run.way == "real":
                words += (
                    f"; period {loop['period_ms']['median']:.0f} ms "
                    f"(longest {loop['period_ms']['most']:.0f}), reading {loop['read_ms']['median']:.1f} ms, "
                    f"setting one {loop['set_ms']['median']:.1f} ms"
                )
            if loop["turns"]:
                lines.append(f"\n{words}")
    lines.append(
        f"\nlink {arguments.capacity} Mbit/s, B asks for {arguments.capacity * 1.25:.0f}; "
        "taken away: processor time, by whoever runs this machine"
    )
    return "\n".join(lines)


def chart(runs: list[Run], arguments: argparse.Namespace) -> Plot:
    """A's rate over time, in each case."""
    return Plot(
        "nic-control",
        f"TCP on a link of {arguments.capacity} Mbit/s, joined by UDP at {arguments.capacity * 1.25:.0f}",
        "time [s]",
        "what the TCP sender gets [Mbit/s]",
        tuple(
            Series(
                f"{run.case}, {run.way}",
                tuple((BUCKET * (i + 0.5), a) for i, (a, _) in enumerate(run.delivered)),
            )
            for run in runs
        ),
    )


def main() -> None:
    """One of three: the program, its senders, its receivers."""
    match sys.argv[1:]:
        case ["send", kind, to, start, stop, mbps]:
            return send(kind, to, float(start), float(stop), float(mbps))
        case ["receive", kind, stop]:
            return receive(kind, float(stop))
    parser = argparse.ArgumentParser(prog="bench/nic-control", description="TCP joined by UDP on one link.")
    parser.add_argument("--capacity", type=int, default=800, help="Mbit/s of the link")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a case; B joins after a third")
    parser.add_argument("--period", type=float, default=0.1, help="shortest period of the loop, s")
    parser.add_argument("--spare", type=int, default=10, help="one part in so many may be spent by the loop")
    parser.add_argument("--tries", type=int, default=3, help="runs of a case, while the machine is disturbed")
    parser.add_argument("--page", action="store_true", help="write docs/places/nic/control.{svg,json}")
    parser.add_argument("--json", action="store_true", help="everything, as one object")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/nic-control: needs root, for network namespaces and taps")
    runs = [*simulated(arguments), *(least_disturbed(arguments, case) for case in CASES)]
    everything = {"capacity": arguments.capacity, "runs": [vars(run) | run.row() for run in runs]}
    if arguments.page:
        (PAGE / "nic/control.svg").write_text(plot.svg(chart(runs, arguments)))
        (PAGE / "nic/control.json").write_text(json.dumps(everything, indent=1) + "\n")
    print(json.dumps(everything) if arguments.json else table(runs, arguments))
    return None


if __name__ == "__main__":
    main()
