"""A nested VM that owns a VF: what the host counts of it, and the limit that it sets for itself."""

from pathlib import Path

import pytest

from lab.guest_agent import GuestAgent
from lab.host import GUEST_PROGRAM
from lab.igb import Pf
from lab.initramfs import ROOT
from lab.need import need_guests, need_sriov
from lab.nested import LIMIT_SOCKET, InnerGuest, outer_guest
from lab.vf_counters import set_counter

# Emulated twice, on a machine that has other work, it takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(600)]

MAC = "52:54:00:00:00:10"
SENT = ROOT / "tests/lab/sent.py"

CONTRACT = f"""
[vnic.web]
attach  = {{ vf = "eth0/0" }}
mac     = "{MAC}"
segment = 0
tx      = {{ max = "500mbit" }}
guest   = "{LIMIT_SOCKET}"
"""


def sent(inner: InnerGuest, frames: int, size: int) -> int:
    """Let the VM send so many frames of so many bytes; the bytes."""
    return int(inner.run(f"python3 {SENT} eth0 {frames} {size}", timeout=120))


def test_a_vm_with_a_vf(tmp_path: Path) -> None:
    """The host counts what the VM sent, over a wrap of the NIC's counter; and the VM limits itself."""
    need_guests()
    need_sriov()
    with outer_guest(tmp_path / "outer") as outer:
        pf = Pf(outer)
        pf.make_vfs(1, macs=[MAC], driver="vfio-pci")
        with InnerGuest(tmp_path / "inner", outer=outer, vf=pf.vf_pci(0)) as inner:
            agent = GuestAgent(outer)
            agent.run("apply -f -", CONTRACT)
            # Nothing is sent but what the test sends, so that it can be told to the byte.
            inner.run("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set eth0 up")
            inner.run("until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.05; done", timeout=60)
            inner.run("ip addr add 10.0.2.9/24 dev eth0 && ping -c 3 -W 5 10.0.2.2", timeout=30)

            # The counter is 32 bits wide: the first of these frames bring it to its end.
            set_counter(pf, 0, "tx_bytes", 2**32 - 1_000_000)
            agent.kill()
            agent.start()
            agent.wait("counted", lambda: "tx.bytes" in agent.figures("web"))
            before = agent.figures("web")["tx.bytes"]["value"]
            said = sent(inner, 4000, 1514)
            agent.wait("counted", lambda: agent.figures("web")["tx.bytes"]["value"] - before >= said)
            counted = agent.figures("web")["tx.bytes"]["value"] - before
            print(f"{counted} bytes counted, {said} sent")
            assert counted - said <= said / 1000

            limit = f"{GUEST_PROGRAM} limit"
            assert "500mbit" in inner.run(limit)
            inner.run(f"{limit} 200mbit")
            assert pf.vfs()[0]["rate"]["max_tx"] == 200
            assert inner.try_run(f"{limit} 501mbit").status == 3
            agent.run("vnic set web tx.max=600mbit")
            assert pf.vfs()[0]["rate"]["max_tx"] == 200, "raising the hard limit does not raise the soft one"
            refused = inner.try_run(f"{limit} 500kbit")
            assert (refused.status, "below 1mbit" in refused.stderr) == (3, True), refused
            inner.run(f"{limit} none")
            assert pf.vfs()[0]["rate"]["max_tx"] == 600
