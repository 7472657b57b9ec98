"""crates/places/nic against real parts, QEMU's igb (82576) and netdevsim; its example `nic` runs in a guest.

The example's output is compared with iproute2's for the same NIC. test_contracts.py does the same through the
agent.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest
from lab.igb import Pf, igb_guest
from lab.need import need_guests, need_netdevsim, need_sriov
from lab.netdevsim import Netdevsim, netdevsim_guest
from lab.process import wait_for
from lab.vf_counters import set_counter

pytestmark = [pytest.mark.lab, pytest.mark.abreast]

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
Answer = dict[str, Any]
MACS = ["52:54:00:00:00:10", "52:54:00:00:00:11"]


@pytest.fixture(scope="module")
def program() -> Path:
    """The example, which `cargo test` has built; built anew where its crate is newer."""
    path = TARGET / "debug/examples/nic"
    sources = [*ROOT.glob("crates/nic/**/*.rs"), *ROOT.glob("crates/netlink/**/*.rs")]
    if not path.exists() or path.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        command = ["cargo", "build", "--locked", "--package", "tidegate-place-nic", "--example", "nic"]
        subprocess.run(command, cwd=ROOT, check=True)
    return path


class Nic:
    """The example `nic`, for one PF of a guest."""

    def __init__(self, program: Path, guest: Guest, device: str) -> None:
        self.guest = guest
        self.command = f"{program} {device}"

    def ask(self, arguments: str) -> Answer:
        """What it answers."""
        return dict(json.loads(self.guest.run(f"{self.command} {arguments}")))

    def set(self, *wanted: Answer) -> Answer:
        """Bring VFs to what is wanted; what was planned and what is then."""
        answer = self.ask(f"set '{json.dumps(wanted)}'")
        assert answer["failed"] is None
        return answer

    def groups(self, *wanted: Answer) -> Answer:
        """Have these groups of VFs and no others."""
        return self.ask(f"groups '{json.dumps(wanted)}'")

    def refusals(self, **wanted: object) -> str:
        """Why it is refused; nothing is done then."""
        answer = self.set(wanted)
        assert (answer["plan"]["steps"], answer["plan"]["pending"]) == ([], [])
        (reason,) = answer["plan"]["refusals"]
        assert isinstance(reason, str)
        return reason


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


@pytest.fixture(scope="module")
def igb(pf: Pf, program: Path) -> Nic:
    """The example on that igb."""
    return Nic(program, pf.guest, "eth0")


def test_igb_takes_settings_and_gets_its_own_back(pf: Pf, igb: Nic) -> None:
    """Rates, MAC, VLAN with priority, spoof check and trust are in force; the record puts all back."""
    before = pf.vfs()
    wanted = {
        "index": 1,
        "tx_max": "100.7mbit",
        "mac": "52:54:00:00:00:77",
        "vlan": 7,
        "qos": 3,
        "spoofchk": False,
        "trust": True,
    }
    answer = igb.set(wanted)
    assert (answer["left"], answer["plan"]["refusals"], answer["plan"]["pending"]) == ([], [], [])
    assert "max_tx_rate 100 " in answer["plan"]["steps"][0], "limits come first"
    first, second = pf.vfs()
    assert first == before[0]
    assert (second["address"], second["vlan_list"][0]["vlan"]) == ("52:54:00:00:00:77", 7)
    assert (second["vlan_list"][0]["qos"], second["rate"]["max_tx"]) == (3, 100)
    assert (second["spoofchk"], second["trust"]) == (False, True)
    igb.set(*answer["before"])
    assert pf.vfs() == before


def test_igb_refuses_with_reasons(igb: Nic) -> None:
    """What this NIC cannot do is found by asking it, and refused before anything is done."""
    abilities = igb.ask("abilities")
    for able in ("max_rate", "vlan", "mac", "spoofchk", "trust"):
        assert abilities[able] == {"is": "has"}
    assert "Invalid argument" in abilities["min_rate"]["why"]
    assert "Operation not supported" in abilities["link_state"]["why"]
    assert dict(abilities["statistics"])["registers"] == {"is": "has"}
    assert abilities["leaf"]["is"] == abilities["node"]["is"] == "lacks"

    assert "no guaranteed rates for VFs" in igb.refusals(index=0, tx_min="10mbit")
    assert "fastest that eth0 can do" in igb.refusals(index=0, tx_max="2gbit")
    assert "below 1 Mbit/s" in igb.refusals(index=0, tx_max="999kbit")
    assert "no such setting for VFs" in igb.refusals(index=0, link_state="disable")
    assert "it has 2, VF 0 to 1" in igb.refusals(index=2)
    assert "at most 7" in igb.refusals(index=7)


def driver_bytes(guest: Guest, vf: int) -> tuple[int, int]:
    """Bytes that the VF's own driver sent and received, without FCS."""
    text = guest.run(f"ip -n vf{vf} -json -statistics link show up")
    (stats,) = [link["stats64"] for link in json.loads(text) if link.get("link_type") == "ether"]
    return stats["tx"]["bytes"], stats["rx"]["bytes"]


def test_igb_counts_through_a_wrap_and_a_reset(pf: Pf, igb: Nic) -> None:
    """Totals are what the VFs' drivers count, across a wrap; a reset is seen, and rates wait for the link."""
    guest = pf.guest
    ping = "ip netns exec vf0 ping -q -c 20 -i 0.01 -s 1000 -W 5 10.0.0.2"
    # No frames but these.
    for vf in range(2):
        device = f"$(ip netns exec vf{vf} ls /sys/class/net | grep eth)"
        guest.run(f"ip -n vf{vf} neigh replace 10.0.0.{2 - vf} lladdr {MACS[1 - vf]} dev {device}")
    guest.run(ping)
    # Refused, which the answer says in more bytes: the VFs' registers differ then, and are found.
    guest.run("ip netns exec vf0 bash -c 'echo x >/dev/udp/10.0.0.2/9'; sleep 0.2")
    set_counter(pf, 0, "tx_bytes", 2**32 - 1000)
    guest.run(f"{igb.command} counters 250 400 >/tmp/counted 2>&1 &")

    def counted(vf: int) -> Answer:
        # The last line that is whole.
        lines = guest.run("tail -n 2 /tmp/counted").split("\n")[:-1]
        return dict(json.loads(lines[-1])[str(vf)]) if lines else {}

    wait_for("the first look", lambda: counted(0))
    before = [driver_bytes(guest, vf) for vf in range(2)]
    assert counted(0)["tx"]["bytes"] == {"total": 0, "source": "registers"}
    guest.run(ping)

    def exact() -> bool:
        for vf in range(2):
            sent = [now - then for now, then in zip(driver_bytes(guest, vf), before[vf], strict=True)]
            said = counted(vf)
            if [said[way]["bytes"]["total"] for way in ("tx", "rx")] != sent or sent[0] < 20 * 1042:
                return False
        return True

    wait_for("the bytes of both VFs", exact)
    assert counted(0)["doubts"] == {"missed_wraps": 0, "resets": 0}

    guest.run("ip link set eth0 down")
    answer = igb.set({"index": 0, "tx_max": "100mbit"})
    assert answer["plan"]["steps"] == []
    assert "wait for the link of eth0" in answer["plan"]["pending"][0]
    wait_for("nothing is known", lambda: "eth0 is down" in (counted(0)["unknown"] or ""))
    guest.run("ip link set eth0 up")
    pf.wait_for_link()
    igb.set({"index": 0, "tx_max": "100mbit"})
    assert [vf["rate"]["max_tx"] for vf in pf.vfs()] == [100, 0]
    wait_for("counting again", lambda: counted(0)["unknown"] is None)
    after_wrap = counted(0)
    assert after_wrap["doubts"]["resets"] >= 1, "the NIC was reset"
    assert after_wrap["doubts"]["missed_wraps"] == 0, "and did not wrap"
    # Nothing of what was counted is lost; drivers of VFs speak when their link returns.
    assert 20 * 1042 <= after_wrap["tx"]["bytes"]["total"] < 60 * 1042


def test_netdevsim_by_both_ways(tmp_path: Path, program: Path) -> None:
    """Guarantees and link state; in switchdev mode rates by devlink; more VFs than a list has room for."""
    need_guests()
    need_netdevsim()
    with netdevsim_guest(tmp_path / "g") as guest:
        sim = Netdevsim(guest, most_vfs=256)
        sim.make_vfs(2)
        guest.run(f"ip link set {sim.device} up")
        nic = Nic(program, guest, sim.device)
        before = sim.vfs()
        abilities = nic.ask("abilities")
        assert abilities["min_rate"] == abilities["link_state"] == {"is": "has"}
        # A NIC whose counters cannot be told from idle ones.
        assert "idle, or a driver that does not count" in nic.ask("counters")["0"]["unknown"]

        answer = nic.set({"index": 1, "tx_max": "500mbit", "tx_min": "50.1mbit", "link_state": "enable"})
        vf = sim.vfs()[1]
        assert (vf["rate"], vf["link_state"]) == ({"max_tx": 500, "min_tx": 51}, "enable")
        assert answer["left"] == []
        nic.set(*answer["before"])
        assert sim.vfs() == before

        sim.switchdev()
        shown = nic.ask("show")
        assert (shown["mode"], shown["vfs"]["0"]["leaf"]["port"]) == ("Switchdev", 128)
        representor = shown["vfs"]["0"]["representor"]
        assert guest.run(f"cat /sys/class/net/{representor}/phys_port_name") == "pf0vf0\n"
        abilities = nic.ask("abilities")
        assert [abilities[able]["is"] for able in ("max_rate", "min_rate", "leaf", "node")] == ["has"] * 4
        assert nic.ask("counters")["0"]["tx"]["bytes"] == {"total": 0, "source": "representor"}
        answer = nic.set({"index": 0, "tx_max": "1gbit", "tx_min": "100mbit"})
        assert answer["left"] == []
        leaf = {"type": "leaf", "tx_share": 12_500_000, "tx_max": 125_000_000}
        assert sim.rates() == {sim.port(0): leaf, sim.port(1): {"type": "leaf"}}
        nic.set(*answer["before"])
        assert sim.rates() == {sim.port(0): {"type": "leaf"}, sim.port(1): {"type": "leaf"}}

        tenant = {"name": "tenant", "vfs": [0, 1], "tx_max": "2gbit"}
        assert nic.groups(tenant)["refusals"] == []
        node = f"{sim.handle}/tidegate-tenant"
        member = {"type": "leaf", "parent": "tidegate-tenant"}
        assert sim.rates() == {
            node: {"type": "node", "tx_max": 250_000_000},
            sim.port(0): member,
            sim.port(1): member,
        }
        assert nic.groups(tenant)["steps"] == []
        nic.groups()
        assert sim.rates() == {sim.port(0): {"type": "leaf"}, sim.port(1): {"type": "leaf"}}

        # A NIC in legacy mode has none.
        sim.legacy()
        assert "not in switchdev mode" in nic.groups(tenant)["refusals"][0][1]
        sim.make_vfs(0)
        sim.make_vfs(256)
        # `ip link set ... vf 255` of iproute2 6.1 answers here that it cannot find VF 255.
        answer = nic.set({"index": 255, "tx_max": "255mbit"})
        assert (len(answer["after"]["vfs"]), answer["after"]["vfs"]["255"]["tx_max"]) == (256, "255mbit")
