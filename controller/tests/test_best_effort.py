"""Best effort between plain NICs against a model that knows no rules: who is to get a frame, and how often.

```text
 hosts, links at random ─▶ BestEffort ─▶ orders, in any order, some lost ─▶ live rules ─▶ frames walk
                           model: places, reachable hosts, fewest links ─────────────────▶ the same
```
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import attached, network, networks, ring
from test_basis import part, update
from walk import Cables, Frame, Sent, step, walk

from tidegate_controller import events as ev
from tidegate_controller.best_effort import BestEffort
from tidegate_controller.decide import base
from tidegate_controller.decide.flood import Tree, spanning
from tidegate_controller.decide.layout import SPARE, as_kept, pruned
from tidegate_controller.decide.marks import BROADCAST, RESERVED, Marks
from tidegate_controller.decide.move import Order, Update, Wait
from tidegate_controller.decide.phases import Phase
from tidegate_controller.decide.places import Places, permitted
from tidegate_controller.decide.plain import Plain
from tidegate_controller.engine import Engine, Settings
from tidegate_controller.model.hosts import Allowed, MacRange
from tidegate_controller.model.intent import BEST_EFFORT, LLDP, SwitchIntent, Table
from tidegate_controller.model.plain import NOTHING, Behind, HostTag, Place, Tagged
from tidegate_controller.model.topology import Port, Topology
from tidegate_controller.openflow import codec
from tidegate_controller.openflow.change import Change

MARKS = Marks((46, 34))
VLANS = (10, 20)
MACS = [f"02:00:00:00:0a:{number:02x}" for number in range(6)]
UNKNOWN = "02:00:00:00:0b:01"
GROUP = "01:00:5e:00:00:01"
A, B, C = MACS[:3]
FEW = settings(max_examples=max(1, settings().max_examples // 4))
"""Each example has many orders."""


def behind(*places: tuple[int, str], vlans: tuple[int, ...] = ()) -> Behind:
    """These vNICs, and their VLANs and more."""
    return Behind(
        frozenset({*vlans, *(vlan for vlan, _ in places)}), frozenset(Place(*one) for one in places)
    )


def frame(target: str, source: str = A, vlan: int = 10, priority: int = 0, eth_type: int = 0x0806) -> Frame:
    """A frame of h0's vNIC."""
    return Frame(target, eth_type, None, None, tag=vlan, eth_src=source, priority=priority)


@dataclass
class Net:
    """Switches that do what they are told, around what decides."""

    topology: Topology
    """With all cables."""
    random: Random
    settings: Settings = field(default_factory=Settings)
    faults: float = 0.0

    def __post_init__(self) -> None:
        self.engine = Engine(self.settings)
        self.subject = BestEffort(self.engine)
        self.now = Topology(set(self.topology.switches), set(self.topology.links), dict(self.topology.hosts))
        # All ports stay open: the worst case for a circle.
        self.base = base.rules(self.topology, MARKS)
        self.live = {switch: SwitchIntent(set(rules)) for switch, rules in self.base.items()}
        self.hosts: dict[str, Behind] = {}
        """The model: the last host that told has a vNIC."""
        self.before: dict[str, Behind] = {}

    def tell(self, host: str, there: Behind) -> None:
        """A host announces."""
        for other, one in self.hosts.items():
            self.hosts[other] = replace(one, places=one.places - there.places)
        self.hosts[host] = there
        self.engine.effects = []
        self.subject.told({host: there})
        saved = [one for one in self.engine.effects if isinstance(one, ev.SaveBehind)]
        assert {one.host: one.behind for one in saved}.items() <= {**self.hosts, host: there}.items()

    def follow(self) -> Iterator[None]:
        """All steps; gives a look after each."""
        orders = self.subject.follow(self.now)
        plain = self.subject.plain
        while orders or plain.phase != Phase.IDLE:
            one = orders.pop(self.random.randrange(len(orders)))
            if isinstance(one, Wait):
                assert plain.elapsed(one.serial + 1) == []
                orders += plain.elapsed(one.serial)
                continue
            self._take_in(one)
            orders += plain.done(one.serial, one.switch)
            assert set(self.engine.tags.owners()) == self.engine.plain_tags >= plain.tags
            yield
        self.before = dict(self.hosts)
        # A switch that failed is set to what it is to hold.
        for switch in self.live:
            self.live[switch] = SwitchIntent(self.base[switch] | plain.held(switch))
        self.subject.follow(self.now)
        assert self.engine.plain_tags == plain.tags

    def settle(self) -> None:
        """All steps."""
        assert not any(self.follow())

    def _take_in(self, one: Update) -> None:
        if self.random.random() >= self.faults:
            update(self.live[one.switch], one)

    def send(self, host: str, one: Frame) -> tuple[list[Sent], list[Sent]]:
        """A frame of a host."""
        return walk(self.live, Cables(self.topology), self.topology.hosts[host].port, one)

    # The model.

    def distances(self, switch: str) -> dict[str, int]:
        """How many links from a switch to all that it reaches."""
        found, edge = {switch: 0}, [switch]
        for one in edge:
            for link in self.now.leaving(one):
                if link.target.switch not in found:
                    found[link.target.switch] = found[one] + 1
                    edge.append(link.target.switch)
        return found

    def meant(self, host: str, one: Frame) -> set[str]:
        """Which hosts are to get a frame."""
        vlan = one.tag
        if Place(vlan, one.eth_src or "") not in self.hosts.get(host, NOTHING).places:
            return set()
        here = self.topology.hosts[host].port.switch
        near = self.distances(here)
        reached = {other for other in self.hosts if self.topology.hosts[other].port.switch in near}
        for other in reached:
            own = self.hosts[other].places
            there = self.topology.hosts[other].port.switch
            # The last switch tells the VLAN by the MAC.
            alone = [place.vlan for place in own if place.mac == one.eth_dst] == [vlan]
            if Place(vlan, one.eth_dst) in own and (alone or there == here):
                return {other} - {host}
        return {other for other in reached if vlan in self.hosts[other].vlans} - {host}

    def look(self, exact: bool) -> None:
        """Sends some frame; at rest all is as the model has it."""
        random = self.random
        host = random.choice(sorted(self.topology.hosts))
        own = sorted({*self.hosts.get(host, NOTHING).places, *self.before.get(host, NOTHING).places})
        place = random.choice(own) if own and random.random() < 0.8 else Place(VLANS[0], random.choice(MACS))
        one = Frame(
            random.choice([BROADCAST, GROUP, UNKNOWN, *MACS]),
            random.choice([0x0800, 0x0806, 0x86DD]),
            random.choice([0, 46]),
            tag=place.vlan,
            eth_src=place.mac,
            priority=random.choice([0, 5, 7]),
        )
        arrived, seen = self.send(host, one)
        clean = replace(one, priority=0)
        ports = [sent.port for sent in arrived]
        assert len(ports) == len(set(ports))
        assert all((sent.frame, sent.queue) == (clean, BEST_EFFORT) for sent in arrived)
        allowed = {
            self.topology.hosts[other].port
            for known in (self.hosts, self.before)
            for other, there in known.items()
            if place.vlan in there.vlans
        }
        assert set(ports) <= allowed - {self.topology.hosts[host].port}
        between = [sent for sent in seen if sent not in arrived]
        assert all((sent.frame.priority, sent.queue) == (0, BEST_EFFORT) for sent in between)
        assert all(sent.frame.tag in self.engine.plain_tags for sent in between)
        if exact:
            meant = self.meant(host, one)
            assert set(ports) == {self.topology.hosts[other].port for other in meant}, (host, one)
            for other in meant:
                has = self.hosts[other].places
                if [there.vlan for there in has if there.mac == one.eth_dst] == [place.vlan]:
                    ends = [self.topology.hosts[end].port.switch for end in (host, other)]
                    assert len(seen) == self.distances(ends[0])[ends[1]] + 1


def two_at_one(topology: Topology) -> Topology:
    """The same, with one more host at the first switch."""
    hosts = {**topology.hosts, "h9": attached(9, Port("s0", 98))}
    return replace(topology, hosts=hosts)


def announcement(random: Random) -> Behind:
    """What a host may announce, also vNICs of others, and a MAC in two VLANs."""
    places = [(random.choice(VLANS), random.choice(MACS)) for _ in range(random.randint(0, 3))]
    return behind(*places, vlans=tuple(random.sample(VLANS, random.randint(0, 2))))


@given(networks(), st.integers(), st.sampled_from([0.0, 0.2]), st.sampled_from([2, 9, 4094]))
def test_hosts_and_links_that_change(topology: Topology, seed: int, faults: float, tags: int) -> None:
    """At each instant no storm, at most one frame to a host, none to one without the VLAN; exact at the end.

    Switches that fail hold other rules than they are to hold meanwhile. With few tags some frames are lost.
    """
    random = Random(seed)
    net = Net(two_at_one(topology), random, Settings(last_tag=tags), faults)
    for _ in range(5):
        if random.random() < 0.6:
            net.now = part(net.topology, random)
        for _ in range(random.randint(0, 2)):
            net.tell(random.choice(sorted(net.topology.hosts)), announcement(random))
        for _ in net.follow():
            net.look(exact=False)
        for _ in range(10):
            net.look(exact=tags == 4094)
    fresh = Plain()
    subject = net.subject
    kept = as_kept(subject.plain.layout.tagged, net.now, subject.places.all())
    fresh.assume(net.now, subject.places.all(), kept)
    if tags == 4094:
        assert all(fresh.held(switch) == subject.plain.held(switch) for switch in net.topology.switches)
    rules = [rule for switch in net.live for rule in subject.plain.held(switch)]
    assert all(codec.encode(Change(None, rule)) for rule in rules)
    for host in net.topology.hosts:
        net.tell(host, NOTHING)
    net.settle()
    assert not any(subject.plain.held(switch) for switch in net.topology.switches)
    assert not net.engine.tags.owners()


@FEW
@given(st.integers())
def test_ways_that_change_make_no_circle(seed: int) -> None:
    """A host is reached by the other side of a ring: old and new ways together would be all of the ring."""
    topology = network(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (5, 0), (5, 2)])
    net = Net(topology, Random(seed))
    names = sorted(topology.hosts)
    for number, host in enumerate(names):
        net.tell(host, behind((10, MACS[number])))
    for down in ((("s1", "s2"), ("s5", "s2")), (("s5", "s0"),)):
        ends = {tuple(sorted(pair)) for pair in down}
        links = {
            link
            for link in topology.links
            if tuple(sorted((link.source.switch, link.target.switch))) not in ends
        }
        net.now = replace(topology, links=links)
        for _ in net.follow():
            for host in names:
                arrived, seen = net.send(host, frame(MACS[5], MACS[names.index(host)]))
                assert len(arrived) <= 1
                assert len({one.port.switch for one in seen}) == len(seen)


@pytest.fixture(name="net")
def _net() -> Net:
    net = Net(ring(4), Random(1))
    net.tell("h0", behind((10, A)))
    net.tell("h1", behind((10, B), (20, C)))
    net.tell("h2", behind(vlans=(10,)))
    net.settle()
    return net


def ends(net: Net, host: str, one: Frame) -> list[str]:
    """Which hosts get it."""
    ports = {attachment.port: name for name, attachment in net.topology.hosts.items()}
    return sorted(ports[sent.port] for sent in net.send(host, one)[0])


def test_lying_hosts(net: Net) -> None:
    """Only MACs and VLANs that the host has come in, whatever priority they claim; no tag of the network."""
    assert ends(net, "h0", frame(B, priority=7)) == ["h1"]
    assert ends(net, "h0", frame(BROADCAST)) == ["h1", "h2"]
    tags = sorted(net.engine.plain_tags)
    for one in [
        frame(B, source=B),
        frame(B, source=C),
        frame(C, vlan=20),
        frame(BROADCAST, vlan=20),
        *(frame(B, vlan=tag) for tag in tags),
    ]:
        assert net.send("h0", one) == ([], [])
    assert net.send("h2", frame(A, source=B)) == ([], [])
    # h1 may, in its own VLAN alone.
    assert ends(net, "h1", frame(BROADCAST, source=C, vlan=20)) == []


def test_frames_that_no_bridge_forwards(net: Net) -> None:
    """Trees of hosts' networks, and LLDP."""
    for target in RESERVED:
        assert net.send("h0", frame(target)) == ([], [])
    assert net.send("h0", frame(BROADCAST, eth_type=LLDP)) == ([], [])


def test_what_a_vnic_costs(net: Net) -> None:
    """One rule at each edge with its VLAN, three at its own; none in the core. A link costs none of these."""

    def rules() -> dict[str, int]:
        return {switch: len(net.subject.plain.held(switch)) for switch in net.live}

    before = rules()
    net.tell("h1", behind((10, B), (20, C), (10, MACS[3])))
    net.settle()
    after = rules()
    assert {switch: after[switch] - before[switch] for switch in after} == {
        "s0": 1,
        "s1": 3,
        "s2": 1,
        "s3": 0,
    }
    orders = list[Order]()
    link = next(link for link in sorted(net.topology.links) if link.source.switch == "s0")
    net.now = replace(net.now, links=net.now.links - {link, link.back})
    orders += net.subject.follow(net.now)
    changed = {
        rule.table for one in orders if isinstance(one, Update) for rule in one.rules if one.switch == "s0"
    }
    assert changed == {Table.WAY}


def test_a_vnic_that_moves(net: Net) -> None:
    """At no instant its frames come to two hosts; the host that was told last has it."""
    net.tell("h3", behind((10, B)))
    for _ in net.follow():
        assert ends(net, "h0", frame(B)) in (["h1"], ["h3"], ["h1", "h2"], [])
    assert ends(net, "h0", frame(B)) == ["h3"]
    assert net.send("h1", frame(A, source=B)) == ([], [])
    assert ends(net, "h3", frame(A, source=B)) == ["h0"]


@FEW
@given(st.integers(), st.booleans())
def test_a_mac_that_changes_its_vlan(seed: int, fails: bool) -> None:
    """No frame crosses from one VLAN into the other, also from a switch that keeps old rules."""
    net = Net(ring(4), Random(seed), faults=0.5 if fails else 0.0)
    net.tell("h0", behind((20, A), (10, C)))
    for vlans in ((20,), (10,), (10, 20), (20,), (10,)):
        net.tell("h1", behind(*((vlan, B) for vlan in vlans), vlans=(10, 20)))
        for _ in net.follow():
            for one in (frame(B, A, 20), frame(B, C, 10)):
                arrived, _ = net.send("h0", one)
                assert all(sent.frame == one for sent in arrived)
    tags = net.engine.plain_tags
    # One that comes and goes costs no tag, until there were many.
    for number in range(70):
        net.tell("h1", behind((10, B), (10, f"02:00:00:00:0d:{number:02x}")))
        net.settle()
        assert len(net.subject.plain.layout.ways["h1"].vlans) <= 2 * 2 + SPARE
        assert len(tags) == len(net.engine.plain_tags)


def test_a_mark_of_a_guest_chooses_no_queue(net: Net) -> None:
    """On links, where marks of paths choose one."""
    arrived, seen = net.send("h0", replace(frame(B), eth_type=0x0800, dscp=46))
    assert [one.queue for one in (*arrived, *seen)] == [BEST_EFFORT] * 3
    # No frame with a tag of best effort has a priority; if there were one, it would still be best effort.
    odd = replace(seen[0].frame, priority=7)
    assert [one.queue for one in step(net.live["s1"], "s1", 1, odd)] == [BEST_EFFORT]


def test_places_have_bounds() -> None:
    """What came first keeps its room; the rest gets some when there is some; counts are right after moves."""
    places = Places(most_places=2, most_vlans=1)
    assert places.tell("h1", behind((10, A), (10, B))) == ({"h1"}, NOTHING)
    assert places.tell("h2", behind((10, C), (20, C), vlans=(20,))) == (
        {"h2"},
        Behind(frozenset({20}), behind((10, C), (20, C)).places),
    )
    # A vNIC that moves needs no more room.
    changed, rest = places.tell("h2", behind((10, B), (10, C)))
    assert (changed, rest) == ({"h1", "h2"}, Behind(frozenset(), frozenset({Place(10, C)})))
    assert places.behind("h1") == behind((10, A))
    places.tell("h1", NOTHING)
    assert places.tell("h2", behind((10, B), (10, C))) == ({"h2"}, NOTHING)
    places.tell("h2", NOTHING)
    assert places.all() == {}
    assert places.tell("h1", behind((20, A))) == ({"h1"}, NOTHING)


def test_what_a_host_may_still_have() -> None:
    """Of what was kept, by another configuration."""
    one = behind((10, A), (20, B), (10, UNKNOWN))
    allowed = Allowed("10.0.0.1", frozenset({10}), (MacRange(0x0200_0000_0A00, 40),))
    assert permitted(one, allowed) == behind((10, A))
    assert permitted(one, None) == NOTHING


def test_ids_that_do_not_fit() -> None:
    """Two owners of one tag were never kept; ids of hosts that are gone are free."""
    subject = BestEffort(Engine())
    with pytest.raises(ValueError, match="VLAN id 7 is not free"):
        subject.restore(Topology(), {}, Tagged((HostTag("h1", 1, 7), HostTag("h2", 2, 7))))
    engine = Engine()
    subject = BestEffort(engine)
    subject.restore(Topology(), {}, Tagged((HostTag("h1", 1, 7),)))
    assert subject.follow(Topology()) == []
    assert not engine.tags.owners()


@given(networks(), st.data())
def test_the_part_of_a_tree_that_is_needed(topology: Topology, data: st.DataObject) -> None:
    """It joins the switches that are wanted, and each end of it is one of them."""
    tree = Tree(1, spanning(topology))
    wanted = data.draw(st.sets(st.sampled_from(sorted(topology.switches))))
    found = pruned(tree, wanted)
    links = {link for link in tree.links if link.source.number in found.get(link.source.switch, [])}
    assert links == {link.back for link in links}
    assert all(len(ports) > 1 or switch in wanted for switch, ports in found.items())
    joined = Net(replace(topology, links=links), Random(0)).distances(min(wanted, default="s0"))
    assert wanted <= joined.keys()
