"""The kernel place with a real guest on a tap with vhost-net: set against achieved, on the wire.

An emulated machine (Debian's kernel, with vhost_net and nested virtualisation) is the host: in it run
Tidegate and a guest under KVM, whose virtio-net is on a tap. iperf3 counts in the receiver, after a warm-up;
in wire bytes: 1514 for each 1448 of TCP (timestamps are on).
"""

import argparse
import json
import shlex
import subprocess
import time

from harness.model import Context, Json, OptionGroup, Result, Scene
from harness.report import table
from lab.guest import Guest, Nic
from lab.host import Host
from lab.process import Process

MODULES = "tun vhost_net kvm_amd kvm_intel ifb sch_htb sch_ingress cls_u32 cls_bpf act_mirred"
HOST, GUEST, MAC, TAP = "10.9.0.1", "10.9.0.2", "52:54:00:00:00:01", "vnet0"
WARM_UP = 2
ON_WIRE = 1514 / 1448


def tap_with_vhost() -> Nic:
    """A virtio-net device on the tap, with its rings served by the host's kernel."""
    return Nic(
        [
            *("-netdev", f"tap,id=net0,ifname={TAP},script=no,downscript=no,vhost=on"),
            *("-device", f"virtio-net-pci,netdev=net0,mac={MAC}"),
        ]
    )


def iperf3(guest: Guest, seconds: int, *, to_guest: bool) -> float:
    """Mbit/s on the wire, as the receiver counts."""
    way = "-R" if to_guest else ""
    printed = guest.run(f"iperf3 -c {HOST} -t {seconds} -O {WARM_UP} --json {way}", timeout=seconds + 60)
    received = json.loads(printed)["end"]["sum_received"]
    return float(received["bits_per_second"]) * ON_WIRE / 1e6


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--rates", default="50,200", metavar="N,N,...", help="Mbit/s; 50,200")
    group.add_argument("--seconds", type=int, default=10, metavar="N", help="of a line, after a warm-up; 10")
    group.add_argument("--within", action="store_true", help=argparse.SUPPRESS)


def within(context: Context) -> Result:
    """In the emulated machine."""
    for words in (
        f"tuntap add {TAP} mode tap vnet_hdr",
        f"addr add {HOST}/24 dev {TAP}",
        f"link set {TAP} up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    seconds, lines = context.options.seconds, []
    with (
        Host(context.folder / "t", agent_wrapper=()) as host,
        Process(["iperf3", "-s"], context.folder / "iperf3.log"),
        Guest(context.folder / "g", [tap_with_vhost()], cpus=1, memory_mb=384) as guest,
    ):
        started = time.monotonic()
        guest.address(f"{GUEST}/24")
        note = f"The guest was up after {time.monotonic() - started:.0f} s."
        for rate in ["none", *context.options.rates.split(",")]:
            side = f'{{ max = "{rate}mbit" }}'
            if rate != "none":
                host.apply(
                    f'[vnic.guest]\nattach = {{ netdev = "{TAP}" }}\nmac = "{MAC}"\nsegment = 0\n'
                    f"tx = {side}\nrx = {side}\n"
                )
            for way in ("tx", "rx"):
                got = iperf3(guest, seconds, to_guest=way == "rx")
                off = f"{(got / float(rate) - 1) * 100:+.2f} %" if rate != "none" else ""
                lines.append((rate, way, f"{got:.2f}", off))
                context.say(" ".join(lines[-1]))
    return Result(tables=[table(("set [Mbit/s]", "way", "Mbit/s", "off"), lines)], notes=[note])


def run(context: Context) -> Result:
    """Outside: start the machine. Inside: measure."""
    if context.options.within:
        return within(context)
    machine = [
        *("-m", "2560M", "-smp", "2", "-object", "memory-backend-memfd,id=mem,size=2560M,share=on"),
        *("-machine", "q35,memory-backend=mem,kernel-irqchip=split"),
    ]
    wanted = context.options
    words = f"--within --rates {wanted.rates} --seconds {wanted.seconds} --out /tmp/bench"
    with Guest(context.folder / "g", machine=machine, modules=MODULES.split()) as outer:
        run_there = f"TIDEGATE_LAB_ACCEL=kvm bench/run --scene kernel_vhost {words}"
        outer.run(f"cd {shlex.quote(str(context.root))} && {run_there}", timeout=3600)
        scene: Json = json.loads(outer.run("cat /tmp/bench/results.json"))["scenes"][0]
    return Result(tables=scene["tables"], notes=scene["notes"])


SCENE = Scene(
    name="kernel_vhost",
    title="The kernel place with a guest on vhost-net",
    about=(
        "Rates set and achieved of the kernel place with a guest on tap and vhost-net, nested in an "
        "emulated machine."
    ),
    order=944,
    run=run,
    default=False,
    add_options=add_options,
)
