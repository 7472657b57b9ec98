"""How a path comes, moves and goes without a lost frame: rules in steps, each over before the next begins.

```text
 old, new: Placed | None ─▶ Change ─▶ Update of a switch, Wait
                              ▲            │
                              └─ done, failed, elapsed, back

 INSTALL new, but its ingress ─▶ FLIP ingress ─▶ NOTICE ─▶ CLOSE old ingress ─▶ DRAIN ─▶ DELETE old ─▶ DONE
    │ fails                        │ fails
    ▼                              ▼
 UNDELETE new ◀── UNDRAIN ◀── UNFLIP                                                          ─▶ UNDONE
```

At every instant a frame meets whole ways: a way's rules are all there before a frame is sent onto it, and
stay until the last such frame has arrived. Flipping is one rule at one switch, so each frame takes one way or
the other. NOTICE and CLOSE are there only where the flow's key differs (another mark, another host): then the
host is told in between. A new path has no old generation, a released one no new generation.

A step that cannot be undone half-way waits for its switch: after FLIP, a switch that vanished may have the
one rule or the other, so both generations stay reserved until it is back. Rules that could not be deleted
harm nothing, since no frame is sent onto them: a switch that comes back is set to what it is to hold.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from tidegate_controller.decide.intent import Placed
from tidegate_controller.model.intent import Group, Rule, SwitchIntent

MARGIN = 0.05
"""s; added to a bound, for a switch that takes in a frame while it takes in a rule."""
GATE = ""
"""In the place of a switch."""
NOTICE = 1.0
"""s; so long a host has to use the new key."""


class Stage(StrEnum):
    """Where a change is."""

    INSTALL = "install"
    FLIP = "flip"
    NOTICE = "notice"
    CLOSE = "close"
    DRAIN = "drain"
    DELETE = "delete"
    DONE = "done"
    UNFLIP = "unflip"
    UNDRAIN = "undrain"
    UNDELETE = "undelete"
    UNDONE = "undone"


AFTER = {
    Stage.INSTALL: Stage.FLIP,
    Stage.FLIP: Stage.NOTICE,
    Stage.NOTICE: Stage.CLOSE,
    Stage.CLOSE: Stage.DRAIN,
    Stage.DRAIN: Stage.DELETE,
    Stage.DELETE: Stage.DONE,
    Stage.UNFLIP: Stage.UNDRAIN,
    Stage.UNDRAIN: Stage.UNDELETE,
    Stage.UNDELETE: Stage.UNDONE,
}


@dataclass(frozen=True)
class Update:
    """What one switch is to do; a barrier follows. New groups come before rules, old ones go after them."""

    serial: int
    """Number of the step: the answer carries it."""
    switch: str
    rules: frozenset[Rule] = frozenset()
    """A rule with the key of another one replaces it."""
    gone: frozenset[Rule] = frozenset()
    groups: frozenset[Group] = frozenset()
    groups_gone: frozenset[Group] = frozenset()


@dataclass(frozen=True)
class Wait:
    """Go on after this time."""

    serial: int
    seconds: float


Order = Update | Wait


@dataclass
class Held:
    """Rules and groups of one switch."""

    rules: set[Rule] = field(default_factory=set)
    groups: set[Group] = field(default_factory=set)


def drain_time(bound: int) -> float:
    """Returns how long frames may be under way (s), of a path with this bound (ns)."""
    return bound / 1e9 + MARGIN


def key(rule: Rule) -> tuple[object, ...]:
    """Returns the fields by which a switch tells rules apart."""
    return (rule.table, rule.priority, rule.match)


class Change:
    """One path's change from one generation to another one."""

    def __init__(
        self,
        old: Placed | None,
        new: Placed | None,
        old_drain: float = 0.0,
        new_drain: float = 0.0,
        notice: float = NOTICE,
        gate: bool = False,
        undo: bool = False,
    ) -> None:
        """With a `gate`, INSTALL waits for an answer from `GATE`, too: the rates of queues.

        With `undo`, it begins by going back: after a restart, when it is unknown how far it came.
        """
        self.stage = Stage.INSTALL if new else Stage.CLOSE
        if undo:
            self.stage = Stage.UNFLIP
        self._old, self._new = old, new
        self._gate = gate
        self._waits = {Stage.DRAIN: old_drain, Stage.UNDRAIN: new_drain, Stage.NOTICE: notice}
        self._serial = 0
        self._waiting: set[str] = set()
        self._stuck: set[str] = set()

    @property
    def serial(self) -> int:
        """Returns the number of the step."""
        return self._serial

    @property
    def over(self) -> bool:
        """Returns whether it has ended, done or undone."""
        return self.stage in (Stage.DONE, Stage.UNDONE)

    @property
    def flipped(self) -> bool:
        """Returns whether the flow takes the new way, for good."""
        return self.stage in (Stage.NOTICE, Stage.CLOSE, Stage.DRAIN, Stage.DELETE, Stage.DONE)

    @property
    def waits_for(self) -> frozenset[str]:
        """Returns the switches without which it cannot go on."""
        return frozenset(self._stuck)

    def start(self) -> list[Order]:
        """Returns the first orders."""
        return self._enter(self.stage)

    def done(self, serial: int, switch: str) -> list[Order]:
        """Goes on after a part of a step is done. Answers to steps that are over change nothing."""
        if serial != self._serial or switch not in self._waiting:
            return []
        self._waiting.discard(switch)
        self._stuck.discard(switch)
        return [] if self._waiting else self._next()

    def failed(self, serial: int, switch: str) -> list[Order]:
        """Goes back, or waits: a switch refused, or vanished, and how much it did is unknown."""
        if serial != self._serial or switch not in self._waiting:
            return []
        if self.stage == Stage.INSTALL:
            return self._enter(Stage.UNDELETE)
        if self.stage == Stage.FLIP:
            return self._enter(Stage.UNFLIP)
        if self.stage in (Stage.DELETE, Stage.UNDELETE):
            return self.done(serial, switch)
        self._stuck.add(switch)
        return []

    def elapsed(self, serial: int) -> list[Order]:
        """Goes on after a `Wait`."""
        if serial != self._serial or self.over or self._waiting:
            return []
        return self._next()

    def back(self, switch: str) -> list[Order]:
        """Asks a switch that is connected again for the part that it could not do."""
        if switch not in self._stuck:
            return []
        self._stuck.discard(switch)
        return [update for update in self._updates() if update.switch == switch]

    def present(self) -> dict[str, Held]:
        """Returns what switches are to hold of the path in this step."""
        held: dict[str, Held] = {}
        late, undone = Stage.DELETE, Stage.UNDELETE
        if self._old and self.stage not in (late, Stage.DONE):
            _put(held, self._old)
            if self.stage in (Stage.FLIP, Stage.NOTICE, Stage.CLOSE, Stage.DRAIN):
                closed = self.stage in (Stage.CLOSE, Stage.DRAIN)
                if closed or not self._keys_differ():
                    _take(held, self._old)
        if self._new and self.stage not in (undone, Stage.UNDONE):
            _put(held, self._new)
            if self.stage in (Stage.INSTALL, Stage.UNFLIP, Stage.UNDRAIN):
                _take(held, self._new)
                if self._old and not self._keys_differ():
                    held.setdefault(self._old.ingress[0], Held()).rules.add(self._old.ingress[1])
        return held

    def _enter(self, stage: Stage) -> list[Order]:
        self._serial += 1
        self.stage = stage
        self._waiting, self._stuck = set(), set()
        if self.over:
            return []
        if stage in self._waits:
            if not self._must_wait():
                return self._next()
            return [Wait(self._serial, self._waits[stage])]
        updates = self._updates()
        self._waiting = {update.switch for update in updates}
        if self._gate and stage == Stage.INSTALL:
            self._waiting.add(GATE)
        return list(updates) if self._waiting else self._next()

    def _next(self) -> list[Order]:
        return self._enter(AFTER[self.stage])

    def _must_wait(self) -> bool:
        if self.stage == Stage.NOTICE:
            return self._old is not None and self._keys_differ()
        return self.stage == Stage.UNDRAIN or self._old is not None

    def _keys_differ(self) -> bool:
        """Returns whether the ingress rules are two, not one that is replaced."""
        if not self._old or not self._new:
            return True
        (old_switch, old), (new_switch, new) = self._old.ingress, self._new.ingress
        return (old_switch, key(old)) != (new_switch, key(new))

    def _updates(self) -> list[Update]:
        old, new, updates = self._old, self._new, list[Update]()
        match self.stage:
            case Stage.INSTALL if new:
                updates = self._apart(new, old, adds=True)
            case Stage.FLIP if new:
                updates = [self._ingress(new, there=True)]
            case Stage.CLOSE if old and self._keys_differ():
                updates = [self._ingress(old, there=False)]
            case Stage.DELETE if old:
                updates = self._apart(old, new, adds=False)
            case Stage.UNFLIP if old and not self._keys_differ():
                updates = [self._ingress(old, there=True)]
            case Stage.UNFLIP if new:
                updates = [self._ingress(new, there=False)]
            case Stage.UNDELETE if new:
                updates = self._apart(new, old, adds=False)
            case _:
                pass
        return updates

    def _ingress(self, one: Placed, there: bool) -> Update:
        switch, rule = one.ingress
        rules = frozenset({rule})
        return (
            Update(self._serial, switch, rules=rules) if there else Update(self._serial, switch, gone=rules)
        )

    def _apart(self, one: Placed, other: Placed | None, adds: bool) -> list[Update]:
        """Returns updates for all of one generation that the other one does not have."""
        updates = []
        for switch in sorted(one.switches | set(one.groups)):
            rules = one.rules.get(switch, frozenset())
            groups = one.groups.get(switch, frozenset())
            if other:
                rules -= other.rules.get(switch, frozenset())
                groups -= other.groups.get(switch, frozenset())
            if rules or groups:
                updates.append(
                    Update(self._serial, switch, rules=rules, groups=groups)
                    if adds
                    else Update(self._serial, switch, gone=rules, groups_gone=groups)
                )
        return updates


def merge(intents: dict[str, SwitchIntent], held: dict[str, Held]) -> None:
    """Adds what a change holds to what switches hold."""
    for switch, part in held.items():
        intent = intents.setdefault(switch, SwitchIntent())
        intent.rules |= part.rules
        intent.groups |= part.groups


def _put(held: dict[str, Held], placed: Placed) -> None:
    for switch, rules in placed.rules.items():
        held.setdefault(switch, Held()).rules |= rules
    for switch, groups in placed.groups.items():
        held.setdefault(switch, Held()).groups |= groups
    held.setdefault(placed.ingress[0], Held()).rules.add(placed.ingress[1])


def _take(held: dict[str, Held], placed: Placed) -> None:
    held[placed.ingress[0]].rules.discard(placed.ingress[1])
