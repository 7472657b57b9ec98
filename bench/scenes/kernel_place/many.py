"""A switch, an agent and many veths in one namespace: `python3 -m scenes.kernel_place.many BINARY COUNT`.

Prints what applying cost, then ns per frame of each way that a line of standard input names.
"""

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
from typing import Any

from harness.api import request

TICK = 0.5
"""The agent looks again after this, seconds."""
# Local experimental Ethertype: the receiver drops such a frame, after the host has received it.
FRAME = bytes([2] * 6 + [4] * 6 + [0x88, 0xB5]) + bytes(50)
FRAMES = 50_000
CHANGES = 9
WAYS = {"limited": ("", "tidegate-tx"), "u32": ("peer-u32", "ifb-u32"), "bare": ("peer-bare", "")}
"""By name of the way: the netdev at which frames come in (empty: the last contract's), and their IFB."""


class Host:
    """A switch, an agent and veths, in this process's namespace."""

    def __init__(self, binary: str, count: int, folder: Path) -> None:
        self.api = folder / "api.sock"
        self.count = count
        switch, config = folder / "switch.sock", folder / "etc"
        config.mkdir()
        self.batch([f"link add tg{n} up type veth peer name peer{n}" for n in range(count)])
        # These two have no contract.
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
        """Limit `u32` as the others will be limited, but by the last of as many u32 filters."""
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
        """Wait until a process listens at the socket."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as tried:
                if tried.connect_ex(str(path)) == 0:
                    return
            time.sleep(0.05)
        raise SystemExit(f"{path}: no process listens there within 30 s")

    def request(self, method: str, path: str, body: str = "", kind: str = "text/plain") -> tuple[int, Any]:
        """Status and answer."""
        return request(self.api, method, path, body, kind=kind, timeout=900)

    def apply(self, vnics: range) -> float:
        """Apply contracts for these vNICs at once; the seconds it took."""
        text = "".join(
            f'[vnic.vm{n}]\nattach = {{ netdev = "tg{n}" }}\nmac = "52:54:00:00:{n >> 8:02x}:{n & 255:02x}"\n'
            f'segment = 0\ntx = {{ max = "40gbit" }}\nrx = {{ max = "40gbit" }}\n'
            for n in vnics
        )
        begin = time.monotonic()
        status, answer = self.request("POST", "/v1/apply?origin=bench.toml", text)
        # The API answers after 30 s at the latest; the change goes on.
        while status == 408:
            time.sleep(0.2)
            seen, answer = self.request("GET", f"/v1/vnics/vm{vnics[-1]}")
            status = 200 if seen == 200 and answer["state"] == "in force" else 408
        took = time.monotonic() - begin
        if status != 200:
            raise SystemExit(f"cannot apply {len(vnics)} contracts: {answer}")
        return took

    def change(self, n: int) -> float:
        """Change the limit of one vNIC; the ms it took."""
        begin = time.monotonic()
        body = json.dumps({"set": {"tx.max": f"{39 - n % 2}gbit"}})
        status, answer = self.request("PATCH", f"/v1/vnics/vm{n}", body, "application/json")
        if status != 200:
            raise SystemExit(f"cannot change vm{n}: {answer}")
        return (time.monotonic() - begin) * 1000

    def tick(self, seconds: float) -> float:
        """CPU time of one periodic look of the agent, ms; it looks half a second after the last look."""

        def used() -> float:
            fields = Path(f"/proc/{self.agent.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before, begin = used(), time.monotonic()
        time.sleep(seconds)
        cost, took = used() - before, time.monotonic() - begin
        return cost / ((took - cost) / TICK) * 1000

    @staticmethod
    def frames(device: str) -> float:
        """ns per frame, from the sender's system call until the host has received it."""
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
    """Within a namespace: prints the cost of applying, then one figure for each line of standard input."""
    with tempfile.TemporaryDirectory() as folder:
        host = Host(binary, count, Path(folder))
        try:
            # The kernel loads its modules with the first contract.
            host.apply(range(1))
            time.sleep(8)
            apply = host.apply(range(1, count)) if count > 1 else 0.0
            change = statistics.median(host.change(n * 7 % count) for n in range(CHANGES))
            time.sleep(1)
            begun = {"apply_s": apply, "change_ms": change, "tick_ms": host.tick(8)}
            # Limits need no agent, and its looks would take CPU time from the frames.
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


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
