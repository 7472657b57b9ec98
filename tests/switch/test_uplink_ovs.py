"""Frames between a switch and Open vSwitch, whose userspace datapath is a VXLAN of its own."""

from pathlib import Path

import pytest

from lab.host import tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS, OpenVswitch
from lab.process import wait_for
from lab.underlay import ADDRESSES, Underlay, finished, uplink

VNI = 42
MTU = 1450


@pytest.mark.abreast
def test_open_vswitch_is_a_peer(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Echoes, fragments and TCP both ways between a vNIC and the stack behind Open vSwitch."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3", "ethtool", *COMMANDS)
    folder = tmp_path_factory.mktemp("h")
    one, two = ADDRESSES[4][:2]
    with (
        Underlay(tmp_path) as underlay,
        underlay.host(1, folder / "1") as host,
        Stack(folder / "a") as a,
        OpenVswitch(folder / "ovs", underlay.two) as ovs,
    ):
        # It reads frames from eth0 as they are on a wire.
        finished(underlay.one)
        ovs.tunnel(VNI, f"{two}/24", one, "10.9.0.2/24", MTU)
        vnic = tap_vnic("a", a.path, "52:54:00:00:09:0a", f"mtu = {MTU}", segment=VNI)
        host.apply(uplink(1, peer=["stamps = false"]) + vnic)
        a.address("eth0", "10.9.0.1/24")
        wait_for("the first echo", lambda: a.try_run("ping -c 1 -W 1 10.9.0.2").returncode == 0)
        assert " 0% packet loss" in a.run("ping -c 50 -i 0.01 10.9.0.2")
        assert " 0% packet loss" in a.run("ping -c 10 -i 0.05 -s 8000 10.9.0.2")
        assert " 0% packet loss" in underlay.two.run("ping -c 10 -i 0.05 -s 8000 10.9.0.1")
        underlay.two.iperf_server()
        a.run("iperf3 --client 10.9.0.2 --time 1")
        a.run("iperf3 --client 10.9.0.2 --time 1 --reverse")
        host.check_alive()
