"""Queues of switches, stated at their databases.

```text
 SetQueues ─▶ all queues of each switch ─▶ Database.want ... settled ─▶ QueuesDone, QueuesFailed
```
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping

from tidegate_controller import events as ev
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.ovsdb.session import Database, NotInForce

log = logging.getLogger(__name__)


class Queues:
    """What each switch is to have."""

    def __init__(
        self,
        switches: Iterable[str],
        databases: Mapping[str, Database],
        begin: Callable[[Coroutine[None, None, None]], None],
        tell: Callable[[ev.Event], None],
    ) -> None:
        """`switches` are all that are configured, `databases` are theirs; `begin` starts a task."""
        self.intents = {name: SwitchIntent() for name in switches}
        """Queues and watched ports."""
        self._databases, self._begin, self._tell = databases, begin, tell

    def set(self, effect: ev.SetQueues) -> None:
        """States queues at once, so in the order of the core, and tells when they are in force."""
        # A switch that was kept, and is not in the configuration any more, has nothing to be set.
        ports = [port for port in effect.queues if port.switch in self.intents]
        for port in ports:
            intent = self.intents[port.switch]
            intent.queues[port.number] = effect.queues[port]
            if port in effect.watched:
                intent.watched.add(port.number)
        problem, switches = "", sorted({port.switch for port in ports})
        for switch in switches:
            database = self._databases.get(switch)
            if database is None:
                problem = f"switch {switch} has no database in the configuration"
                continue
            try:
                database.want(switch, self.intents[switch])
            except ValueError as error:
                problem = f"switch {switch}: {error}"
        self._begin(self._wait(effect, switches, problem))

    async def _wait(self, effect: ev.SetQueues, switches: list[str], problem: str) -> None:
        if not problem:
            found = await asyncio.gather(*(self._settled(switch, effect) for switch in switches))
            problem = "; ".join(text for text in found if text)[:300]
        if problem:
            log.warning("queues: %s", problem)
            self._tell(ev.QueuesFailed(effect.number, problem))
        else:
            self._tell(ev.QueuesDone(effect.number))

    async def _settled(self, switch: str, effect: ev.SetQueues) -> str:
        """Waits until a switch has its queues; returns why it has not."""
        try:
            left = await self._databases[switch].settled(switch)
        except NotInForce as error:
            return str(error)
        ports = sorted(port.number for port in effect.queues if port.switch == switch)
        return next((left[number] for number in ports if number in left), "")
