"""Linux's own TCP/IP stacks on tap ports."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands

MAC = {"a": "52:54:00:00:02:0a", "b": "52:54:00:00:02:0b"}
IP = {"a": "10.2.0.1", "b": "10.2.0.2"}
IP6 = {"a": "fd02::1", "b": "fd02::2"}
MBIT = 1e6


@pytest.fixture
def stacks(host: Host, tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    """Stacks a and b on taps: a sends at most 200 Mbit/s, b at most 100 Mbit/s."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3")
    with Stack(tmp_path / "a") as a, Stack(tmp_path / "b") as b:
        host.apply(
            tap_vnic("a", a.path, MAC["a"], 'tx = { max = "200mbit" }')
            + tap_vnic("b", b.path, MAC["b"], 'tx = { max = "100mbit" }')
        )
        for name, stack in (("a", a), ("b", b)):
            stack.address("eth0", f"{IP[name]}/24")
            stack.run(f"ip addr add {IP6[name]}/64 dev eth0 nodad")
        yield a, b


def test_tap_is_made_as_the_contract_says(stacks: tuple[Stack, Stack]) -> None:
    """The device carries the contract's MAC."""
    assert MAC["a"] in stacks[0].run("ip link show eth0")


def test_ping(stacks: tuple[Stack, Stack]) -> None:
    """Every echo comes back: IPv4, IPv6, fragmented."""
    a, _ = stacks
    assert " 0% packet loss" in a.run(f"ping -c 100 -i 0.01 {IP['b']}")
    assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.01 {IP6['b']}")
    assert " 0% packet loss" in a.run(f"ping -c 10 -i 0.05 -s 8000 {IP['b']}")


@pytest.mark.parametrize("options", [(), ("--udp", "--bitrate", "300M")], ids=["tcp", "udp"])
@pytest.mark.parametrize(("sender", "limit"), [("a", 200), ("b", 100)])
def test_iperf3(
    host: Host, stacks: tuple[Stack, Stack], sender: str, limit: int, options: tuple[str, ...]
) -> None:
    """What a stack sends comes to its tx.max, for TCP with super-frames and for UDP."""
    a, b = stacks
    b.iperf_server()
    direction = ["--reverse"] if sender == "b" else []
    client = a.spawn("iperf3", "--client", IP["b"], "--time", "40", *options, *direction)
    time.sleep(1.5)
    host.keeps_rate(sender, limit * MBIT)
    client.kill()


def test_two_senders_share_by_weight(host: Host, tmp_path: Path) -> None:
    """Where two vNICs fill one egress, what is left over is shared by weight: 3 to 1."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "x") as x, Stack(tmp_path / "y") as y, Stack(tmp_path / "z") as z:
        host.apply(
            tap_vnic("x", x.path, "52:54:00:00:03:01", "weight = 3")
            + tap_vnic("y", y.path, "52:54:00:00:03:02", "weight = 1")
            + tap_vnic("z", z.path, "52:54:00:00:03:03", 'rx = { max = "100mbit" }')
        )
        for number, stack in enumerate((x, y, z), 1):
            stack.address("eth0", f"10.3.0.{number}/24")
        for port, stack in ((5201, x), (5202, y)):
            z.iperf_server(port)
            stack.spawn(*f"iperf3 --client 10.3.0.3 --port {port} --time 10 --parallel 2".split())
        time.sleep(2)
        before = [host.show(n).tx_bytes for n in "xy"]
        time.sleep(5)
        heavy, light = (host.show(n).tx_bytes - b for n, b in zip("xy", before, strict=True))
        assert 2.4 <= heavy / light <= 3.6
