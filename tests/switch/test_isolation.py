"""No VM reaches another segment, and none sends under another's name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for

pytestmark = pytest.mark.abreast

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


def refused(host: Host, name: str) -> dict[str, int]:
    """What a vNIC was not allowed to send, by reason. The first to come up has no receiver."""
    return {why: count for why, count in host.show(name).dropped("tx").items() if why != "no_receiver"}


def connect_v6(host: Host, stacks: list[Stack]) -> list[str]:
    """Stack n becomes vNIC vN with prefix fd04::n+1; returns the link-local addresses of the kernels."""
    host.apply(
        "".join(
            tap_vnic(f"v{n}", stack.path, MACS[n], f'allowed = {{ prefixes = ["fd04::{n + 1}/128"] }}')
            for n, stack in enumerate(stacks)
        )
    )
    for n, stack in enumerate(stacks):
        stack.address("eth0", f"fd04::{n + 1}/64")

    def ready(stack: Stack) -> bool:
        found = stack.run("ip -6 -o addr show dev eth0")
        return "fe80" in found and "tentative" not in found

    wait_for("duplicate address detection", lambda: all(ready(stack) for stack in stacks))
    show = "ip -6 -o addr show dev eth0 scope link"
    return [stack.run(show).split("inet6 ")[1].split("/")[0] for stack in stacks]


def test_ipv6_works_where_prefixes_are_named(host: Host, stacks: list[Stack]) -> None:
    """Nothing of what a kernel needs for IPv6 is dropped: its address detection, MLD, neighbour discovery."""
    used = stacks[:2]
    link_local = connect_v6(host, used)
    assert reaches(used[0], "fd04::2")
    assert reaches(used[1], f"{link_local[0]}%eth0")
    for n in range(2):
        assert refused(host, f"v{n}") == {}
        assert host.show(f"v{n}").document["stats"]["link_local"] == [link_local[n]]
    assert f"link-local  {link_local[0]}" in host.cli("vnic", "show", "v0")


def test_stolen_link_local_address_goes_nowhere(host: Host, stacks: list[Stack]) -> None:
    """What sends from another's link-local address is dropped and counted; the other one keeps it."""
    used = stacks[:3]
    link_local = connect_v6(host, used)
    assert reaches(used[1], f"{link_local[0]}%eth0")
    used[2].run(f"ip addr add {link_local[0]}/64 dev eth0 nodad")
    ping = f"ping -I {link_local[0]}%eth0 -c 2 -i 0.2 -W 1 {link_local[1]}%eth0"
    assert used[2].try_run(ping).returncode != 0
    assert refused(host, "v2")["link_local"] > 0
    assert MACS[0] in used[1].run(f"ip neigh show {link_local[0]} dev eth0")
    assert reaches(used[1], f"{link_local[0]}%eth0")
    assert refused(host, "v0") == {}


SEND_ADVERTISEMENT = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(("eth0", 0))
mac = bytes.fromhex(sys.argv[1].replace(":", ""))
source, target = (socket.inet_pton(socket.AF_INET6, ip) for ip in (sys.argv[2], "ff02::1"))
message = bytearray([134, 0, 0, 0, 64, 0, 7, 8]) + bytes(8)
words = source + target + len(message).to_bytes(4, "big") + bytes([0, 0, 0, 58]) + message
total = sum(int.from_bytes(words[at : at + 2], "big") for at in range(0, len(words), 2))
total = (total & 0xFFFF) + (total >> 16)
message[2:4] = (0xFFFF - (total & 0xFFFF) - (total >> 16)).to_bytes(2, "big")
behind = bytes([58, 0, 0, 0, 0, 0, 0, 1]) if sys.argv[3] == "fragment" else b""
payload = behind + bytes(message)
header = bytes([0x60, 0, 0, 0]) + len(payload).to_bytes(2, "big") + bytes([44 if behind else 58, 255])
link.send(bytes.fromhex("333300000001") + mac + bytes.fromhex("86dd") + header + source + target + payload)
"""


def test_router_advertisements_need_leave(host: Host, stacks: list[Stack]) -> None:
    """A kernel takes no default route from a guest, nor from one in a fragment; from one that may it does."""
    used = stacks[:2]
    link_local = connect_v6(host, used)
    settings = ("accept_ra=1", "forwarding=0", "suppress_frag_ndisc=0")
    for setting in settings:
        used[1].run(f"sysctl -q -w net.ipv6.conf.eth0.{setting}")

    def advertise(how: str) -> None:
        used[0].run(["python3", "-c", SEND_ADVERTISEMENT, MACS[0], link_local[0], how])

    def has_route() -> bool:
        return link_local[0] in used[1].run("ip -6 route show default")

    advertise("whole")
    advertise("fragment")
    wait_for("both to be counted", lambda: refused(host, "v0") == {"router": 1, "encapsulation": 1})
    assert not has_route()
    host.cli("vnic", "set", "v0", "allowed.router=true")
    advertise("whole")
    wait_for("the route", has_route)
