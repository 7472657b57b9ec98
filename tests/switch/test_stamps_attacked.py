"""Stamped frames on a network that changes, copies, delays and loses them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.network import PROGRAM, Rule, has_program
from lab.process import wait_for
from lab.two_hosts import TwoHosts

MS = 1_000_000
PROMISE = ('tx = { max = "8mbit", burst = "4kB" }', 'rx = { max = "1gbit" }', 'deadline = "20ms"')
TERMS = {"a": (*PROMISE, 'to = ["b"]'), "b": (*PROMISE, 'to = ["a"]')}
FROM_A: Rule = {"name": "a", "from": "eth1", "stamped": True}
"""Stamped frames of the first host."""
COUNT = 50


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """Two hosts with a vNIC each, a and b, which have deadlines towards each other."""
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


def pinged(hosts: TwoHosts, *rules: Rule) -> tuple[str, dict[str, int]]:
    """Echoes from a to b under these rules: what ping says, and what host 2 has counted meanwhile."""
    before = hosts.pair(2)
    hosts.underlay.rules.plan(*rules)
    said = hosts.stacks["a"].try_run(f"ping -c {COUNT} -i 0.005 -s 100 -W 1 {hosts.address('b')}").stdout
    hosts.underlay.rules.plan()
    after = hosts.pair(2)
    return said, {key: after[key] - before[key] for key in after if isinstance(after[key], int)}


def received(said: str) -> int:
    """Echoes that came back."""
    return int(said.partition(" received")[0].rpartition(" ")[2])


def settle(hosts: TwoHosts) -> None:
    """Let the window pass all that was sent: of frames before, none is lost later."""
    hosts.stacks["a"].run(f"ping -q -c 140 -i 0.002 {hosts.address('b')}")


def test_an_untouched_stamp_is_accepted(hosts: TwoHosts) -> None:
    """Each frame once, in order."""
    said, counts = pinged(hosts)
    assert " 0% packet loss" in said
    assert counts["arrived"] == COUNT
    assert [counts[name] for name in ("lost", "forged", "replayed", "reordered")] == [0, 0, 0, 0]


@pytest.mark.parametrize("place", [-1, -9, -25, -28], ids=["tag", "sequence", "time", "deadline"])
def test_a_forged_stamp_is_none(hosts: TwoHosts, place: int) -> None:
    """A changed stamp with a right checksum: no stamp of ours, so the frame is delivered unchanged."""
    said, counts = pinged(hosts, {**FROM_A, "flip": place, "forge": True})
    # Best effort now: a busy worker drops what it has held for 10 ms.
    assert received(said) > COUNT / 2
    assert (counts["forged"], counts["arrived"]) == (COUNT, 0)


def test_a_head_that_does_not_fit_its_stamp_is_forged(hosts: TwoHosts) -> None:
    """The IP addresses inside, which the tag covers: the last byte of the sender's."""
    inner_source = 14 + 20 + 8 + 8 + 14 + 15
    _, counts = pinged(hosts, {**FROM_A, "flip": inner_source, "forge": True})
    assert (counts["forged"], counts["arrived"]) == (COUNT, 0)


def test_a_replayed_frame_is_dropped(hosts: TwoHosts) -> None:
    """Of a frame and two copies, at once and later, the receiver gets one."""
    said, counts = pinged(hosts, {**FROM_A, "copies": 2, "copy_after_ns": [0, 60 * MS]})
    assert received(said) == COUNT
    assert "duplicates" not in said
    wait_for("the last copy", lambda: hosts.pair(2)["replayed"] >= 2 * COUNT)
    assert counts["arrived"] == COUNT
    assert hosts.pair(2)["replayed"] == 2 * COUNT


def test_reordered_frames_are_all_delivered(hosts: TwoHosts) -> None:
    """Frames that others overtake are counted as such, neither as lost nor as replayed."""
    settle(hosts)
    said, counts = pinged(hosts, {**FROM_A, "share": 0.3, "delay_ns": [15 * MS, 40 * MS]})
    assert " 0% packet loss" in said
    assert counts["arrived"] == COUNT
    assert 0 < counts["reordered"] <= COUNT
    assert (counts["lost"], counts["replayed"]) == (0, 0)


def test_lost_and_corrupted_frames_are_counted_as_lost(hosts: TwoHosts) -> None:
    """What the network lost, and what the kernel refused for its checksum, once it can no longer arrive."""
    settle(hosts)
    before, network = hosts.pair(2)["lost"], hosts.underlay.rules
    known = sum(1 for _ in network.records())
    lose = {**FROM_A, "name": "lost", "share": 0.2, "lose": True}
    harm = {**FROM_A, "name": "harmed", "share": 0.2, "flip": -9}
    pinged(hosts, lose, harm, {**FROM_A, "record": False})
    settle(hosts)
    gone = sum(1 for _ in network.records()) - known
    assert 5 <= gone <= 35
    assert hosts.pair(2)["lost"] - before == gone
