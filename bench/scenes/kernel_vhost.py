#!/usr/bin/env python3
"""Measures the kernel place with a real guest on a tap with vhost-net: set against achieved, on the wire.

bench/kernel-vhost [--rates 50,200] [--seconds 10]

An emulated machine (Debian's kernel, with vhost_net and nested virtualisation) is the host: in it run
Tidegate and a guest under KVM, whose virtio-net is on a tap. iperf3 counts in the receiver, after a warm-up;
in wire bytes: 1514 for each 1448 of TCP (timestamps are on). Needs `cargo build --release`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lab.guest import Guest, Nic  # noqa: E402
from lab.host import Host  # noqa: E402
from lab.process import Process  # noqa: E402

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


def within(rates: list[str], seconds: int) -> None:
    """In the emulated machine."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (
            f"tuntap add {TAP} mode tap vnet_hdr",
            f"addr add {HOST}/24 dev {TAP}",
            f"link set {TAP} up",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        log = Path(folder)
        with (
            Host(log / "t", agent_wrapper=()) as host,
            Process(["iperf3", "-s"], log / "iperf3.log"),
            Guest(log / "g", [tap_with_vhost()], cpus=1, memory_mb=384) as guest,
        ):
            started = time.monotonic()
            guest.address(f"{GUEST}/24")
            print(f"the guest was up after {time.monotonic() - started:.0f} s", flush=True)
            for rate in ["none", *rates]:
                side = f'{{ max = "{rate}mbit" }}'
                if rate != "none":
                    host.apply(
                        f'[vnic.guest]\nattach = {{ netdev = "{TAP}" }}\nmac = "{MAC}"\nsegment = 0\n'
                        f"tx = {side}\nrx = {side}\n"
                    )
                for way in ("tx", "rx"):
                    got = iperf3(guest, seconds, to_guest=way == "rx")
                    off = f"  {(got / float(rate) - 1) * 100:+6.2f}%" if rate != "none" else ""
                    print(f"{rate:>6}  {way}  {got:8.2f}{off}", flush=True)


def main() -> None:
    """Outside: start the machine. Inside: measure."""
    parser = argparse.ArgumentParser(prog="bench/kernel-vhost", description="A guest on tap and vhost-net.")
    parser.add_argument("--rates", default="50,200", help="Mbit/s")
    parser.add_argument("--seconds", type=int, default=10, help="measured per line, after a warm-up")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.within:
        return within(arguments.rates.split(","), arguments.seconds)
    with tempfile.TemporaryDirectory() as folder:
        machine = [
            *("-m", "2560M", "-smp", "2", "-object", "memory-backend-memfd,id=mem,size=2560M,share=on"),
            *("-machine", "q35,memory-backend=mem,kernel-irqchip=split"),
        ]
        with Guest(Path(folder) / "g", machine=machine, modules=MODULES.split()) as outer:
            inner = f"TIDEGATE_LAB_ACCEL=kvm bench/kernel-vhost --within --rates {arguments.rates}"
            result = outer.try_run(f"cd {ROOT} && {inner} --seconds {arguments.seconds} 2>&1", timeout=3600)
            print(result.stdout + result.stderr, end="")
            sys.exit(result.status)


if __name__ == "__main__":
    main()
