"""Orders of a switch that share barriers: beside the same orders, one after the other.

```text
 updates ─┬─▶ Switch ─▶ sync, on a model of a switch that refuses some rules ─▶ events, content ─┐
          └─▶ one step after the other, on another such model ─▶ events, content ────────────────┴─▶ equal
```
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from test_openflow_sync import FULL, ModelSwitch

from tidegate_controller import events as ev
from tidegate_controller.decide.move import Update
from tidegate_controller.model.intent import OURS, Group, Match, Output, Rule, SwitchIntent, Table
from tidegate_controller.openflow import sync
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.session import Session
from tidegate_controller.runtime.switch import MOST_TOGETHER, Order, Switch


@dataclass
class Playing:
    """A model that takes plans as `sync.carry_out` sends them."""

    refused: frozenset[Rule] = frozenset()
    switch: ModelSwitch = field(default_factory=ModelSwitch)
    plans: int = 0

    async def read(self, session: object, most: int) -> sync.Held:
        """In place of `sync.read`."""
        del session, most
        return self.switch.held()

    async def carry_out(self, session: object, plan: sync.Plan) -> sync.Report:
        """In place of `sync.carry_out`. Others have their turn meanwhile."""
        del session
        await asyncio.sleep(0)
        return self.make(plan)

    def make(self, plan: sync.Plan) -> sync.Report:
        """Makes the stages, until one has a change that is refused."""
        self.plans += 1
        done: list[tuple[Change, ...]] = []
        for stage in plan.stages:
            fine = tuple(change for change in stage if change.after not in self.refused)
            for change in fine:
                self.switch.change(change)
            done.append(fine)
            refused = tuple(sync.Refused(change, FULL) for change in stage if change not in fine)
            if refused:
                return sync.Report(tuple(done), refused)
        return sync.Report(tuple(done), ())


def ordered(updates: Iterable[Update]) -> list[ev.Install]:
    """Each for a path of its own."""
    return [ev.Install(ev.Ticket(f"v{update.serial}", 1, update.serial), update) for update in updates]


async def given_at_once(played: Playing, orders: Iterable[Order], most: int) -> list[ev.Event]:
    """What a switch tells of orders that were given together."""
    told: list[ev.Event] = []
    orders = list(orders)
    installs = sum(isinstance(order, ev.Install) for order in orders)
    one = Switch("s1", told.append)
    with (
        mock.patch.object(sync, "read", played.read),
        mock.patch.object(sync, "carry_out", played.carry_out),
        mock.patch("tidegate_controller.runtime.switch.MOST_TOGETHER", most),
    ):
        one.up(cast("Session", mock.Mock()))
        for order in orders:
            one.order(order)
        async with asyncio.timeout(30):
            await asyncio.sleep(0)
            while len(told) < installs or one._orders:
                await asyncio.sleep(0)
        told_then = list(told)
        one.down("the end")
    return told_then


def rule(number: int, port: int = 1) -> Rule:
    """A rule; those with the same number have one place."""
    return Rule(Table.WAY, 100, Match(tag=number), (Output(port),), OURS | number)


places = st.integers(1, 6)
few_rules = st.frozensets(st.builds(rule, places, st.integers(1, 2)), max_size=3)
few_groups = st.frozensets(st.builds(Group, st.integers(1, 3), st.just((1, 2))), max_size=1)


@st.composite
def _updates(draw: st.DrawFn) -> list[Update]:
    """Updates whose places are often the same."""
    found = []
    for serial in range(draw(st.integers(0, 8))):
        come = {one.cookie: one for one in draw(few_rules)}
        parts = frozenset(come.values()), draw(few_rules), draw(few_groups), draw(few_groups)
        found.append(Update(serial, "s1", *parts))
    return found


@given(_updates(), few_rules, st.integers(1, 4))
def test_orders_together_lead_where_they_lead_one_by_one(
    updates: list[Update], refused: frozenset[Rule], most: int
) -> None:
    """The switch holds the same, and the same orders are done and have failed, in their order."""
    together, alone = Playing(refused), Playing(refused)
    told = asyncio.run(given_at_once(together, ordered(updates), most))
    expected: list[tuple[type, int]] = []
    for update in updates:
        held = alone.switch.held()
        parts = (update.rules, update.gone, update.groups, update.groups_gone)
        report = alone.make(sync.step(held, *parts))
        expected.append((ev.SwitchDone if report.complete else ev.SwitchFailed, update.serial))
    assert [
        (type(one), one.ticket.serial) for one in told if isinstance(one, ev.SwitchDone | ev.SwitchFailed)
    ] == expected
    assert together.switch.rules == alone.switch.rules
    assert together.switch.groups == alone.switch.groups


def test_a_hundred_orders_share_a_few_plans() -> None:
    """As when a link fails; a comparison of all that the switch holds is made alone, in its turn."""
    updates = [Update(serial, "s1", frozenset({rule(serial + 1)})) for serial in range(100)]
    played = Playing()
    told = asyncio.run(given_at_once(played, ordered(updates), MOST_TOGETHER))
    assert [one.ticket.serial for one in told if isinstance(one, ev.SwitchDone)] == list(range(100))
    assert len(played.switch.rules) == 100
    assert played.plans == 2
    orders = ordered(updates[:20])
    played = Playing()
    asyncio.run(given_at_once(played, [*orders[:10], ev.Sync("s1", SwitchIntent()), *orders[10:]], 64))
    assert len(played.switch.rules) == 10
    assert played.plans == 3
