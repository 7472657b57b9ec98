"""Killing the agent disturbs no frame; its successor takes the running switch over."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.rates import Rate
from lab.testpmd import Testpmd, virtio_user

MAC = {"a": "52:54:00:00:05:0a", "b": "52:54:00:00:05:0b"}
LIMIT = 50e6


@pytest.fixture
def stacks(host: Host, tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    """Two stacks; a sends at most 50 Mbit/s."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "iperf3")
    with Stack(tmp_path / "a") as a, Stack(tmp_path / "b") as b:
        host.apply(
            tap_vnic("a", a.path, MAC["a"], 'tx = { max = "50mbit" }') + tap_vnic("b", b.path, MAC["b"])
        )
        a.address("eth0", "10.5.0.1/24")
        b.address("eth0", "10.5.0.2/24")
        a.run("ping -c 1 -W 5 10.5.0.2")
        yield a, b


@pytest.mark.abreast
def test_no_frame_is_lost(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """A ping every 10 ms loses nothing over kill -9, absence and return of the agent."""
    a, _ = stacks
    ping = a.spawn("ping", "-i", "0.01", "-c", "600", "-W", "2", "10.5.0.2")
    time.sleep(1)
    host.kill_agent()
    time.sleep(2)
    host.start_agent()
    ping.wait_for("the end of ping", lambda: not ping.running or "packet loss" in ping.output(), 30)
    assert "600 packets transmitted, 600 received" in ping.output()


def test_contracts_are_kept(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """The rate holds while the agent is dead and after; contracts, counters and the switch are the same."""
    a, b = stacks
    b.iperf_server()
    client = a.spawn("iperf3", "--client", "10.5.0.2", "--time", "90")
    time.sleep(2)
    before, limit = host.show("a"), host.limit("a")
    host.kill_agent()
    # As b's kernel counts what arrives, which needs no agent: of a super-frame the headers once.
    Rate("a", lambda: _received(b), limit).reaches(0.8, 4)
    assert client.running, client.output()
    host.start_agent()
    assert host.names() == {"a", "b"}
    # Counters that fell would mean a port made anew.
    assert host.show("a").tx_bytes > before.tx_bytes
    host.keeps_rate("a", LIMIT)


def _received(stack: Stack) -> int:
    """Bytes that eth0 has received, as its kernel counts them."""
    return int(stack.run("cat /proc/net/dev").split("eth0:")[1].split()[0])


@pytest.mark.abreast
def test_front_ends_stay_connected(host: Host, tmp_path: Path) -> None:
    """testpmd sends on through the restart and never has to connect again."""
    need_commands("dpdk-testpmd")
    host.apply(
        vhost_user_vnic("a", host.folder / "a.sock", MAC["a"], 'tx = { max = "20mbit" }')
        + vhost_user_vnic("b", host.folder / "b.sock", MAC["b"])
    )
    with (
        Testpmd(tmp_path / "b", [virtio_user(host.folder / "b.sock", MAC["b"])], forward="rxonly") as sink,
        Testpmd(
            tmp_path / "a",
            [virtio_user(host.folder / "a.sock", MAC["a"])],
            forward="txonly",
            peers={0: MAC["b"]},
        ) as source,
    ):
        host.wait_up("a", "b")
        sink.start()
        source.start()
        for _ in range(3):
            host.kill_agent()
            alone = sink.stats()[0].rx_packets
            time.sleep(1)
            assert sink.stats()[0].rx_packets > alone
            host.start_agent()
            back = sink.stats()[0].rx_packets
            time.sleep(1)
            assert sink.stats()[0].rx_packets > back
        assert host.show("a").connection == "up"
        assert not re.search(r"disconnect|reconnect", source.process.output(), re.IGNORECASE)


@pytest.mark.abreast
def test_changes_made_without_an_agent_come_into_force(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """A contract file changed while the agent was dead is in force once it is back."""
    a, _ = stacks
    host.kill_agent()
    stack = host.folder / "c.sock"
    (host.etc / "more.toml").write_text(vhost_user_vnic("c", stack, "52:54:00:00:05:0c"))
    host.start_agent()
    assert host.names() == {"a", "b", "c"}
    assert stack.is_socket()
    assert " 0% packet loss" in a.run("ping -c 5 -i 0.05 10.5.0.2")


def test_idle_switch_uses_no_cpu(host: Host, stacks: tuple[Stack, Stack]) -> None:
    """With ports up and no traffic the switch sleeps: under 2 % of one CPU."""
    time.sleep(1)
    before, began = _cpu_seconds(host.switch.pid), time.monotonic()
    time.sleep(4)
    used = (_cpu_seconds(host.switch.pid) - before) / (time.monotonic() - began)
    assert used < 0.02
    assert stacks[0].run("ping -c 1 10.5.0.2")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
