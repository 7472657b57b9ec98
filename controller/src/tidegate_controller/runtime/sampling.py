"""Counters of one switch's queues and ports, once a second.

```text
 Session: queue statistics ─▶ those of our queues ────────▶ Sampled
          port statistics ──▶ drops since the look before ─▶ Dropped
```

A switch that answers late has samples late, or none; no other one waits for it. Switches tell no backlog
(OpenFlow 1.3, 7.3.5.8). Rates of queues are not read: the database's session sets them again as soon as
another program changes one. How full a port is tells nothing: best effort may fill it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from tidegate_controller import events as ev
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.topology import Port
from tidegate_controller.openflow.replies import PortCounters, QueueCounters
from tidegate_controller.openflow.requests import RequestRefused
from tidegate_controller.openflow.session import Session

SAMPLES = 1.0
"""s between two looks."""
UNKNOWN = 2**64 - 1
"""A counter that a switch does not have (OpenFlow 1.3, 7.3.5.6)."""


class Sampling:
    """Asks switches as long as their sessions last."""

    def __init__(self, intents: Mapping[str, SwitchIntent], tell: Callable[[ev.Event], None]) -> None:
        """`intents` have the queues that each switch is to have now."""
        self._intents, self._tell = intents, tell

    async def run(self, name: str, session: Session) -> None:
        """Tells drops until the session ends."""
        before: dict[int, int] = {}
        while True:
            await asyncio.sleep(SAMPLES)
            try:
                self._queues(name, await session.queue_counters())
                before = self._ports(name, await session.port_counters(), before)
            except RequestRefused:
                continue

    def _queues(self, name: str, counters: Iterable[QueueCounters]) -> None:
        queues = self._intents[name].queues
        ours = {(port, queue.number) for port, held in queues.items() for queue in held}
        samples = tuple(
            ev.QueueSample(Port(name, one.port), one.queue, one.tx_errors)
            for one in counters
            if (one.port, one.queue) in ours
        )
        if samples:
            self._tell(ev.Sampled(samples))

    def _ports(
        self, name: str, counters: Iterable[PortCounters], before: Mapping[int, int]
    ) -> dict[int, int]:
        """Returns all drops until now, of ports with queues of ours; smaller ones than before count anew."""
        now = {
            one.port: one.tx_dropped
            for one in counters
            if self._intents[name].queues.get(one.port) and one.tx_dropped != UNKNOWN
        }
        for port, drops in now.items():
            if drops > before.get(port, drops):
                self._tell(ev.Dropped(Port(name, port), drops - before[port]))
        return now
