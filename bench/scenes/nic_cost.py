#!/usr/bin/env python3
"""Measures what the NIC place costs by the number of VFs: processor time of its loop and of looks.

bench/nic-cost [--counts 64,256] [--seconds 20] [--period 100ms] [--json]

A simulated NIC (netdevsim, switchdev mode: each VF has a representor with counters) in an emulated machine,
one vNIC per VF, the loop always on. Emulation is slow: how much slower is measured beside it, by the same
program here and there. Needs `cargo build --release` and `scripts/setup test`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lab.guest import Guest  # noqa: E402
from lab.guest_agent import GuestAgent  # noqa: E402
from lab.netdevsim import Netdevsim, netdevsim_guest  # noqa: E402

# A tick of /proc/PID/stat.
TICK_MS = 10
# System calls and arithmetic, as a loop has.
CALIBRATION = """
import os, time
begin = time.process_time()
for _ in range(20000):
    os.stat("/proc/self/stat")
    sum(range(50))
print(time.process_time() - begin)
"""


class Row(TypedDict):
    """One number of VFs; processor time in ms per second."""

    vfs: int
    apply_s: float
    period_ms: float
    loop_ms: float
    looks_ms: float


def contracts(nic: Netdevsim, count: int, period: str) -> str:
    """One vNIC per VF, all with a minimum."""
    host = f'[host.nic.{nic.device}]\ncontrol = "on"\nperiod = "{period}"\ncapacity = "10gbit"\n'
    vnics = (
        f"[vnic.v{n}]\n"
        f'attach = {{ vf = "{nic.device}/{n}" }}\n'
        f'mac = "52:54:00:00:{n // 256:02x}:{n % 256:02x}"\n'
        f'segment = 1\ntx = {{ min = "10mbit", max = "1gbit" }}\n'
        for n in range(count)
    )
    return host + "".join(vnics)


def threads(guest: Guest) -> dict[str, int]:
    """Processor time of the agent's threads so far, by name, ms."""
    text = guest.run("cat /proc/$(pgrep -o -f 'api.sock -v [a]gent')/task/*/stat")
    times: dict[str, int] = {}
    for line in text.splitlines():
        name, rest = line[line.index("(") + 1 :].rsplit(")", 1)
        user, system = rest.split()[11:13]
        times[name] = times.get(name, 0) + (int(user) + int(system)) * TICK_MS
    return times


def in_force(agent: GuestAgent) -> int:
    """How many vNICs are; counted in the guest, since the whole list is too long for its way out."""
    return int(agent.try_run("--json vnic ls | grep -c '\"in force\"'").stdout or 0)


def measure(guest: Guest, number: int, count: int, seconds: int, period: str) -> Row:
    """One number of VFs."""
    nic = Netdevsim(guest, number, most_vfs=count)
    nic.make_vfs(count)
    nic.switchdev()
    guest.run(f"ip link set {nic.device} up")
    agent = GuestAgent(guest)
    begin = time.monotonic()
    # A guest sees the files of its host.
    file = guest.folder / f"{count}.toml"
    file.write_text(contracts(nic, count, period))
    # The command line waits for 30 s only: emulation is slow.
    agent.try_run(f"apply -f {file} >/dev/null", timeout=120)
    agent.wait("in force", lambda: in_force(agent) == count, 600)
    apply_s = time.monotonic() - begin
    time.sleep(5)
    before, begin = threads(guest), time.monotonic()
    time.sleep(seconds)
    after, took = threads(guest), time.monotonic() - begin
    per_second = {name: (spent - before.get(name, 0)) / took for name, spent in after.items()}
    reason = agent.vnic("v0")["reason"]
    every = reason.split(", every ")[1].split(",")[0]
    agent.kill()
    guest.run("rm -rf /run/tidegate-test; mkdir -p /run/tidegate-test/etc /run/tidegate-test/state")
    nic.make_vfs(0)
    return Row(
        vfs=count,
        apply_s=apply_s,
        period_ms=float(every.removesuffix("ms")) if every.endswith("ms") else float(every[:-1]) * 1000,
        loop_ms=per_second.get("nic-loop", 0.0),
        looks_ms=per_second.get("reconciler", 0.0),
    )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", default="64,256")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--period", default="100ms")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counts = [int(count) for count in options.counts.split(",")]
    with tempfile.TemporaryDirectory() as folder, netdevsim_guest(Path(folder) / "guest") as guest:
        here = float(subprocess.check_output([sys.executable, "-c", CALIBRATION]))
        there = float(guest.run(f"python3 -c '{CALIBRATION}'", timeout=120))
        rows = [
            measure(guest, n + 1, count, options.seconds, options.period) for n, count in enumerate(counts)
        ]
    slower = there / here
    if options.json:
        print(json.dumps({"slower": slower, "rows": rows}, indent=2))
        return
    print(
        f"the emulated machine is {slower:.1f} times slower (the same program: {there:.2f} s, {here:.2f} s)"
    )
    print("VFs  period  loop        loop/VF     looks       apply of all")
    for row in rows:
        per_vf = row["loop_ms"] * 1000 / row["vfs"]
        figures = f"{row['loop_ms']:5.1f} ms/s  {per_vf:5.0f} us/s  {row['looks_ms']:5.1f} ms/s"
        print(f"{row['vfs']:3}  {row['period_ms']:3.0f} ms  {figures}  {row['apply_s']:.1f} s")


if __name__ == "__main__":
    main()
