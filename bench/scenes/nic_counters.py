#!/usr/bin/env python3
"""Counts what a VM with a VF sends, from the host and in the VM, while the NIC's 32-bit counter wraps.

bench/nic-counters [--frames 20000] [--rounds 5] [--size 1514]

A nested VM owns a VF of QEMU's igb (an 82576); in the outer machine an agent counts by the NIC's registers.
The VM's own figure is of the program that sends: frames times their size. Its sent octets' register is set to
just below 2^32 first, in QEMU's memory: the wrap comes in the middle. Needs `cargo build --release` and
`scripts/setup test`; takes two minutes.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lab.guest_agent import GuestAgent  # noqa: E402
from lab.igb import Pf  # noqa: E402
from lab.nested import InnerGuest, outer_guest  # noqa: E402
from lab.vf_counters import set_counter  # noqa: E402

MAC = "52:54:00:00:00:10"
SENT = ROOT / "tests/lab/sent.py"
CONTRACT = f'[vnic.web]\nattach = {{ vf = "eth0/0" }}\nmac = "{MAC}"\nsegment = 0\n'


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1514)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, outer_guest(Path(folder) / "outer") as outer:
        pf = Pf(outer)
        pf.make_vfs(1, macs=[MAC], driver="vfio-pci")
        with InnerGuest(Path(folder) / "inner", outer=outer, vf=pf.vf_pci(0)) as inner:
            inner.run("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set eth0 up")
            inner.run("until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.05; done", timeout=60)
            inner.run("ip addr add 10.0.2.9/24 dev eth0 && ping -c 3 -W 5 10.0.2.2", timeout=30)
            half = options.frames * options.rounds * (options.size + 4) // 2
            set_counter(pf, 0, "tx_bytes", 2**32 - half)
            agent = GuestAgent(outer)
            agent.run("apply -f -", CONTRACT)
            agent.wait("counted", lambda: "tx.bytes" in agent.figures("web"))
            first = agent.figures("web")["tx.bytes"]["value"]
            print(
                f"source: {agent.figures('web')['tx.bytes']['source']}; wraps after {half:,} octets with FCS"
            )
            print("      sent by the VM  counted by the host    error")
            said = 0
            for _ in range(options.rounds):
                sent = inner.run(f"python3 {SENT} eth0 {options.frames} {options.size}", timeout=600)
                said += int(sent)
                # The driver may still have some.
                outer.run("sleep 1")
                counted = agent.figures("web")["tx.bytes"]["value"] - first
                print(f"{said:20,}  {counted:19,}  {(counted - said) / said:+7.3%}", flush=True)


if __name__ == "__main__":
    main()
