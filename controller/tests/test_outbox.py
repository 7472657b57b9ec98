"""Effects wait for the store, in their order; a store that fails ends the process."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_config import GOOD

from tidegate_controller import events as ev
from tidegate_controller.config import parse
from tidegate_controller.decide.move import Update
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.runtime import outbox
from tidegate_controller.runtime.kept import Kept, Save
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.runtime.outbox import Outbox
from tidegate_controller.state.store import MOST_SAVES, Fenced, Unwritable


class Slow:
    """A store whose writes end when they are let."""

    where = "nowhere"

    def __init__(self) -> None:
        self.durable: list[Save] = []
        self.sizes: list[int] = []
        self.let = asyncio.Semaphore(0)
        self.fault: Exception | None = None

    async def load(self) -> Kept:
        """Nothing."""
        return Kept()

    async def write(self, saves: Sequence[Save]) -> None:
        """Wait until it is let."""
        await self.let.acquire()
        if self.fault is not None:
            raise self.fault
        self.sizes.append(len(saves))
        self.durable += saves

    async def close(self) -> None:
        """Nothing."""


def saved(number: int) -> ev.SaveDecision:
    """A save."""
    return ev.SaveDecision(Decision(number, 0.0, "v", "miss", Verdict.KEPT, ()))


def install(number: int, switch: str = "s1") -> ev.Install:
    """An effect that is none."""
    return ev.Install(ev.Ticket("v", 1, number), Update(number, switch))


@given(st.lists(st.lists(st.booleans(), max_size=5), max_size=12), st.integers(0, 30))
def test_order_and_durability(events: list[list[bool]], early: int) -> None:
    """Everything is done once, in its order, and after all saves of its event and of earlier ones."""

    async def main() -> None:
        store, done = Slow(), list[ev.Effect]()
        effects: list[list[ev.Effect]] = []
        needed: dict[int, int] = {}
        number = saves = 0
        for event in events:
            held: list[ev.Effect] = []
            for is_save in event:
                number += 1
                saves += is_save
                held.append(saved(number) if is_save else install(number))
            effects.append(held)
            needed |= {id(one): saves for one in held}

        def carry_out(effect: ev.Effect) -> None:
            assert len(store.durable) >= needed[id(effect)]
            done.append(effect)

        box = Outbox(store, carry_out)
        task = asyncio.create_task(box.run())
        for held in effects[: early % 13]:
            box.put(held)
        await asyncio.sleep(0)
        for _ in range(early):
            store.let.release()
        await asyncio.sleep(0)
        for held in effects[early % 13 :]:
            box.put(held)
            await asyncio.sleep(0)
        for _ in range(100):
            store.let.release()
        await box.flushed()
        assert done == [one for held in effects for one in held]
        assert store.durable == [one for one in done if isinstance(one, ev.SaveDecision)]
        task.cancel()

    asyncio.run(main())


def test_group_commit() -> None:
    """What gathers while a write is under way is one transaction, but for what does not fit."""

    async def main() -> None:
        store, done = Slow(), list[ev.Effect]()
        box = Outbox(store, done.append)
        task = asyncio.create_task(box.run())
        box.put([saved(1)])
        await asyncio.sleep(0)
        for number in range(2, 12):
            box.put([saved(number), install(number)])
        box.put([saved(number) for number in range(100, 100 + MOST_SAVES + 1)])
        for _ in range(9):
            store.let.release()
        await box.flushed()
        assert store.sizes == [1, 10, MOST_SAVES, 1]
        task.cancel()

    asyncio.run(main())


def test_an_effect_that_leads_to_another_one() -> None:
    """It comes after those that were there."""
    done: list[ev.Effect] = []

    def carry_out(effect: ev.Effect) -> None:
        done.append(effect)
        if len(done) == 1:
            box.put([install(9)])

    box = Outbox(None, carry_out)
    box.put([install(1), install(2)])
    assert done == [install(1), install(2), install(9)]


def test_what_is_withdrawn() -> None:
    """Orders of one switch, which fail; nothing else."""

    async def main() -> None:
        store, done = Slow(), list[ev.Effect]()
        box = Outbox(store, done.append)
        task = asyncio.create_task(box.run())
        sync = ev.Sync("s1", SwitchIntent())
        box.put([install(1), saved(1), install(2, "s2"), sync])
        assert box.withdraw("s1") == [install(1)]
        store.let.release()
        await box.flushed()
        assert done == [saved(1), install(2, "s2")]
        task.cancel()

    asyncio.run(main())


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """New questions are refused first; what cannot be refused ends the process."""
    monkeypatch.setattr(outbox, "CROWDED", 5)
    monkeypatch.setattr(outbox, "MOST", 20)
    box = Outbox(Slow(), lambda _: None)
    box.put([saved(1)])
    assert not box.crowded
    box.put([install(n) for n in range(9)])
    assert box.crowded
    with pytest.raises(Unwritable, match="effects wait for the store; at most 20"):
        box.put([install(n) for n in range(11)])


def test_a_lead_that_is_over() -> None:
    """Nothing more is done, not even the rest of what was decided before."""
    done: list[ev.Effect] = []
    box = Outbox(None, done.append, lambda: len(done) < 2)
    with pytest.raises(Fenced):
        box.put([install(1), install(2), install(3)])
    assert done == [install(1), install(2)]


def test_a_write_that_fails_ends_the_process() -> None:
    """Nothing is carried out that was not kept, and it is said why."""

    async def main() -> None:
        store, kept = Slow(), Kept()
        config = parse(GOOD.replace("[::1]:6653", "127.0.0.1:0"), "f")
        runtime = Runtime(config, kept, store=store)
        await runtime.start()
        store.fault = Unwritable("the disk is full")
        asked = asyncio.create_task(runtime.release("v"))
        await asyncio.sleep(0)
        store.let.release()
        with pytest.raises(Unwritable, match="the disk is full"):
            await runtime.run()
        await runtime.stop()
        with suppress(asyncio.CancelledError):
            await asked
        assert asked.cancelled()
        assert not kept.decisions
        assert kept.network is None

    asyncio.run(main())
