"""Requests in the words of the model reach the arithmetic, and its answers come back."""

from collections.abc import Iterator
from random import Random

import networks
import networkx
import pytest
from calculated import compared
from networks import ring, terms
from simulated import Flow, simulated

from tidegate_controller.decide.admission import Admission, Granted, Refused, Wanted
from tidegate_controller.decide.routes import MOST_WAYS, Routes, candidates
from tidegate_controller.model.paths import PathRequest, Route
from tidegate_controller.model.topology import Attachment, Port


def request(rate: int, budget: int) -> PathRequest:
    """From h0 to h2."""
    return networks.request(rate=rate, budget=budget)


def test_routes_are_tried_in_their_order() -> None:
    """The short way at the least urgent level, unless the budget or the links do not allow it."""
    topology = ring(5)
    routes = candidates(Routes(topology).ways("h0", "h2"), levels=2)
    assert [(len(route.links), route.level) for route in routes] == [(4, 1), (4, 0), (5, 1), (5, 0)]
    admission = Admission(terms(topology))

    def ask(name: str, rate: int, budget: int) -> Granted:
        return admission.change([], [Wanted(name, request(rate, budget), routes)])[0]

    lax = ask("a", 300_000_000, 10_000_000)
    assert (lax.route, lax.bound, lax.far_burst) == (routes[0], 8_002_000, 304_000)
    strict = ask("b", 10_000_000, 900_000)
    assert (strict.route, strict.bound) == (routes[1], 802_000)
    around = ask("c", 100_000_000, 1_100_000)
    assert around.route == routes[3]
    with pytest.raises(Refused) as refused:
        ask("d", 10_000_000, 700_000)
    assert "take at most 802us at level 0, and 700us are left of the deadline" in refused.value.reasons[1]
    with pytest.raises(Refused, match=r"s0:1>s1:1.*would be reserved") as refused:
        ask("e", 480_000_000, 10_000_000)
    assert len(refused.value.reasons) == 4
    assert admission.reservations() == ["a", "b", "c"]
    assert admission.change(["a", "b", "c"], []) == []
    assert all(usage["reserved-bits"] == 0 for usage in admission.usage())


def test_hosts_apart_have_no_way() -> None:
    """Nor have unknown hosts, a host and itself, and ways over links that are left out."""
    topology = ring(4)
    assert list(Routes(topology).ways("h0", "h9")) == []
    assert list(Routes(topology).ways("h0", "h0")) == []
    one, other = Routes(topology).ways("h0", "h2")
    assert list(Routes(topology).ways("h0", "h2", frozenset({one[1]}))) == [other]
    assert list(Routes(topology).ways("h0", "h2", frozenset({one[1], other[1]}))) == []
    topology.links.clear()
    assert list(Routes(topology).ways("h0", "h2")) == []
    topology.hosts["near"] = Attachment("near", Port("s0", 9), "10.0.0.9", "52:54:00:00:00:09")
    assert list(Routes(topology).ways("h0", "near")) == [("h0>s0:99", "s0:9>near")]


def test_few_ways_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all ways need the link that is left out: there are more ways than can ever be counted."""
    grid = [(n, n + 1) for n in range(49) if n % 7 != 6] + [(n, n + 7) for n in range(42)]
    topology = networks.network(50, [*grid, (48, 49)])
    looked, search = 0, networkx.shortest_simple_paths

    def counted(graph: "networkx.DiGraph[str]", source: str, target: str) -> Iterator[list[str]]:
        nonlocal looked
        for way in search(graph, source, target):
            looked += 1
            yield way

    monkeypatch.setattr(networkx, "shortest_simple_paths", counted)
    routes = Routes(topology)
    ends = topology.hosts["h0"].to_switch, topology.hosts["h49"].to_host
    for link in [*(link.name for link in topology.links), *ends]:
        looked, ways = 0, list(routes.ways("h0", "h49", frozenset({link})))
        assert looked <= MOST_WAYS
        assert len(ways) == (0 if link in (*ends, "s48:3>s49:1") else MOST_WAYS)
        assert not any(link in way for way in ways)


def test_parallel_links() -> None:
    """All of them are used, also where one is left out; a way over links of their own comes soon."""
    topology = networks.network(4, [(0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (0, 3), (3, 2)])
    ways = [way[1:-1] for way in Routes(topology).ways("h0", "h2")]
    first = [("s0:1>s1:1", "s1:3>s2:1"), ("s0:2>s1:2", "s1:4>s2:2"), ("s0:1>s1:1", "s1:5>s2:3")]
    detour = ("s0:3>s3:1", "s3:2>s2:4")
    assert sorted(ways) == sorted([*first, detour])
    left = [way[1:-1] for way in Routes(topology).ways("h0", "h2", frozenset(first[0]))]
    assert sorted(left) == sorted([first[1], ("s0:2>s1:2", "s1:5>s2:3"), detour])


def test_links_with_a_fault_are_named() -> None:
    """A level without a delay that fits the other's order, or a second link of one name."""
    link = terms(ring(3))[0]
    with pytest.raises(ValueError, match="declared twice"):
        Admission([link, link])


def test_a_route_that_is_none() -> None:
    """Links that do not meet are refused, not computed."""
    admission = Admission(terms(ring(3)))
    with pytest.raises(Refused, match="begins at"):
        admission.change([], [Wanted("x", request(1_000_000, 10**9), [Route(("h0>s0:99", "s1:2>s2:1"), 0)])])


@pytest.mark.parametrize("seed", [1, 2])
def test_no_packet_is_beyond_its_bound(seed: int) -> None:
    """On a ring that is filled; bench/admission.py has larger networks, crates/contract random ones."""
    random, topology = Random(seed), ring(5)
    links, flows = terms(topology), []
    admission, routes = Admission(links), Routes(topology)
    for number in range(60):
        source, target = random.sample(range(5), 2)
        rate = random.choice([1, 20, 60]) * 1_000_000
        wanted = networks.request(f"v{number}", source, target, rate)
        ways = candidates(routes.ways(wanted.source, wanted.target), 2)
        random.shuffle(ways)
        try:
            granted = admission.change([], [Wanted(wanted.name, wanted, ways)])[0]
        except Refused:
            continue
        flows.append(Flow(wanted, granted.route, granted.bound))
    worst = simulated({link.name: link for link in links}, flows, 20, random)
    assert (worst.frames, worst.beyond) == (20 * len(flows), 0)
    assert worst.nearest_hop > 0.3


def test_no_link_is_overbooked_by_an_independent_calculation() -> None:
    """Nor is a bound too short, nor a path refused that fits; bench/admission.py has more cases."""
    found = compared(2000, 7)
    assert (found.cases, found.overbooked, found.beyond, found.careful) == (2000, 0, 0, 0)
    assert found.granted > 300
    assert {"rate", "delay", "buffer", "frames", "budget"} <= set(found.limits)
