"""Plans that make a switch hold what it is to hold: on a model of a switch, and with one that refuses."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import groups, rules

from tidegate_controller.model.intent import (
    OURS,
    Goto,
    Group,
    Match,
    Output,
    Rule,
    SetDscp,
    SwitchIntent,
    Table,
)
from tidegate_controller.openflow import codec, sync
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.replies import GroupEntry, RuleEntry, SwitchError
from tidegate_controller.openflow.session import Refusal, Session
from tidegate_controller.openflow.sync import Held, plan, step

FULL = SwitchError(5, 1)


class ModelSwitch:
    """Does what OpenFlow 1.3, 6.4 says of changes, by values instead of messages."""

    def __init__(self, entries: Iterable[RuleEntry] = (), groups: Iterable[GroupEntry] = ()) -> None:
        self.rules = {(entry.table, entry.priority, entry.match): entry for entry in entries}
        self.groups = {group.number: group for group in groups}
        self.touched: list[Change] = []

    def held(self) -> Held:
        """What it answers."""
        return Held.of(self.rules.values(), self.groups.values())

    def change(self, change: Change) -> None:
        """Makes a change."""
        self.touched.append(change)
        for rule in (change.before, change.after):
            if isinstance(rule, Rule):
                key = (int(rule.table), rule.priority, codec.canonical(rule.match))
                self.rules.pop(key, None)
                if rule is change.after:
                    self.rules[key] = entry_of(rule)
            elif isinstance(rule, Group):
                self.groups.pop(rule.number, None)
                if rule is change.after:
                    self.groups[rule.number] = GroupEntry(rule.number, rule)

    def carry_out(self, made: sync.Plan) -> None:
        """Makes all changes of a plan."""
        for table, cookie in made.spoilt:
            gone = [
                key for key, entry in self.rules.items() if (entry.table, entry.cookie) == (table, cookie)
            ]
            for key in gone:
                del self.rules[key]
        for stage in made.stages:
            for change in stage:
                self.change(change)


def entry_of(rule: Rule) -> RuleEntry:
    """As the switch reports a rule."""
    match = codec.canonical(rule.match)
    return RuleEntry(int(rule.table), rule.priority, rule.cookie, match, replace(rule, match=match), 0, 0)


def foreign(rule: Rule) -> RuleEntry:
    """Another's rule."""
    return replace(entry_of(replace(rule, cookie=0xBEEF)), rule=None)


def spoilt(rule: Rule) -> RuleEntry:
    """A rule with our cookie that is not of our form."""
    return replace(entry_of(rule), rule=None)


def unlike(entries: Iterable[Rule]) -> list[Rule]:
    """One rule for each key."""
    return list({(rule.table, rule.priority, rule.match): rule for rule in entries}.values())


some_rules = st.lists(rules(), max_size=12).map(unlike)
some_groups = st.lists(groups(), max_size=4, unique_by=lambda group: group.number)


@given(some_rules, some_rules, some_groups, some_groups, st.data())
def test_a_switch_comes_to_hold_what_it_is_to_hold(
    old: list[Rule], new: list[Rule], old_groups: list[Group], new_groups: list[Group], data: st.DataObject
) -> None:
    """From anything: others' rules stay, what is right is not touched, a second plan has nothing to do."""
    kept = data.draw(st.sets(st.sampled_from(new))) if new else set()
    makes = st.sampled_from([entry_of, foreign, spoilt])
    entries = [data.draw(makes)(rule) for rule in old] + [entry_of(rule) for rule in kept]
    switch = ModelSwitch(entries, [GroupEntry(group.number, group) for group in old_groups])
    others = [entry for entry in switch.rules.values() if entry.cookie == 0xBEEF]
    right = {entry.rule for entry in switch.rules.values()} & set(new)
    spoilt_keys = {(entry.table, entry.cookie) for entry in switch.rules.values() if entry.rule is None}
    intent = SwitchIntent(set(new), set(new_groups))
    made = plan(switch.held(), intent)
    switch.carry_out(made)
    held = switch.held()
    assert set(held.rules.values()) == set(new) - set(made.conflicts)
    assert set(held.groups.values()) == set(new_groups)
    assert [entry for entry in switch.rules.values() if entry.cookie == 0xBEEF] == others
    assert held.others == len(others)
    again = plan(held, intent)
    assert (again.changes, again.spoilt) == (0, ())
    touched = {change.after or change.before for change in switch.touched}
    assert (
        not {rule for rule in right if rule and (int(rule.table), rule.cookie) not in spoilt_keys} & touched
    )


@given(some_rules, some_rules, some_groups, some_groups)
def test_a_plan_can_be_taken_back(
    old: list[Rule], new: list[Rule], old_groups: list[Group], new_groups: list[Group]
) -> None:
    """After the inverse all is as before."""
    switch = ModelSwitch(map(entry_of, old), [GroupEntry(group.number, group) for group in old_groups])
    before = (dict(switch.rules), dict(switch.groups))
    made = plan(switch.held(), SwitchIntent(set(new), set(new_groups)))
    switch.carry_out(made)
    switch.carry_out(made.inverse)
    assert (switch.rules, switch.groups) == before


@given(some_rules, some_groups, st.lists(st.tuples(some_rules, some_groups), max_size=4), st.data())
def test_steps_lead_where_they_say(
    old: list[Rule], old_groups: list[Group], steps: list[tuple[list[Rule], list[Group]]], data: st.DataObject
) -> None:
    """All that is named comes or goes, all else stays; what is noted is what the switch holds."""
    others = [foreign(rule) for rule in data.draw(st.sets(st.sampled_from(old)))] if old else []
    switch = ModelSwitch(
        [*map(entry_of, old), *others], [GroupEntry(group.number, group) for group in old_groups]
    )
    held = switch.held()
    for come, groups_come in steps:
        before = dict(held.rules)
        gone = data.draw(st.sets(st.sampled_from(sorted(before.values(), key=str)))) if before else set()
        groups_gone = {group for group in held.groups.values() if data.draw(st.booleans())}
        made = step(held, come, gone, groups_come, groups_gone)
        switch.carry_out(made)
        held.note(sync.Report(made.stages, ()))
        assert (held.rules, held.groups) == (switch.held().rules, switch.held().groups)
        left = set(held.rules.values())
        keys = {(rule.table, rule.priority, rule.match) for rule in come}
        stay = {rule for rule in before.values() if (rule.table, rule.priority, rule.match) not in keys}
        assert left == (set(come) - set(made.conflicts)) | (stay - gone)
        assert set(held.groups.values()) >= set(groups_come)
        assert held.others == switch.held().others


def test_the_order_leaves_no_frame_without_a_rule() -> None:
    """Groups before rules, later tables before earlier ones; the other way round when they go."""
    group = Group(77, (1, 2))
    way = Rule(Table.WAY, 1, Match(tag=5), (Output(1),), OURS)
    edge = Rule(Table.EDGE, 1, Match(in_port=1), (Goto(Table.WAY),), OURS)
    intent = SwitchIntent({edge, way}, {group})
    come = plan(Held(), intent)
    assert come.stages == ((Change(None, group),), (Change(None, way), Change(None, edge)))
    go = plan(Held.by(intent), SwitchIntent())
    assert go.stages == ((Change(edge, None), Change(way, None)), (Change(group, None),))


def test_the_same_rule_in_another_spelling_is_right() -> None:
    """IPv6 addresses are compared by value."""
    rule = Rule(Table.EDGE, 1, Match(eth_type=0x86DD, source="2001:DB8::0:1"), (), OURS)
    assert plan(Held.of([entry_of(rule)], []), SwitchIntent({rule})).changes == 0


class Refusing:
    """A session whose switch refuses messages of its choice."""

    def __init__(self, refuse: set[int]) -> None:
        self.refuse = refuse
        self.sent: list[list[bytes]] = []

    async def apply(self, messages: Iterable[bytes]) -> list[Refusal]:
        """Counts messages over all stages."""
        before = sum(map(len, self.sent))
        self.sent.append(list(messages))
        own = range(before, before + len(self.sent[-1]))
        return [Refusal(number - before, FULL) for number in sorted(self.refuse) if number in own]


def test_full_tables_stop_the_plan_and_say_so() -> None:
    """The next stage is not sent; what was done is known, and can be taken back."""
    group = Group(77, (1,))
    old = Rule(Table.EDGE, 9, Match(), (), OURS)
    new = [Rule(Table.WAY, number, Match(), (), OURS) for number in range(3)]
    session = Refusing({2})
    made = plan(Held.by(SwitchIntent({old})), SwitchIntent(set(new), {group}))
    report = asyncio.run(sync.carry_out(cast("Session", session), made))
    assert [len(stage) for stage in session.sent] == [1, 3]
    assert not report.complete
    assert [str(refused).split(": add")[0] for refused in report.refused] == ["flow-mod-failed: table-full"]
    done = [change for stage in report.done for change in stage]
    assert len(done) == 3
    session = Refusing(set())
    back = asyncio.run(sync.take_back(cast("Session", session), report))
    assert back.complete
    assert [change for stage in back.done for change in stage] == [
        change.inverse for change in reversed(done)
    ]


def test_an_impossible_rule_changes_nothing() -> None:
    """All messages are made before the first one is sent."""
    session = Refusing(set())
    fine = Rule(Table.WAY, 1, Match(), (), OURS)
    impossible = Rule(Table.EDGE, 1, Match(eth_type=0x0800), (SetDscp(77),), OURS)
    with pytest.raises(ValueError, match="dscp is 77"):
        asyncio.run(sync.carry_out(cast("Session", session), plan(Held(), SwitchIntent({fine, impossible}))))
    assert not session.sent
