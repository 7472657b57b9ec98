"""Rules of switches, judged by walking frames."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from built import build, queues
from hypothesis import given
from hypothesis import strategies as st
from networks import network, networks, request, ring, terms
from walk import CONTROLLER, Cables, Frame, Sent, step, walk
from walk import frame_of as walk_frame

from tidegate_controller.decide.flood import Tree, carry, spanning
from tidegate_controller.decide.intent import Placed, hops, place
from tidegate_controller.decide.marks import BROADCAST, ICMPV6, Marks
from tidegate_controller.decide.routes import Routes
from tidegate_controller.model.intent import (
    ARP,
    BEST_EFFORT,
    IPV6,
    LLDP,
    OURS,
    Output,
    SwitchIntent,
    Table,
    control_queue,
)
from tidegate_controller.model.paths import EthernetKey, FlowKey, Path, Route
from tidegate_controller.model.topology import Attachment, Port, Topology
from tidegate_controller.openflow import codec
from tidegate_controller.openflow.change import Change

MARKS = Marks((46, 34))
TREE = 4000


def path(topology: Topology, source: int, target: int, way: int = 0, level: int = 0, tag: int = 7) -> Path:
    """A path on one of the ways; number 3."""
    ways = list(Routes(topology).ways(f"h{source}", f"h{target}"))
    asked = request(source=source, target=target)
    return Path(asked, Route(ways[way % len(ways)], level), 1, tag, 10**6, 5000, number=3)


def frame_of(path: Path) -> Frame:
    """A frame of the path as its host sends it."""
    return walk_frame(path.request, f"52:54:00:00:00:{int(path.request.target[1:]):02x}")


def intents(topology: Topology, *paths: Path) -> dict[str, SwitchIntent]:
    """All, with a tree."""
    return build(topology, paths, MARKS, [Tree(TREE, spanning(topology))], terms(topology))


def ends(sent: list[Sent]) -> list[Port]:
    """Where frames arrived."""
    return sorted(one.port for one in sent)


@given(networks(), st.data())
def test_a_path_goes_its_way(topology: Topology, data: st.DataObject) -> None:
    """By its links, in its queue, with its mark and tag; as sent at the end. Others are best effort."""
    count = len(topology.switches)
    source, target = data.draw(st.permutations(range(count)))[:2]
    level = data.draw(st.integers(0, 1))
    one = path(topology, source, target, data.draw(st.integers(0, 7)), level)
    held = intents(topology, one)
    begin, end = topology.hosts[f"h{source}"], topology.hosts[f"h{target}"]
    sent = frame_of(one)
    arrived, seen = walk(held, Cables(topology), begin.port, sent)
    assert arrived == [Sent(end.port, sent, level + 1)]
    assert [f"{step.port}" for step in seen] == [link.partition(">")[0] for link in one.route.links[1:]]
    inside = replace(sent, dscp=MARKS.levels[level], tag=7)
    assert all((step.frame, step.queue) == (inside, level + 1) for step in seen[:-1])
    field = data.draw(st.sampled_from(["dscp", "source", "source_port", "target_port", "protocol"]))
    values = {"dscp": st.integers(0, 63), "source": st.just("10.9.9.9"), "protocol": st.just(6)}
    value: Any = data.draw(values.get(field, st.integers(1, 65535)))
    other = replace(sent, **{field: value})
    if other != sent:
        arrived, seen = walk(held, Cables(topology), begin.port, other)
        cleared = replace(other, dscp=0) if other.dscp in MARKS.levels else other
        assert arrived == [Sent(end.port, cleared, BEST_EFFORT)]
        assert all(step.frame.tag == 0 for step in seen)


def plain(path: Path, vlan: int = 42) -> Path:
    """The same path between plain NICs."""
    key = EthernetKey(vlan, 5, "02:00:00:00:0a:01", "02:00:00:00:0b:01")
    return replace(path, request=replace(path.request, key=key, dscp=0))


@given(networks(), st.data())
def test_a_path_between_plain_nics(topology: Topology, data: st.DataObject) -> None:
    """It arrives as sent, marked in its tag on the way. Other frames with a tag do not come in."""
    source, target = data.draw(st.permutations(range(len(topology.switches))))[:2]
    level, vlan = data.draw(st.integers(0, 1)), data.draw(st.integers(8, 4094))
    one = plain(path(topology, source, target, data.draw(st.integers(0, 7)), level), vlan)
    held = intents(topology, one)
    begin, end = topology.hosts[f"h{source}"], topology.hosts[f"h{target}"]
    kinds = [(0x0800, 0), (0x0800, MARKS.levels[1 - level]), (IPV6, 10), (0x8892, None)]
    kind, dscp = data.draw(st.sampled_from(kinds))
    sent = replace(frame_of(one), eth_type=kind, dscp=dscp)
    arrived, seen = walk(held, Cables(topology), begin.port, sent)
    assert arrived == [Sent(end.port, sent, level + 1)]
    assert [f"{step.port}" for step in seen] == [link.partition(">")[0] for link in one.route.links[1:]]
    inside = replace(sent, tag=7, priority=7 - level)
    assert all((step.frame, step.queue) == (inside, level + 1) for step in seen[:-1])
    other: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {"tag": 7},
                {"tag": vlan % 4094 + 1},
                {"priority": 7 - level},
                {"priority": 0},
                {"eth_src": "02:00:00:00:0a:02"},
                {"eth_dst": "02:00:00:00:0b:02"},
            ]
        )
    )
    assert walk(held, Cables(topology), begin.port, replace(sent, **other)) == ([], [])
    elsewhere = topology.hosts[f"h{target}"].port
    assert walk(held, Cables(topology), elsewhere, sent) == ([], [])


def test_a_backup_and_a_level_between_plain_nics() -> None:
    """As with other paths: one rule for a level, a way with both tags; each rule has a message."""
    topology = ring(4)
    ways = list(Routes(topology).ways("h0", "h2"))
    low, high = (place(plain(path(topology, 0, 2, level=level)), MARKS) for level in (1, 0))
    assert (low.rules, low.groups, low.ingress[1].match) == (high.rules, high.groups, high.ingress[1].match)
    assert low.ingress != high.ingress
    backed = next(backed_up(topology, ways))
    one = plain(backed)
    held = intents(topology, one)
    begin, end = (topology.hosts[host].port for host in (one.request.source, one.request.target))
    for down in ((), (Port.parse(one.route.links[1].partition(">")[0]),)):
        arrived, _ = walk(held, Cables(topology), begin, frame_of(one), down)
        assert arrived == [Sent(end, frame_of(one), 1)]
    assert all(codec.encode(Change(None, rule)) for one in held.values() for rule in one.rules)


@given(networks())
def test_best_effort_and_broadcast(topology: Topology) -> None:
    """One frame to each host that is meant, by the fewest links; to no other."""
    held, cables = intents(topology), Cables(topology)
    for begin, end in product(topology.hosts.values(), repeat=2):
        arrived, seen = walk(held, cables, begin.port, Frame(end.mac))
        if begin == end:
            assert arrived == []
        else:
            assert ends(arrived) == [end.port]
            assert len(seen) == len(next(Routes(topology).ways(begin.host, end.host))) - 1
    asking = [Frame(BROADCAST), Frame(BROADCAST, ARP, None, None), Frame("33:33:ff:0:0:1", IPV6, 0, ICMPV6)]
    for begin, frame in product(topology.hosts.values(), asking):
        arrived, seen = walk(held, cables, begin.port, frame)
        assert ends(arrived) == sorted(host.port for host in topology.hosts.values() if host != begin)
        assert all(one.frame == frame for one in arrived)
        assert all(one.frame.tag == TREE for one in seen if one not in arrived)


def test_what_does_not_come_in() -> None:
    """Tags, LLDP and marks from hosts; all from ports that are neither of a host nor of a link."""
    topology = ring(3)
    one = path(topology, 0, 2)
    held, host = intents(topology, one)["s0"], topology.hosts["h0"].port
    mac = topology.hosts["h2"].mac
    for tag in (7, TREE, 1):
        assert step(held, "s0", host.number, Frame(mac, tag=tag)) == []
    assert step(held, "s0", host.number, Frame("01:80:c2:00:00:0e", LLDP, None, None)) == []
    lldp = Frame("01:80:c2:00:00:0e", LLDP, None, None)
    assert [one.port for one in step(held, "s0", 1, lldp)] == [CONTROLLER]
    assert [one.port for one in step(held, "s0", 50, lldp)] == [CONTROLLER]
    assert step(held, "s0", 50, Frame(mac)) == []
    for mark in range(64):
        (sent,) = step(held, "s0", host.number, Frame(mac, dscp=mark))
        assert sent.frame.dscp == (0 if mark in MARKS.levels else mark)
        assert sent.queue == BEST_EFFORT
    # The tag of the path by another port than its own.
    assert step(held, "s0", 1, Frame(mac, dscp=46, tag=7)) == []


def test_both_hosts_on_one_switch() -> None:
    """Its mark chooses the queue of the port, as elsewhere."""
    topology = ring(3)
    topology.hosts["h9"] = Attachment("h9", Port("s0", 98), "10.0.0.9", "52:54:00:00:00:09")
    asked = request(source=0, target=9)
    way = next(Routes(topology).ways("h0", "h9"))
    one = Path(asked, Route(way, 1), 1, 9, 10**6, 5000)
    arrived, _ = walk(intents(topology, one), Cables(topology), topology.hosts["h0"].port, frame_of(one))
    assert arrived == [Sent(Port("s0", 98), frame_of(one), 2)]


def test_ipv6_and_cookies() -> None:
    """Outer addresses may be IPv6; a rule tells which path it is of."""
    topology = ring(3)
    one = path(topology, 0, 1)
    key = FlowKey("fd00::1", "fd00::2", 40_000)
    one = replace(one, request=replace(one.request, key=key))
    frame = replace(frame_of(one), eth_type=IPV6)
    arrived, _ = walk(intents(topology, one), Cables(topology), topology.hosts["h0"].port, frame)
    assert arrived == [Sent(topology.hosts["h1"].port, frame, 1)]
    cookies = [rule.cookie for held in intents(topology, one).values() for rule in held.rules]
    assert set(cookies) == {OURS, OURS | 3}
    assert cookies.count(OURS | 3) == 3


def test_a_host_where_a_link_is() -> None:
    """The link counts: an agent that lies cuts no link."""
    topology = ring(3)
    topology.hosts["h9"] = Attachment("h9", Port("s0", 1), "10.0.0.9", "52:54:00:00:00:09")
    one = path(topology, 0, 1)
    arrived, _ = walk(intents(topology, one), Cables(topology), topology.hosts["h0"].port, frame_of(one))
    assert ends(arrived) == [topology.hosts["h1"].port]


def backed_up(topology: Topology, ways: list[tuple[str, ...]]) -> Iterator[Path]:
    """Paths on a way with a backup over other links."""
    for way, other in product(ways, repeat=2):
        if len(way) > 2 and set(way[1:-1]).isdisjoint(other[1:-1]):
            source, target = (int(end[1:]) for end in (way[0].split(">")[0], way[-1].split(">")[1]))
            asked = request(source=source, target=target)
            yield Path(asked, Route(way, 0), 1, 7, 10**6, 5000, backup=Route(other, 0))


@given(networks(), st.data())
def test_a_backup_is_taken_when_the_first_link_is_down(topology: Topology, data: st.DataObject) -> None:
    """Without a message to the controller; also where both ways share switches."""
    source, target = data.draw(st.permutations(range(len(topology.switches))))[:2]
    begin, end = topology.hosts[f"h{source}"], topology.hosts[f"h{target}"]
    for one in backed_up(topology, list(Routes(topology).ways(begin.host, end.host))):
        held, cables = intents(topology, one), Cables(topology)
        first = Port.parse(one.route.links[1].partition(">")[0])
        for down, route in (((), one.route), ((first,), one.backup)):
            assert route is not None
            arrived, seen = walk(held, cables, begin.port, frame_of(one), down)
            assert arrived == [Sent(end.port, frame_of(one), 1)]
            assert [str(step.port) for step in seen] == [link.partition(">")[0] for link in route.links[1:]]


@given(networks(), st.data())
def test_trees_that_change_make_no_storm(topology: Topology, data: st.DataObject) -> None:
    """Some switches have rules of the tree before, some of that after, or both; all cables work."""
    stages: list[dict[str, SwitchIntent]] = [{}]
    trees: list[Tree] = []
    for tag in (1, 2):
        down = data.draw(st.sets(st.sampled_from(sorted(topology.links))))
        part = replace(
            topology, links={link for link in topology.links if {link, link.back}.isdisjoint(down)}
        )
        trees.append(Tree(tag, spanning(part)))
        stages += [build(part, [], MARKS, trees), build(part, [], MARKS, trees[-1:])]
    held = {
        switch: data.draw(st.sampled_from(stages)).get(switch, SwitchIntent()) for switch in topology.switches
    }
    for host in topology.hosts.values():
        arrived, _ = walk(held, Cables(topology), host.port, Frame(BROADCAST))
        assert len(set(ends(arrived))) == len(arrived)


def test_a_level_is_one_rule() -> None:
    """A raise changes the ingress rule's actions, and no key."""
    topology = ring(4)
    low, high = (place(path(topology, 0, 2, level=level), MARKS) for level in (1, 0))
    assert (low.rules, low.groups) == (high.rules, high.groups)
    assert low.ingress[1].match == high.ingress[1].match
    assert low.ingress != high.ingress
    assert isinstance(low, Placed)


def test_queues_have_what_is_reserved() -> None:
    """By the rate on the wire and the burst at the end, on each port of the way; more where it was raised."""
    topology = ring(3)
    one, other = path(topology, 0, 1), path(topology, 0, 1, tag=8)
    link = one.route.links[1]
    found = queues(terms(topology), [one, other], MARKS, {(link, 1): 55_000_000})
    port = Port.parse(link.partition(">")[0])
    control, urgent, other_level, best = found[port]
    assert control == control_queue(2)
    assert urgent.minimum == 2 * -(-1_000_000 * (110 + 28) // 110)
    assert urgent.burst == 2 * -(-5000 * 114 // 110)
    assert (urgent.number, urgent.priority, other_level.minimum) == (1, 0, 55_000_000)
    assert sum(queue.minimum for queue in found[port]) == best.maximum == 1_000_000_000
    assert best.number == BEST_EFFORT
    assert [queue.priority for queue in found[port]] == [2, 0, 1, 2]
    # Ports of hosts' uplinks are not ours; each port of a switch has queues.
    assert set(found) == {link.source for link in topology.links} | {
        host.port for host in topology.hosts.values()
    }


def test_marks_are_different() -> None:
    """Two levels with one mark would share a queue."""
    for levels in ((46, 46), (0,), (64,)):
        with pytest.raises(ValueError, match="each level needs"):
            Marks(levels)
    for count in (0, 8):
        with pytest.raises(ValueError, match="there are 1 to 7 levels"):
            Marks(tuple(range(1, count + 1)))


@pytest.mark.parametrize("addresses", [("10.0.0.0", "10.0.0.2"), ("fd00::1", "fd00::2")])
def test_each_rule_has_a_message(addresses: tuple[str, str]) -> None:
    """Open vSwitch refuses a mark that is written into frames that may not be IP."""
    topology = ring(3)
    one = path(topology, 0, 2)
    one = replace(one, request=replace(one.request, key=FlowKey(*addresses, 40_000)))
    for held in intents(topology, one).values():
        assert all(codec.encode(Change(None, rule)) for rule in held.rules)


def test_links_between_switches_are_watched() -> None:
    """Those that are down, too: else they could not come back. Hosts have no BFD."""
    topology = ring(3)
    everything = terms(topology)
    ports = [link.source for link in topology.links]
    topology.links = set(sorted(topology.links)[1:])
    held = build(topology, [], MARKS, [Tree(TREE, spanning(topology))], everything)
    assert {Port(name, number) for name, one in held.items() for number in one.watched} == set(ports)


def test_hops() -> None:
    """Ports by which frames come and go."""
    topology = network(2, [(0, 1)])
    route = Route(next(Routes(topology).ways("h0", "h1")), 0)
    assert [(hop.switch, hop.arrive, hop.leave) for hop in hops(route)] == [("s0", 99, 1), ("s1", 1, 99)]
    assert carry(Tree(5, frozenset()), topology)["s0"].pop().actions[-1] == Output(99)
    assert Table.EDGE < Table.QUEUE < Table.WAY
