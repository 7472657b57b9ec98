"""VFs' contracts, by an agent in a guest that has an igb (QEMU's 82576), and one that has a netdevsim.

QEMU's igb takes rates and does not enforce them: what is tested is what the NIC is told, and what it counts.
"""

import json
import time
from collections.abc import Iterator

import pytest

from lab.guest import Guest
from lab.guest_agent import GuestAgent
from lab.igb import Pf, igb_guest
from lab.need import need_guests, need_netdevsim, need_sriov
from lab.netdevsim import Netdevsim, netdevsim_guest

pytestmark = [pytest.mark.lab, pytest.mark.abreast]


def contract(name: str, vf: str, tx: str = "", more: str = "", options: str = "") -> str:
    """A contract of segment 42; its MAC ends in the VF's number."""
    number = int(vf.rsplit("/", 1)[1])
    return f"""
[vnic.{name}]
attach = {{ vf = "{vf}"{options} }}
mac = "52:54:00:00:00:{number:02x}"
segment = 42
tx = {{ {tx} }}
{more}
"""


@pytest.fixture(scope="module")
def igb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Guest, Pf, GuestAgent, list[str]]]:
    """A guest with three VFs and an agent; and the VFs' devices."""
    need_guests()
    need_sriov()
    with igb_guest(tmp_path_factory.mktemp("igb") / "guest", modules=["tun"]) as guest:
        pf = Pf(guest)
        devices = pf.make_vfs(3)
        yield guest, pf, GuestAgent(guest), devices


@pytest.fixture(autouse=True)
def without_contracts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test of the igb leaves none behind."""
    yield
    if "igb" in request.fixturenames:
        _, _, agent, _ = request.getfixturevalue("igb")
        agent.run("apply --prune -f -", "[host]\n")


def test_a_contract_is_on_the_nic_and_earlier_settings_return(
    igb: tuple[Guest, Pf, GuestAgent, list[str]],
) -> None:
    """Rate, MAC, VLAN, priority, spoof check, trust read back from the NIC; what was there before returns."""
    guest, pf, agent, _ = igb
    guest.run("ip link set eth0 vf 0 max_tx_rate 900 vlan 7; ip link set eth0 vf 0 spoofchk off")
    before = pf.vfs()[0]
    text = contract("web", "eth0/0", 'max = "500mbit"', options=", qos = 3")
    planned = agent.run("plan -f -", text)
    assert "eth0 takes: limit, VLAN, MAC" in planned
    assert "does not take: minimum" in planned
    agent.run("apply -f -", text)
    vf = pf.vfs()[0]
    assert vf["address"] == "52:54:00:00:00:00"
    assert (vf["rate"]["max_tx"], vf["spoofchk"]) == (500, True)
    assert (vf["vlan_list"][0]["vlan"], vf["vlan_list"][0]["qos"]) == (42, 3)
    agent.run("vnic set web tx.max=300.9mbit attach.trust=true")
    assert pf.vfs()[0]["rate"]["max_tx"] == 300, "rounded down: a limit is never exceeded"
    assert pf.vfs()[0]["trust"]
    agent.run("vnic rm web")
    assert pf.vfs()[0] == before
    guest.run("ip link set eth0 vf 0 max_tx_rate 0 vlan 0; ip link set eth0 vf 0 spoofchk on")


def test_foreign_changes_are_reverted(igb: tuple[Guest, Pf, GuestAgent, list[str]]) -> None:
    """Another tool's rate; what making VFs again cleared without notice; what changed while no agent ran."""
    guest, pf, agent, _ = igb
    agent.run("apply -f -", contract("web", "eth0/0", 'max = "500mbit"'))

    def limit() -> int:
        return next((int(vf["rate"]["max_tx"]) for vf in pf.vfs()), -1)

    guest.run("ip link set eth0 vf 0 max_tx_rate 50")
    agent.wait("put back", lambda: limit() == 500)
    assert "drift" in agent.log()
    guest.run(f"echo 0 >{pf.pci}/sriov_numvfs")
    agent.wait("pending", lambda: agent.vnic("web")["state"] == "pending")
    assert "sriov_numvfs" in agent.vnic("web")["reason"]
    pf.make_vfs(3)
    agent.wait("limited again", lambda: limit() == 500)
    agent.wait("in force", lambda: agent.vnic("web")["state"] == "in force")
    agent.kill()
    guest.run("ip link set eth0 vf 0 max_tx_rate 0")
    agent.start()
    agent.wait("limited by the next agent", lambda: limit() == 500)


def test_a_rate_waits_for_the_link(igb: tuple[Guest, Pf, GuestAgent, list[str]]) -> None:
    """Without a link the driver takes no rate: a contract is pending, and in force when the link is back."""
    guest, pf, agent, _ = igb
    agent.run("apply -f -", contract("web", "eth0/0", 'max = "500mbit"'))
    guest.run("ip link set eth0 down")
    agent.run("vnic set web tx.max=200mbit")
    agent.wait("pending", lambda: agent.vnic("web")["state"] == "pending")
    assert "link" in agent.vnic("web")["reason"]
    guest.run("ip link set eth0 up")
    agent.wait("in force", lambda: agent.vnic("web")["state"] == "in force")
    assert pf.vfs()[0]["rate"]["max_tx"] == 200


def test_impossible_contracts_are_refused(igb: tuple[Guest, Pf, GuestAgent, list[str]]) -> None:
    """No such PF or VF, too much for the link, minima that cannot be kept: with the reason, and no change."""
    _, pf, agent, _ = igb
    before = pf.vfs()
    off = '[host.nic.eth0]\ncontrol = "off"\n'
    cases = [
        (contract("web", "eth9/0"), "eth9 is no NIC"),
        (contract("web", "lo/0"), "lo is no NIC"),
        (contract("web", "eth0/3"), "eth0 has no VF 3"),
        (contract("web", "eth0/9"), "eth0 cannot have a VF 9"),
        (contract("web", "eth0/0", 'max = "2gbit"'), "1gbit"),
        (contract("web", "eth0/0", 'max = "500kbit"'), "1 Mbit/s"),
        (contract("web", "eth0/0", 'min = "990mbit"'), "capacity 980mbit"),
        (off + contract("web", "eth0/0", 'min = "100mbit"'), "no minimum by itself"),
        (
            contract("web", "eth0/0", more='rx = { max = "1mbit" }'),
            "no NIC limits the frames that a function receives",
        ),
        (contract("web", "eth0/0", options=', link-state = "enable"'), "link state"),
        (contract("web", "eth0/0") + contract("db", "eth0/0"), "VF 0 of eth0 already belongs to vNIC"),
    ]
    for text, why in cases:
        said = agent.refused("apply -f -", text)
        assert why in said, f"{text}\n{said}"
    assert pf.vfs() == before
    assert agent.run("--json vnic ls").strip() == "[]"


def test_a_function_goes_from_one_vm_to_another(igb: tuple[Guest, Pf, GuestAgent, list[str]]) -> None:
    """In one change; what the function was before either is what it is given back."""
    _, pf, agent, _ = igb
    before = pf.vfs()
    agent.run("apply -f -", contract("web", "eth0/0", 'max = "500mbit"'))
    db = contract("db", "eth0/0", 'max = "100mbit"').replace("00:00:00:00", "00:00:00:77")
    agent.run("apply --prune -f -", db)
    assert pf.vfs()[0]["rate"]["max_tx"] == 100
    agent.run("vnic rm db")
    assert pf.vfs() == before


def test_counters_of_real_traffic(igb: tuple[Guest, Pf, GuestAgent, list[str]]) -> None:
    """What VFs send to each other is read from the NIC's registers, and said so: its driver says zero."""
    guest, pf, agent, _ = igb
    agent.run("apply -f -", contract("web", "eth0/0") + contract("db", "eth0/1"))
    # A driver learns the address that the host gave when it starts, as with a VM.
    for number in range(2):
        driver = f"$(readlink -f {pf.pci}/virtfn{number}/driver)"
        guest.run(f"d={driver}; for x in unbind bind; do echo {pf.vf_pci(number)} >$d/$x; done")
    devices = guest.run(f"ls {pf.pci}/virtfn*/net | grep -v ^/ | xargs").split()
    for number, device in enumerate(devices[:2]):
        guest.run(f"ip netns add vm{number}; ip link set {device} netns vm{number}")
        guest.run(f"ip -n vm{number} addr add 10.9.0.{number + 1}/24 dev {device}")
        guest.run(f"ip -n vm{number} link set {device} up")
        link = f"ip netns exec vm{number} cat /sys/class/net/{device}/carrier"
        guest.run(f"until {link} 2>/dev/null | grep -q 1; do sleep 0.1; done", timeout=30)
    guest.run("ip netns exec vm0 ping -c 1 -W 10 10.9.0.2", timeout=30)
    before = agent.figures("web"), agent.figures("db")
    frames, size = 50, 1000
    guest.run(f"ip netns exec vm0 ping -q -c {frames} -i 0.02 -s {size} 10.9.0.2", timeout=60)
    after = agent.figures("web"), agent.figures("db")
    on_the_wire = frames * (size + 8 + 20 + 14)
    for one, other, way in [(0, 1, "tx"), (0, 1, "rx")]:
        sent = after[one][f"{way}.bytes"]["value"] - before[one][f"{way}.bytes"]["value"]
        back = after[other][f"{'rx' if way == 'tx' else 'tx'}.bytes"]["value"]
        back -= before[other][f"{'rx' if way == 'tx' else 'tx'}.bytes"]["value"]
        # ARP, and neighbour discovery of IPv6, come on top.
        assert on_the_wire <= sent <= on_the_wire + 2000, (way, sent)
        assert abs(sent - back) <= 1000, (way, sent, back)
    assert "registers" in after[0]["tx.bytes"]["source"]
    rates_are_those_of_the_traffic(guest, agent, f"ip netns exec vm0 ping -q -i 0.02 -s {size} 10.9.0.2")
    guest.run("ip netns del vm0; ip netns del vm1; sleep 0.2")


def rates_are_those_of_the_traffic(guest: Guest, agent: GuestAgent, ping: str) -> None:
    """`top` and the API, while VM `web` pings `db`: as the counters grow; what no NIC counts is not 0."""
    guest.run(f"{ping} >/dev/null 2>&1 & echo $! >/run/ping.pid; sleep 2")
    before, began = agent.figures("web")["tx.bytes"]["value"], time.monotonic()
    rows = {row["name"]: row for row in json.loads(agent.run("--json top"))}
    view = agent.vnic("web")
    grown = agent.figures("web")["tx.bytes"]["value"] - before
    rate = grown * 8 / (time.monotonic() - began)
    assert rate > 0
    for shown in (rows["web"]["tx_rate"], rows["db"]["rx_rate"], rows["db"]["tx_rate"], view["tx_rate_bps"]):
        assert shown is not None
        assert 0.2 < shown / rate < 5, (shown, rate)
    assert {"delay", "throttled", "super-frames"} <= view["unknown"].keys()
    assert rows["web"]["throttled"] is None
    assert "throttled" not in agent.run("why web").split("Not counted here")[0]
    guest.run("kill $(cat /run/ping.pid)")


def test_minima_by_the_loop(igb: tuple[Guest, Pf, GuestAgent, list[str]]) -> None:
    """On a NIC that knows maxima only the loop sets them, together no more than the link, for good."""
    guest, pf, agent, _ = igb
    host = '[host.nic.eth0]\ncapacity = "800mbit"\nperiod = "50ms"\n'
    text = host + contract("web", "eth0/0", 'min = "400mbit"') + contract("db", "eth0/1", 'min = "300mbit"')
    agent.run("apply -f -", text)

    def limits() -> list[int]:
        return [vf["rate"]["max_tx"] for vf in pf.vfs()[:2]]

    agent.wait("limited", lambda: 0 not in limits() and sum(limits()) >= 700)
    assert sum(limits()) <= 800
    reason = agent.vnic("web")["reason"]
    assert "the loop of eth0" in reason
    assert "VF 2" in reason
    # Another tool takes the limits away.
    guest.run("ip link set eth0 vf 0 max_tx_rate 0")
    agent.wait("limited again", lambda: 0 not in limits() and sum(limits()) <= 800)
    agent.kill()
    assert 0 not in limits()
    assert sum(limits()) <= 800
    agent.start()
    agent.wait("a loop again", lambda: "the loop of eth0" in agent.vnic("web").get("reason", ""))
    agent.run("apply -f -", text.replace("400mbit", "100mbit").replace('min = "300mbit"', 'max = "50mbit"'))
    agent.wait("within its limit", lambda: limits()[1] <= 50)
    agent.run("vnic set web tx.min=none to=none")
    agent.wait("without a loop", lambda: limits() == [0, 50])


def test_a_nic_that_keeps_minima_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    """netdevsim takes minima and link states; in switchdev mode by devlink, with representors that count."""
    need_guests()
    need_netdevsim()
    with netdevsim_guest(tmp_path_factory.mktemp("netdevsim") / "guest") as guest:
        nic = Netdevsim(guest)
        nic.make_vfs(2)
        guest.run(f"ip link set {nic.device} up")
        agent = GuestAgent(guest)
        tx = 'min = "100mbit", max = "500mbit"'
        agent.run("apply -f -", contract("web", f"{nic.device}/0", tx, options=', link-state = "enable"'))
        vf = nic.vfs()[0]
        assert (vf["rate"]["max_tx"], vf["rate"]["min_tx"], vf["link_state"]) == (500, 100, "enable")
        assert "loop" not in agent.vnic("web").get("reason", "")
        agent.run("vnic rm web")
        assert (nic.vfs()[0]["rate"]["max_tx"], nic.vfs()[0]["rate"]["min_tx"]) == (0, 0)

        nic.switchdev()
        agent.run("apply -f -", contract("web", f"{nic.device}/0", tx))
        leaf = nic.rates()[nic.port(0)]
        assert (leaf["tx_share"], leaf["tx_max"]) == (12_500_000, 62_500_000), leaf
        guest.run(f"devlink port function rate set {nic.port(0)} tx_max 800mbit")
        agent.wait("put back", lambda: nic.rates()[nic.port(0)]["tx_max"] == 62_500_000)
        assert "representor" in agent.figures("web")["tx.bytes"]["source"]

        # What a tenant may send together, this NIC keeps by itself.
        tenant = f"[host.nic.{nic.device}.segment.42]\nmax = "
        agent.run("apply -f -", f'{tenant}"600mbit"\n' + contract("db", f"{nic.device}/1", 'max = "500mbit"'))
        node = f"{nic.handle}/tidegate-42"
        agent.wait("grouped", lambda: nic.rates().get(node, {}).get("tx_max") == 75_000_000)
        assert {nic.rates()[nic.port(vf)]["parent"] for vf in range(2)} == {"tidegate-42"}
        assert "loop" not in agent.vnic("db").get("reason", "")
        guest.run(f"devlink port function rate set {node} tx_max 1gbit")
        agent.wait("put back", lambda: nic.rates()[node]["tx_max"] == 75_000_000)
        agent.run("apply --prune -f -", "[host]\n")
        assert [rate for rate in nic.rates() if "tidegate" in rate] == []
