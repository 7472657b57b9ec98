#!/usr/bin/env python3
"""Measures what the kernel place costs by the number of its vNICs: to apply, to look at, and per frame.

bench/kernel-scale [--counts 10,100,1000] [--rounds 10] [--beside OTHER-BINARY] [--json]

As root. Each count has a network namespace of its own with an agent, a switch and so many veths. Frames
come in by one of them: the last with a contract (limited); one that is limited without an agent by the last
of as many u32 filters (u32); one without a limit (bare). Needs `cargo build --release -p tidegate`.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / "target/release/tidegate"
TICK = 0.5
# Local experimental Ethertype: whoever gets such a frame drops it, after the host has received it.
FRAME = bytes([2] * 6 + [4] * 6 + [0x88, 0xB5]) + bytes(50)
FRAMES = 50_000
CHANGES = 9
# Where frames come in, which is the last with a contract where none is named, and the IFB that they pass.
WAYS = {"limited": ("", "tidegate-tx"), "u32": ("peer-u32", "ifb-u32"), "bare": ("peer-bare", "")}


class Row(TypedDict):
    """What one binary cost at one count; ns per frame window by window."""

    binary: str
    vnics: int
    apply_s: float
    change_ms: float
    tick_ms: float
    limited_ns: list[float]
    u32_ns: list[float]
    bare_ns: list[float]


class Connection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=900)
        self.path = str(path)

    def connect(self) -> None:
        """To the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Host:
    """A switch, an agent and veths, in this process's namespace."""

    def __init__(self, binary: str, count: int, folder: Path) -> None:
        self.api = folder / "api.sock"
        self.count = count
        switch, config = folder / "switch.sock", folder / "etc"
        config.mkdir()
        self.batch([f"link add tg{n} up type veth peer name peer{n}" for n in range(count)])
        # Those that nobody has a contract for.
        self.batch([f"link add {name} up type veth peer name peer-{name}" for name in ("bare", "u32")])
        self.batch([f"link set peer{n} up" for n in [*range(count), "-bare", "-u32"]])
        self.limit_by_u32()
        quiet = subprocess.DEVNULL
        self.switch = subprocess.Popen([binary, "switch", "--socket", str(switch)], stderr=quiet)
        self.wait_for(switch)
        words = ["--config", str(config), "--state", str(folder / "state"), "--switch", str(switch)]
        self.agent = subprocess.Popen([binary, "agent", "--api", str(self.api), *words], stderr=quiet)
        self.wait_for(self.api)

    def limit_by_u32(self) -> None:
        """`u32` is limited as the others will be, but by the last of as many u32 filters."""
        self.batch(["link add ifb-u32 up type ifb"])
        lines = ["qdisc add dev ifb-u32 root handle 1: htb"]
        for n, device in enumerate([*(f"tg{n}" for n in range(self.count - 1)), "u32"], 1):
            select = f"protocol all pref {n} u32 match u32 0 0 indev {device}"
            rate = "rate 40gbit burst 5m cburst 5m quantum 65536"
            lines.append(f"class add dev ifb-u32 parent 1: classid 1:{n:x} htb {rate}")
            lines.append(f"qdisc add dev ifb-u32 parent 1:{n:x} bfifo limit 9000000")
            lines.append(f"filter add dev ifb-u32 parent 1: {select} flowid 1:{n:x}")
        lines.append("qdisc add dev u32 clsact")
        to = "action mirred egress redirect dev ifb-u32"
        lines.append(f"filter add dev u32 ingress protocol all pref 1 u32 match u32 0 0 {to}")
        self.batch(lines, "tc")

    @staticmethod
    def batch(lines: Sequence[str], program: str = "ip") -> None:
        """Lines of `ip` or `tc`, in one process."""
        subprocess.run([program, "-batch", "-"], input="\n".join(lines), text=True, check=True)

    @staticmethod
    def wait_for(path: Path) -> None:
        """A socket that is listened at."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as tried:
                if tried.connect_ex(str(path)) == 0:
                    return
            time.sleep(0.05)
        raise SystemExit(f"{path}: nobody listens there within 30 s")

    def request(self, method: str, path: str, body: str = "", kind: str = "text/plain") -> tuple[int, Any]:
        """Status and answer."""
        connection = Connection(self.api)
        connection.request(method, path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def apply(self, vnics: range) -> float:
        """Contracts for these, in one apply; how long it took, s."""
        text = "".join(
            f'[vnic.vm{n}]\nattach = {{ netdev = "tg{n}" }}\nmac = "52:54:00:00:{n >> 8:02x}:{n & 255:02x}"\n'
            f'segment = 0\ntx = {{ max = "40gbit" }}\nrx = {{ max = "40gbit" }}\n'
            for n in vnics
        )
        begin = time.monotonic()
        status, answer = self.request("POST", "/v1/apply?origin=bench.toml", text)
        # The API waits 30 s; the change is finished all the same.
        while status == 408:
            time.sleep(0.2)
            seen, answer = self.request("GET", f"/v1/vnics/vm{vnics[-1]}")
            status = 200 if seen == 200 and answer["state"] == "in force" else 408
        took = time.monotonic() - begin
        if status != 200:
            raise SystemExit(f"cannot apply {len(vnics)} contracts: {answer}")
        return took

    def change(self, n: int) -> float:
        """Another limit for one; how long it took, ms."""
        begin = time.monotonic()
        body = json.dumps({"set": {"tx.max": f"{39 - n % 2}gbit"}})
        status, answer = self.request("PATCH", f"/v1/vnics/vm{n}", body, "application/json")
        if status != 200:
            raise SystemExit(f"cannot change vm{n}: {answer}")
        return (time.monotonic() - begin) * 1000

    def tick(self, seconds: float) -> float:
        """Processor time of the agent each time it looks, which is half a second after the last time, ms."""

        def used() -> float:
            fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before, begin = used(), time.monotonic()
        time.sleep(seconds)
        cost, took = used() - before, time.monotonic() - begin
        return cost / ((took - cost) / TICK) * 1000

    @staticmethod
    def frames(device: str) -> float:
        """ns per frame, from the sender's system call to where the host has received it."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender:
            sender.bind((device, 0))
            begin = time.monotonic_ns()
            for _ in range(FRAMES):
                sender.send(FRAME)
            return (time.monotonic_ns() - begin) / FRAMES

    @staticmethod
    def passed(ifb: str) -> int:
        """Frames that an IFB sent so far."""
        lines = Path("/proc/net/dev").read_text().splitlines()
        return next(int(line.split()[10]) for line in lines if line.split()[0] == f"{ifb}:")

    def end(self) -> None:
        """The namespace goes with this process."""
        for process in (self.agent, self.switch):
            process.kill()
            process.wait()


def serve(binary: str, count: int) -> None:
    """Within a namespace: prints what applying cost, then what is asked for on standard input."""
    with tempfile.TemporaryDirectory() as folder:
        host = Host(binary, count, Path(folder))
        try:
            # What is loaded once is loaded before.
            host.apply(range(1))
            time.sleep(8)
            apply = host.apply(range(1, count)) if count > 1 else 0.0
            change = statistics.median(host.change(n * 7 % count) for n in range(CHANGES))
            time.sleep(1)
            begun = {"apply_s": apply, "change_ms": change, "tick_ms": host.tick(8)}
            # Limits need no agent, and this one would take a core from them now and then.
            host.agent.send_signal(signal.SIGSTOP)
            print(json.dumps(begun), flush=True)
            for line in sys.stdin:
                device, ifb = WAYS[line.strip()]
                before = host.passed(ifb) if ifb else 0
                cost = host.frames(device or f"peer{count - 1}")
                if ifb and host.passed(ifb) - before < FRAMES:
                    raise SystemExit(f"{line.strip()}: frames did not pass through {ifb}")
                print(cost, flush=True)
        finally:
            host.end()


def measure(binaries: Sequence[str], count: int, rounds: int) -> list[Row]:
    """One count; windows of all binaries take turns, with and without contract, there and back."""
    hosts, rows = [], []
    try:
        for binary in binaries:
            command = ["unshare", "--net", sys.executable, __file__, "serve", binary, str(count)]
            host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            hosts.append(host)
            assert host.stdout is not None
            begun = json.loads(host.stdout.readline() or '"no figures, see above"')
            if not isinstance(begun, dict):
                raise SystemExit(f"{binary}, {count} vNICs: {begun}")
            row: Row = {
                "binary": binary,
                "vnics": count,
                "apply_s": begun["apply_s"],
                "change_ms": begun["change_ms"],
                "tick_ms": begun["tick_ms"],
                "limited_ns": [],
                "u32_ns": [],
                "bare_ns": [],
            }
            rows.append(row)
        for turn in range(rounds):
            pairs = list(zip(hosts, rows, strict=True))
            for host, row in pairs if turn % 2 == 0 else reversed(pairs):
                assert host.stdin is not None
                assert host.stdout is not None
                ways = [("limited", row["limited_ns"]), ("u32", row["u32_ns"]), ("bare", row["bare_ns"])]
                for way, figures in ways if turn % 2 == 0 else reversed(ways):
                    print(way, file=host.stdin, flush=True)
                    figures.append(float(host.stdout.readline()))
    finally:
        for host in hosts:
            assert host.stdin is not None
            host.stdin.close()
            host.wait()
    return rows


def spread(values: Sequence[float], digits: int) -> str:
    """Median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def show(row: Row) -> None:
    """One line of the table."""

    def beside(ways: list[float]) -> str:
        return spread([way / bare for way, bare in zip(ways, row["bare_ns"], strict=True)], 2)

    figures = f"{row['vnics']:>5}  {row['apply_s']:>7.2f}  {row['change_ms']:>9.1f}  {row['tick_ms']:>7.1f}"
    frames = [spread(row[way], 0) for way in ("limited_ns", "u32_ns", "bare_ns")]
    ratios = [beside(row["limited_ns"]), beside(row["u32_ns"])]
    print(figures, *(f"{cell:>22}" for cell in [*frames, *ratios]), row["binary"], sep="  ", flush=True)


def main() -> None:
    """The program, or its part in a namespace."""
    match sys.argv[1:]:
        case ["serve", binary, count]:
            return serve(binary, int(count))
    parser = argparse.ArgumentParser(
        prog="bench/kernel-scale", description="What the kernel place costs by the number of its vNICs."
    )
    parser.add_argument("--counts", default="10,100,1000", help="vNICs")
    parser.add_argument("--rounds", type=int, default=10, help="windows of each kind; at least 2")
    parser.add_argument("--binary", default=str(BINARY), help="the binary that is measured")
    parser.add_argument(
        "--beside", action="append", default=[], help="another one, window by window; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    if not arguments.json:
        words = ["limited, ns/frame", "u32, ns/frame", "bare, ns/frame", "limited / bare", "u32 / bare"]
        print(
            "vNICs  apply s  change ms  look ms", *(f"{w:>22}" for w in words), "binary", sep="  ", flush=True
        )
    rows = []
    for count in arguments.counts.split(","):
        measured = measure([arguments.binary, *arguments.beside], int(count), arguments.rounds)
        rows.extend(measured)
        if not arguments.json:
            for row in measured:
                show(row)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    return None


if __name__ == "__main__":
    main()
