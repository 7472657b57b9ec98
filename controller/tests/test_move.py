"""A path that comes, moves or goes while frames are under way, in any order of rules, with faults."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from built import build
from hypothesis import given
from hypothesis import strategies as st
from networks import network, networks, request
from walk import Cables, Frame, frame_of, step

from tidegate_controller.decide.flood import Tree, spanning
from tidegate_controller.decide.intent import place
from tidegate_controller.decide.marks import Marks
from tidegate_controller.decide.move import Change, Held, Order, Stage, Update, Wait, drain_time, key, merge
from tidegate_controller.decide.routes import Routes
from tidegate_controller.model.intent import Group, Rule, SwitchIntent
from tidegate_controller.model.paths import Path, Route
from tidegate_controller.model.topology import Port, Topology

MARKS = Marks((46, 34))


def holds(change: Change) -> tuple[bool, bool]:
    """Whether the reservations of the old and the new generation are needed."""
    return change.stage != Stage.DONE, change.stage != Stage.UNDONE


@dataclass
class UnderWay:
    """A frame between two switches, or in front of one."""

    at: Port
    frame: Frame
    born: int


@dataclass
class World:
    """Switches that take in rules one by one, and frames that go on one link at a time, in a random order."""

    topology: Topology
    change: Change
    before: Path | None
    after: Path | None
    random: Random
    faults: float
    live: dict[str, SwitchIntent] = field(default_factory=dict)
    queue: dict[str, list[tuple[str, object, int]]] = field(default_factory=dict)
    frames: list[UnderWay] = field(default_factory=list)
    wait: tuple[Wait, int] | None = None
    gone: set[str] = field(default_factory=set)
    sent: int = 0
    arrived: int = 0

    def begin(self) -> None:
        """The old generation is in force."""
        self.live = self.target(old=True)
        self.order(self.change.start())

    def target(self, old: bool = False) -> dict[str, SwitchIntent]:
        """What switches are to hold now."""
        trees = [Tree(4000, spanning(self.topology))]
        if old:
            return build(self.topology, [self.before] if self.before else [], MARKS, trees)
        intents = build(self.topology, [], MARKS, trees)
        merge(intents, self.change.present())
        return intents

    def order(self, orders: list[Order]) -> None:
        """Puts orders into the switches' queues."""
        for one in orders:
            if isinstance(one, Wait):
                self.wait = (one, self.sent)
                continue
            if one.switch in self.gone:
                self.order(self.change.failed(one.serial, one.switch))
                continue
            self.queue.setdefault(one.switch, []).extend(self.parts(one))

    def parts(self, update: Update) -> list[tuple[str, object, int]]:
        """Its rules in any order, then the barrier."""
        adds: list[tuple[str, object, int]] = [("add", rule, 0) for rule in update.rules]
        goes: list[tuple[str, object, int]] = [("gone", rule, 0) for rule in update.gone]
        self.random.shuffle(adds)
        self.random.shuffle(goes)
        groups: list[tuple[str, object, int]] = [("group", group, 0) for group in update.groups]
        late: list[tuple[str, object, int]] = [("nogroup", group, 0) for group in update.groups_gone]
        return [*groups, *adds, *goes, *late, ("barrier", update.switch, update.serial)]

    def apply(self, switch: str) -> None:
        """The next part of a switch's queue."""
        what, thing, serial = self.queue[switch].pop(0)
        held = self.live.setdefault(switch, SwitchIntent())
        if isinstance(thing, Rule):
            held.rules = {rule for rule in held.rules if key(rule) != key(thing)}
            if what == "add":
                held.rules.add(thing)
        elif isinstance(thing, Group):
            (held.groups.add if what == "group" else held.groups.discard)(thing)
        else:
            self.order(self.change.done(serial, switch))

    def fault(self, switch: str) -> None:
        """A switch refuses an update, or vanishes with a part of it done."""
        queue = self.queue[switch]
        serials = [serial for what, _, serial in queue if what == "barrier"]
        if self.random.random() < 0.5:
            end = next(n for n, part in enumerate(queue) if part[0] == "barrier")
            del queue[: end + 1]
            self.order(self.change.failed(serials[0], switch))
            return
        for _ in range(self.random.randint(0, len(queue) - 1)):
            if queue[0][0] == "barrier":
                break
            self.apply(switch)
        queue.clear()
        self.gone.add(switch)
        for serial in serials:
            self.order(self.change.failed(serial, switch))

    def back(self, switch: str) -> None:
        """A switch is there again, and set to what it is to hold."""
        self.gone.discard(switch)
        self.live[switch] = self.target().get(switch, SwitchIntent())
        self.order(self.change.back(switch))

    def inject(self) -> None:
        """A frame of the flow, as the host sends it."""
        path = self.before or self.after
        assert path is not None
        frame = frame_of(path.request, self.topology.hosts[path.request.target].mac)
        self.frames.append(UnderWay(self.topology.hosts[path.request.source].port, frame, self.sent))
        self.sent += 1

    def advance(self, one: UnderWay) -> None:
        """A frame passes a switch: to one port, never none, never two."""
        self.reserved(one.frame)
        sent = step(self.live[one.at.switch], one.at.switch, one.at.number, one.frame)
        assert len(sent) == 1, f"{one} at {self.change.stage}: {sent}"
        further = Cables(self.topology).next(sent[0].port)
        if further is not None:
            one.at, one.frame = further, sent[0].frame
            return
        path = self.before or self.after
        assert path is not None
        assert sent[0].port == self.topology.hosts[path.request.target].port
        assert (sent[0].frame.tag, sent[0].frame.dscp) == (0, path.request.dscp)
        self.frames.remove(one)
        self.arrived += 1

    def reserved(self, frame: Frame) -> None:
        """A frame with a tag and mark has a generation that is reserved."""
        if frame.tag == 0:
            return
        held = zip((self.before, self.after), holds(self.change), strict=True)
        generations = [(path.tag, MARKS.levels[path.route.level]) for path, needed in held if path and needed]
        assert (frame.tag, frame.dscp) in generations

    def elapse(self) -> None:
        """The time of a wait is over: frames of before it have arrived."""
        assert self.wait is not None
        wait, since = self.wait
        for one in [one for one in self.frames if one.born < since]:
            while one in self.frames:
                self.advance(one)
        self.wait = None
        self.order(self.change.elapsed(wait.serial))

    def act(self) -> None:
        """One thing happens."""
        busy = sorted(switch for switch, parts in self.queue.items() if parts)
        choice = self.random.random()
        if busy and choice < self.faults:
            self.fault(self.random.choice(busy))
        elif choice < 0.3:
            self.inject()
        elif self.frames and choice < 0.7:
            self.advance(self.random.choice(self.frames))
        elif busy and choice < 0.93:
            self.apply(self.random.choice(busy))
        elif self.gone and choice < 0.95:
            self.back(self.random.choice(sorted(self.gone)))
        elif self.wait:
            self.elapse()

    def finish(self) -> None:
        """All ends: switches come back, waits pass, frames arrive."""
        while not self.change.over or any(self.queue.values()):
            for switch in sorted(self.gone):
                self.back(switch)
            for switch in sorted(self.change.waits_for):
                self.order(self.change.back(switch))
            for switch in [switch for switch, parts in self.queue.items() if parts]:
                self.apply(switch)
            if self.wait:
                self.elapse()
        for switch in sorted(self.gone):
            self.back(switch)
        while self.frames:
            self.advance(self.frames[0])
        assert self.arrived == self.sent


def world(topology: Topology, random: Random, faults: float) -> World | None:
    """A change of one path between two ways, levels, or to or from none."""
    source, target = random.sample(range(len(topology.switches)), 2)
    ways = list(Routes(topology).ways(f"h{source}", f"h{target}"))
    asked = request(source=source, target=target)
    backup = random.choice([None, *ways])

    def path(way: tuple[str, ...], level: int, tag: int) -> Path:
        other = None
        if backup and len(way) > 2 and set(way[1:-1]).isdisjoint(backup[1:-1]):
            other = Route(backup, level)
        return Path(asked, Route(way, level), 1, tag, 10**6, 5000, number=3, backup=other)

    before: Path | None = path(random.choice(ways), random.randint(0, 1), 7)
    after: Path | None = path(random.choice(ways), random.randint(0, 1), 8)
    assert before is not None
    kind = random.randint(0, 4)
    if kind == 0:
        after = replace(before, route=replace(before.route, level=1 - before.route.level))
    elif kind == 1:
        before = None
    elif kind == 2:
        after = None
    old, new = (place(one, MARKS) if one else None for one in (before, after))
    return World(topology, Change(old, new), before, after, random, faults)


@given(networks(), st.integers(), st.sampled_from([0.0, 0.03, 0.1]))
def test_no_frame_is_lost_doubled_or_unreserved(topology: Topology, seed: int, faults: float) -> None:
    """At any instant of any order of rules and frames, with refusals and switches that vanish."""
    random = Random(seed)
    one = world(topology, random, faults)
    assert one is not None
    one.begin()
    for _ in range(random.randint(0, 150)):
        one.act()
    one.finish()
    whole = one.before if one.change.stage == Stage.UNDONE else one.after
    trees = [Tree(4000, spanning(topology))]
    expected = build(topology, [whole] if whole else [], MARKS, trees)
    for switch, held in one.target().items():
        assert held == expected[switch]
    if not faults:
        assert one.change.stage == Stage.DONE
        assert one.live == expected


def line() -> tuple[Path, Path]:
    """Two ways from s0 to s2."""
    topology = network(3, [(0, 1), (1, 2), (0, 2)])
    short, long = Routes(topology).ways("h0", "h2")
    asked = request()
    first = Path(asked, Route(long, 0), 1, 7, 20_000_000, 5000)
    return first, replace(first, route=Route(short, 0), generation=2, tag=8)


def updates(orders: list[Order]) -> list[tuple[str, int, int]]:
    """Switch, rules that come, rules that go."""
    return [(one.switch, len(one.rules), len(one.gone)) for one in orders if isinstance(one, Update)]


def test_the_steps_of_a_move() -> None:
    """Install, flip by one rule, drain by the old bound, delete."""
    old, new = line()
    change = Change(place(old, MARKS), place(new, MARKS), drain_time(old.bound))
    assert updates(change.start()) == [("s0", 1, 0), ("s2", 1, 0)]
    assert change.done(1, "s0") == []
    assert change.done(1, "s0") == []
    assert updates(change.done(1, "s2")) == [("s0", 1, 0)]
    assert (change.stage, change.flipped) == (Stage.FLIP, False)
    (wait,) = change.done(2, "s0")
    assert isinstance(wait, Wait)
    assert wait.seconds == pytest.approx(0.07)
    assert change.flipped
    assert change.elapsed(wait.serial - 1) == []
    assert updates(change.elapsed(wait.serial)) == [("s0", 0, 1), ("s1", 0, 1), ("s2", 0, 1)]
    assert holds(change) == (True, True)
    # A switch that vanished here holds a rule that no frame meets.
    serial = wait.serial + 1
    assert [change.failed(serial, "s1"), change.done(serial, "s0"), change.done(serial, "s2")] == [[], [], []]
    assert (change.stage, change.over, holds(change)) == (Stage.DONE, True, (False, True))


def test_a_raise_is_one_rule() -> None:
    """Nothing to install, nothing to delete."""
    old, _ = line()
    new = replace(old, generation=2, route=replace(old.route, level=1))
    change = Change(place(old, MARKS), place(new, MARKS), 1.0)
    (flip,) = change.start()
    assert updates([flip]) == [("s0", 1, 0)]
    (wait,) = change.done(flip.serial, "s0")
    assert change.elapsed(wait.serial) == []
    assert change.stage == Stage.DONE


def test_another_mark_has_a_notice() -> None:
    """The old key works until the host has been told."""
    old, new = line()
    new = replace(new, request=replace(new.request, dscp=41))
    change = Change(place(old, MARKS), place(new, MARKS), 1.0)
    change.start()
    change.done(1, "s0")
    change.done(1, "s2")
    (notice,) = change.done(2, "s0")
    assert change.stage == Stage.NOTICE
    (close,) = change.elapsed(notice.serial)
    assert updates([close]) == [("s0", 0, 1)]
    # Whether the old key is closed is unknown: both stay reserved until the switch is back.
    assert change.failed(close.serial, "s0") == []
    assert change.waits_for == {"s0"}
    assert holds(change) == (True, True)
    (again,) = change.back("s0")
    (drain,) = change.done(again.serial, "s0")
    assert (change.stage, isinstance(drain, Wait)) == (Stage.DRAIN, True)


def test_a_refusal_is_rolled_back() -> None:
    """While it is installed: what came goes again. At the flip: the old rule comes back first."""
    old, new = line()
    change = Change(place(old, MARKS), place(new, MARKS), 1.0, 2.0)
    change.start()
    assert updates(change.failed(1, "s2")) == [("s0", 0, 1), ("s2", 0, 1)]
    assert change.stage == Stage.UNDELETE
    assert change.done(1, "s0") == []
    change.done(2, "s0")
    change.done(2, "s2")
    assert (change.stage, holds(change)) == (Stage.UNDONE, (True, False))
    change = Change(place(old, MARKS), place(new, MARKS), 1.0, 2.0)
    change.start()
    change.done(1, "s0")
    change.done(1, "s2")
    (flip,) = change.failed(2, "s0")
    assert isinstance(flip, Update)
    assert flip.rules == {place(old, MARKS).ingress[1]}
    (drain,) = change.done(flip.serial, "s0")
    assert isinstance(drain, Wait)
    assert drain.seconds == 2.0
    assert change.present()["s0"] != Held()
