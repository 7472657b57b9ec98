"""A process that ends while an event's saves are written: some are durable, and nothing followed from them.

```text
 Core.handle ─▶ saves and effects ─ the first few saves ─▶ kept ─▶ Core.restore ─▶ whole ways, all reserved
```
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from networks import networks
from world import World

from tidegate_controller import events as ev
from tidegate_controller.core import Core
from tidegate_controller.engine import Settings
from tidegate_controller.model.topology import Topology
from tidegate_controller.runtime.outbox import SAVES


class Crash(Exception):
    """The process has ended."""


@dataclass
class Mortal(World):
    """A world whose process ends at some event."""

    left: int = -1
    """Events with saves until then."""

    told_of: set[str] = field(default_factory=set)
    """Paths that a host was told of, and has not asked to release."""
    leaving: dict[int, str] = field(default_factory=dict)
    """Releases that are not answered."""

    def release(self, name: str) -> int:
        """A release: from now on the path may go."""
        self.leaving[self.asked + 1] = name
        self.told_of.discard(name)
        return super().release(name)

    def carry_out(self, effects: list[ev.Effect]) -> None:
        """Does what the core wants, or a part of its saves."""
        saves: list[ev.Effect] = [effect for effect in effects if isinstance(effect, SAVES)]
        self.left -= bool(saves)
        if self.left == 0 and saves:
            super().carry_out(saves[: self.random.randint(0, len(saves))])
            raise Crash
        super().carry_out(effects)
        for answer in (effect for effect in effects if isinstance(effect, ev.Answer)):
            released = self.leaving.pop(answer.asker, None)
            if released is None and answer.path and answer.path.request.name not in self.leaving.values():
                self.told_of.add(answer.path.request.name)


@given(networks(), st.integers(), st.sampled_from([0.0, 0.05]), st.booleans(), st.integers(1, 40))
def test_a_crash_between_saves(
    topology: Topology, seed: int, faults: float, protect: bool, after: int
) -> None:
    """The next process begins with what is durable; paths that hosts were told of are there, and whole."""
    random = Random(seed)
    world = Mortal(topology, random, Core(Settings(protect=protect)), faults)
    world.begin()
    world.left = after
    try:
        for _ in range(200):
            world.act()
    except Crash:
        pass
    else:
        world.left = -1
    world.restart()
    assert world.told_of <= set(world.core.engine.paths)
    world.check()
    world.links_down.clear()
    world.change_topology()
    world.settle()
    world.check()
    assert world.changes == {}
    assert world.saved == world.core.engine.paths
    for name in list(world.core.engine.paths):
        world.release(name)
    world.settle()
    assert world.core.engine.book.names() == []
