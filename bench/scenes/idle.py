"""An idle switch with many ports: what it costs, and how soon it is back.

```text
 63 taps ─┐
          ├─ Tidegate, nothing to do ─▶ CPU time of its threads over 10 s
 a ─eth0──┤
 b ─eth0──┘   a: 100 ms of silence, one datagram, b's echo    ─▶ half the round trip
 a ─eth0─ veth ─ bridge ─ veth ─eth0─ b                          the same
 a's process ─ tap ─ bridge ─ tap ─ b's process                  the same, Ethernet frames
```
"""

import os
import sys
import time
from contextlib import ExitStack
from functools import partial

from harness.machine import process_cpu_s
from harness.measure import interleave, ratios
from harness.model import Contender, Context, Figure, Json, Result, Sample, Scene, Target, samples
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
    """A loop on each CPU that runs where nothing else does (SCHED_IDLE): none of them halts."""
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
        cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
        return trips(fabric, count, *((cpus[0], cpus[-1]) if case == APART else ("", "")))


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
    return {
        "p50": percentile(delays, 0.5),
        "p99": percentile(delays, 0.99),
        "max": max(delays),
        "lost": float(len(times) - len(delays)),
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
    windows = interleave(None, contenders, CASES, context.rounds(5))
    result.windows += windows
    for case in CASES:
        for value, unit in (("p50", "us"), ("p99", "us"), ("max", "us"), ("lost", "")):
            result.figures += [
                Figure(f"{case}: {value}", name, unit, samples(windows, name, case, value))
                for name in fabrics
            ]
        for value in ("p50", "p99"):
            for kernel in (TAPS, VETH):
                result.targets.append(
                    Target(
                        f"{case}, {value}, against {kernel}",
                        "under 2x",
                        "x",
                        2,
                        "less",
                        ratios(windows, "tidegate", kernel, case, value),
                    )
                )
    result.notes.append(
        "Through a switch in user space a frame wakes two threads, the switch's and the receiver's; through "
        "the kernel's bridge one. What a wake-up costs is mostly the CPU's own: a virtual CPU that has "
        "halted comes back by way of its hypervisor. Where a loop of SCHED_IDLE keeps the CPUs from "
        "halting, what is left is the path of the frame."
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
        "themselves: no stack, and no third process."
    ),
    order=70,
    run=run,
)
