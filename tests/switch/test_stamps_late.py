"""Frames that are late on their way to another host: counted by cause, and told to the sender's host."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.network import PROGRAM, Rule, has_program
from lab.process import wait_for
from lab.two_hosts import TwoHosts
from lab.underlay import Via

MS = 1_000_000
PROMISE = ('tx = { max = "8mbit", burst = "4kB" }', 'rx = { max = "1gbit" }', 'deadline = "20ms"')
TERMS = {"a": (*PROMISE, 'to = ["b"]'), "b": (*PROMISE, 'to = ["a"]')}
FROM_A: Rule = {"name": "a", "from": "eth1", "stamped": True}


def knows(hosts: TwoHosts, number: int) -> bool:
    """Whether a host knows the other's clock."""
    return bool(hosts.status(number)["peers"][0].get("clock"))


@contextmanager
def scene(folder: Path, via: Via) -> Iterator[TwoHosts]:
    """Two hosts with a vNIC each, that know each other's clocks."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need(f"{PROGRAM}: cargo build --release -p tidegate-bench", has_program())
    need_commands("ping", "ethtool")
    with ExitStack() as cleanup:
        made = TwoHosts(folder, ["a", "b"], cleanup, via=via)
        made.apply(TERMS, ['latency = "1ms"'])
        made.settle()
        for number in (1, 2):
            wait_for("the clock", partial(knows, made, number))
        yield made
        for host in made.hosts:
            host.check_alive()


def late(hosts: TwoHosts, cause: str) -> int:
    """Frames that host 2 counted as late because of this part of their way, certain or not."""
    counts = hosts.pair(2)
    return int(counts["late"][cause] + counts["uncertain"][cause])


def test_delays_in_the_network_are_found_and_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each frame that the network delayed beyond the deadline is counted, and some are told."""
    with scene(tmp_path_factory.mktemp("h"), Via.RULES) as hosts:
        network, to = hosts.underlay.rules, hosts.address("b")
        before = late(hosts, "network")
        network.plan({**FROM_A, "share": 0.5, "delay_ns": [40 * MS, 60 * MS]})
        hosts.stacks["a"].run(f"ping -q -c 100 -i 0.005 -W 1 {to}")
        network.wait_for("a")
        time.sleep(0.1)
        delayed = {record["sequence"]: record for record in network.records()}
        assert 25 <= len(delayed) <= 75
        # Others may be late, too, on a busy machine.
        assert late(hosts, "network") - before >= len(delayed)
        wait_for("a report", lambda: hosts.status(1)["far_misses"])
        time.sleep(0.2)
        told = [report for report in hosts.status(1)["far_misses"] if report["sequence"] in delayed]
        assert told
        for report in told:
            assert (report["vnic"], report["cause"]) == ("a", "network"), report
            # Less what the receiving host owns to: the time since the frame can have been in its socket.
            least = delayed[report["sequence"]]["planned_ns"] - report["error_ns"]
            assert report["network_ns"] + report["there_ns"] >= least, report
            assert report["late_ns"] >= least - 20 * MS, report


def test_a_receiving_switch_without_its_cpu_is_the_cause(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A switch that is stopped while it sleeps is late itself, and not the network."""
    with scene(tmp_path_factory.mktemp("h"), Via.BRIDGE) as hosts:
        before = {cause: late(hosts, cause) for cause in ("network", "receiver")}
        for _ in range(10):
            ping = hosts.stacks["a"].spawn("ping", "-q", "-c", "5", "-i", "0.01", hosts.address("b"))
            os.kill(hosts.hosts[1].switch.pid, signal.SIGSTOP)
            time.sleep(0.15)
            os.kill(hosts.hosts[1].switch.pid, signal.SIGCONT)
            ping.popen.wait(10)
        here, network = (late(hosts, cause) - before[cause] for cause in ("receiver", "network"))
        assert here >= 10, (here, network)
        assert network <= here / 4, (here, network)


def test_frames_that_waited_for_a_link_are_called_late(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the kernel kept for its neighbour while the link was down arrives late, and is counted so."""
    with scene(tmp_path_factory.mktemp("h"), Via.BRIDGE) as hosts:
        net, a = hosts.underlay.net, hosts.stacks["a"]
        assert net is not None
        before = hosts.pair(2)
        net.run("ip link set eth1 down")
        ping = a.spawn("ping", "-c", "60", "-i", "0.005", "-W", "2", hosts.address("b"))
        time.sleep(0.4)
        net.run("ip link set eth1 up")
        ping.popen.wait(10)
        wait_for("an echo", lambda: a.try_run(f"ping -c 1 -W 1 {hosts.address('b')}").returncode == 0)
        times = [float(part.split()[0]) for part in ping.output().split("time=")[1:]]
        after = hosts.pair(2)
        counted = sum(
            after[certainty][cause] - before[certainty][cause]
            for certainty in ("late", "uncertain")
            for cause in ("sender", "network", "receiver")
        )
        assert counted + after["unjudged"] - before["unjudged"] >= sum(ms > 60 for ms in times), (
            times,
            after,
        )
