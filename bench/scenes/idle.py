"""An idle switch with many ports: its CPU time, and the delay of the first frame.

```text
 63 taps ─┐
          ├─ Tidegate, nothing to do ─▶ CPU time of its threads over 10 s
 a ─eth0──┤
 b ─eth0──┘   a: 100 ms of silence, one datagram, b's echo    ─▶ half the round trip
 a ─eth0─ veth ─ bridge ─ veth ─eth0─ b                          the same
 a's process ─ tap ─ bridge ─ tap ─ b's process                  the same, Ethernet frames
 a's process ─ rings ─ Tidegate ─ rings ─ b's process            the same, two synthetic guests
```
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial

from harness.machine import process_cpu_s
from harness.measure import interleave, ratios
from harness.model import Contender, Context, Figure, Json, Missing, Result, Sample, Scene, Target, samples
from lab.host import tap_vnic
from lab.namespaces import Stack
from lab.process import Process
from scenes.stacks.counters import threads_ns
from scenes.stacks.fabric import ACTOR, Bridge, Fabric, TapBridge, Tidegate, load
from scenes.stacks.figures import percentile

NAMES = ("a", "b")
PORTS = 64
LIMIT = 0.5
"""Of a core, percent."""
GAP = 0.1
"""Silence before a datagram, s."""
CASE = "first frame after 100 ms of silence"
APART = "the same, sender and receiver on a CPU each"
AWAKE = "the same, on CPUs that do not halt"
CASES = (CASE, APART, AWAKE)
GUESTS = "tidegate, between guests"
TAPS = "kernel tap + bridge"
VETH = "kernel veth + bridge"


def crowd(tidegate: Tidegate, others: Stack) -> None:
    """Connects ports until there are `PORTS`: the others are taps of one namespace, silent."""
    more = "".join(
        tap_vnic(f"idle{number}", others.path, f"52:54:00:09:01:{number:02x}", device=f"t{number}", segment=2)
        for number in range(PORTS - len(NAMES))
    )
    tidegate.apply({}, more)
    tidegate.host.wait_up(*NAMES, *(f"idle{number}" for number in range(PORTS - len(NAMES))))


def idle(tidegate: Tidegate, seconds: float) -> tuple[float, float]:
    """CPU time of the switch while nothing is sent, percent of a core: by schedstat, by ticks."""
    pid = tidegate.host.switch.pid
    time.sleep(1.0)
    began, threads, ticks = time.monotonic(), threads_ns(pid), process_cpu_s(pid)
    time.sleep(seconds)
    span = time.monotonic() - began
    return (threads_ns(pid) - threads) / span / 1e7, (process_cpu_s(pid) - ticks) / span * 100


def keep_awake(fabric: Fabric, cleanup: ExitStack) -> None:
    """Runs an endless loop at SCHED_IDLE on each CPU, so that no CPU halts."""
    loop = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    for cpu in sorted(os.sched_getaffinity(0)):
        command = ["taskset", "-c", str(cpu), sys.executable, "-E", "-S", "-c", loop]
        cleanup.enter_context(Process(command, fabric.folder / f"awake-{cpu}.log"))
    time.sleep(0.2)


def first_frames(fabric: Fabric, count: int, case: str) -> Json:
    """Single datagrams after silence: half of each round trip, us."""
    with ExitStack() as cleanup:
        if case == AWAKE:
            keep_awake(fabric, cleanup)
        return trips(fabric, count, *ends(case))


def ends(case: str) -> tuple[str, str]:
    """The CPUs of sender and receiver; empty if each may run anywhere."""
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    return (cpus[0], cpus[-1]) if case == APART else ("", "")


def guests(context: Context, fabric: Fabric, count: int, case: str) -> Json:
    """The same between two guests without a VM, on a switch of their own."""
    binary = context.tidegate.with_name("tidegate-bench")
    if not binary.exists():
        raise Missing(f"{binary} is missing: cargo build --release")
    client_cpu, server_cpu = ends(case)
    command = [str(binary), "--json", *(("--cpu", client_cpu) if client_cpu else ()), "wake"]
    command += ["--tidegate", str(context.tidegate), "--count", str(count), "--gap", str(GAP)]
    command += ["--peer-cpu", server_cpu] if server_cpu else []
    with ExitStack() as cleanup:
        if case == AWAKE:
            keep_awake(fabric, cleanup)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=count * (GAP + 1) + 60
        )
    if done.returncode != 0:
        raise RuntimeError(f"tidegate-bench wake ended with {done.returncode}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return summary([trip / 2e3 for trip in report["trips"]], report["lost"])


def trips(fabric: Fabric, count: int, client_cpu: str, server_cpu: str) -> Json:
    """See `first_frames`; each end on that CPU alone, where one is given."""
    file = fabric.file()
    server = fabric.act("b", *fabric.echo("b"), cpus=server_cpu)
    try:
        ping = (*fabric.ping("a", "b"), str(count), str(GAP), str(file))
        client = fabric.act("a", *ping, cpus=client_cpu)
        if client.popen.wait(count * (GAP + 1) + 10):
            raise RuntimeError(f"{ACTOR.name} failed:\n{client.output()}")
    finally:
        server.kill()
    times = load(file)
    delays = [trip / 2e3 for trip in times if trip]
    return summary(delays, len(times) - len(delays))


def summary(delays: list[float], lost: int) -> Json:
    """Of delays, us, and how many frames did not come back."""
    return {
        "p50": percentile(delays, 0.5),
        "p99": percentile(delays, 0.99),
        "max": max(delays),
        "lost": float(lost),
    }


def run(context: Context) -> Result:
    """Idle first, then single frames, in turns with the kernel's paths."""
    result = Result()
    tidegate = Tidegate(context.folder / "t", NAMES, context.cleanup)
    others = context.cleanup.enter_context(Stack(context.folder / "others"))
    others.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    tidegate.start({})
    crowd(tidegate, others)
    used = [idle(tidegate, 3.0 if context.quick else 10.0) for _ in range(context.rounds(3))]
    by_schedstat = tuple(Sample(percent) for percent, _ in used)
    result.figures += [
        Figure(f"CPU time of the idle switch, {PORTS} ports", "tidegate", "% of a core", by_schedstat),
        Figure(
            "the same, as `top` sees it (ticks of 10 ms)",
            "tidegate",
            "% of a core",
            tuple(Sample(percent) for _, percent in used),
        ),
    ]
    result.targets.append(
        Target(
            f"idle switch with {PORTS} ports: CPU time",
            f"under {LIMIT} % of a core",
            "%",
            LIMIT,
            "less",
            by_schedstat,
        )
    )
    fabrics: dict[str, Fabric] = {
        "tidegate": tidegate,
        TAPS: TapBridge(context.folder / "p", NAMES, context.cleanup),
        VETH: Bridge(context.folder / "k", NAMES, context.cleanup),
    }
    count = 10 if context.quick else 40
    contenders = [Contender(name, partial(first_frames, fabric, count)) for name, fabric in fabrics.items()]
    contenders.append(Contender(GUESTS, partial(guests, context, tidegate, count)))
    windows = interleave(None, contenders, CASES, context.rounds(5))
    result.windows += windows
    for case in CASES:
        for value, unit in (("p50", "us"), ("p99", "us"), ("max", "us"), ("lost", "")):
            result.figures += [
                Figure(
                    f"{case}: {value}", contender.name, unit, samples(windows, contender.name, case, value)
                )
                for contender in contenders
            ]
        for value in ("p50", "p99"):
            for name, kernel in (("tidegate", TAPS), ("tidegate", VETH), (GUESTS, TAPS)):
                who = ", between guests" if name == GUESTS else ""
                result.targets.append(
                    Target(
                        f"{case}{who}, {value}, against {kernel}",
                        "under 2x",
                        "x",
                        2,
                        "less",
                        ratios(windows, name, kernel, case, value),
                    )
                )
    result.notes.append(
        "Through a switch in user space a frame wakes two threads, the switch's and the receiver's; through "
        "the kernel's bridge one, which the kernel lets run on the sender's CPU where it may: then no CPU "
        "has to be woken, and a virtual CPU that has halted comes back by way of its hypervisor. With a CPU "
        "each, as VMs have, a frame of every contender wakes one. Where a loop of SCHED_IDLE keeps the CPUs "
        "from halting, what is left is the path of the frame. Only `tidegate` and the veth pair have network "
        "stacks at their ends. docs/decisions/wakes.md has the stages."
    )
    return result


SCENE = Scene(
    name="idle",
    title="Idle, and back from it",
    about=(
        f"{PORTS} taps are connected and silent: CPU time of all threads of the switch. Then single "
        "datagrams with 100 ms of silence between: half of the time until the echo is read, from "
        "application to application. Beside it a veth pair and bridge, with the same sockets and the "
        "same kernel stacks at the ends, and two taps on a bridge, whose ends are the applications "
        "themselves: no stack, and no third process. `between guests` are two synthetic vhost-user guests "
        "(`tidegate-bench wake`), on a switch of their own: no stack at the ends either."
    ),
    order=70,
    run=run,
)
