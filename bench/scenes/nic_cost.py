"""The cost of the NIC place by the number of VFs: CPU time of its loop and of its periodic looks.

A simulated NIC (netdevsim, switchdev mode: each VF has a representor with counters) in an emulated machine,
one vNIC per VF, the loop always on. Emulation is slow: how much slower is measured beside it, by the same
program here and there. Needs `scripts/setup test`.
"""

import subprocess
import sys
import time
from typing import TypedDict

from harness.model import Context, OptionGroup, Result, Scene
from harness.options import numbers
from harness.report import table
from lab.guest import Guest
from lab.guest_agent import GuestAgent
from lab.netdevsim import Netdevsim, netdevsim_guest

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
    """One number of VFs; CPU time in ms per second."""

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
    """CPU time of the agent's threads so far, by name, ms."""
    text = guest.run("cat /proc/$(pgrep -o -f 'api.sock -v [a]gent')/task/*/stat")
    times: dict[str, int] = {}
    for line in text.splitlines():
        name, rest = line[line.index("(") + 1 :].rsplit(")", 1)
        user, system = rest.split()[11:13]
        times[name] = times.get(name, 0) + (int(user) + int(system)) * TICK_MS
    return times


def in_force(agent: GuestAgent) -> int:
    """Number of vNICs in force; counted in the guest: the list is too long for the control port."""
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


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--counts", type=numbers, default=[64, 256], metavar="N,N,...", help="VFs; 64,256")
    group.add_argument("--seconds", type=int, default=20, metavar="N", help="of watching; 20")
    group.add_argument("--period", default="100ms", help="of the loop; 100ms")


def run(context: Context) -> Result:
    """Each number of VFs, in one emulated machine."""
    options = context.options
    with netdevsim_guest(context.folder / "guest") as guest:
        here = float(subprocess.check_output([sys.executable, "-c", CALIBRATION]))
        there = float(guest.run(f"python3 -c '{CALIBRATION}'", timeout=120))
        rows = [
            measure(guest, n + 1, count, options.seconds, options.period)
            for n, count in enumerate(options.counts)
        ]
    lines = [
        (
            str(row["vfs"]),
            f"{row['period_ms']:.0f} ms",
            f"{row['loop_ms']:.1f} ms/s",
            f"{row['loop_ms'] * 1000 / row['vfs']:.0f} us/s",
            f"{row['looks_ms']:.1f} ms/s",
            f"{row['apply_s']:.1f} s",
        )
        for row in rows
    ]
    slower = there / here
    note = (
        f"The emulated machine is {slower:.1f} times slower (the same program: {there:.2f} s, {here:.2f} s)."
    )
    return Result(
        tables=[table(("VFs", "period", "loop", "loop/VF", "looks", "apply of all"), lines)],
        notes=[note],
        data={"slower": slower, "rows": rows},
    )


SCENE = Scene(
    name="nic_cost",
    title="The NIC place by the number of VFs",
    about=(
        "CPU time of the NIC place's loop and looks by the number of VFs (netdevsim in an emulated machine), "
        "and how much slower that machine is."
    ),
    order=952,
    run=run,
    default=False,
    add_options=add_options,
)
