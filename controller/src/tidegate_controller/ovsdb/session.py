"""The session of one database: queues and BFD are written, and written again if another changes them.

```text
                    ┌────────────── Database ──────────────┐
 want(switch) ─────▶│ SwitchIntent ─▶ plan ─▶ transact, ───┼─▶ connection ─▶ ovsdb-server ─▶ ovs-vswitchd
 settled(switch) ◀──│                 wait for cur_cfg     │                                  (linux-htb, BFD)
 listener(Event) ◀──│ BFD, drift ◀─── View ◀─── Replica ◀──┼── updates ◀──────────┘
                    └──────────────────────────────────────┘
```

A database that is deaf, talks nonsense or goes away is dropped with the reason, and tried again; until it
answers, its switches keep what they have. Nothing is written for a switch before `want` was called for it, so
a controller that starts leaves all as it is until it knows better.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.topology import Port
from tidegate_controller.openflow.limits import Allowance

from .connection import SHARE, Broken, Connection, Fault, Refused, check_remote, no_fault, opened
from .events import Changed, Connected, Event, Left, LinkDown, LinkUp, Lost, NotSet
from .queues import BFD_INTERVAL, Change, check, plan, remains
from .rows import Malformed, Replica, View, requests, shown

FIRST_PAUSE = 0.1
"""Seconds before a lost database is tried again; doubled each time."""
LONGEST_PAUSE = 5.0
AGAIN = 5.0
"""Seconds before what failed is tried again, if nothing has changed meanwhile."""
LEAST_PAUSE = 0.02
"""Seconds between writes; twice as long each time that another program undoes ours, up to `LONGEST_PAUSE`."""
GATHER = 1.0
"""After a write, a pause of so many times as long as ovs-vswitchd took: wishes gather for the next one.

It looks at all its bridges for each transaction, and serves no OpenFlow and no BFD meanwhile.
"""
LONGEST_GATHER = 1.0
"""Seconds."""
MOST_CHANGES = 200
"""Changes of one transaction."""
NEWS = 0.05
"""Seconds of what follows from a look at the rows that count as work for the database, at most.

A link that failed may move hundreds of paths, whose queues must not wait for that.
"""
QUIET = 60.0
"""Seconds without a write after which what another undoes is no repetition."""
LINES, LINES_AT_ONCE = 5.0, 200.0
"""Lines of the log about one database: a second, and at once."""
APPLIED = 10.0
"""Seconds that ovs-vswitchd has to apply a transaction."""

log = logging.getLogger(__name__)


class NotInForce(Exception):
    """A switch does not have yet what it is to have; the text says why."""


@dataclass
class _Wanted:
    """What a switch is to have, and whether it does."""

    intent: SwitchIntent
    number: int = 0
    """Of the intent; each is newer than those with lower numbers."""
    holds: int = -1
    """The newest intent that is in force."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    problem: str = "its database has not answered yet"
    left: Mapping[int, str] = field(default_factory=dict)

    def in_force(self, number: int) -> None:
        """The intent with this number is in force."""
        self.holds = max(self.holds, number)
        self.changed.set()


def switch_name(datapath: int, names: Mapping[int, str]) -> str:
    """Returns the name of the configuration, else the datapath id in hexadecimal."""
    return names.get(datapath, f"{datapath:016x}")


class Database:
    """The bridges behind one `ovsdb-server`; each bridge is a switch."""

    def __init__(
        self,
        remote: str,
        listener: Callable[[Event], None],
        names: Mapping[int, str] | None = None,
        tls: ssl.SSLContext | None = None,
        only: Container[int] | None = None,
        fault: Fault = no_fault,
        may: Callable[[], bool] = lambda: True,
        bfd: int = BFD_INTERVAL,
    ) -> None:
        """`remote` is `unix:PATH`, `tcp:HOST:PORT` or `ssl:HOST:PORT` (with `tls`).

        `listener` is called in the event loop and must not block. Bridges get `names` by datapath id. With
        `only`, other datapath ids are left out: a database must not speak for a switch of another one.
        `fault` gets the certificate of an `ssl:` database, and returns why it is not the one expected.
        `may` is asked before each write: whether this controller may still make it. `bfd` is the interval of
        its frames, ms.
        Raises `ValueError` for an address of another form.
        """
        check_remote(remote, tls is not None)
        self.remote = remote
        self._listener = listener
        self._names = dict(names or {})
        self.tls = tls
        """Of connections to come."""
        self._fault, self._may, self._bfd = fault, may, bfd
        self._only = only
        self._told_connected = False
        self._connection: Connection | None = None
        self._replica = Replica()
        self._view = View()
        self._wanted: dict[str, _Wanted] = {}
        self._links: dict[Port, bool] = {}
        self._fresh = asyncio.Event()
        self._dirty = asyncio.Event()
        self._applied = asyncio.Event()
        self._wished = asyncio.Event()
        self._wishes = 0
        """How often `want` was called."""
        self._writes = 0
        """Transactions."""
        self._planning = 0.0
        """s that the last look at all switches took."""
        self._applying = 0.0
        """s that ovs-vswitchd took for the last write."""
        self._lines = Allowance(LINES, LINES_AT_ONCE)
        self._untold = 0
        """Lines above the allowance."""

    def recheck(self) -> None:
        """Ends a connection whose certificate is not the one expected any more."""
        connection = self._connection
        if (
            connection is not None
            and self.remote.startswith("ssl:")
            and (why := self._fault(connection.certificate))
        ):
            log.warning("%s: %s", self.remote, why)
            connection.close()

    def want(self, switch: str, intent: SwitchIntent) -> None:
        """States all queues and watched ports of a switch; ours on other ports of it are removed.

        Raises `ValueError` for queues that no port can have.
        """
        for queues in intent.queues.values():
            check(queues)
        copy = SwitchIntent(queues=dict(intent.queues), watched=set(intent.watched))
        wanted = self._wanted.setdefault(switch, _Wanted(copy))
        wanted.intent = copy
        wanted.number += 1
        self._wishes += 1
        self._wished.set()
        self._dirty.set()

    def fault(self, switch: str) -> str | None:
        """Why a switch has not the queues that it is to have; `None`: it has them."""
        wanted = self._wanted.get(switch)
        if wanted is None:
            return "no queues are wanted yet"
        return next(iter(wanted.left.values()), None) if wanted.holds >= wanted.number else wanted.problem

    async def settled(self, switch: str, timeout: float = APPLIED) -> Mapping[int, str]:
        """Waits until a switch applies what it is to have now, or what replaces that; returns why ports are
        left out, by number.

        Raises `NotInForce` after `timeout` seconds, and `KeyError` for a switch of which nothing is wanted.
        """
        wanted = self._wanted[switch]
        number = wanted.number
        try:
            async with asyncio.timeout(timeout):
                while wanted.holds < number:
                    wanted.changed.clear()
                    await wanted.changed.wait()
        except TimeoutError:
            raise NotInForce(f"{switch}: {wanted.problem}") from None
        return wanted.left

    @property
    def switches(self) -> dict[str, dict[int, str]]:
        """Names of the ports by number, of each switch, as last seen."""
        return {
            switch_name(datapath, self._names): {number: port.name for number, port in bridge.ports.items()}
            for datapath, bridge in self._view.bridges.items()
        }

    @property
    def heard(self) -> set[Port]:
        """Ports at which BFD hears the other end; none while the database is not connected."""
        if not self._told_connected:
            return set()
        return {
            Port(switch_name(datapath, self._names), number)
            for datapath, bridge in self._view.bridges.items()
            for number, row in bridge.ports.items()
            if row.bfd_ours and row.forwarding
        }

    async def run(self) -> None:
        """Connects, and stays connected, until it is cancelled."""
        pause, told = FIRST_PAUSE, ""
        while True:
            began = time.monotonic()
            reason = await self._once()
            self._connection, self._replica = None, Replica()
            for wanted in self._wanted.values():
                wanted.holds = -1
                wanted.problem = reason
            if self._told_connected or reason != told:
                self._tell(Lost(self.remote, reason))
            told, self._told_connected = reason, False
            if time.monotonic() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _once(self) -> str:
        """Returns why the connection ended, or could not be made."""
        try:
            connection = await opened(self.remote, self.tls, self._notice, self._fault)
        except Broken as error:
            return str(error)
        except Exception as error:
            # As below: such as one in a certificate.
            log.exception("%s: a fault of ours", self.remote)
            return str(error) or repr(error)
        self._connection = connection
        works = connection.serve(), connection.keep_alive(), self._look(), self._keep(connection)
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            connection.close()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        end = next(end for end in ends if isinstance(end, Exception))
        if not isinstance(end, Broken | Malformed | Refused):
            # What a database says must not end the controller, whatever we have overlooked.
            log.error("%s: a fault of ours", self.remote, exc_info=end)
        return str(end) or repr(end)

    def _notice(self, method: str, params: list[Any]) -> None:
        if method == "update" and len(params) == 2:
            self._update(params[1])

    def _update(self, changes: object) -> None:
        self._replica.update(changes)
        self._fresh.set()

    async def _look(self) -> None:
        """Makes the view anew when rows have changed."""
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            await asyncio.sleep(SHARE * self._see())

    def _see(self) -> float:
        """Makes the view anew, and tells of links. Returns how long that took (s)."""
        began = time.monotonic()
        before, self._view = self._view, self._replica.view()
        if (only := self._only) is not None:
            bridges = self._view.bridges.items()
            self._view.bridges = {datapath: bridge for datapath, bridge in bridges if datapath in only}
        read = time.monotonic()
        self._tell_links()
        if self._view.applied != before.applied:
            self._applied.set()
        self._dirty.set()
        return read - began + min(time.monotonic() - read, NEWS)

    async def _keep(self, connection: Connection) -> None:
        """Writes what is wanted, whenever that or the view has changed."""
        await connection.call("monitor", ["Open_vSwitch", None, requests()], self._update)
        self._see()
        self._told_connected = True
        self._tell(Connected(self.remote, tuple(sorted(self.switches))))
        pause, last, wished = LEAST_PAUSE, time.monotonic(), -1
        while True:
            self._dirty.clear()
            self._wished.clear()
            wishes, writes = self._wishes, self._writes
            fine = await self._round(connection)
            if self._writes > writes:
                # Nothing else was wished since the last write: another program undoes ours.
                now = time.monotonic()
                drift = wishes == wished and now < last + QUIET
                pause = min(2 * pause, LONGEST_PAUSE) if drift else LEAST_PAUSE
                last, wished = now, wishes
            gather = min(GATHER * self._applying, LONGEST_GATHER) if self._writes > writes else 0.0
            await asyncio.sleep(max(LEAST_PAUSE, SHARE * self._planning, gather))
            if pause > LEAST_PAUSE:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wished.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if fine else AGAIN):
                    await self._dirty.wait()

    async def _round(self, connection: Connection) -> bool:
        """Makes what is due; returns whether all is made, and applied."""
        fine = await self._settle_together(connection)
        if not fine:
            fine = True
            for switch, wanted in list(self._wanted.items()):
                fine &= await self._settle(connection, switch, wanted)
        if self._wanted:
            began = time.monotonic()
            parts = remains(self._view)
            self._planning += time.monotonic() - began
            for part in parts:
                fine = fine and await self._write(connection, self.remote, [part])
        return fine

    async def _settle_together(self, connection: Connection) -> bool:
        """Makes the changes of all switches at once: ovs-vswitchd takes as long for one as for many.

        Returns whether all are made, and applied; if not, they are to be made switch by switch.
        """
        began = time.monotonic()
        due: list[tuple[_Wanted, int]] = []
        changes: list[tuple[str, Change]] = []
        for switch, wanted in list(self._wanted.items()):
            found = self._planned(switch, wanted)
            if found:
                due.append((wanted, wanted.number))
                changes += [(switch, change) for change in found]
        self._planning = time.monotonic() - began
        if not changes:
            return True
        try:
            for start in range(0, len(changes), MOST_CHANGES):
                await self._transact(connection, changes[start : start + MOST_CHANGES])
        except (Refused, NotInForce):
            return False
        for wanted, number in due:
            wanted.in_force(number)
        return True

    async def _settle(self, connection: Connection, switch: str, wanted: _Wanted) -> bool:
        """Returns whether all changes that the switch needs were made."""
        number = wanted.number
        if changes := self._planned(switch, wanted):
            if not await self._write(connection, switch, changes):
                return False
            wanted.in_force(number)
        return True

    def _planned(self, switch: str, wanted: _Wanted) -> list[Change]:
        """Returns the changes that a switch needs; without any, it is done, or has no bridge."""
        intent = wanted.intent
        bridges = self._view.bridges.items()
        bridge = next(
            (row for datapath, row in bridges if switch_name(datapath, self._names) == switch), None
        )
        if bridge is None:
            wanted.holds = -1
            wanted.problem = f"no bridge at {self.remote} has its datapath id"
            return []
        found = plan(intent.queues, intent.watched, bridge, self._view, self._bfd)
        for number, reason in found.left.items():
            if wanted.left.get(number) != reason:
                self._tell(Left(Port(switch, number), reason))
        wanted.left = found.left
        if found.changes:
            wanted.holds = -1
            wanted.problem = f"{len(found.changes)} changes are under way"
        else:
            wanted.in_force(wanted.number)
        return found.changes

    async def _write(self, connection: Connection, switch: str, changes: list[Change]) -> bool:
        """Makes changes all together, else one by one; returns whether all are made, and applied."""
        problem = ""
        for start in range(0, len(changes), MOST_CHANGES):
            part = changes[start : start + MOST_CHANGES]
            try:
                await self._transact(connection, [(switch, change) for change in part])
            except Refused as error:
                # One port that is gone must not keep the others from their queues.
                problem = str(error) if len(part) == 1 else await self._singly(connection, switch, part)
            except NotInForce as error:
                problem = str(error)
        if problem:
            self._tell(NotSet(switch, problem))
            if switch in self._wanted:
                self._wanted[switch].problem = problem
        return not problem

    async def _singly(self, connection: Connection, switch: str, changes: Iterable[Change]) -> str:
        """Returns the last problem."""
        problem = ""
        for change in changes:
            try:
                await self._transact(connection, [(switch, change)])
            except Refused as error:
                problem = f"{change.text}: {error}"
            except NotInForce as error:
                # The others would wait for the same ovs-vswitchd.
                return str(error)
        return problem

    async def _transact(self, connection: Connection, changes: list[tuple[str, Change]]) -> None:
        """Makes changes of switches in one transaction and waits until ovs-vswitchd has applied it.

        Raises `Refused` if nothing was changed, `NotInForce` if it is not applied in time.
        """
        if not self._may():
            raise NotInForce("another controller may lead by now: nothing more is written")
        self._writes += 1
        began = time.monotonic()
        operations = [operation for _, change in changes for operation in change.operations]
        count = {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]}
        look = {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]}
        answers = await connection.call("transact", ["Open_vSwitch", *operations, count, look])
        number = _configuration(answers, len(operations) + 2)
        try:
            async with asyncio.timeout(APPLIED):
                while self._view.applied < number:
                    self._applied.clear()
                    await self._applied.wait()
        except TimeoutError:
            raise NotInForce(
                f"ovs-vswitchd has not applied configuration {number} in {APPLIED:g} s"
            ) from None
        finally:
            self._applying = time.monotonic() - began
        for switch, change in changes:
            self._tell(Changed(switch, change.text))

    def _tell_links(self) -> None:
        """Compares BFD with what it was; a port is a link from the first time that BFD was up.

        No status is no news: a database that was started again has none until BFD changes.
        """
        there: dict[str, Container[int]] = {}
        for datapath, bridge in self._view.bridges.items():
            switch = switch_name(datapath, self._names)
            there[switch] = bridge.ports
            for number, row in bridge.ports.items():
                port = Port(switch, number)
                if not row.bfd_ours:
                    self._down(port, "no BFD any more")
                elif row.forwarding and not self._links.get(port):
                    self._links[port] = True
                    self._tell(LinkUp(port))
                elif row.forwarding is False and self._links.get(port):
                    self._links[port] = False
                    self._tell(LinkDown(port, f"BFD: {shown(row.bfd_status.get('diagnostic', ''))}"))
        for port in list(self._links):
            if port.number not in there.get(port.switch, (port.number,)):
                self._down(port, "the port is gone")

    def _down(self, port: Port, reason: str) -> None:
        """Forgets a link."""
        if self._links.pop(port, False):
            self._tell(LinkDown(port, reason))

    def _tell(self, event: Event) -> None:
        if self._lines.take(time.monotonic()):
            if self._untold:
                log.info("%s: %d lines before this one were left out", self.remote, self._untold)
                self._untold = 0
            level = logging.WARNING if isinstance(event, NotSet | Left) else logging.INFO
            log.log(level, "%s", event)
        else:
            self._untold += 1
        self._listener(event)


def _configuration(answers: object, count: int) -> int:
    """Returns `next_cfg` from a transaction's answers (RFC 7047, 4.1.3). Raises `Refused` for an error."""
    rows = answers if isinstance(answers, list) else []
    for number, row in enumerate(rows):
        if isinstance(row, dict) and (error := row.get("error")):
            text = f"{shown(error)}: {shown(row.get('details'), 300)}"
            raise Refused(f"operation {number + 1} of {count}: {text}")
    match rows:
        case [*_, {"rows": [{"next_cfg": int(configuration)}]}] if len(rows) == count:
            return configuration
    raise Refused(f"{len(rows)} answers to {count} operations")
