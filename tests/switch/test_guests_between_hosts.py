"""Two real virtual machines on two switches, joined by the switches' uplinks."""

from pathlib import Path

import pytest

from lab.guest import Guest, transfer, vhost_user
from lab.host import vhost_user_vnic
from lab.namespaces import can_make_namespaces
from lab.need import need
from lab.process import wait_for
from lab.underlay import Underlay, uplink

pytestmark = pytest.mark.lab

VNI = 42
MTU = 1450
MAC = {"a": "52:54:00:00:09:0a", "b": "52:54:00:00:09:0b"}
IP = {"a": "10.9.0.1", "b": "10.9.0.2"}


def boot(folder: Path, name: str) -> Guest:
    """A guest on this port, whose driver takes the MTU that fits the tunnel."""
    nic = vhost_user(folder / f"{name}.sock", MAC[name], options=f"host_mtu={MTU}")
    return Guest(folder / "guest", [nic], setup=f"ip addr add {IP[name]}/24 dev eth0 && ip link set eth0 up")


@pytest.mark.abreast
def test_guests_on_two_switches(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Echoes, fragments and files, with all offloads of the drivers; echoes once more after a switch died."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    folder = tmp_path_factory.mktemp("h")
    with (
        Underlay(tmp_path) as underlay,
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
    ):
        for number, host, name in ((1, one, "a"), (2, two, "b")):
            socket = host.folder / f"{name}.sock"
            host.apply(uplink(number) + vhost_user_vnic(name, socket, MAC[name], f"mtu = {MTU}", segment=VNI))
        with boot(one.folder, "a") as a, boot(two.folder, "b") as b:
            for guest in (a, b):
                guest.ready()
            one.wait_up("a")
            two.wait_up("b")
            assert a.run("cat /sys/class/net/eth0/mtu").strip() == str(MTU)
            wait_for("an echo", lambda: a.try_run(f"ping -c 1 -W 1 {IP['b']}").status == 0)
            assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.05 -W 5 {IP['b']}")
            assert " 0% packet loss" in b.run(f"ping -c 5 -i 0.1 -s 8000 -W 5 {IP['a']}")
            transfer(a, b, IP["a"], 1_000_000)
            transfer(b, a, IP["b"], 1_000_000)
            two.switch.kill()
            two.start_switch()
            two.wait_up("b")
            wait_for("an echo", lambda: a.try_run(f"ping -c 1 -W 1 {IP['b']}").status == 0)
            assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.05 -W 5 {IP['b']}")
            for guest in (a, b):
                text = guest.run("nstat -asz TcpInCsumErrors UdpInCsumErrors IcmpInCsumErrors")
                errors = [int(line.split()[1]) for line in text.splitlines() if not line.startswith("#")]
                assert errors == [0, 0, 0], text
        one.check_alive()
        two.check_alive()
