"""Nobody reaches another segment, and nobody sends under another's name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for

MACS = [f"52:54:00:00:04:{n:02x}" for n in range(4)]


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[list[Stack]]:
    """Four stacks, not yet connected."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "tcpdump")
    running: list[Stack] = []
    try:
        for n in range(4):
            running.append(Stack(tmp_path / f"stack{n}"))
        yield running
    finally:
        for stack in running:
            stack.stop()


def connect(
    host: Host, stacks: list[Stack], segments: list[int], lines: tuple[str, ...] = (), net: str = "10.4.0"
) -> None:
    """Stack n becomes vNIC vN in its segment, with address NET.n+1; `lines` are added to v0's contract."""
    host.apply(
        "".join(
            tap_vnic(f"v{n}", stack.path, MACS[n], *(lines if n == 0 else ()), segment=segment)
            for n, (stack, segment) in enumerate(zip(stacks, segments, strict=True))
        )
    )
    for n, stack in enumerate(stacks):
        stack.address("eth0", f"{net}.{n + 1}/24")


def reaches(stack: Stack, address: str) -> bool:
    """Whether a ping is answered."""
    return stack.try_run(f"ping -c 2 -i 0.2 -W 1 {address}").returncode == 0


def set_mac(mac: str) -> str:
    """The command that changes the MAC of a stack's device."""
    return f"ip link set eth0 down && ip link set eth0 address {mac} && ip link set eth0 up"


def dropped(host: Host, name: str) -> int:
    """How many frames of a vNIC were dropped."""
    return sum(host.show(name).dropped("tx").values())


def test_segments_are_separate(host: Host, stacks: list[Stack]) -> None:
    """No frame crosses, unicast or broadcast; the segments may use the same addresses."""
    connect(host, stacks, [1, 1, 2, 2])
    watch = stacks[2].spawn("tcpdump", "-nn", "-e", "-l", "-i", "eth0", "ether", "src", MACS[0])
    watch.wait_for("tcpdump", lambda: "listening" in watch.output())
    assert reaches(stacks[0], "10.4.0.2")
    assert reaches(stacks[2], "10.4.0.4")
    assert not reaches(stacks[0], "10.4.0.3")
    # Even where the sender knows the other's MAC.
    stacks[0].run(f"ip neigh replace 10.4.0.3 lladdr {MACS[2]} dev eth0")
    assert not reaches(stacks[0], "10.4.0.3")
    stacks[0].try_run("ping -b -c 2 -i 0.2 -W 1 10.4.0.255")
    assert MACS[0] not in watch.output()


def test_same_mac_in_two_segments(host: Host, stacks: list[Stack]) -> None:
    """A MAC is an address within its segment: the same one in two segments is two vNICs."""
    used = stacks[:2]
    host.apply(
        tap_vnic("v0", used[0].path, MACS[0], segment=1) + tap_vnic("v1", used[1].path, MACS[0], segment=2)
    )
    assert host.names() == {"v0", "v1"}


def test_spoofed_mac_is_dropped(host: Host, stacks: list[Stack]) -> None:
    """Frames from a MAC the contract does not name go nowhere and are counted; the own MAC works again."""
    connect(host, stacks, [1, 1, 1, 1])
    assert reaches(stacks[0], "10.4.0.2")
    before = dropped(host, "v0")
    watch = stacks[1].spawn("tcpdump", "-nn", "-e", "-l", "-i", "eth0", "ether", "src", "52:54:00:66:66:66")
    watch.wait_for("tcpdump", lambda: "listening" in watch.output())
    stacks[0].run(set_mac("52:54:00:66:66:66"))
    assert not reaches(stacks[0], "10.4.0.2")
    assert dropped(host, "v0") > before
    assert "52:54:00:66:66:66 >" not in watch.output()
    stacks[0].run(set_mac(MACS[0]))
    assert reaches(stacks[0], "10.4.0.2")


def test_stolen_mac_diverts_nothing(host: Host, stacks: list[Stack]) -> None:
    """Sending from another vNIC's MAC does not draw that vNIC's traffic."""
    connect(host, stacks, [1, 1, 1, 1])
    stacks[3].run(set_mac(MACS[1]))
    stacks[3].try_run("ping -c 3 -i 0.2 -W 1 10.4.0.3")
    assert reaches(stacks[0], "10.4.0.2")
    assert dropped(host, "v3") > 0


def test_further_allowed_mac(host: Host, stacks: list[Stack]) -> None:
    """A MAC named in `allowed` may send and is reached."""
    connect(host, stacks, [1, 1, 1, 1], ('allowed = { macs = ["52:54:00:00:04:aa"] }',))
    stacks[0].run("ip link add link eth0 name inner address 52:54:00:00:04:aa type macvlan mode bridge")
    stacks[0].run("ip addr flush dev eth0")
    stacks[0].address("inner", "10.4.0.99/24")
    assert reaches(stacks[0], "10.4.0.2")
    assert reaches(stacks[1], "10.4.0.99")


def test_foreign_source_address_is_dropped(host: Host, stacks: list[Stack]) -> None:
    """Where prefixes are named, IP and ARP from other addresses are dropped and counted."""
    connect(host, stacks, [1, 1, 1, 1], ('allowed = { prefixes = ["10.4.0.1/32"] }',))
    assert reaches(stacks[0], "10.4.0.2")
    before = dropped(host, "v0")
    stacks[0].run("ip addr add 10.4.0.77/24 dev eth0")
    assert stacks[0].try_run("ping -I 10.4.0.77 -c 2 -i 0.2 -W 1 10.4.0.2").returncode != 0
    assert dropped(host, "v0") > before
    assert reaches(stacks[0], "10.4.0.2")


SEND_TAGGED = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
tag = (0x8100).to_bytes(2, "big") + int(sys.argv[2]).to_bytes(2, "big")
link.send(bytes([255] * 6) + mac + tag + (0x88B5).to_bytes(2, "big") + bytes(46))
"""


def test_vlans(host: Host, stacks: list[Stack]) -> None:
    """Tagged frames pass only between ports whose contracts name the VLAN."""
    trunk = "allowed = { vlans = [10] }"
    host.apply(
        tap_vnic("v0", stacks[0].path, MACS[0], trunk)
        + tap_vnic("v1", stacks[1].path, MACS[1], trunk)
        + tap_vnic("v2", stacks[2].path, MACS[2])
    )
    for n, stack in enumerate(stacks[:3]):
        stack.address("eth0", f"10.4.0.{n + 1}/24")
    watch = [stack.spawn("tcpdump", "-nn", "-e", "-l", "-i", "eth0", "vlan") for stack in stacks[:3]]
    wait_for("tcpdump", lambda: all("listening" in each.output() for each in watch))
    for vlan in (10, 20):
        # To everybody, so that only the contracts decide who gets it.
        stacks[0].run(["python3", "-c", SEND_TAGGED, MACS[0], str(vlan)])
    watch[1].wait_for("the tagged frame", lambda: "vlan 10" in watch[1].output())
    assert "vlan 20" not in watch[1].output()
    assert "vlan 10" not in watch[2].output()
    assert "vlan 20" not in watch[2].output()
    # VLAN 20; that v2 is not in VLAN 10 is no loss of its sender.
    assert host.show("v0").dropped("tx").get("vlan") == 1
