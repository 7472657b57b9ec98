"""Frames with a deadline between hosts: stamped, checked, counted; another kind of peer gets none."""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.underlay import ADDRESSES, Underlay, uplink

MAC = {"a": "52:54:00:00:0a:0a", "b": "52:54:00:00:0a:0b"}
IP = {"a": "10.10.0.1", "b": "10.10.0.2"}
VNI = 42
MTU = 1418
"""What fits into an underlay's 1500 bytes beside a stamp."""
EF = 46 << 2
FIRST_PAIR_PORT = 49_152 + 4
"""The source port of the first pair: behind those of all other flows."""
TX = 'tx = { max = "10mbit", burst = "8kB" }'
KEYS = ("00112233445566778899aabbccddeef0", "ffeeddccbbaa99887766554433221101")


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """The network between two hosts."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "tcpdump")
    with Underlay(tmp_path) as made:
        yield made


def write_key(path: Path, key: str) -> None:
    """Write a key for its owner only."""
    path.touch(0o600)
    path.write_text(key + "\n")


def keys(current: Path, following: Path | None = None) -> str:
    """The keys of the segment."""
    more = f'next-key-file = "{following}"\n' if following else ""
    return f'[segment.{VNI}]\nkey-file = "{current}"\n{more}\n'


def contracts(number: int, stack: Stack, *, far: str, peer: tuple[str, ...] = ()) -> str:
    """Host `number` with one vNIC, which promises towards `far` of the other host, and the reverse."""
    name = "a" if far != "a" else "b"
    vnic = tap_vnic(
        name,
        stack.path,
        MAC[name],
        f"mtu = {MTU}",
        TX,
        'rx = { max = "10gbit" }',
        'deadline = "20ms"',
        f'to = ["{far}"]',
        segment=VNI,
    )
    return uplink(number, 'latency = "1ms"', peer=peer) + vnic


def remote(name: str, to: str) -> str:
    """A vNIC of the other host that promises towards ours."""
    return (
        f'[remote.{name}]\nmac = "{MAC[name]}"\nsegment = {VNI}\npeer = "far"\n'
        f'{TX}\ndeadline = "20ms"\nto = ["{to}"]\n\n'
    )


def uplink_status(host: Host) -> dict[str, Any]:
    """What the switch says of its uplink."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(host.switch_socket))
        request = json.dumps("uplinks").encode()
        control.sendall(struct.pack("<I", len(request)) + request)
        answer = control.makefile("rb")
        (length,) = struct.unpack("<I", answer.read(4))
        (status,) = json.loads(answer.read(length))["uplinks"]
        assert isinstance(status, dict)
        return status


def pair(host: Host) -> dict[str, Any]:
    """The counters of the one pair."""
    (only,) = uplink_status(host)["pairs"]
    assert isinstance(only, dict)
    return only


def answers(stack: Stack, to: str) -> None:
    """Wait for an echo."""
    wait_for("an echo", lambda: stack.try_run(f"ping -c 1 -W 1 {IP[to]}").returncode == 0)


def captured(path: Path) -> list[tuple[int, int, bytes]]:
    """The traffic class, the source port and the inner frame of each VXLAN datagram in a pcap file."""
    data = path.read_bytes()
    at, frames = 24, []
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        packet = data[at + 16 : at + 16 + length]
        frames.append((packet[15], int.from_bytes(packet[34:36]), packet[14 + 20 + 8 + 8 :]))
        at += 16 + length
    return frames


def echoes(frames: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Those that carry ICMP."""
    return [each for each in frames if each[2][12:14] == b"\x08\x00" and each[2][23] == 1]


def test_frames_with_a_deadline_carry_stamps(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both hosts count stamped frames; on the wire they are 32 bytes longer, and marked."""
    folder = tmp_path_factory.mktemp("h")
    key, following = folder / "key", folder / "next"
    write_key(key, KEYS[0])
    write_key(following, KEYS[1])
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        at_one = contracts(1, a, far="b") + remote("b", "a")
        at_two = contracts(2, b, far="a") + remote("a", "b")
        refused = one.try_cli("apply", "-f", one.file(at_one))
        assert refused.returncode != 0
        assert f"add [segment.{VNI}] with key-file" in refused.stderr
        one.apply(at_one + keys(key))
        two.apply(at_two + keys(key))
        a.address("eth0", f"{IP['a']}/24")
        b.address("eth0", f"{IP['b']}/24")
        answers(a, "b")
        dump = folder / "wire.pcap"
        watch = underlay.two.spawn(
            "tcpdump", "-U", "--immediate-mode", "-i", "eth0", "-w", str(dump), "udp port 4789"
        )
        watch.wait_for("tcpdump", lambda: "listening" in watch.output())
        before = pair(two)["arrived"]
        assert " 0% packet loss" in a.run(f"ping -c 50 -i 0.01 -s 100 {IP['b']}")
        assert pair(two)["arrived"] >= before + 50
        for host in (one, two):
            counts = pair(host)
            assert counts["sent"] >= 50
            assert counts["arrived"] >= 50
            assert [counts[bad] for bad in ("forged", "replayed", "lost")] == [0, 0, 0], counts
        watch.stop()
        seen = echoes(captured(dump))
        assert len(seen) >= 100
        assert {port for _, port, _ in seen} == {FIRST_PAIR_PORT}
        for tos, _, frame in seen:
            assert (tos, len(frame)) == (EF, 14 + 20 + 8 + 100 + 32)
            assert frame[-32:-28] == b"\x74\x64\x01\x00"
            assert int.from_bytes(frame[-28:-24]) == 20_000
        # Another key, one host after the other.
        for tables in (keys(key, following), keys(following, key), keys(following)):
            for host, contract in ((one, at_one), (two, at_two)):
                host.apply(contract + tables)
                answers(a, "b")
        assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.01 {IP['b']}")
        assert [pair(host)["forged"] for host in (one, two)] == [0, 0]
        # No key anywhere but in its file.
        for text in (*folder.glob("*/state/*.json"), *folder.glob("*/*.log")):
            assert not any(each in text.read_text() for each in KEYS), text


def test_another_kind_of_peer_gets_no_stamps(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The kernel's vxlan gets frames with a deadline as they are."""
    folder = tmp_path_factory.mktemp("h")
    local, far = ADDRESSES[4][1], ADDRESSES[4][0]
    with underlay.host(1, folder / "1") as one, Stack(folder / "a") as a:
        one.apply(contracts(1, a, far="uplink", peer=("stamps = false",)))
        a.address("eth0", f"{IP['a']}/24")
        underlay.two.run(
            f"ip link add vx0 type vxlan id {VNI} dstport 4789 local {local} remote {far} dev eth0"
        )
        underlay.two.run("ethtool -K eth0 tx off")
        underlay.two.run(f"ip addr add {IP['b']}/24 dev vx0 && ip link set vx0 mtu {MTU} up")
        answers(a, "b")
        dump = folder / "wire.pcap"
        watch = underlay.two.spawn(
            "tcpdump",
            "-U",
            "--immediate-mode",
            "-i",
            "eth0",
            "-w",
            str(dump),
            "udp port 4789 and src 192.0.2.1",
        )
        watch.wait_for("tcpdump", lambda: "listening" in watch.output())
        assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.01 -s 100 {IP['b']}")
        watch.stop()
        seen = echoes(captured(dump))
        assert len(seen) >= 20
        assert {(tos, len(frame)) for tos, _, frame in seen} == {(EF, 14 + 20 + 8 + 100)}
        assert uplink_status(one)["pairs"] == []
