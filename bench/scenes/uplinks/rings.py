"""Frames from a guest's ring on one host to a ring on the other: what the hosts alone do for them.

```text
 ring a ─▶ Tidegate ─ UDP ─▶ Tidegate ─▶ ring b       frames / CPU time of both switches
   └── DPDK generator on the other CPU ──┘
 guest a ─▶ bridge, vxlan ═ vxlan, bridge ─▶ guest b  CPU time of a frame, less that
 guest a ─────────── veth ───────────────▶ guest b    of guests alone: what the hosts take
```
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from harness.machine import hugepages
from harness.measure import interleave, samples
from harness.model import Contender, Context, Figure, Json, Result, Target
from harness.traffic import Generator
from lab.host import vhost_user_vnic
from peers.base import GUEST_A, GUEST_B
from scenes.uplinks.hosts import (
    KINDS,
    PEERS,
    VETHS,
    VNI,
    Network,
    kernel_threads,
    processes_s,
    uplink_of,
)
from scenes.uplinks.rates import WARM_UP, Frames, Meter

ALONE = "guests alone"
ASKED = {"vxlan": 2.0, "packet": 2.0, "xdp": 4.0}
"""Times the kernel's vxlan, for each second of the hosts' CPU time."""
FLOWS = 16
CASES = {"64 B": 64, "1,464 B": 1464}
PAGES = 300


class Rings:
    """Two switches on one CPU, and a generator on the other."""

    def __init__(self, context: Context, kind: str) -> None:
        cpu = context.machine.switch_cpu
        network = Network(context, f"rings-{kind}", (cpu, cpu))
        network.prepare(kind)
        hosts = [network.host(number, context.folder / f"ring-{kind}{number}") for number in (1, 2)]
        sockets = (hosts[0].folder / "a.sock", hosts[1].folder / "b.sock")
        vnics = [
            vhost_user_vnic(name, socket, mac, "mtu = 1450", segment=VNI)
            for name, socket, mac in zip("ab", sockets, (GUEST_A, GUEST_B), strict=True)
        ]
        remote = f'[remote.b]\nmac = "{GUEST_B}"\nsegment = {VNI}\npeer = "{PEERS[kind]}"\n'
        hosts[0].apply(uplink_of(kind, 1) + vnics[0] + remote)
        hosts[1].apply(uplink_of(kind, 2) + vnics[1])
        cpus = (GUEST_A, GUEST_B), context.machine.generator_cpu
        self.generator = Generator(sockets, *cpus, context.folder / f"ring-{kind}-g")
        context.cleanup.callback(self.generator.stop)
        self.generator.wait_ready()
        for host, name in zip(hosts, "ab", strict=True):
            host.wait_up(name)
        self.pids = [*(host.switch.pid for host in hosts), *kernel_threads([cpu])]

    def window(self, seconds: float, case: str) -> Json:
        """Million frames a second, and for each second of the switches' CPU time."""
        began = processes_s(self.pids)
        traffic = self.generator.run(size=CASES[case], flows=FLOWS, rewrite=1, ms=round(1000 * seconds))
        arrived = sum(part["received"] for part in traffic.parts) / 1e6
        took = sum(part["us"] for part in traffic.parts) / 1e6
        # The run warms up for 30 ms, which are in the CPU time.
        busy = (processes_s(self.pids) - began) * took / (took + 0.03)
        return {"rate": arrived / took, "per_core": arrived / busy}


def by_sender(meter: Meter, case: str) -> Json:
    """The same of guests that are namespaces, for each second of all processes' CPU time."""
    found = meter.frames(Frames(CASES[case], FLOWS))
    return {
        "rate": found["amount"] / found["seconds"],
        "per_core": found["amount"] / found["own"],
    }


def named(kind: str) -> str:
    """The name of a kind in the tables."""
    return f"{KINDS[kind]}, rings"


def measure(context: Context, kinds: Sequence[str], rounds: int, seconds: float) -> Result:
    """Both sizes, some rounds, in turns."""
    result = Result()
    context.cleanup.enter_context(hugepages(PAGES))
    machine = context.machine
    network = Network(context, "sockets", (machine.generator_cpu, machine.switch_cpu))
    everyone: list[tuple[str, Callable[[str], Json]]] = [
        *((named(kind), partial(Rings(context, kind).window, seconds)) for kind in kinds),
        (VETHS, partial(by_sender, Meter(network, network.kernel(VETHS), seconds))),
        (ALONE, partial(by_sender, Meter(network, network.cable(), seconds))),
    ]
    time.sleep(WARM_UP)
    for done in range(rounds):
        order = everyone if done % 2 == 0 else everyone[::-1]
        for case in CASES:
            if not context.is_late():
                result.windows += interleave(None, [Contender(*one) for one in order], [case], 1)
        context.say(f"rings, round {done + 1} of {rounds}")
    judge(result, kinds)
    return result


def judge(result: Result, kinds: Sequence[str]) -> None:
    """What the hosts do for a frame: Tidegate's, and the kernel's less that of the guests."""
    for case in CASES:
        title = f"{case}, guests' rings: for each second of the hosts' CPU time"
        whole = samples(result.windows, VETHS, case, "per_core")
        alone = samples(result.windows, ALONE, case, "per_core")
        kernel = tuple(
            type(one)(1 / (1 / one.value - 1 / other.value), one.disturbed)
            for one, other in zip(whole, alone, strict=True)
        )
        result.figures.append(Figure(title, "kernel vxlan", "Mpps", kernel, filterable=True))
        for kind in kinds:
            ours = samples(result.windows, named(kind), case, "per_core")
            result.figures.append(Figure(title, named(kind), "Mpps", ours, filterable=True))
            ratio = tuple(type(one)(one.value / other.value) for one, other in zip(ours, kernel, strict=True))
            result.targets.append(
                Target(
                    f"{title}: {named(kind)}, against the kernel's vxlan",
                    f"at least {ASKED[kind]:g}x",
                    "x",
                    ASKED[kind],
                    "more",
                    ratio,
                    filterable=True,
                )
            )
