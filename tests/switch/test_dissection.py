"""Frames between hosts as tshark reads them: VXLAN, marks, checksums."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.dissected import Capture
from lab.host import tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.two_hosts import TwoHosts
from lab.underlay import Underlay, Via, finished, uplink

VNI = 42
MTU = {4: 1450, 6: 1430}


@pytest.mark.abreast
@pytest.mark.parametrize("version", [4, 6])
def test_frames_are_vxlan_with_all_checksums_right(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, version: int
) -> None:
    """ICMP, UDP and TCP: outer and inner checksums, VNI; ECN goes outside, the guest's DSCP does not."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3", "ethtool", "tcpdump", "tshark")
    folder = tmp_path_factory.mktemp("h")
    with (
        Underlay(tmp_path) as underlay,
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        for stack in (underlay.one, underlay.two):
            finished(stack)
        for number, host, name, stack in ((1, one, "a", a), (2, two, "b", b)):
            vnic = tap_vnic(name, stack.path, f"52:54:00:00:09:0{name}", f"mtu = {MTU[version]}", segment=VNI)
            host.apply(uplink(number, version=version) + vnic)
            stack.address("eth0", f"10.9.0.{number}/24")
            stack.run(f"ip addr add fd09::{number}/64 dev eth0 nodad")
            stack.run("sysctl -qw net.ipv4.tcp_ecn=1")
        wait_for("the first echo", lambda: a.try_run("ping -c 1 -W 1 10.9.0.2").returncode == 0)
        b.iperf_server()
        capture = Capture(underlay.two, tmp_path)
        a.run("ping -c 5 -i 0.01 -Q 0xb8 10.9.0.2 && ping -c 5 -i 0.01 -Q 0x28 10.9.0.2")
        a.run("ping -c 5 -i 0.01 -s 4000 10.9.0.2")
        a.run("ping -c 5 -i 0.01 fd09::2")
        a.run("iperf3 --client 10.9.0.2 --bytes 300K")
        a.run("iperf3 --client fd09::2 --bytes 300K --reverse")
        a.run("iperf3 --client 10.9.0.2 --udp --bitrate 5M --bytes 100K")
        frames = capture.stop("udp.dstport == 4789")
    assert len(frames) > 300
    assert all(frame["vxlan.vni"] == [str(VNI)] for frame in frames)
    assert not [frame for frame in frames if frame.wrong]
    assert not [frame for frame in frames if frame["eth.trailer"]], "nothing behind the inner packets"
    lengths = [int(frame["frame.len"][0]) for frame in frames]
    assert max(lengths) == 1514, "full, and no longer than the path's MTU and an Ethernet header"
    ports = {frame["udp.srcport"][0] for frame in frames}
    assert len(ports) > 1, "flows have source ports of their own"
    kind = "ip.dsfield.{}" if version == 4 else "ipv6.tclass.{}"
    assert {frame[kind.format("dscp")][0] for frame in frames} == {"0"}
    same = [frame for frame in frames if len(frame[kind.format("ecn")]) == 2]
    assert all(outer == inner for outer, inner in (frame[kind.format("ecn")] for frame in same))
    marks = {frame[kind.format("ecn")][1] for frame in same}
    assert marks >= {"0", "2"}, "frames that cannot be marked, and frames that can"
    if version == 4:
        inner = {frame["ip.dsfield.dscp"][1] for frame in same}
        assert "10" in inner, "the guest's own mark stays"
        assert "46" not in inner, "but not that of real-time traffic: it has no deadline"


@pytest.mark.abreast
def test_a_stamp_is_a_trailer(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Behind the end of the IP packet: tshark shows 32 bytes as the trailer, and all checksums are right."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3", "ethtool", "tcpdump", "tshark")
    promise = ('tx = { max = "8mbit", burst = "4kB" }', 'rx = { max = "1gbit" }', 'deadline = "20ms"')
    with ExitStack() as cleanup:
        hosts = TwoHosts(tmp_path_factory.mktemp("h"), ["a", "b"], cleanup, via=Via.PAIR)
        hosts.apply({"a": (*promise, 'to = ["b"]'), "b": (*promise, 'to = ["a"]')}, ['latency = "1ms"'])
        hosts.settle()
        for stack in hosts.underlay.hosts:
            finished(stack)
        a, b, to = hosts.stacks["a"], hosts.stacks["b"], hosts.address("b")
        b.iperf_server()
        capture = Capture(hosts.underlay.two, tmp_path)
        a.run(f"ping -c 5 -i 0.01 {to} && ping -c 5 -i 0.01 -s 1390 {to} && ping -c 5 -i 0.05 -s 3000 {to}")
        a.run(f"iperf3 --client {to} --bytes 100K && iperf3 --client {to} --udp --bitrate 2M --bytes 50K")
        frames = capture.stop("udp.dstport == 4789")
    assert len(frames) > 100
    assert not [frame for frame in frames if frame.wrong]
    stamps = [frame["eth.trailer"] for frame in frames]
    assert all(len(trailers) == 1 and len(trailers[0]) == 2 * 32 for trailers in stamps), stamps[:3]
    assert all(trailer.startswith("746401") for (trailer,) in stamps), "magic and version"
    assert {frame["ip.dsfield.dscp"][0] for frame in frames} == {"46"}, "expedited forwarding"
    assert max(int(frame["frame.len"][0]) for frame in frames) <= 1514
