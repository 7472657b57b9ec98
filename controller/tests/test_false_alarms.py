"""Links that only seem to be down: frames of paths go on to arrive, also after a restart.

```text
 World: paths in force, moves under way ─▶ restart ─▶ switches come in any order, links late or away once
        after each step a frame of each path is walked through what switches hold: it arrives once
```

No frame is lost on any cable of this network: only what the controller hears of it is late, or wrong.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import networks, request, ring
from world import World

from tidegate_controller import events as ev
from tidegate_controller.core import Core
from tidegate_controller.decide.marks import Priority
from tidegate_controller.engine import Settings
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.intent import Table
from tidegate_controller.model.paths import PathState
from tidegate_controller.model.topology import Topology

STEP = 0.25
"""s"""
NAME = "h0/v>r"


def asked(topology: Topology, random: Random, protect: bool) -> World:
    """A network with up to four small paths; some of their changes may be under way."""
    world = World(topology, random, Core(Settings(protect=protect)))
    world.begin()
    hosts = range(len(topology.switches))
    for number in range(random.randint(1, 4)):
        source, target = random.sample(hosts, 2)
        world.ask(request(f"v{number}", source, target, port=50_000 + number))
    world.settle()
    world.now += world.core.engine.settings.hold
    for name in sorted(world.core.engine.paths):
        if random.random() < 0.3:
            world.event(ev.Missed(name, 3, 1000, world.now))
            advance(world)
    return world


def advance(world: World) -> None:
    """Some switches do their next order, and some databases answer."""
    for switch in sorted(world.queues):
        if world.queues[switch] and world.random.random() < 0.5:
            world.apply(switch)
    if world.setting and world.random.random() < 0.5:
        world.answer_queues(False)


@given(networks(), st.integers(), st.booleans(), st.booleans())
def test_a_restart_disturbs_no_path(topology: Topology, seed: int, protect: bool, anew: bool) -> None:
    """Each link is away for less than the hold time: late after a restart, or once while a process runs."""
    random = Random(seed)
    world = asked(topology, random, protect)
    names = sorted(world.core.engine.paths)
    if anew:
        world.restart()
    hold = world.core.engine.settings.hold
    began = world.now
    cables = sorted(link.name for link in topology.links if link.source < link.target)
    away = {}
    for cable in cables:
        if random.random() < 0.6:
            first = random.choice([0.0, 0.0, 3.0])
            away[cable] = (first, first + random.uniform(STEP, hold - 2 * STEP))
    while world.now < began + 2 * hold:
        world.links_down = {cable for cable, (a, b) in away.items() if a <= world.now - began < b}
        world.change_topology()
        for switch in sorted(world.gone):
            if random.random() < 0.3:
                world.back(switch)
        advance(world)
        for name in names:
            world.arrives(name)
        world.check()
        world.now += STEP
        world.event(ev.Tick())
    world.settle()
    world.check()
    assert {path.state for path in world.core.engine.paths.values()} == {PathState.ACTIVE}
    assert Verdict.VIOLATED not in {decision.verdict for decision in world.decisions}
    for name in names:
        world.arrives(name)


def opened(world: World) -> set[tuple[str, int | None]]:
    """Ports at which switches take frames as those of a link."""
    return {
        (switch, rule.match.in_port)
        for switch, held in world.live.items()
        for rule in held.rules
        if (rule.table, rule.priority) == (Table.EDGE, Priority.LINK)
    }


@pytest.fixture(name="world")
def _world() -> World:
    world = World(ring(4), Random(1), Core())
    world.begin()
    world.ask(request(target=1))
    world.settle()
    return world


def test_the_port_of_a_link_that_is_gone_closes_behind_the_last_path(world: World) -> None:
    """Frames that are under way arrive; then nothing is taken there."""
    cables = {(link.target.switch, link.target.number) for link in world.topology.links}
    assert opened(world) == cables
    world.links_down = {"s0:1>s1:1"}
    world.change_topology()
    # The path waits for its queues, best effort does not.
    while any(world.queues.values()):
        for switch in sorted(world.queues):
            if world.queues[switch]:
                world.apply(switch)
        world.arrives(NAME)
    assert ("s1", 1) in opened(world)
    world.settle()
    assert len(world.core.engine.paths[NAME].route.links) == 5
    world.now += 5
    world.event(ev.Tick())
    world.settle()
    assert cables - opened(world) == {("s0", 1), ("s1", 1)}
    world.arrives(NAME)
    world.links_down.clear()
    world.change_topology()
    world.settle()
    assert opened(world) == cables


def test_hosts_without_any_way_keep_their_path_for_the_hold_time(world: World) -> None:
    """Then it is broken, its host is told, and the port closes."""
    world.links_down = {link.name for link in world.topology.links}
    world.change_topology()
    world.settle()
    hold = world.core.engine.settings.hold
    while world.core.engine.paths[NAME].state == PathState.ACTIVE:
        world.arrives(NAME)
        assert world.told == []
        world.now += 1
        world.event(ev.Tick())
        world.settle()
        assert world.now < 1000 + 5 * hold
    assert [one.verdict for one in world.told] == [Verdict.VIOLATED]
    assert world.core.engine.gone_for({"s0:1>s1:1"}) >= hold
    world.now += 5
    world.event(ev.Tick())
    world.settle()
    assert opened(world) == set()


def test_hosts_with_a_way_that_has_no_room_use_best_effort_at_once() -> None:
    """Rules of a path that is cut off would keep its frames from there."""
    world = World(ring(4), Random(1), Core())
    world.begin()
    for wanted in (request("w", 3, 2, 400_000_000, port=50_001), request(target=1, rate=300_000_000)):
        world.ask(wanted)
        world.settle()
    assert len(world.core.engine.paths[NAME].route.links) == 3
    world.links_down = {"s0:1>s1:1"}
    world.change_topology()
    assert world.core.engine.paths[NAME].state == PathState.BROKEN
    assert world.told[-1].verdict == Verdict.VIOLATED


def test_a_process_that_ended_while_links_were_gone_begins_with_open_ports(world: World) -> None:
    """What it has kept is the network without them; its paths still use them."""
    world.links_down = {link.name for link in world.topology.links}
    world.change_topology()
    world.settle()
    world.restart()
    before = opened(world)
    assert ("s1", 1) in before
    for switch in sorted(world.gone):
        world.back(switch)
    world.settle()
    assert opened(world) == before
    world.arrives(NAME)
