"""Orders of one switch, in their order.

```text
 Install, Sync ─▶ queue ─▶ those of different places together ─▶ plan beside what it holds ─▶ Session
                  │        └─ one of them refused: each alone                                └─▶ SwitchDone,
                  │                                                                              SwitchFailed
                  session lost, or none: all in the queue fail; one not done in time: the session is lost
```

A failed link moves hundreds of paths at once. Each barrier waits for the switch, which may do other work
meanwhile, so what can share barriers does.

The network waits for each order, so a switch has a time for it, from when it was given: one that answers
slowly enough to stay within each bound of its session would hold up all the others. What it took until then
stays, so a long comparison goes on where the session before ended.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import chain, islice

from tidegate_controller import events as ev
from tidegate_controller.core import BASIS
from tidegate_controller.openflow import sync
from tidegate_controller.openflow.limits import Allowance
from tidegate_controller.openflow.requests import RequestRefused
from tidegate_controller.openflow.session import Session, SessionLost

log = logging.getLogger(__name__)

Order = ev.Install | ev.Sync
UNASKED = ev.Ticket(BASIS, 0, 0)
"""Of a `Sync` that failed: no step waits for it, and the core tries it again."""
LINES = 5.0
"""Lines a second about what a switch refused."""
ORDER = 30.0
"""s that a switch has for a change, with all that were given before it."""
MOST_TOGETHER = 64
"""Orders that share barriers."""
COMPARISON = 60.0
"""s for a comparison of all that it holds: after a start, all switches are read at once."""


async def guarded(name: str, session: Session, work: Coroutine[None, None, None]) -> None:
    """Does work with a switch. A fault in it ends this session only, whatever the switch has sent."""
    try:
        await work
    except SessionLost:
        pass
    except Exception as fault:
        log.exception("a fault of the controller at switch %s", name)
        session.lose(f"a fault of the controller: {fault}")


class Switch:
    """One switch, with or without a session."""

    def __init__(
        self,
        name: str,
        tell: Callable[[ev.Event], None],
        beside: Callable[[str, Session], Coroutine[None, None, None]] | None = None,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """`tell` may be called while an order is given. `beside` is more work, as long as a session lasts.

        `may` is asked before each write: whether this controller may still change switches.
        """
        self.name = name
        self.session: Session | None = None
        self.changed = 0
        """Rules and groups that came, changed or went."""
        self._tell = tell
        self._lines = Allowance(LINES)
        self._orders: deque[tuple[Order, float]] = deque()
        """With the time by which each has to be done."""
        self._alone = 0
        """Orders to be carried out one by one: together they were not done."""
        self._more = asyncio.Event()
        self._held: sync.Held | None = None
        self._intended = 0
        """Rules that it is to hold, about."""
        self._beside, self._may = beside, may
        self._tasks: list[asyncio.Task[None]] = []

    def up(self, session: Session) -> None:
        """A session begins."""
        self.down("replaced by a new session")
        self.session = session
        session.may = self._may
        works = [self._work(session)]
        if self._beside is not None:
            works.append(self._beside(self.name, session))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(guarded(self.name, session, work)) for work in works]

    def down(self, reason: str) -> None:
        """The session is over; what is not done fails."""
        self.session, self._held, self._alone = None, None, 0
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        failed, self._orders = self._orders, deque()
        for order, _ in failed:
            self._failed(order, reason)

    def order(self, order: Order) -> None:
        """Takes an order."""
        if self.session is None:
            self._failed(order, "not connected")
        else:
            within = ORDER if isinstance(order, ev.Install) else COMPARISON
            until = asyncio.get_running_loop().time() + within
            if self._orders:
                until = max(until, self._orders[-1][1])
            self._orders.append((order, until))
            self._more.set()

    def _failed(self, order: Order, error: str) -> None:
        if isinstance(order, ev.Install):
            self._tell(ev.SwitchFailed(self.name, order.ticket, error))

    async def _work(self, session: Session) -> None:
        while True:
            while not self._orders:
                self._more.clear()
                await self._more.wait()
            orders = self._together()
            _, until = self._orders[len(orders) - 1]
            try:
                async with asyncio.timeout_at(until):
                    error = await self._carry_out(session, orders)
            except TimeoutError:
                # `down` comes, and tells, as after each `SessionLost`.
                session.lose("an order was not done in its time: the switch answers too slowly")
                return
            except SessionLost:
                raise
            except (ValueError, RequestRefused) as refused:
                error = str(refused)
            except Exception as fault:
                log.exception("a fault of the controller at switch %s", self.name)
                error = f"a fault of the controller: {fault}"
            if error and len(orders) > 1:
                self._held, self._alone = None, len(orders)
                continue
            for _ in orders:
                self._orders.popleft()
            self._alone = max(0, self._alone - len(orders))
            if error:
                order, self._held = orders[0], None
                if self._lines.take(asyncio.get_running_loop().time()):
                    log.error("switch %s: %s", self.name, error)
                ticket = order.ticket if isinstance(order, ev.Install) else UNASKED
                self._tell(ev.SwitchFailed(self.name, ticket, error))
                continue
            for order in orders:
                if isinstance(order, ev.Install):
                    self._tell(ev.SwitchDone(self.name, order.ticket))

    def _together(self) -> list[Order]:
        """Returns the first order, and those right behind it that touch other places."""
        found: list[Order] = []
        taken: set[object] = set()
        for order, _ in islice(self._orders, 1 if self._alone else MOST_TOGETHER):
            if isinstance(order, ev.Sync):
                return found or [order]
            update = order.update
            rules, groups = update.rules | update.gone, update.groups | update.groups_gone
            places = sync.places(rules, groups)
            if not taken.isdisjoint(places):
                break
            taken |= places
            found.append(order)
        return found

    async def _carry_out(self, session: Session, orders: list[Order]) -> str:
        """Carries out one order, or several updates. Returns why it failed, or nothing."""
        order = orders[0]
        if isinstance(order, ev.Sync) or self._held is None:
            if isinstance(order, ev.Sync):
                self._intended = len(order.intent.rules)
            self._held = await sync.read(session, sync.most_held(self._intended))
        held = self._held
        if isinstance(order, ev.Sync):
            wanted = sync.plan(held, order.intent)
        else:
            updates = [one.update for one in orders if isinstance(one, ev.Install)]
            wanted = sync.step(
                held,
                chain.from_iterable(one.rules for one in updates),
                chain.from_iterable(one.gone for one in updates),
                chain.from_iterable(one.groups for one in updates),
                chain.from_iterable(one.groups_gone for one in updates),
            )
        report = await sync.carry_out(session, wanted)
        held.note(report)
        self._intended = max(self._intended, len(held.rules))
        self.changed += sum(map(len, report.done))
        if wanted.spoilt:
            self._held = None
        if isinstance(order, ev.Sync):
            log.info("switch %s: %d changes of %d rules", self.name, wanted.changes, len(order.intent.rules))
        if report.complete:
            return ""
        return str(
            [*report.refused, *(f"another's rule is in the place of {rule}" for rule in report.conflicts)][0]
        )
