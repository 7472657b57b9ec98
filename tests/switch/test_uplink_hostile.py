"""Wrong peers and tunnels in tunnels: what the own vNICs see of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import hostile_peer
from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for
from lab.underlay import ADDRESSES, Underlay, uplink

VNI = 42
MTU = 1450
MAC = {"a": "52:54:00:00:09:0a", "b": "52:54:00:00:09:0b", "c": "52:54:00:00:09:0c"}
IP = {"a": "10.9.0.1", "b": "10.9.0.2", "c": "10.9.0.3"}


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """The network between two hosts."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3", "ethtool", "nstat")
    with Underlay(tmp_path) as made:
        yield made


@pytest.fixture
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stack]]:
    """Namespaces of the vNICs a, b, c."""
    folder = tmp_path_factory.mktemp("s")
    with Stack(folder / "a") as a, Stack(folder / "b") as b, Stack(folder / "c") as c:
        yield {"a": a, "b": b, "c": c}


def put(host: Host, number: int, stacks: dict[str, Stack], names: str) -> None:
    """These vNICs on this host, with their addresses."""
    vnics = [tap_vnic(n, stacks[n].path, MAC[n], f"mtu = {MTU}", segment=VNI) for n in names]
    host.apply(uplink(number) + "".join(vnics))
    for name in names:
        stacks[name].address("eth0", f"{IP[name]}/24")


def wrong_peer(underlay: Underlay, role: str, *words: str) -> Process:
    """A hostile program at the peer's address."""
    program = underlay.two.spawn("python3", hostile_peer.__file__, role, ADDRESSES[4][1], *words)
    program.wait_for("the peer", lambda: "ready" in program.output())
    return program


def answers(stack: Stack, name: str) -> bool:
    """Whether a vNIC answers."""
    return stack.try_run(f"ping -c 1 -W 1 {IP[name]}").returncode == 0


def requests(stack: Stack) -> int:
    """Echo requests that a stack has received."""
    text = stack.run("nstat -asz IcmpMsgInType8")
    return int(float(text.split("IcmpMsgInType8")[1].split()[0]))


@pytest.mark.abreast
def test_a_peer_that_reflects(
    underlay: Underlay, stacks: dict[str, Stack], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What comes back from the own address is dropped: no copies, no loop, and no vNIC moves to the peer."""
    with underlay.host(1, tmp_path_factory.mktemp("h")) as host:
        put(host, 1, stacks, "ab")
        a, b = stacks["a"], stacks["b"]
        mirror = wrong_peer(underlay, "reflect")
        wait_for("an echo", lambda: answers(a, "b"))
        before = requests(b)
        a.try_run("ping -b -c 50 -i 0.01 -W 0.5 10.9.0.255")
        wait_for("the broadcasts", lambda: requests(b) - before >= 50)
        assert " 0% packet loss" in a.run(f"ping -c 50 -i 0.01 {IP['b']}")
        assert requests(b) - before == 100
        mirror.stop()
        reflected = int(mirror.output().split("reflected")[1])
        # The broadcasts; questions for addresses, and what IPv6 says by itself.
        assert 50 <= reflected < 100, "each goes out once"
        host.check_alive()


def test_a_flood_from_the_wire(
    underlay: Underlay, stacks: dict[str, Stack], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Local vNICs go on while a peer sends one vNIC more than the worker can take."""
    with underlay.host(1, tmp_path_factory.mktemp("h")) as host:
        put(host, 1, stacks, "abc")
        a, b = stacks["a"], stacks["b"]
        wait_for("an echo", lambda: answers(a, "b"))
        b.iperf_server()

        def rate() -> float:
            before = host.show("b").rx_bytes
            a.run(f"iperf3 --client {IP['b']} --time 1")
            return host.show("b").rx_bytes - before

        alone = rate()
        flood = wrong_peer(underlay, "flood", ADDRESSES[4][0], str(VNI), MAC["c"])
        before = host.show("c").rx_frames
        beside = rate()
        assert host.show("c").rx_frames - before > 10_000, "there is a flood"
        assert " 0% packet loss" in a.run(f"ping -c 50 -i 0.01 -W 5 {IP['b']}")
        flood.stop()
        assert beside > alone / 20
        host.check_alive()


@pytest.mark.abreast
def test_a_tunnel_in_the_tunnel(
    underlay: Underlay, stacks: dict[str, Stack], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A guest's own VXLAN, with the same VNI and port, is its payload."""
    folder = tmp_path_factory.mktemp("h")
    with underlay.host(1, folder / "1") as one, underlay.host(2, folder / "2") as two:
        put(one, 1, stacks, "a")
        put(two, 2, stacks, "b")
        a, b = stacks["a"], stacks["b"]
        for stack, own, far in ((a, "a", "b"), (b, "b", "a")):
            words = f"type vxlan id {VNI} dstport 4789 local {IP[own]} remote {IP[far]} dev eth0"
            stack.run(f"ip link add vx0 {words} && ip addr add 10.10.0.{1 if own == 'a' else 2}/24 dev vx0")
            stack.run(f"ip link set vx0 mtu {MTU - 50} up")
        wait_for("an echo", lambda: a.try_run("ping -c 1 -W 1 10.10.0.2").returncode == 0)
        assert " 0% packet loss" in a.run("ping -c 20 -i 0.01 -s 4000 10.10.0.2")
        b.iperf_server()
        a.run("iperf3 --client 10.10.0.2 --time 1")
        a.run("iperf3 --client 10.10.0.2 --time 1 --reverse")
