"""What a switch holds beside what it is to hold, and the changes that make them equal.

```text
 rules(), groups() ─▶ Held ─┐
                            ├─▶ plan() ─▶ groups come ─▶ rules come ─▶ rules go ─▶ groups go ─▶ Session.apply
 SwitchIntent ──────────────┘             └ barrier after each stage; what is right already is not touched
```

Ours are told by cookie, groups by number; all others are left alone, and counted. A rule of others in the
place (table, priority, match) of one of ours is a conflict, and stays.

`step` makes the same stages of a part of an update, for a switch whose content is known (`Held.note`).

Rules of later tables come first and go last, so that no frame is sent to a table that cannot treat it yet. A
switch that refuses a change (its tables are full, say) is asked for no further stage; the report has what it
refused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tidegate_controller.model.intent import OUR_GROUPS, OURS, OURS_MASK, Group, Match, Rule, SwitchIntent
from tidegate_controller.openflow import codec
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.replies import GroupEntry, RuleEntry, SwitchError
from tidegate_controller.openflow.session import SLICE, Session, SessionLost

T = TypeVar("T")
Key = tuple[int, int, Match]
"""Table, priority and match of a rule."""

SPARE = 10_000
"""Rules that a switch may hold beyond four times what it is to hold: others' rules, or what was left over."""


def most_held(wanted: int) -> int:
    """Returns how many rules are read of a switch that is to hold so many: comparing them takes time."""
    return 4 * wanted + SPARE


def _key(rule: Rule) -> Key:
    return int(rule.table), rule.priority, codec.canonical(rule.match)


@dataclass
class Held:
    """What a switch holds."""

    rules: dict[Key, Rule] = field(default_factory=dict)
    """Ours."""
    spoilt: set[tuple[int, int]] = field(default_factory=set)
    """(table, cookie) of rules with our cookie that none of ours can be."""
    taken: set[Key] = field(default_factory=set)
    """Places of others' rules that one of ours could have."""
    others: int = 0
    """Rules of others."""
    groups: dict[int, Group] = field(default_factory=dict)
    """Ours. One of a form that is none of ours has no port here."""
    other_groups: int = 0

    @classmethod
    def of(cls, rules: Iterable[RuleEntry], groups: Iterable[GroupEntry]) -> "Held":
        """Sorts a switch's answers."""
        held = cls()
        for entry in rules:
            held.take(entry)
        for group in groups:
            held.take_group(group)
        return held

    def take(self, entry: RuleEntry) -> None:
        """Sorts one rule of a switch's answer."""
        if entry.cookie & OURS_MASK != OURS:
            self.others += 1
            if entry.match is not None:
                self.taken.add((entry.table, entry.priority, entry.match))
        elif entry.rule is None:
            self.spoilt.add((entry.table, entry.cookie))
        else:
            self.rules[_key(entry.rule)] = entry.rule

    def take_group(self, entry: GroupEntry) -> None:
        """Sorts one group of a switch's answer."""
        if entry.number in OUR_GROUPS:
            self.groups[entry.number] = entry.group or Group(entry.number, ())
        else:
            self.other_groups += 1

    def note(self, report: "Report") -> None:
        """Takes in what a plan has changed."""
        for change in (change for stage in report.done for change in stage):
            for side in (change.before, change.after):
                if isinstance(side, Rule):
                    self.rules.pop(_key(side), None)
                elif side is not None:
                    self.groups.pop(side.number, None)
            if isinstance(change.after, Rule):
                self.rules[_key(change.after)] = change.after
            elif change.after is not None:
                self.groups[change.after.number] = change.after

    @classmethod
    def by(cls, intent: SwitchIntent) -> "Held":
        """Returns what a switch holds that has exactly this."""
        return cls(
            rules={_key(rule): rule for rule in intent.rules},
            groups={group.number: group for group in intent.groups},
        )


@dataclass(frozen=True)
class Plan:
    """Changes in stages, each to be complete before the next one."""

    stages: tuple[tuple[Change, ...], ...]
    spoilt: tuple[tuple[int, int], ...] = ()
    """(table, cookie): all rules with it go before the stages."""
    conflicts: tuple[Rule, ...] = ()
    """Ours that find another's rule in their place; not among the changes."""

    @property
    def changes(self) -> int:
        """How many there are."""
        return sum(map(len, self.stages))

    @property
    def inverse(self) -> "Plan":
        """The plan that takes this one back, where each change was made."""
        stages = (tuple(change.inverse for change in reversed(stage)) for stage in reversed(self.stages))
        return Plan(tuple(stages))


def plan(held: Held, intent: SwitchIntent) -> Plan:
    """Returns the changes from what a switch holds to what it is to hold."""
    wanted = {_key(rule): rule for rule in intent.rules}
    conflicts = tuple(rule for key, rule in wanted.items() if key in held.taken)
    # Rules that go with a spoilt one of the same cookie come anew.
    there = {
        key: rule for key, rule in held.rules.items() if (int(rule.table), rule.cookie) not in held.spoilt
    }
    come = _coming(there, held.taken, wanted)
    go = [Change(rule, None) for key, rule in there.items() if key not in wanted]
    groups = {group.number: group for group in intent.groups}
    groups_go = [Change(group, None) for number, group in held.groups.items() if number not in groups]
    stages = _stages(_groups_coming(held, intent.groups), come, go, groups_go)
    return Plan(stages, tuple(sorted(held.spoilt)), conflicts)


def step(
    held: Held,
    rules: Iterable[Rule] = (),
    gone: Iterable[Rule] = (),
    groups: Iterable[Group] = (),
    groups_gone: Iterable[Group] = (),
) -> Plan:
    """Returns the changes of one step of an update: what comes, in place of what has its key, and what goes.

    All else that the switch holds stays.
    """
    wanted = {_key(rule): rule for rule in rules}
    conflicts = tuple(rule for key, rule in wanted.items() if key in held.taken)
    leaving = ((_key(rule), rule) for rule in gone)
    go = [Change(rule, None) for key, rule in leaving if key in held.rules and key not in wanted]
    groups = list(groups)
    kept = {group.number for group in groups}
    groups_go = [
        Change(group, None)
        for group in groups_gone
        if group.number in held.groups and group.number not in kept
    ]
    come = _coming(held.rules, held.taken, wanted)
    return Plan(_stages(_groups_coming(held, groups), come, go, groups_go), (), conflicts)


def places(rules: Iterable[Rule], groups: Iterable[Group]) -> set[Key | int]:
    """Returns where rules and groups are: steps with different places may be made together."""
    return {*map(_key, rules), *(group.number for group in groups)}


def _coming(there: dict[Key, Rule], taken: set[Key], wanted: dict[Key, Rule]) -> list[Change]:
    return [
        Change(there.get(key), rule)
        for key, rule in wanted.items()
        if key not in taken and not _same(there.get(key), rule)
    ]


def _groups_coming(held: Held, groups: Iterable[Group]) -> list[Change]:
    return [
        Change(held.groups.get(group.number), group)
        for group in groups
        if held.groups.get(group.number) != group
    ]


def _stages(
    groups_come: list[Change], come: list[Change], go: list[Change], groups_go: list[Change]
) -> tuple[tuple[Change, ...], ...]:
    come.sort(key=_table, reverse=True)
    go.sort(key=_table)
    return tuple(tuple(stage) for stage in (groups_come, come, go, groups_go) if stage)


def _same(held: Rule | None, wanted: Rule) -> bool:
    return held is not None and (held.actions, held.cookie) == (wanted.actions, wanted.cookie)


def _table(change: Change) -> int:
    rule = change.after or change.before
    return int(rule.table) if isinstance(rule, Rule) else 0


@dataclass(frozen=True)
class Refused:
    """A change that the switch did not take, and why."""

    change: Change | None
    """None: the deletion of rules that were not of our form."""
    error: SwitchError

    def __str__(self) -> str:
        return f"{self.error}: {self.change or 'delete rules of another form'}"


@dataclass(frozen=True)
class Report:
    """What came of a plan."""

    done: tuple[tuple[Change, ...], ...]
    """The changes that the switch took, by stage."""
    refused: tuple[Refused, ...]
    conflicts: tuple[Rule, ...] = ()
    others: int = 0
    """Rules of others."""
    other_groups: int = 0

    @property
    def complete(self) -> bool:
        """Whether the switch holds all that it is to hold."""
        return not self.refused and not self.conflicts


async def carry_out(session: Session, plan: Plan) -> Report:
    """Makes the changes of a plan, stage by stage; stops after a stage with a refusal.

    All messages are made before the first is sent: `ValueError` if one cannot be, and nothing has changed
    then. `SessionLost` if the switch goes away; what it holds is read when it comes back.
    """
    deletions = [codec.delete_by_cookie(*spoilt) for spoilt in plan.spoilt]
    stages = [[message async for message in _encoded(stage)] for stage in plan.stages]
    done: list[tuple[Change, ...]] = []
    if deletions and (refusals := await session.apply(deletions)):
        refused = tuple(Refused(None, refusal.error) for refusal in refusals)
        return Report((), refused, plan.conflicts)
    for stage, messages in zip(plan.stages, stages, strict=True):
        refusals = await session.apply(messages)
        errors = {refusal.index: refusal.error for refusal in refusals}
        done.append(tuple(change for index, change in enumerate(stage) if index not in errors))
        if errors:
            refused = tuple(Refused(stage[index], error) for index, error in errors.items())
            return Report(tuple(done), refused, plan.conflicts)
    return Report(tuple(done), (), plan.conflicts)


async def _encoded(changes: Iterable[Change]) -> AsyncIterator[bytes]:
    """Yields messages; others have their turn between slices."""
    for index, change in enumerate(changes):
        if index % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        yield codec.encode(change)


async def take_back(session: Session, report: Report) -> Report:
    """Takes back the changes that a switch took, the last stage first."""
    return await carry_out(session, Plan(report.done).inverse)


async def read(session: Session, most: int = SPARE) -> Held:
    """Asks a switch what it holds. A switch with more than so many rules or groups loses its session."""
    held = Held()
    await _sorted(session, "rules", await session.rules(), held.take, most)
    await _sorted(session, "groups", await session.groups(), held.take_group, most)
    return held


async def _sorted(session: Session, what: str, found: list[T], take: Callable[[T], None], most: int) -> None:
    """Others have their turn between slices."""
    if len(found) > most:
        reason = (
            f"it holds {len(found)} {what}; at most {most} were expected. Remove them there: ovs-ofctl"
            f" del-{'flows' if what == 'rules' else what}"
        )
        session.lose(reason)
        raise SessionLost(reason)
    for start in range(0, len(found), SLICE):
        for entry in found[start : start + SLICE]:
            take(entry)
        await asyncio.sleep(0)


async def synchronise(session: Session, intent: SwitchIntent) -> Report:
    """Makes a switch hold what it is to hold, whatever it holds now."""
    held = await read(session, most_held(len(intent.rules)))
    report = await carry_out(session, plan(held, intent))
    return Report(report.done, report.refused, report.conflicts, held.others, held.other_groups)
