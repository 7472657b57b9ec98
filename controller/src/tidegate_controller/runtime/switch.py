"""Orders of one switch, one after the other.

```text
 Install, Sync ─▶ queue ─▶ plan beside what it holds ─▶ Session ─▶ SwitchDone, SwitchFailed
                  session lost, or none: all in the queue fail
```
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from tidegate_controller import events as ev
from tidegate_controller.core import BASIS
from tidegate_controller.openflow import sync
from tidegate_controller.openflow.session import RequestRefused, Session, SessionLost

log = logging.getLogger(__name__)

Order = ev.Install | ev.Sync
UNASKED = ev.Ticket(BASIS, 0, 0)
"""Of a `Sync` that failed: no step waits for it, and the core tries it again."""


class Switch:
    """One switch, with or without a session."""

    def __init__(self, name: str, tell: Callable[[ev.Event], None]) -> None:
        """`tell` may be called while an order is given."""
        self.name = name
        self.session: Session | None = None
        self.changed = 0
        """Rules and groups that came, changed or went."""
        self._tell = tell
        self._orders: deque[Order] = deque()
        self._more = asyncio.Event()
        self._held: sync.Held | None = None
        self._task: asyncio.Task[None] | None = None

    def up(self, session: Session) -> None:
        """A session begins."""
        self.down("replaced by a new session")
        self.session = session
        self._task = asyncio.get_running_loop().create_task(self._work(session))

    def down(self, reason: str) -> None:
        """The session is over; what is not done fails."""
        self.session, self._held = None, None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        failed, self._orders = self._orders, deque()
        for order in failed:
            self._failed(order, reason)

    def order(self, order: Order) -> None:
        """Takes an order."""
        if self.session is None:
            self._failed(order, "not connected")
        else:
            self._orders.append(order)
            self._more.set()

    def _failed(self, order: Order, error: str) -> None:
        if isinstance(order, ev.Install):
            self._tell(ev.SwitchFailed(self.name, order.ticket, error))

    async def _work(self, session: Session) -> None:
        while True:
            while not self._orders:
                self._more.clear()
                await self._more.wait()
            order = self._orders[0]
            try:
                error = await self._carry_out(session, order)
            except SessionLost:
                # `down` comes, and tells.
                return
            except (ValueError, RequestRefused) as refused:
                error = str(refused)
            except Exception as fault:
                log.exception("a fault of the controller at switch %s", self.name)
                error = f"a fault of the controller: {fault}"
            self._orders.popleft()
            if error:
                self._held = None
                log.error("switch %s: %s", self.name, error)
                ticket = order.ticket if isinstance(order, ev.Install) else UNASKED
                self._tell(ev.SwitchFailed(self.name, ticket, error))
            elif isinstance(order, ev.Install):
                self._tell(ev.SwitchDone(self.name, order.ticket))

    async def _carry_out(self, session: Session, order: Order) -> str:
        """Returns why it failed, or nothing."""
        if isinstance(order, ev.Sync) or self._held is None:
            self._held = await sync.read(session)
        held = self._held
        if isinstance(order, ev.Sync):
            wanted = sync.plan(held, order.intent)
        else:
            update = order.update
            wanted = sync.step(held, update.rules, update.gone, update.groups, update.groups_gone)
        report = await sync.carry_out(session, wanted)
        held.note(report)
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
