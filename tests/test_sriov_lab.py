"""The lab's SR-IOV NICs, without Tidegate: what the NIC place's tests stand on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.igb import Pf, igb_guest
from lab.need import need_guests, need_netdevsim, need_sriov
from lab.nested import LIMIT_PORT, LIMIT_SOCKET, InnerGuest, outer_guest
from lab.netdevsim import Netdevsim, netdevsim_guest
from lab.vf_counters import VfCounters, read_counters, set_counter

pytestmark = pytest.mark.lab

MACS = ["52:54:00:00:00:10", "52:54:00:00:00:11"]
FCS = 4

TELL = """
import socket, sys
agent = socket.socket(socket.AF_UNIX)
agent.connect(sys.argv[1])
agent.sendall(b"100\\n")
print(agent.makefile().readline(), end="")
"""


@pytest.fixture(scope="module")
def pf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pf]:
    """An igb with two VFs, each in a namespace of its own: vf0 with 10.0.0.1, vf1 with 10.0.0.2."""
    need_guests()
    need_sriov()
    with igb_guest(tmp_path_factory.mktemp("igb")) as guest:
        pf = Pf(guest)
        for number, device in enumerate(pf.make_vfs(2, macs=MACS)):
            pf.into_namespace(device, f"vf{number}", f"10.0.0.{number + 1}/24")
        yield pf


def test_rates_read_back(pf: Pf) -> None:
    """The rate of a VF and no other's is what was set; what the NIC cannot do is refused."""
    pf.guest.run("ip link set eth0 vf 1 max_tx_rate 250")
    assert [vf["rate"] for vf in pf.vfs()] == [{"max_tx": 0, "min_tx": 0}, {"max_tx": 250, "min_tx": 0}]
    for refused in ("max_tx_rate 1001", "max_tx_rate 100 min_tx_rate 10"):
        assert "Invalid argument" in pf.guest.try_run(f"ip link set eth0 vf 0 {refused}").stderr
    pf.guest.run("ip link set eth0 vf 1 max_tx_rate 0")
    assert [vf["rate"]["max_tx"] for vf in pf.vfs()] == [0, 0]


def driver_counters(pf: Pf, vf: int) -> VfCounters:
    """What the VF's own driver has counted: bytes with the header, without FCS."""
    text = pf.guest.run(f"ip -n vf{vf} -json -statistics link show up")
    (stats,) = [link["stats64"] for link in json.loads(text) if link.get("link_type") == "ether"]
    rx, tx = stats["rx"], stats["tx"]
    return VfCounters(rx["packets"], tx["packets"], rx["bytes"], tx["bytes"], rx["multicast"])


def test_counters_move_and_wrap(pf: Pf) -> None:
    """The registers count what the VFs' drivers do, with FCS, and wrap at 32 bits."""
    ping = "ip netns exec vf0 ping -q -c 20 -i 0.01 -s 1000 -W 5 10.0.0.2"
    pf.guest.run(ping)
    set_counter(pf, 0, "tx_bytes", 2**32 - 1000)
    before = [(read_counters(pf, vf), driver_counters(pf, vf)) for vf in range(2)]
    pf.guest.run(ping)
    after = [(read_counters(pf, vf), driver_counters(pf, vf)) for vf in range(2)]
    assert after[0][0].tx_bytes < before[0][0].tx_bytes
    for vf in range(2):
        registers, driver = (after[vf][source] - before[vf][source] for source in range(2))
        assert registers.tx_frames == driver.tx_frames >= 20
        assert registers.rx_frames == driver.rx_frames >= 20
        assert registers.tx_bytes == driver.tx_bytes + FCS * driver.tx_frames
        assert registers.rx_bytes == driver.rx_bytes + FCS * driver.rx_frames


def test_traffic_leaves_by_the_wire(pf: Pf) -> None:
    """A VF reaches the PF's peer, not other VFs alone."""
    pf.guest.run("ip -n vf0 addr add 10.0.2.9/24 dev $(ip netns exec vf0 ls /sys/class/net | grep eth)")
    assert " 0% packet loss" in pf.guest.run("ip netns exec vf0 ping -q -c 3 -i 0.1 -W 5 10.0.2.2")


def test_simulated_nic(tmp_path: Path) -> None:
    """netdevsim keeps rates by `ip link` in legacy mode, by devlink in switchdev mode."""
    need_guests()
    need_netdevsim()
    with netdevsim_guest(tmp_path / "g") as guest:
        nic = Netdevsim(guest)
        nic.make_vfs(2)
        guest.run(f"ip link set {nic.device} vf 1 max_tx_rate 1000 min_tx_rate 100")
        assert [vf["rate"] for vf in nic.vfs()] == [
            {"max_tx": 0, "min_tx": 0},
            {"max_tx": 1000, "min_tx": 100},
        ]
        nic.switchdev()
        refused = guest.try_run(f"ip link set {nic.device} vf 0 max_tx_rate 10")
        assert "Operation not supported" in refused.stderr
        guest.run(f"devlink port function rate add {nic.handle}/tenant tx_max 2gbit")
        guest.run(f"devlink port function rate set {nic.port(0)} tx_share 100mbit tx_max 1gbit parent tenant")
        assert nic.rates() == {
            f"{nic.handle}/tenant": {"type": "node", "tx_max": 250_000_000},
            nic.port(0): {
                "type": "leaf",
                "tx_share": 12_500_000,
                "tx_max": 125_000_000,
                "parent": "tenant",
            },
            nic.port(1): {"type": "leaf"},
        }


def test_vm_that_owns_a_vf(tmp_path: Path) -> None:
    """A nested VM sends through its VF, which the PF counts, and has the port that tells it a limit."""
    need_guests()
    need_sriov()
    with outer_guest(tmp_path / "outer") as outer:
        pf = Pf(outer)
        pf.make_vfs(1, macs=MACS[:1], driver="vfio-pci")
        with InnerGuest(tmp_path / "inner", outer=outer, vf=pf.vf_pci(0)) as inner:
            inner.run("ip addr add 10.0.2.9/24 dev eth0")
            inner.run("until grep -q 1 /sys/class/net/eth0/carrier; do sleep 0.05; done")
            before = read_counters(pf, 0)
            assert " 0% packet loss" in inner.run("ping -q -c 5 -i 0.1 -W 5 10.0.2.2")
            assert (read_counters(pf, 0) - before).tx_frames >= 5

            port = inner.run(f"grep -l '^{LIMIT_PORT}$' /sys/class/virtio-ports/*/name").split("/")[-2]
            # Until somebody is connected to the socket, a read ends at once.
            listen = "until read -r told <&3; do sleep 0.05; done; echo heard $told >&3"
            inner.run(f"(exec 3<>/dev/{port}; {listen}) >/dev/null 2>&1 &")
            assert outer.run(f"python3 -c '{TELL}' {LIMIT_SOCKET}") == "heard 100\n"
