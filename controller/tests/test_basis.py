"""Rules of no path that follow the topology, while broadcast frames are under way."""

from random import Random

from built import build
from hypothesis import given
from hypothesis import strategies as st
from networks import networks
from walk import Cables, Frame, walk

from tidegate_controller.decide.basis import Basis
from tidegate_controller.decide.flood import Tree, spanning
from tidegate_controller.decide.marks import BROADCAST, Marks
from tidegate_controller.decide.move import Order, Update, Wait, key
from tidegate_controller.decide.phases import Phase
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.topology import Topology

MARKS = Marks()


def part(topology: Topology, random: Random) -> Topology:
    """Some links are gone, in both directions."""
    down = {link for link in sorted(topology.links) if random.random() < 0.2}
    up = {link for link in topology.links if {link, link.back}.isdisjoint(down)}
    return Topology(set(topology.switches), up, dict(topology.hosts))


@given(networks(), st.integers())
def test_trees_follow_without_a_storm(topology: Topology, seed: int) -> None:
    """At each instant a broadcast frame arrives at most once at a host; the rules are exact at the end."""
    random = Random(seed)
    basis, live = Basis(MARKS), {switch: SwitchIntent() for switch in topology.switches}
    cables = Cables(topology)
    tree = Tree(0, frozenset())
    for tag in range(1, 5):
        now = part(topology, random)
        if spanning(now) != tree.links or not tree.tag:
            tree = Tree(tag, spanning(now))
        orders: list[Order] = basis.follow(now, tree)
        while basis.phase != Phase.IDLE:
            assert basis.tags >= {tree.tag}
            one = orders.pop(random.randrange(len(orders)))
            if isinstance(one, Wait):
                assert basis.elapsed(one.serial + 1) == []
                orders += basis.elapsed(one.serial)
                continue
            update(live[one.switch], one)
            orders += basis.done(one.serial, one.switch)
            host = random.choice(sorted(topology.hosts.values()))
            arrived, _ = walk(live, cables, host.port, Frame(BROADCAST))
            assert len({sent.port for sent in arrived}) == len(arrived)
        expected = build(now, [], MARKS, [tree])
        assert {switch: held.rules for switch, held in live.items()} == {
            switch: held.rules for switch, held in expected.items()
        }
        assert basis.held() == {switch: held.rules for switch, held in expected.items()}
        assert basis.tags == {tree.tag}


def update(held: SwitchIntent, one: Update) -> None:
    """A switch does it."""
    changed = {key(rule) for rule in one.rules | one.gone}
    held.rules = {rule for rule in held.rules if key(rule) not in changed} | one.rules
