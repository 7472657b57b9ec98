"""Frames with a VLAN tag: two switches, or a switch and Open vSwitch, over a veth pair."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.underlay import Underlay
from lab.vlan_switch import VlanSwitch

MAC = {"a": "52:54:00:00:09:0a", "b": "52:54:00:00:09:0b"}
IP = {"a": "10.9.0.1", "b": "10.9.0.2"}
IP6 = {"a": "fd09::1", "b": "fd09::2"}
VLAN = 42
KINDS = ("packet", "xdp")

pytestmark = pytest.mark.abreast


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """The network between two hosts."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3", "ethtool")
    with Underlay(tmp_path) as made:
        for stack in (made.one, made.two):
            # As kind = "xdp" asks for.
            stack.run("ip link set eth0 promisc on && ethtool -K eth0 rxvlan off")
        yield made


def uplink(kind: str, *segments: int) -> str:
    """The uplink of a host by its `eth0`."""
    return (
        f'[uplink.net0]\nkind = "{kind}"\ndevice = "eth0"\nrate = "10gbit"\n\n'
        f"[uplink.net0.peer.lan]\nsegments = {list(segments or (VLAN,))}\n\n"
    )


def vnic(name: str, stack: Stack, segment: int = VLAN) -> str:
    """The contract of a vNIC on a tap in a namespace."""
    return tap_vnic(name, stack.path, MAC[name], segment=segment)


def addresses(name: str, stack: Stack, device: str = "eth0") -> None:
    """Give an interface its addresses."""
    stack.address(device, f"{IP[name]}/24")
    stack.run(f"ip addr add {IP6[name]}/64 dev {device} nodad")


def answers(stack: Stack) -> None:
    """An echo of b comes back."""
    wait_for("an echo", lambda: stack.try_run(f"ping -c 1 -W 1 {IP['b']}").returncode == 0)


def pings(stack: Stack) -> None:
    """Every echo of b comes back to a: IPv4, IPv6, fragmented."""
    answers(stack)
    assert " 0% packet loss" in stack.run(f"ping -c 100 -i 0.01 {IP['b']}")
    assert " 0% packet loss" in stack.run(f"ping -c 20 -i 0.01 {IP6['b']}")
    assert " 0% packet loss" in stack.run(f"ping -c 10 -i 0.05 -s 8000 {IP['b']}")


def tcp(a: Stack, b: Stack) -> None:
    """TCP passes both ways."""
    for port, reverse in (("5201", []), ("5202", ["--reverse"])):
        # One server each: the first may still be ending its test.
        b.iperf_server(int(port))
        a.run(["iperf3", "--client", IP["b"], "--port", port, "--time", "2", *reverse])


@pytest.mark.parametrize("kind", KINDS)
def test_vnics_of_two_hosts_reach_each_other(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """Echoes and TCP pass from host to host; another VLAN hears nothing, and the host's own frames go on."""
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
        Stack(folder / "c") as c,
    ):
        one.apply(uplink(kind) + vnic("a", a))
        other = tap_vnic("c", c.path, "52:54:00:00:09:0c", segment=VLAN + 1)
        two.apply(uplink(kind, VLAN, VLAN + 1) + vnic("b", b) + other)
        addresses("a", a)
        addresses("b", b)
        c.address("eth0", "10.9.0.3/24")
        pings(a)
        assert a.try_run("ping -c 2 -W 1 10.9.0.3").returncode != 0, "c is in another segment"
        tcp(a, b)
        assert " 0% packet loss" in underlay.one.run("ping -c 5 -i 0.05 192.0.2.2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_switch_of_another_make_is_behind_the_nic(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """A vNIC and a port of Open vSwitch with the same VLAN reach each other; another VLAN hears nothing."""
    need_commands("ovsdb-server", "ovs-vswitchd")
    folder = tmp_path_factory.mktemp("h")
    # A veth pair passes checksums on unfinished, and frames uncut; a NIC finishes and cuts.
    underlay.one.run("ethtool -K eth0 tx off")
    with (
        underlay.host(1, folder / "1") as one,
        Stack(folder / "a") as a,
        VlanSwitch(underlay.two, folder / "ovs", "eth0", (VLAN, VLAN + 1)),
    ):
        one.apply(uplink(kind) + vnic("a", a))
        addresses("a", a)
        addresses("b", underlay.two, f"vlan{VLAN}")
        underlay.two.run(f"ip link set vlan{VLAN + 1} up")
        pings(a)
        a.run("ping -c 3 -i 0.01 -b 10.9.0.255 || true")
        tcp(a, underlay.two)
        other = json.loads(underlay.two.run(f"ip -json -stats link show vlan{VLAN + 1}"))
        assert other[0]["stats64"]["rx"]["packets"] == 0, "another VLAN"


@pytest.mark.parametrize("kind", KINDS)
def test_frames_go_on_after_a_restart(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    """A killed switch gets its uplink back; so does one that takes another's place, and after the agent."""
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        one.apply(uplink(kind) + vnic("a", a))
        two.apply(uplink(kind) + vnic("b", b))
        addresses("a", a)
        addresses("b", b)

        def goes_on(host: Host) -> None:
            answers(a)
            host.check_alive()

        goes_on(one)
        one.switch.kill()
        one.start_switch()
        goes_on(one)
        one.replace_switch()
        goes_on(one)
        one.kill_agent()
        one.start_agent()
        goes_on(one)
        one.switch.kill()
        one.start_switch()
        goes_on(one)


def test_what_cannot_be_is_refused_with_what_to_do(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A segment that is no VLAN; a device that is missing, has a smaller MTU, or hides frames or tags."""
    underlay.one.run("ip link add eth9 type veth peer name eth8 && ip link set eth8 promisc on")
    with underlay.host(1, tmp_path_factory.mktemp("h")) as one:
        for text, why in (
            (uplink("packet", 4095), "4095 is no VLAN; 1 to 4094"),
            (uplink("packet").replace("eth0", "none0"), "there is no network device none0"),
            (uplink("packet").replace("rate", "mtu = 9000\nrate"), "eth0 has an MTU of 1500 bytes"),
            (uplink("xdp").replace("eth0", "eth9"), "ip link set eth9 promisc on"),
            (uplink("xdp").replace("eth0", "eth8"), "ethtool -K eth8 rxvlan off"),
        ):
            done = one.try_cli("apply", "-f", one.file(text))
            assert done.returncode != 0
            assert why in done.stderr
