"""The core against switches that take in rules in any order, refuse, vanish and come back."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import MBIT, networks, request, ring, terms
from walk import Cables, frame_of, walk
from world import PLAIN_MACS, World

from tidegate_controller import events as ev
from tidegate_controller.core import Core
from tidegate_controller.decide.react import Remedy
from tidegate_controller.engine import Settings
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.paths import EthernetKey, FlowKey, Path, PathRequest, PathState
from tidegate_controller.model.plain import Behind, Place
from tidegate_controller.model.topology import Port, Topology

faulty = st.sampled_from([0.0, 0.02, 0.1])


@given(networks(), st.integers(), faulty, st.booleans(), st.sampled_from([5, 4094]))
def test_what_always_holds(topology: Topology, seed: int, faults: float, protect: bool, tags: int) -> None:
    """Reservations, tags, decisions, whole ways: after each of many events; nothing is left at the end."""
    random = Random(seed)
    world = World(topology, random, Core(Settings(protect=protect, last_tag=tags)), faults)
    world.begin(hidden=random.randint(0, 2))
    for _ in range(80):
        world.act()
        world.check()
    world.links_down.clear()
    world.change_topology()
    world.settle()
    world.check()
    assert set(world.answers) == set(range(1, world.asked + 1))
    assert world.live == {
        switch: SwitchIntent(held.rules, held.groups) for switch, held in world.core.intents().items()
    }
    assert world.saved == world.core.engine.paths
    for name in list(world.core.engine.paths):
        world.release(name)
    world.settle()
    world.check()
    if tags == 4094:
        world.best_effort()
    assert not world.core.engine.paths
    assert world.core.engine.book.names() == []
    assert not world.core.engine.keys


@pytest.fixture(name="world")
def _world() -> Iterator[World]:
    world = World(ring(4), Random(1), Core())
    world.begin()
    yield world
    world.check()


def test_links_are_watched(world: World) -> None:
    """Also while they are down; ports of hosts are not."""
    world.links_down = {next(iter(world.topology.links)).name}
    world.change_topology()
    found = world.core.intents()
    watched = {Port(switch, number) for switch, held in found.items() for number in held.watched}
    assert watched == {link.source for link in world.topology.links}
    fresh = Core()
    told = fresh.handle(ev.TopologyChanged(world.topology, tuple(terms(world.topology))), 1.0)
    assert [order.watched for order in told if isinstance(order, ev.SetQueues)] == [watched]
    world.settle()


def test_refusals_that_repeat(world: World) -> None:
    """Each is answered; they are one decision, and the next one counts them."""
    wanted = replace(request("v0", 0, 1, 900_000 * MBIT), lasting=False)
    askers = [world.ask(wanted) for _ in range(50)]
    assert all(world.answers[asker].path is None for asker in askers)
    assert all(world.answers[asker].reasons == world.answers[askers[0]].reasons for asker in askers)
    assert [one.verdict for one in world.decisions] == [Verdict.REFUSED]
    world.now += world.core.engine.settings.hold
    world.ask(wanted)
    assert len(world.decisions) == 2
    assert world.decisions[1].reasons[-1] == "49 refusals of host h0 before this one have no record"


def test_plain_nics_without_a_path(world: World) -> None:
    """Before it comes, when it is refused, broken or released: its frames are best effort. On it, as sent."""
    a, b = Place(7, PLAIN_MACS[1]), Place(7, PLAIN_MACS[2])
    world.event(
        ev.PlainNics({host: Behind(frozenset({7}), frozenset({one})) for host, one in (("h0", a), ("h1", b))})
    )
    world.settle()
    key = EthernetKey(7, 5, a.mac, b.mac)
    one = replace(request("p", 0, 1, budget=700_000), key=key, dscp=0)
    begin, end = (world.topology.hosts[host] for host in ("h0", "h1"))
    frame = frame_of(one, end.mac)

    def passes(priority: int) -> None:
        arrived, _ = walk(world.live, Cables(world.topology), begin.port, frame)
        assert [(sent.port, sent.frame) for sent in arrived] == [
            (end.port, replace(frame, priority=priority))
        ]

    passes(0)
    refused = world.ask(replace(one, budget=1))
    assert world.answers[refused].path is None
    passes(0)
    world.ask(one)
    world.settle()
    passes(5)
    # No other way is short enough.
    world.links_down = {
        link.name for link in world.topology.links if {link.source.switch, link.target.switch} == {"s0", "s1"}
    }
    world.change_topology()
    world.settle()
    assert world.core.engine.paths[one.name].state == PathState.BROKEN
    passes(0)
    world.links_down.clear()
    world.change_topology()
    world.now += 10
    world.event(ev.Tick())
    world.settle()
    passes(5)
    # A successor orders nothing else.
    held = {switch: set(there.rules) for switch, there in world.live.items()}
    world.restart()
    assert {switch: there.rules for switch, there in world.core.intents().items()} == held
    world.settle()
    passes(5)
    world.release(one.name)
    while busy := [switch for switch, orders in world.queues.items() if orders]:
        arrived, _ = walk(world.live, Cables(world.topology), begin.port, frame)
        assert [sent.port for sent in arrived] == [end.port]
        world.apply(busy[0])
    world.settle()
    passes(0)


def verdicts(world: World) -> list[Verdict]:
    """Of all decisions."""
    return [one.verdict for one in world.decisions]


def test_a_path_from_request_to_release(world: World) -> None:
    """The answer comes when its frames take the way."""
    asker = world.ask(request())
    assert world.answers == {}
    world.settle()
    path = world.answers[asker].path
    assert path is not None
    assert (path.state, path.generation, path.number, path.route.level) == (PathState.ACTIVE, 1, 1, 1)
    again = world.ask(request())
    assert world.answers[again].path == path
    gone = world.release(path.request.name)
    world.settle()
    assert world.answers[gone].path == path
    assert verdicts(world) == [Verdict.ADMITTED, Verdict.RELEASED]


def test_misses_raise_the_level_and_then_the_route(world: World) -> None:
    """Each after the hold time; misses of before a change do not count; then there is nothing left."""
    world.ask(request())
    world.settle()
    name = "h0/v>r"
    first = world.core.engine.paths[name]

    def miss(after: float, ago: float = 0.0) -> Path:
        world.now += after
        world.event(ev.Missed(name, 5, 1000, world.now - ago))
        world.settle()
        world.check()
        return world.core.engine.paths[name]

    assert miss(0.001, 10.0) == first
    assert miss(1.0) == first
    raised = miss(10.0)
    assert (raised.route.links, raised.route.level, raised.tag) == (first.route.links, 0, first.tag)
    moved = miss(10.0)
    assert (moved.route.links != first.route.links, moved.route.level) == (True, 0)
    back = miss(10.0)
    assert back.route == raised.route
    assert world.core.engine.misses[name] == 25
    assert verdicts(world) == [
        Verdict.ADMITTED,
        Verdict.KEPT,
        Verdict.LEVEL_RAISED,
        Verdict.MOVED,
        Verdict.MOVED,
    ]
    assert [one.verdict for one in world.told] == verdicts(world)[2:]


def test_a_queue_that_drops_gets_more_rate_first(world: World) -> None:
    """Before one of its paths moves."""
    world.ask(request(rate=100 * MBIT))
    world.settle()
    path = world.core.engine.paths["h0/v>r"]
    port = Port.parse(path.route.links[1].partition(">")[0])
    for drops in (0, 7):
        world.now += 10
        world.event(ev.Sampled((ev.QueueSample(port, 2, drops),)))
    assert verdicts(world)[-1] == Verdict.RATE_RAISED
    assert "7 frames dropped" in world.decisions[-1].reasons[0]
    assert world.core.engine.raised[path.route.links[1], 1] == 125454546 * 5 // 4


def test_statistics_move_a_path_before_frames_are_late(world: World) -> None:
    """A queue that cannot have more rate: the largest path goes another way."""
    for number, rate in ((1, 50), (2, 120)):
        world.ask(request(f"v{number}", rate=rate * MBIT, port=50_000 + number))
        world.settle()
    path = world.core.engine.paths["h0/v1>r"]
    large = world.core.engine.paths["h0/v2>r"]
    assert path.route == large.route
    port = Port.parse(path.route.links[1].partition(">")[0])
    for drops in range(0, 18, 3):
        world.now += 10
        world.event(ev.Sampled((ev.QueueSample(port, 2, drops),)))
        world.settle()
    assert Verdict.MOVED in verdicts(world)
    assert world.core.engine.paths["h0/v2>r"].route.links != large.route.links


def test_a_port_that_drops_frames(world: World) -> None:
    """Its paths go another way, one in each hold time, before any frame is late; without one, all stays."""
    world.ask(request())
    world.settle()
    path = world.core.engine.paths["h0/v>r"]
    port = Port.parse(path.route.links[1].partition(">")[0])
    world.event(ev.Dropped(Port("s9", 77), 5))
    world.now += 10
    world.event(ev.Dropped(port, 5))
    world.settle()
    assert verdicts(world)[-1] == Verdict.MOVED
    assert world.decisions[-1].cause == f"{port}: the port dropped 5 frames"
    moved = world.core.engine.paths["h0/v>r"]
    assert path.route.links[1] not in moved.route.links
    count = len(world.decisions)
    world.event(ev.Dropped(port, 5))
    assert len(world.decisions) == count
    world.now += 10
    last = Port.parse(moved.route.links[-1].partition(">")[0])
    world.event(ev.Dropped(last, 5))
    world.event(ev.Dropped(last, 5))
    assert verdicts(world)[-1] == Verdict.KEPT
    assert len(world.decisions) == count + 1
    world.check()


@pytest.mark.parametrize("allowed", [(), ("rate",), ("level",), ("route",), ("level", "route")])
def test_remedies_that_are_left_out(allowed: tuple[str, ...]) -> None:
    """Late frames and short queues lead to what the operator allows, and to nothing else."""
    settings = Settings(remedies=frozenset(map(Remedy, allowed)), bfd=False)
    world = World(ring(4), Random(1), Core(settings))
    world.begin()
    world.ask(request())
    world.settle()
    name = "h0/v>r"
    port = Port.parse(world.core.engine.paths[name].route.links[1].partition(">")[0])
    for drops in (3, 6, 9):
        world.now += 10
        world.event(ev.Sampled((ev.QueueSample(port, 2, drops),)))
        world.settle()
        world.now += 10
        world.event(ev.Missed(name, 1, 1, world.now))
        world.settle()
        world.check()
    made = {"rate": Verdict.RATE_RAISED, "level": Verdict.LEVEL_RAISED, "route": Verdict.MOVED}
    changes = set(verdicts(world)) & set(made.values())
    assert changes <= {made[one] for one in allowed}
    assert bool(changes) == bool(allowed)
    if not allowed:
        assert "that may be tried" in world.decisions[-1].reasons[0]
    assert not any(intent.watched for intent in world.core.intents().values())


def test_a_link_that_goes_down(world: World) -> None:
    """Another way; without any it is broken after the hold time, its host told; it comes back with a link."""
    world.ask(request())
    world.settle()
    for _ in range(2):
        path = world.core.engine.paths["h0/v>r"]
        world.links_down.add(path.route.links[1])
        world.change_topology()
        world.settle()
    assert world.core.engine.paths["h0/v>r"].state == PathState.ACTIVE
    world.now += world.core.engine.settings.hold
    world.event(ev.Tick())
    world.settle()
    broken = world.core.engine.paths["h0/v>r"]
    assert broken.state == PathState.BROKEN
    assert world.core.engine.book.names() == []
    assert [one.verdict for one in world.told] == [Verdict.MOVED, Verdict.VIOLATED]
    world.links_down.clear()
    world.change_topology()
    world.settle()
    assert world.core.engine.paths["h0/v>r"].state == PathState.ACTIVE
    assert (world.told[-1].verdict, world.core.engine.paths["h0/v>r"].number) == (Verdict.MOVED, 1)


def test_a_link_that_goes_while_its_path_begins(world: World) -> None:
    """The path takes another way as soon as it has begun; no time has to pass."""
    world.ask(request(target=1))
    world.links_down.add("s0:1>s1:1")
    world.change_topology()
    while world.setting or any(world.queues.values()):
        while world.setting:
            world.answer_queues(False)
        for switch in [switch for switch, orders in world.queues.items() if orders]:
            world.apply(switch)
    path = world.core.engine.paths["h0/v>r"]
    assert (len(path.route.links), path.generation) == (5, 2)


def test_a_path_over_a_link_that_is_new(world: World) -> None:
    """Its frames pass while some switch has not heard of the link yet."""
    world.links_down.add("s0:1>s1:1")
    world.change_topology()
    world.settle()
    world.links_down.clear()
    world.change_topology()
    world.ask(request(target=1))
    while world.setting or world.queues["s0"] or world.queues["s1"]:
        while world.setting:
            world.answer_queues(False)
        for switch in ("s0", "s1"):
            if world.queues[switch]:
                world.apply(switch)
    assert world.queues["s2"]
    assert len(world.core.engine.paths["h0/v>r"].route.links) == 3
    world.arrives("h0/v>r")


def test_a_backup_takes_over() -> None:
    """It is reserved already; its reservation is that of the path then."""
    world = World(ring(4), Random(1), Core(Settings(protect=True)))
    world.begin()
    world.ask(request(rate=200 * MBIT))
    world.settle()
    path = world.core.engine.paths["h0/v>r"]
    assert path.backup is not None
    assert len(world.core.engine.book.names()) == 2
    world.links_down.add(path.route.links[2])
    world.change_topology()
    world.settle()
    world.check()
    moved = world.core.engine.paths["h0/v>r"]
    assert (moved.route, moved.backup) == (path.backup, None)


def test_other_terms_and_a_refusal_of_them(world: World) -> None:
    """More rate on the same way, without any new rule but one; too much: the old terms stay."""
    world.ask(request(rate=200 * MBIT))
    world.settle()
    before = world.core.engine.paths["h0/v>r"]
    asker = world.ask(request(rate=300 * MBIT))
    # The way's rules are there; the edge's waits for the queues.
    assert not any(world.queues.values())
    world.answer_queues(False)
    assert len([order for orders in world.queues.values() for order in orders]) == 1
    world.settle()
    after = world.answers[asker].path
    assert after is not None
    assert (after.route, after.tag, after.generation) == (before.route, before.tag, 2)
    refused = world.ask(request(rate=900 * MBIT))
    assert world.answers[refused].path is None
    assert world.core.engine.paths["h0/v>r"].request.rate == 300 * MBIT
    assert "would be reserved" in world.answers[refused].reasons[0]


def test_a_vm_that_moves_to_another_host(world: World) -> None:
    """The path of the same name begins there."""
    world.ask(request(rate=200 * MBIT))
    world.settle()
    moved = replace(request(source=1, target=2, rate=200 * MBIT), name="h0/v>r")
    asker = world.ask(moved)
    world.settle()
    path = world.answers[asker].path
    assert path is not None
    assert path.route.links[0].startswith("h1>")
    assert world.core.engine.book.names() == ["h0/v>r#2"]


MACS = ("02:00:00:00:0a:01", "02:00:00:00:0b:01")


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (replace(request(), name=""), "its name has 1 to 200 characters"),
        (request(target=9), "host h9 is not in the configuration"),
        (replace(request(), key=FlowKey("10.9.9.9", "10.0.0.2", 1)), "its hosts have 10.0.0.0 to"),
        (replace(request(), dscp=64), "its mark is 0 to 63"),
        (replace(request(), key=EthernetKey(4095, 5, *MACS), dscp=0), "its VLAN is 1 to 4094, its priority"),
        (replace(request(), key=EthernetKey(42, 0, *MACS), dscp=0), "its VLAN is 1 to 4094, its priority"),
        (replace(request(), key=EthernetKey(42, 5, *MACS)), "its mark 0"),
        (replace(request(), key=EthernetKey(1, 5, *MACS), dscp=0), "is the tag of broadcast#1 between"),
        (replace(request(), rate=0), "are above 0"),
        (replace(request(), burst=10**15), "at most 1GB"),
        (request("w"), "path h0/v>r has the same addresses, ports and mark"),
        (request("x", port=3), "1 paths are there, 1 of its host; at most 4000, 1 of a host"),
    ],
)
def test_requests_with_a_fault(wanted: PathRequest, reason: str) -> None:
    """Each is refused with what was expected, and recorded."""
    world = World(ring(4), Random(1), Core(Settings(most_of_host=1)))
    world.begin()
    world.ask(request(budget=10**8))
    world.settle()
    asker = world.ask(wanted)
    assert world.answers[asker].path is None
    assert reason in " ".join(world.answers[asker].reasons)
    assert verdicts(world)[-1] == Verdict.REFUSED
    world.check()


def test_the_far_vm_moves(world: World) -> None:
    """Its path leads to the other host; what is refused leaves the old path in force."""
    world.ask(request(rate=300 * MBIT))
    world.settle()
    asker = world.ask(replace(request(target=1, rate=300 * MBIT), name="h0/v>r"))
    world.settle()
    path = world.answers[asker].path
    assert path is not None
    assert path.route.links[-1].endswith(">h1")
    assert world.core.engine.book.names() == ["h0/v>r#2"]
    world.check()
    refused = world.ask(replace(request(source=1, target=2, rate=600 * MBIT), name="h0/v>r"))
    world.settle()
    assert world.answers[refused].path is None
    assert world.core.engine.paths["h0/v>r"] == replace(path, state=PathState.ACTIVE)


sizes = st.one_of(st.integers(1, 2000), st.integers(1, 2**32))
times_and_rates = st.one_of(st.integers(1, 2000), st.integers(1, 10**13))


@given(times_and_rates, sizes, sizes, sizes, times_and_rates)
def test_any_number_that_the_api_takes(rate: int, burst: int, small: int, large: int, budget: int) -> None:
    """Is admitted or refused; none is a fault of the core, which would end the controller."""
    world = World(ring(4), Random(1), Core())
    world.begin()
    wanted = replace(
        request(), rate=rate, burst=burst, smallest_frame=small, largest_frame=large, budget=budget
    )
    for _ in range(2):
        asker = world.ask(wanted)
        world.settle()
        answer = world.answers[asker]
        assert answer.path is not None or answer.reasons
        world.ask(request())
        world.settle()
    world.check()


def test_a_release_of_a_path_that_cannot_begin(world: World) -> None:
    """It is answered, and the name is free."""
    world.ask(request())
    gone = world.release("h0/v>r")
    world.answer_queues(True)
    world.settle()
    assert world.answers[gone].reasons == ("path h0/v>r could not be begun",)
    asker = world.ask(request())
    world.settle()
    assert world.answers[asker].path is not None


def test_a_release_of_a_path_whose_reservation_is_lost(world: World) -> None:
    """Other terms fail and the old ones fit no more: the path is closed, and released then."""
    # The way by s3 is full.
    for other in (request("w", source=3, rate=300 * MBIT), request(rate=300 * MBIT)):
        world.ask(other)
        world.settle()
    asked = world.ask(replace(request(source=1, rate=300 * MBIT), name="h0/v>r"))
    assert world.core.engine.running["h0/v>r"].freed
    # What was given back for the change is taken meanwhile.
    world.ask(request("x", target=1, rate=300 * MBIT))
    gone = world.release("h0/v>r")
    world.answer_queues(True)
    world.settle()
    assert world.answers[asked].path is None
    answer = world.answers[gone].path
    assert answer is not None
    assert answer.state == PathState.BROKEN
    assert "h0/v>r" not in world.core.engine.paths


def test_a_path_that_an_operator_asked_for(world: World) -> None:
    """Its host may ask for the same, and changes nothing; it gets no other terms."""
    operators = replace(request(), lasting=True)
    world.ask(operators)
    world.settle()
    same = world.ask(request())
    other = world.ask(request(rate=2 * MBIT))
    world.settle()
    path = world.answers[same].path
    assert path is not None
    assert path.request == operators
    assert "an operator" in world.answers[other].reasons[0]
    assert world.core.engine.paths["h0/v>r"] == path
    asker = world.ask(replace(operators, rate=2 * MBIT))
    world.settle()
    assert world.answers[asker].path is not None


def test_a_path_that_breaks_after_its_change(world: World) -> None:
    """It is tried again after the hold time."""
    world.ask(request(target=1))
    world.links_down = {link.name for link in world.topology.links if link.source.switch == "s0"}
    world.change_topology()
    world.now += world.core.engine.settings.hold
    world.core._retry = None
    while world.setting or any(world.queues.values()):
        while world.setting:
            world.answer_queues(False)
        for switch in [switch for switch, orders in world.queues.items() if orders]:
            world.apply(switch)
    assert world.core.engine.paths["h0/v>r"].state == PathState.BROKEN
    assert world.core._retry is not None


def test_a_raised_rate_falls(world: World) -> None:
    """With the last path of its level."""
    world.ask(request(rate=100 * MBIT))
    world.settle()
    link = world.core.engine.paths["h0/v>r"].route.links[1]
    port = Port.parse(link.partition(">")[0])
    before = world.rates[port]
    for drops in (0, 7):
        world.now += 10
        world.event(ev.Sampled((ev.QueueSample(port, 2, drops),)))
    assert (link, 1) in world.core.engine.raised
    world.release("h0/v>r")
    world.settle()
    assert not world.core.engine.raised
    assert world.rates[port] == before


def test_a_backup_keeps_the_bound_of_other_terms() -> None:
    """In place, too: the host is told the bound of both ways."""
    world = World(ring(5), Random(1), Core(Settings(protect=True)))
    world.begin()
    world.ask(request(rate=100 * MBIT))
    world.settle()
    asker = world.ask(request(rate=110 * MBIT))
    world.settle()
    path = world.answers[asker].path
    assert path is not None
    assert path.backup is not None
    assert path.generation == 2
    hops = max(len(path.route.links), len(path.backup.links))
    assert path.bound >= 2_000_000 * hops
    world.check()


def test_queues_that_cannot_be_set(world: World) -> None:
    """The path is refused, and nothing of it is left."""
    asker = world.ask(request())
    world.answer_queues(True)
    world.settle()
    answer = world.answers[asker]
    assert (answer.path, answer.reasons) == (None, ("queues: no such port", "all is as before"))
    assert world.core.engine.book.names() == []


def test_a_restart_takes_paths_over() -> None:
    """The same rules, reservations and numbers; switches need nothing."""
    world = World(ring(4), Random(1), Core())
    world.begin()
    for number in range(3):
        world.ask(request(f"v{number}", number, 3, MBIT, port=50_000 + number))
        world.settle()
    rules, paths, names = dict(world.live), dict(world.saved), world.core.engine.book.names()
    world.restart()
    engine = world.core.engine
    assert (engine.paths, engine.book.names()) == (paths, names)
    assert all(world.core.intents()[switch].rules == held.rules for switch, held in rules.items())
    world.settle()
    world.check()
    assert world.live == rules
    asker = world.ask(request("v9", 1, 3, MBIT, port=50_009))
    world.settle()
    path = world.answers[asker].path
    assert path is not None
    assert path.number == 4


@given(st.integers(0, 8), st.booleans(), st.permutations(["s0", "s1", "s2", "s3"]), st.integers())
def test_a_restart_in_the_middle_of_a_move(steps: int, moves: bool, order: list[str], seed: int) -> None:
    """Or of a raise, at any step: frames arrive while one switch after the other connects again."""
    world = World(ring(4), Random(seed), Core())
    world.begin()
    world.ask(request())
    world.settle()
    for _ in range(2 if moves else 1):
        world.settle()
        world.now += 10
        world.event(ev.Missed("h0/v>r", 1, 1, world.now))
    for _ in range(steps):
        if world.setting:
            world.answer_queues(False)
        for switch in [switch for switch, orders in sorted(world.queues.items()) if orders][:1]:
            world.apply(switch)
    world.restart()
    for switch in order:
        world.arrives("h0/v>r")
        world.back(switch)
        world.arrives("h0/v>r")
        while world.queues.get(switch):
            world.apply(switch)
            world.arrives("h0/v>r")
    world.settle()
    world.check()
    assert len(world.core.engine.book.names()) == 1
    assert world.changes == {}
