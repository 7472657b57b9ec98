"""The network between hosts by rules: what it does to real stacks, and what it records."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.network import PROGRAM, has_program
from lab.underlay import ADDRESSES, Underlay, Via

MS = 1_000_000


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """Three hosts on a network by rules."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need(f"{PROGRAM}: cargo build --release -p tidegate-bench", has_program())
    need_commands("ping", "ethtool")
    with Underlay(tmp_path, hosts=3, via=Via.RULES) as made:
        yield made


def test_a_network_without_rules_joins_three_hosts(underlay: Underlay) -> None:
    """Every host reaches every other one, by IPv4 and IPv6, and nothing is recorded."""
    for host in underlay.hosts:
        for address in (*ADDRESSES[4], *ADDRESSES[6]):
            assert " 0% packet loss" in host.run(f"ping -c 2 -i 0.01 -W 2 {address}")
    totals = underlay.rules.end()
    assert totals["sent"] >= totals["received"] > 0
    assert totals["lost"] == totals["full"] == totals["refused"] == totals["unseen"] == 0
    assert not list(underlay.rules.records())


def test_delays_are_kept_and_recorded(underlay: Underlay) -> None:
    """No frame leaves before its time, and the record has the time that it took."""
    echo = f"ping -c 20 -i 0.01 -W 2 {ADDRESSES[4][1]}"
    underlay.one.run(echo)
    underlay.rules.plan({"name": "late", "from": "eth1", "delay_ns": [5 * MS, 9 * MS]})
    text = underlay.one.run(echo)
    assert " 0% packet loss" in text
    fastest = float(text.rpartition("= ")[2].split("/")[0])
    assert fastest >= 5, text
    underlay.rules.end()
    records = [record for record in underlay.rules.records() if record["to"] == "eth2"]
    assert len(records) >= 20
    for record in records:
        assert 5 * MS <= record["planned_ns"] <= 9 * MS
        assert record["delay_ns"] >= record["planned_ns"]


def test_frames_are_lost_and_doubled(underlay: Underlay) -> None:
    """Replies that come twice are seen twice; requests that are lost have no reply; others pass."""
    ping = f"ping -c 10 -i 0.01 -W 1 {ADDRESSES[4][1]}"
    underlay.one.run(ping)
    underlay.rules.plan({"name": "twice", "from": "eth2", "copies": 1, "copy_after_ns": [MS, MS]})
    assert "+" in underlay.one.run(ping), "duplicates"
    underlay.rules.plan({"name": "gone", "from": "eth1", "lose": True})
    assert "100% packet loss" in underlay.one.try_run(ping).stdout
    underlay.rules.plan()
    assert " 0% packet loss" in underlay.one.run(ping)


def test_a_rate_has_a_queue_of_so_many_frames(underlay: Underlay) -> None:
    """A burst above the rate waits its turn, and what the queue does not hold is lost."""
    underlay.one.run(f"ping -c 2 {ADDRESSES[4][1]}")
    underlay.rules.plan({"name": "paced", "from": "eth1"}, rate_bps=10_000_000, queue=10)
    underlay.one.run(f"ping -c 40 -l 40 -s 1200 -i 0.01 -W 1 {ADDRESSES[4][1]} || true")
    totals = underlay.rules.end()
    assert totals["full"] > 0
    records = [record for record in underlay.rules.records() if record["from"] == "eth1"]
    sent = [record for record in records if record["fate"] == "sent"]
    assert len(sent) + totals["full"] == len(records)
    frame = 1242 * 8 * 100
    assert max(record["planned_ns"] for record in sent) <= 10 * frame
    leaves = sorted(record["arrived_ns"] + record["planned_ns"] for record in sent if record["bytes"] == 1242)
    assert all(after - before >= frame - 1 for before, after in pairwise(leaves))
