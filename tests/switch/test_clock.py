"""What hosts tell each other beside frames: clocks, and vNICs that moved."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.network import PROGRAM, Rule, has_program
from lab.process import wait_for
from lab.two_hosts import TwoHosts
from lab.underlay import ADDRESSES, Underlay, Via, uplink

VNI = 42
MS = 1_000_000
PROMISE = ('tx = { max = "8mbit", burst = "4kB" }', 'rx = { max = "1gbit" }', 'deadline = "20ms"')
TERMS = {"a": (*PROMISE, 'to = ["b"]'), "b": (*PROMISE, 'to = ["a"]')}
NOTICES: Rule = {"name": "notices", "udp_port": 29796, "record": False}
KEYS = ("00112233445566778899aabbccddeef0", "ffeeddccbbaa99887766554433221100")
EXCHANGES = 40
"""Enough for the drift to be known."""


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """The network between two hosts."""
    need("network namespaces: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    with Underlay(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """Two hosts on a network by rules, with a vNIC each, which have deadlines towards each other."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need(f"{PROGRAM}: cargo build --release -p tidegate-bench", has_program())
    need_commands("ping", "ethtool")
    with ExitStack() as cleanup:
        made = TwoHosts(tmp_path_factory.mktemp("h"), ["a", "b"], cleanup)
        made.apply(TERMS, ['latency = "1ms"'])
        made.settle()
        yield made
        for host in made.hosts:
            host.check_alive()


def keys(path: Path, key: str) -> str:
    """The key of the segment, in a file for its owner only."""
    path.touch(0o600)
    path.write_text(key + "\n")
    return f'[segment.{VNI}]\nkey-file = "{path}"\n\n'


def peers(host: Host) -> dict[str, dict[str, Any]]:
    """What `tidegate clock` says of each other host."""
    return {peer["name"]: peer for peer in json.loads(host.cli("clock", "--json"))["peers"]}


def far(host: Host) -> dict[str, Any]:
    """What it says of the only other host."""
    return peers(host)["far"]


def knows(host: Host) -> bool:
    """Whether the clock of the peer is known well."""
    return far(host)["counts"]["exchanges"] >= EXCHANGES and "clock" in far(host)


def ping_ns(stack: Stack, version: int) -> float:
    """The least round trip of an echo between the hosts."""
    said = stack.run(f"ping -c 20 -i 0.01 {ADDRESSES[version][1]}")
    return float(said.rsplit(" = ", 1)[1].split("/")[0]) * 1e6


@pytest.mark.parametrize("version", [pytest.param(4, marks=pytest.mark.nightly), 6])
def test_the_offset_of_one_clock_to_itself_is_zero_within_the_error(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, version: int
) -> None:
    """Both hosts have one CLOCK_MONOTONIC_RAW: the true offset is 0, and the error must say so."""
    folder = tmp_path_factory.mktemp("h")
    shared = keys(folder / "key", KEYS[0])
    with underlay.host(1, folder / "1") as one, underlay.host(2, folder / "2") as two:
        one.apply(uplink(1, version=version) + shared)
        assert not far(one)["reachable"]
        two.apply(uplink(2, version=version) + shared)
        for host in (one, two):
            wait_for("exchanges", partial(knows, host))
            found = far(host)
            clock = found["clock"]
            assert abs(clock["offset_ns"]) <= clock["error_ns"], found
            assert clock["error_ns"] <= 10 * found["round_trip"]["least_ns"], found
            assert "refused" not in found["counts"] or "forged" not in found["counts"]["refused"], found
        # A switch's thread is woken twice: more than the kernel's echo takes, and not a hundred times that.
        assert far(one)["clock"]["error_ns"] <= 100 * ping_ns(underlay.one, version)
        said = one.cli("clock")
        assert "far" in said
        assert "CLOCK_MONOTONIC_RAW" in said
        metrics = one.get("/metrics")
        for name in ("clock_offset_seconds", "clock_error_seconds", "round_trip_seconds", "reachable"):
            assert f'tidegate_peer_{name}{{peer="far"}}' in metrics, name
        # Another process of the switch: its clock is asked anew.
        two.switch.kill()
        wait_for("silence", lambda: not far(one)["reachable"], timeout=30)
        two.start_switch()
        wait_for("a restart", lambda: far(one)["counts"]["restarts"] == 1 and knows(one), timeout=30)
        one.check_alive()
        two.check_alive()


@pytest.mark.abreast
def test_a_host_without_the_key_is_not_believed(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Notices under another key are refused and counted, and no clock is known."""
    folder = tmp_path_factory.mktemp("h")
    with underlay.host(1, folder / "1") as one, underlay.host(2, folder / "2") as two:
        one.apply(uplink(1) + keys(folder / "key1", KEYS[0]))
        two.apply(uplink(2) + keys(folder / "key2", KEYS[1]))
        wait_for("refusals", lambda: far(one)["counts"].get("refused", {}).get("forged", 0) > 3)
        found = far(one)
        assert "clock" not in found
        assert not found["reachable"]
        assert 'tidegate_peer_refused_notices_total{peer="far",reason="forged"}' in one.get("/metrics")
        assert "the segment's key the same" in one.cli("clock")
        two.apply(uplink(2) + keys(folder / "key2", KEYS[0]))
        wait_for("exchanges", lambda: knows(one))


@pytest.mark.abreast
def test_a_peer_that_shares_no_key_is_not_asked(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a key, and for another kind of host, the command says what is missing."""
    folder = tmp_path_factory.mktemp("h")
    with underlay.host(1, folder / "1") as one:
        one.apply(uplink(1))
        assert "has a key" in far(one)["unasked"]
        one.apply(uplink(1, peer=["stamps = false"]) + keys(folder / "key", KEYS[0]))
        assert "stamps = false" in far(one)["unasked"]
        assert "no Tidegate host" in one.cli("clock")


@pytest.mark.abreast
def test_a_taken_port_of_notices_is_refused_with_what_to_do(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another program has the port: the refusal names the key to change, and the changed contract works."""
    folder = tmp_path_factory.mktemp("h")
    local = ADDRESSES[4][0]
    hold = f"import socket, time; s = socket.socket(type=2); s.bind(('{local}', 29796)); print('held')"
    with underlay.host(1, folder / "1") as one, ExitStack() as held:
        other = underlay.one.spawn("python3", "-u", "-c", f"{hold}; time.sleep(99)")
        held.callback(other.kill)
        other.wait_for("the port", lambda: "held" in other.output())
        done = one.try_cli("apply", "-f", one.file(uplink(1)))
        assert done.returncode != 0
        assert "another notice-port" in done.stderr
        one.apply(uplink(1, "notice-port = 29797"))


@pytest.mark.abreast
def test_frames_follow_a_vnic_from_host_to_host(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A vNIC moves from host 2 to host 3 and back: host 1, whose contract says host 2, sends where it is."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    folder = tmp_path_factory.mktemp("h")
    shared = keys(folder / "key", KEYS[0])
    macs = {"a": "52:54:00:00:0b:0a", "b": "52:54:00:00:0b:0b"}
    echo = "ping -c 1 -W 1 10.11.0.2"
    remote = f'[remote.b]\nmac = "{macs["b"]}"\nsegment = {VNI}\npeer = "host2"\n\n'
    with ExitStack() as cleanup:
        net = cleanup.enter_context(Underlay(tmp_path, hosts=3, via=Via.BRIDGE))
        one, two, three = (
            cleanup.enter_context(net.host(number, folder / str(number))) for number in (1, 2, 3)
        )
        a = cleanup.enter_context(Stack(folder / "a"))

        def arrives(host: Host, number: int) -> None:
            """The VM comes up at a host, which does not send first: no frame tells where it is."""
            b = cleanup.enter_context(Stack(folder / f"b{number}"))
            b.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
            host.apply(tap_vnic("b", b.path, macs["b"], "mtu = 1450", segment=VNI))
            b.address("eth0", "10.11.0.2/24")
            b.run(f"ip neigh replace 10.11.0.1 lladdr {macs['a']} dev eth0")
            wait_for("an echo", lambda: a.try_run(echo).returncode == 0)
            assert " 0% packet loss" in a.run("ping -c 20 -i 0.01 10.11.0.2")

        one.apply(
            uplink(1, hosts=3) + remote + shared + tap_vnic("a", a.path, macs["a"], "mtu = 1450", segment=VNI)
        )
        for number, host in ((2, two), (3, three)):
            host.apply(uplink(number, hosts=3) + shared)
        a.address("eth0", "10.11.0.1/24")
        a.run(f"ip neigh replace 10.11.0.2 lladdr {macs['b']} dev eth0")
        wait_for("exchanges", lambda: all(of["reachable"] for of in peers(one).values()))
        assert a.try_run(echo).returncode != 0, "it is nowhere yet"
        for number, host in enumerate((two, three, two)):
            arrives(host, number)
            assert peers(one)["host3" if host is three else "host2"]["counts"]["announcements_received"] > 0
            if number < 2:
                host.cli("vnic", "rm", "b")
        for host in (one, two, three):
            host.check_alive()


def test_ways_of_different_length_stay_within_the_error(hosts: TwoHosts) -> None:
    """One way takes 4 ms, the other none: the offset is wrong by 2 ms, and the error says so."""
    one = hosts.hosts[0]
    wait_for("exchanges", lambda: knows(one))
    assert far(one)["clock"]["error_ns"] < MS
    hosts.underlay.rules.plan({**NOTICES, "from": "eth1", "delay_ns": [4 * MS, 6 * MS]})
    before = far(one)["counts"]["exchanges"]
    wait_for("a window of long ways", lambda: far(one)["counts"]["exchanges"] > before + 33)
    found = far(one)
    hosts.underlay.rules.plan()
    assert found["round_trip"]["least_ns"] >= 4 * MS
    assert MS < abs(found["clock"]["offset_ns"]) <= found["clock"]["error_ns"], found
    assert found["clock"]["error_ns"] <= found["round_trip"]["least_ns"], found


def test_copied_and_changed_notices_are_refused(hosts: TwoHosts) -> None:
    """A network that doubles notices, and one that changes them: nothing of it is believed."""
    one = hosts.hosts[0]
    wait_for("exchanges", lambda: knows(one))

    def refused(why: str) -> int:
        return int(far(one)["counts"].get("refused", {}).get(why, 0))

    hosts.underlay.rules.plan({**NOTICES, "copies": 1, "copy_after_ns": [MS, MS]})
    wait_for("second answers", lambda: refused("unasked") >= 4)
    hosts.underlay.rules.plan({**NOTICES, "flip": -9, "forge": True})
    wait_for("changed notices", lambda: refused("forged") >= 4)
    hosts.underlay.rules.plan()
    before = far(one)["counts"]["exchanges"]
    wait_for("exchanges", lambda: far(one)["counts"]["exchanges"] > before)
    clock = far(one)["clock"]
    assert abs(clock["offset_ns"]) <= clock["error_ns"]


def test_frames_late_in_the_network_are_told_to_their_host(hosts: TwoHosts) -> None:
    """Stamped frames of a are delayed beyond their deadline: `why a` says where, how much, how many."""
    one = hosts.hosts[0]
    for host in hosts.hosts:
        wait_for("exchanges", partial(knows, host))
    late = {"name": "late", "from": "eth1", "stamped": True, "delay_ns": [40 * MS, 40 * MS]}
    hosts.underlay.rules.plan(late)
    hosts.stacks["a"].try_run(f"ping -c 10 -i 0.05 -W 1 {hosts.address('b')}")
    hosts.underlay.rules.plan()

    def told() -> list[dict[str, Any]]:
        return list(json.loads(one.cli("why", "a", "--json")).get("far_misses", []))

    wait_for("ten late frames", lambda: sum(1 + miss["others"] for miss in told()) >= 10)
    miss = told()[-1]
    assert (miss["peer"], miss["cause"], miss["dst"]) == ("far", "network", hosts.mac("b")), miss
    # Late by 20 ms at least, since Td is 20 ms and the network took 40 ms.
    assert miss["late_ns"] + miss["error_ns"] >= 20 * MS, miss
    # The frame came at the earliest since the worker last looked: the rest counts as time there.
    assert miss["network_ns"] + miss["there_ns"] + miss["error_ns"] >= 40 * MS, miss
    assert miss["network_ns"] > miss["there_ns"], miss
    assert far(one)["counts"]["late_frames"] >= 10
    said = one.cli("why", "a")
    assert "Late at other hosts" in said
    assert "cause: network" in said
    assert 'tidegate_peer_late_frames_total{peer="far"}' in one.get("/metrics")
