"""How the rules that belong to no path follow the topology.

```text
 Topology ─▶ CARRY: rules for the new tree's tag, ports of new links and hosts
          ─▶ BEGIN: broadcast starts on the new tree, best effort takes the new ways, ports of no use close
          ─▶ DRAIN ─▶ DELETE: rules of the old tree
```

A switch that does not answer is not waited for: it is set to what it is to hold when it is back. Broadcast
frames make no circle in any mixture of rules; best effort may lose frames, or send one in a circle of three
or more switches, until all switches have the new rules.

The port of a link that is gone stays open while paths have rules over it: a link that only seems to be down
goes on to carry their frames until they have moved.
"""

from collections.abc import Mapping

from tidegate_controller.decide import base, flood
from tidegate_controller.decide.flood import Tree
from tidegate_controller.decide.marks import Marks
from tidegate_controller.decide.move import Order, Update, key
from tidegate_controller.decide.phases import Phase, Phases
from tidegate_controller.model.intent import Rule, Table
from tidegate_controller.model.topology import Port, Topology

Rules = Mapping[str, set[Rule]]


class Basis(Phases):
    """The rules of no path, on all switches."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks
        self._topology = Topology()
        self._tree: Tree | None = None
        self._old: Tree | None = None
        self._used = frozenset[Port]()
        self._held: dict[str, set[Rule]] = {}

    @property
    def tags(self) -> frozenset[int]:
        """Returns ids that broadcast frames may carry now."""
        return frozenset(tree.tag for tree in (self._tree, self._old) if tree)

    def held(self) -> dict[str, set[Rule]]:
        """Returns what switches are to hold now."""
        return self._held

    def follow(self, topology: Topology, tree: Tree, used: frozenset[Port] = frozenset()) -> list[Order]:
        """Begins to follow a topology, while it is idle. The tree is the one before, or has another tag.

        Paths use ports `used`, whose links are not in the topology.
        """
        assert self.phase == Phase.IDLE
        self._topology, self._used = topology, used
        if self._tree is not None and tree.tag != self._tree.tag:
            self._old = self._tree
        self._tree = tree
        return self._enter(Phase.CARRY)

    def assume(self, topology: Topology, tree: Tree, used: frozenset[Port] = frozenset()) -> None:
        """Takes over from a process that followed this topology."""
        self._topology, self._tree, self._used = topology, tree, used
        self._held = self._target(Phase.DELETE)

    def _over(self) -> None:
        self._old = None

    def _updates(self, phase: Phase) -> list[Update]:
        before, self._held = self._held, self._target(phase)
        updates: list[Update] = []
        for switch in sorted(self._topology.switches):
            had, has = before.get(switch, set()), self._held.get(switch, set())
            keys = {key(rule) for rule in has}
            gone = frozenset(rule for rule in had if key(rule) not in keys)
            if has - had or gone:
                updates.append(Update(self._serial, switch, frozenset(has - had), gone))
        return updates

    def _target(self, phase: Phase) -> dict[str, set[Rule]]:
        assert self._tree is not None
        new = base.rules(self._topology, self._marks, self._used)
        trees = [self._tree] if self._old is None or phase == Phase.DELETE else [self._old, self._tree]
        parts: list[Rules] = [flood.carry(tree, self._topology) for tree in trees]
        if phase == Phase.CARRY:
            edge = {switch: {rule for rule in has if rule.table == Table.EDGE} for switch, has in new.items()}
            return _merged(*parts, self._held, edge)
        return _merged(*parts, flood.begin(self._tree, self._topology), new)


def _merged(*parts: Rules) -> dict[str, set[Rule]]:
    """Returns all rules; of two with one key, the later part's."""
    found: dict[str, dict[tuple[object, ...], Rule]] = {}
    for part in parts:
        for switch, rules in part.items():
            found.setdefault(switch, {}).update({key(rule): rule for rule in rules})
    return {switch: set(rules.values()) for switch, rules in found.items()}
