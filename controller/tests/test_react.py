"""Hysteresis, trends and remedies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import MBIT, networks, request, ring, terms

from tidegate_controller.decide.queues import Load
from tidegate_controller.decide.react import (
    GROWING,
    Calm,
    MoreRate,
    Remedy,
    Shortage,
    Trends,
    between,
    elsewhere,
    more_rate,
    remedies,
)
from tidegate_controller.decide.routes import Routes
from tidegate_controller.events import QueueSample
from tidegate_controller.model.paths import Path, Route
from tidegate_controller.model.topology import Port, Topology

PORT = Port("s0", 1)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=60))
def test_a_path_is_changed_once_in_the_hold_time(misses: list[tuple[float, float]]) -> None:
    """Whatever misses come: by misses of after the last change, and not before the hold time is over."""
    calm, now, last = Calm(5.0), 100.0, -1.0
    for after, ago in misses:
        now += after
        why = calm.kept("p", now - ago, now)
        if last < 0:
            assert why is None
        elif now - ago <= last:
            assert why is not None
            assert "under way" in why
        else:
            assert (why is None) == (now >= last + 5.0)
        if why is None:
            calm.changed("p", now)
            last = now
    calm.forget("p")
    assert calm.kept("p", now, now) is None


def test_kept_paths_are_told_once() -> None:
    """A flood of misses is no flood of decisions."""
    calm = Calm(5.0)
    assert [calm.tell("p", now) for now in (0.0, 1.0, 4.9, 5.0, 6.0)] == [True, False, False, True, False]
    calm.changed("p", 3.0)
    assert [calm.may("p", 7.0), calm.may("p", 8.0), calm.may("q", 0.0)] == [False, True, True]


def sample(drops: int = 0, backlog: int = 0, minimum: int = 5) -> QueueSample:
    """Of queue 1."""
    return QueueSample(PORT, 1, drops, backlog, minimum)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40_000)), min_size=1, max_size=12))
def test_trends(seen: list[tuple[int, int]]) -> None:
    """Drops within the last samples, or a backlog that grew through all of them."""
    trends = Trends()
    total = 0
    samples = []
    for drops, backlog in seen:
        total += drops
        samples.append((total, backlog))
        trends.add(sample(total, backlog))
        last = samples[-GROWING:]
        backlogs = [backlog for _, backlog in last]
        grows = len(last) == GROWING and backlogs == sorted(set(backlogs)) and backlogs[-1] > 16_000
        assert (trends.shortage(PORT, 1) is not None) == (last[-1][0] > last[0][0] or grows)
    trends.forget(PORT, 1)
    assert trends.shortage(PORT, 1) is None
    assert trends.minimum(PORT, 1) == 5
    assert trends.minimum(PORT, 2) is None
    trends.add(sample(0))
    assert trends.shortage(PORT, 1) is None


@given(
    st.lists(st.integers(0, 250 * MBIT), min_size=2, max_size=2),
    st.lists(st.integers(0, 250 * MBIT), min_size=2, max_size=2),
    st.none() | st.integers(0, 10**9),
    st.booleans(),
)
def test_more_rate_takes_nothing_from_others(
    reserved: list[int], raised: list[int], seen: int | None, short: bool
) -> None:
    """The sum of all levels stays reservable; a queue that is below what is reserved comes first."""
    link = next(one for one in terms(ring(3)) if one.reservable == 500 * MBIT)
    loads = {level: Load(rate, 0) for level, rate in enumerate(reserved)}
    others = max(reserved[1], raised[1])
    shortage = Shortage(PORT, 1, "s0:1 queue 1: 3 frames dropped") if short else None
    before = max(reserved[0], raised[0], MBIT)
    more = more_rate(link, 0, loads, dict(enumerate(raised)), seen, shortage)
    if seen is not None and seen < before:
        assert more is not None
        assert more.minimum == before
    elif not short:
        assert more is None
    elif more is not None:
        assert before < more.minimum <= link.reservable - others
        assert more.minimum <= before + before // 4
    else:
        assert link.reservable - others <= before or before < 4
    assert isinstance(more, MoreRate | None)


def path(topology: Topology, level: int) -> Path:
    """From h0 to h1, by the first way."""
    way = next(Routes(topology).ways("h0", "h1"))
    return Path(request(target=1), Route(way, level), 1, 7, 10**6, 5000)


@given(networks(), st.integers(0, 1))
def test_remedies(topology: Topology, level: int) -> None:
    """First more urgent levels of the same way; then others, none less urgent, none twice."""
    one = path(topology, level)
    ways = list(Routes(topology).ways("h0", "h1"))
    found = remedies(one, ways)
    assert one.route not in found
    assert len(found) == len(set(found)) == len(ways) * (level + 1) - 1
    assert all(route.level <= level for route in found)
    assert [route.links == one.route.links for route in found] == sorted(
        (route.links == one.route.links for route in found), reverse=True
    )
    avoided = one.route.links[1]
    assert all(avoided not in route.links for route in elsewhere(one, ways, avoided))
    ends = {frozenset(link.split(">")) for link in one.route.links[1:-1]}
    for way in Routes(topology).ways("h0", "h1", between(one.route)):
        assert ends.isdisjoint(frozenset(link.split(">")) for link in way[1:-1])


@given(networks(), st.integers(0, 1), st.frozensets(st.sampled_from(Remedy)))
def test_remedies_that_are_left_out(topology: Topology, level: int, allowed: frozenset[Remedy]) -> None:
    """What is left is what all have, less what is left out, in the same order."""
    one = path(topology, level)
    ways = list(Routes(topology).ways("h0", "h1"))

    def may(route: Route) -> bool:
        raises, moves = route.level < level, route.links != one.route.links
        return (Remedy.LEVEL in allowed or not raises) and (Remedy.ROUTE in allowed or not moves)

    assert remedies(one, ways, allowed) == [route for route in remedies(one, ways) if may(route)]
    avoided = one.route.links[1]
    left = elsewhere(one, ways, avoided, allowed)
    assert left == [route for route in elsewhere(one, ways, avoided) if may(route)]


def test_hosts_on_one_switch_have_no_backup() -> None:
    """There are no other links."""
    assert between(Route(("h0>s0:99", "s0:98>h9"), 0)) == frozenset()


@pytest.mark.parametrize("level", [0, 1])
def test_nothing_is_left_on_a_line(level: int) -> None:
    """One way only: more urgent levels are all there is."""
    topology = networks_line()
    one = path(topology, level)
    assert [route.level for route in remedies(one, [one.route.links])] == list(range(level - 1, -1, -1))


def networks_line() -> Topology:
    """Two switches."""
    topology = ring(3)
    topology.links = {
        link for link in topology.links if {link.source.switch, link.target.switch} == {"s0", "s1"}
    }
    return topology
