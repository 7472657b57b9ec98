"""Frames between hosts: two switches, or a switch and the kernel's vxlan, over a veth pair."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.foreign_sockets import udp_sockets
from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.underlay import ADDRESSES, Underlay, uplink

pytestmark = pytest.mark.abreast

MAC = {"a": "52:54:00:00:09:0a", "b": "52:54:00:00:09:0b"}
IP = {"a": "10.9.0.1", "b": "10.9.0.2"}
IP6 = {"a": "fd09::1", "b": "fd09::2"}
VNI = 42
MTU = {4: 1450, 6: 1430}
"""What fits into an underlay's 1500 bytes."""


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """The network between two hosts."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3", "ethtool")
    with Underlay(tmp_path) as made:
        yield made


def vnic(name: str, stack: Stack, *lines: str, version: int = 4) -> str:
    """The contract of a vNIC on a tap in a namespace."""
    return tap_vnic(name, stack.path, MAC[name], f"mtu = {MTU[version]}", *lines, segment=VNI)


def addresses(name: str, stack: Stack) -> None:
    """Give a vNIC its addresses."""
    stack.address("eth0", f"{IP[name]}/24")
    stack.run(f"ip addr add {IP6[name]}/64 dev eth0 nodad")


def pings(stack: Stack) -> None:
    """Every echo of b comes back to a: IPv4, IPv6, fragmented."""
    wait_for("the first echo", lambda: stack.try_run(f"ping -c 1 -W 1 {IP['b']}").returncode == 0)
    assert " 0% packet loss" in stack.run(f"ping -c 100 -i 0.01 {IP['b']}")
    assert " 0% packet loss" in stack.run(f"ping -c 20 -i 0.01 {IP6['b']}")
    assert " 0% packet loss" in stack.run(f"ping -c 10 -i 0.05 -s 8000 {IP['b']}")


@pytest.mark.parametrize("version", [4, 6])
def test_vnics_of_two_hosts_reach_each_other(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, version: int
) -> None:
    """Echoes and TCP pass from host to host, over IPv4 and IPv6; another segment hears nothing."""
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
        Stack(folder / "c") as c,
    ):
        one.apply(uplink(1, version=version) + vnic("a", a, version=version))
        other = tap_vnic("c", c.path, "52:54:00:00:09:0c", f"mtu = {MTU[version]}", segment=VNI + 1)
        two.apply(uplink(2, version=version) + vnic("b", b, version=version) + other)
        addresses("a", a)
        addresses("b", b)
        c.address("eth0", "10.9.0.3/24")
        pings(a)
        assert a.try_run("ping -c 2 -W 1 10.9.0.3").returncode != 0, "c is in another segment"
        b.iperf_server()
        a.run(["iperf3", "--client", IP["b"], "--time", "2"])
        a.run(["iperf3", "--client", IP["b"], "--time", "2", "--reverse"])


RECEIVE = """
import hashlib, socket
listener = socket.create_server(("", 9))
print("ready", flush=True)
stream, _ = listener.accept()
found, whole = hashlib.sha256(), 0
while part := stream.recv(1 << 20):
    found.update(part)
    whole += len(part)
print(whole, found.hexdigest(), flush=True)
"""
SEND = """
import hashlib, random, socket, sys
stream, found = socket.create_connection((sys.argv[1], 9)), hashlib.sha256()
for _ in range(40):
    part = random.randbytes(1 << 20)
    stream.sendall(part)
    found.update(part)
print(40 << 20, found.hexdigest())
"""


def test_segments_arrive_as_super_frames(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A super-frame is cut for the network and joined again; the bytes are those that were sent."""
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        one.apply(uplink(1) + vnic("a", a))
        two.apply(uplink(2) + vnic("b", b))
        addresses("a", a)
        addresses("b", b)
        wait_for("an echo", lambda: a.try_run(f"ping -c 1 -W 1 {IP['b']}").returncode == 0)
        receiver = b.spawn(sys.executable, "-c", RECEIVE)
        receiver.wait_for("the receiver", lambda: "ready" in receiver.output())
        sent = a.run([sys.executable, "-c", SEND, IP["b"]])
        receiver.popen.wait(20)
        assert receiver.output().splitlines()[-1] == sent.strip()
        received = two.show("b").document["stats"]["rx"]
        assert received["wire_frames"] > 4 * received["frames"], received


@pytest.mark.parametrize("version", [4, 6])
def test_the_kernels_vxlan_is_a_peer(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, version: int
) -> None:
    """A vNIC and an interface of the kernel's vxlan reach each other."""
    folder = tmp_path_factory.mktemp("h")
    local, far = ADDRESSES[version][1], ADDRESSES[version][0]
    with underlay.host(1, folder / "1") as one, Stack(folder / "a") as a:
        one.apply(uplink(1, version=version, peer=["stamps = false"]) + vnic("a", a, version=version))
        addresses("a", a)
        underlay.two.run(
            f"ip link add vx0 type vxlan id {VNI} dstport 4789 local {local} remote {far} dev eth0"
        )
        # A veth pair passes a tunnel's inner checksums on unfinished; a NIC finishes them.
        underlay.two.run("ethtool -K eth0 tx off")
        underlay.two.run(f"ip addr add {IP['b']}/24 dev vx0 && ip addr add {IP6['b']}/64 dev vx0 nodad")
        underlay.two.run(f"ip link set vx0 mtu {MTU[version]} up")
        pings(a)
        underlay.two.iperf_server()
        a.run(["iperf3", "--client", IP["b"], "--time", "2"])
        a.run(["iperf3", "--client", IP["b"], "--time", "2", "--reverse"])


def test_frames_go_on_after_a_restart(underlay: Underlay, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A killed switch gets its uplink back; so does one that takes another's place, and after the agent."""
    folder = tmp_path_factory.mktemp("h")

    def answers(host: Host, stack: Stack) -> None:
        wait_for("an echo", lambda: stack.try_run(f"ping -c 1 -W 1 {IP['b']}").returncode == 0)
        host.check_alive()

    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        one.apply(uplink(1) + vnic("a", a))
        two.apply(uplink(2) + vnic("b", b))
        addresses("a", a)
        addresses("b", b)
        answers(one, a)
        one.switch.kill()
        one.start_switch()
        answers(one, a)
        one.replace_switch()
        answers(one, a)
        one.kill_agent()
        one.start_agent()
        answers(one, a)
        one.switch.kill()
        one.start_switch()
        answers(one, a)


def test_an_uplink_whose_device_is_made_anew_carries_frames_again(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Sockets bound to a device that went away: the agent names that, makes others, and counts frames."""
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        one.apply(uplink(1, 'device = "eth0"') + vnic("a", a))
        two.apply(uplink(2) + vnic("b", b))
        addresses("a", a)
        addresses("b", b)
        pings(a)
        counted = show(one)["stats"]
        assert counted["sent"]["wire_frames"] >= 130 <= counted["received"]["wire_frames"]
        # An outer frame has 50 bytes more.
        assert counted["on_wire"]["bytes"] >= counted["sent"]["wire_bytes"] + 50 * 130
        underlay.disconnect()
        wait_for("the trouble to be named", lambda: "network device eth0" in one.try_cli("status").stdout)
        assert show(one)["state"] == "failed"
        assert "is failed, and no frame passes" in one.cli("why", "net0")
        underlay.connect()
        wait_for("an echo", lambda: a.try_run(f"ping -c 1 -W 1 {IP['b']}").returncode == 0)
        assert show(one)["state"] == "in force"


def show(host: Host) -> dict[str, Any]:
    """What `tidegate uplink net0 --json` says."""
    return dict(json.loads(host.cli("uplink", "net0", "--json")))


# Requests to a group for addresses of the vNICs, behind 16 bytes of UDP and VXLAN: ARP for 10.9.*, or a
# solicitation for fd09::*.
REQUESTS = (
    "udp dst port 4789 and udp[16] & 1 = 1 and "
    "((udp[28:2] = 0x0806 and udp[36:2] = 1 and udp[54:2] = 0x0a09) or "
    "(udp[28:2] = 0x86dd and udp[70] = 135 and udp[78:2] = 0xfd09))"
)


def remote(name: str, peer: str = "far") -> str:
    """The vNIC of the other host, with its addresses."""
    return (
        f'[remote.{name}]\nmac = "{MAC[name]}"\nsegment = {VNI}\npeer = "{peer}"\n'
        f'addresses = ["{IP[name]}", "{IP6[name]}"]\n\n'
    )


def test_requests_for_declared_addresses_do_not_cross_the_network(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The switch answers ARP and neighbour discovery for remotes that declare addresses."""
    need_commands("tcpdump")
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        one.apply(uplink(1) + vnic("a", a))
        two.apply(uplink(2) + vnic("b", b))
        addresses("a", a)
        addresses("b", b)
        pings(a)
        crossed = underlay.two.spawn("tcpdump", "-lnni", "eth0", "--immediate-mode", REQUESTS)
        crossed.wait_for("tcpdump", lambda: "listening" in crossed.output())

        def ask() -> int:
            """Ask for both addresses of b anew, and send to them; the requests that crossed so far."""
            a.run("ip neigh flush dev eth0")
            b.run("ip neigh flush dev eth0")
            a.run(f"ping -c 1 -W 5 {IP['b']} && ping -c 1 -W 5 {IP6['b']}")
            # Of a later frame, so that tcpdump has seen the earlier ones.
            return crossed.output().count("VXLAN")

        wait_for("requests on the network", lambda: ask() >= 2)
        one.apply(uplink(1) + remote("b") + vnic("a", a))
        two.apply(uplink(2) + remote("a") + vnic("b", b))
        before = ask()
        assert {ask() for _ in range(5)} == {before}
        assert MAC["b"] in a.run(f"ip neigh show {IP['b']}") + a.run(f"ip neigh show {IP6['b']}")


def refused(held: socket.socket, to: tuple[str, int]) -> bool:
    """Whether the kernel refuses to send from a socket to an address."""
    try:
        held.sendto(b"data", to)
    except PermissionError:
        return True
    return False


@pytest.mark.parametrize("version", [4, 6])
def test_the_switchs_sockets_reach_peers_only(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, version: int
) -> None:
    """An intruder in the switch has its sockets: they reach peers only, whatever the agent does."""
    folder = tmp_path_factory.mktemp("h")
    peer, other = {4: ("192.0.2.2", "192.0.2.77"), 6: ("2001:db8::2", "2001:db8::77")}[version]
    with underlay.host(1, folder / "1") as one, Stack(folder / "a") as a:
        one.apply(uplink(1, version=version) + vnic("a", a, version=version))
        need("a filter on sockets (a control group of version 2, CAP_BPF)", "reason" not in show(one))

        def reach(allowed: str, *refusals: str) -> None:
            held = udp_sockets(one.switch.pid)
            # To receive, to send, of pairs of vNICs, and for notices.
            assert len(held) > 5
            for one_of_them in held:
                with one_of_them:
                    assert not refused(one_of_them, (allowed, 4789))
                    for elsewhere in refusals:
                        assert refused(one_of_them, (elsewhere, 4789)), elsewhere
                    assert refused(one_of_them, (allowed, 4790)), "another port"

        reach(peer, other)
        one.kill_agent()
        reach(peer, other)
        one.start_agent()
        reach(peer, other)
        # This agent has other sockets made, since it does not have those that are limited to the first peer.
        one.apply(uplink(1, version=version).replace(f'"{peer}"', f'"{other}"'))
        reach(other, peer)
        one.apply(uplink(1, version=version))
        reach(peer, other)
        one.switch.kill()
        one.start_switch()
        wait_for("the uplink", lambda: show(one)["state"] == "in force")
        reach(peer, other)
        one.check_alive()


def test_a_taken_port_is_refused_with_what_to_do(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The kernel's vxlan has UDP port 4789: the refusal names it."""
    folder = tmp_path_factory.mktemp("h")
    underlay.one.run(f"ip link add vx0 type vxlan id {VNI} dstport 4789 dev eth0")
    underlay.one.run("ip link set vx0 up")
    with underlay.host(1, folder / "1") as one:
        done = one.try_cli("apply", "-f", one.file(uplink(1)))
        assert done.returncode != 0
        assert "UDP port 4789 of 192.0.2.1 is in use, by a vxlan interface" in done.stderr
