"""What hosts tell each other beside frames: clocks, and vNICs that moved."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.underlay import ADDRESSES, Underlay, uplink

VNI = 42
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


def keys(path: Path, key: str) -> str:
    """The key of the segment, in a file for its owner only."""
    path.touch(0o600)
    path.write_text(key + "\n")
    return f'[segment.{VNI}]\nkey-file = "{path}"\n\n'


def far(host: Host) -> dict[str, Any]:
    """What `tidegate clock` says of the other host."""
    (found,) = [one for one in json.loads(host.cli("clock", "--json"))["peers"] if one["name"] == "far"]
    assert isinstance(found, dict)
    return found


def knows(host: Host) -> bool:
    """Whether the clock of the peer is known well."""
    return far(host)["counts"]["exchanges"] >= EXCHANGES and "clock" in far(host)


def ping_ns(stack: Stack, version: int) -> float:
    """The least round trip of an echo between the hosts."""
    said = stack.run(f"ping -c 20 -i 0.01 {ADDRESSES[version][1]}")
    return float(said.rsplit(" = ", 1)[1].split("/")[0]) * 1e6


@pytest.mark.parametrize("version", [4, 6])
def test_the_offset_of_one_clock_to_itself_is_zero_within_the_error(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory, version: int
) -> None:
    """Both hosts are one machine with one CLOCK_MONOTONIC_RAW: the true offset is 0, and the error must say so."""
    folder = tmp_path_factory.mktemp("h")
    shared = keys(folder / "key", KEYS[0])
    with underlay.host(1, folder / "1") as one, underlay.host(2, folder / "2") as two:
        one.apply(uplink(1, version=version) + shared)
        assert not far(one)["reachable"]
        two.apply(uplink(2, version=version) + shared)
        for host in (one, two):
            wait_for("exchanges", lambda host=host: knows(host))
            found = far(host)
            clock = found["clock"]
            assert abs(clock["offset_ns"]) <= clock["error_ns"], found
            assert clock["error_ns"] <= 10 * found["round_trip"]["least_ns"], found
            assert "refused" not in found["counts"] or "forged" not in found["counts"]["refused"], found
        # A switch's thread is woken twice: more than the kernel's echo takes, and not a hundred times that.
        assert far(one)["clock"]["error_ns"] <= 100 * ping_ns(underlay.one, version)
        said = one.cli("clock")
        assert "far" in said and "CLOCK_MONOTONIC_RAW" in said
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
        assert "clock" not in found and not found["reachable"]
        assert 'tidegate_peer_refused_notices_total{peer="far",reason="forged"}' in one.get("/metrics")
        assert "the segment's key the same" in one.cli("clock")
        two.apply(uplink(2) + keys(folder / "key2", KEYS[0]))
        wait_for("exchanges", lambda: knows(one))


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


def test_a_taken_port_of_notices_is_refused_with_what_to_do(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another program has the port: the refusal names the key to change, and the changed contract works."""
    folder = tmp_path_factory.mktemp("h")
    local = ADDRESSES[4][0]
    hold = f"import socket, time; s = socket.socket(type=2); s.bind(('{local}', 29796)); print('held'); time.sleep(99)"
    with underlay.host(1, folder / "1") as one, ExitStack() as held:
        other = underlay.one.spawn("python3", "-u", "-c", hold)
        held.callback(other.kill)
        other.wait_for("the port", lambda: "held" in other.output())
        done = one.try_cli("apply", "-f", one.file(uplink(1)))
        assert done.returncode != 0
        assert "another notice-port" in done.stderr
        one.apply(uplink(1, "notice-port = 29797"))


def test_frames_follow_a_vnic_to_the_host_that_announces_it(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A remote is declared at a host where it is not: frames reach it where it is, once its host announces it."""
    folder = tmp_path_factory.mktemp("h")
    shared = keys(folder / "key", KEYS[0])
    macs = {"a": "52:54:00:00:0b:0a", "b": "52:54:00:00:0b:0b"}
    declared_elsewhere = (
        '[uplink.net0.peer.gone]\naddress = "192.0.2.9"\n\n'
        f'[remote.b]\nmac = "{macs["b"]}"\nsegment = {VNI}\npeer = "gone"\n\n'
    )
    with (
        underlay.host(1, folder / "1") as one,
        underlay.host(2, folder / "2") as two,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
    ):
        one.apply(
            uplink(1) + declared_elsewhere + shared + tap_vnic("a", a.path, macs["a"], "mtu = 1450", segment=VNI)
        )
        two.apply(uplink(2) + shared)
        a.address("eth0", "10.11.0.1/24")
        a.run(f"ip neigh add 10.11.0.2 lladdr {macs['b']} dev eth0")
        wait_for("exchanges", lambda: far(one)["reachable"])
        assert a.try_run("ping -c 1 -W 1 10.11.0.2").returncode != 0
        two.apply(uplink(2) + shared + tap_vnic("b", b.path, macs["b"], "mtu = 1450", segment=VNI))
        b.address("eth0", "10.11.0.2/24")
        b.run(f"ip neigh add 10.11.0.1 lladdr {macs['a']} dev eth0")
        wait_for("an echo", lambda: a.try_run("ping -c 1 -W 1 10.11.0.2").returncode == 0)
        assert " 0% packet loss" in a.run("ping -c 20 -i 0.01 10.11.0.2")
        assert far(one)["counts"]["announcements_received"] > 0
