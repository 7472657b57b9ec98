"""Counters of one switch's queues, once a second.

```text
 Session: queue statistics ─▶ those of our queues ─▶ Sampled
```

A switch that answers late has samples late, or none; no other one waits for it.
"""

import asyncio
from collections.abc import Callable, Mapping

from tidegate_controller import events as ev
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.topology import Port
from tidegate_controller.openflow.session import RequestRefused, Session

SAMPLES = 1.0
"""s between two looks."""


class Sampling:
    """Asks switches as long as their sessions last."""

    def __init__(self, intents: Mapping[str, SwitchIntent], tell: Callable[[ev.Event], None]) -> None:
        """`intents` have the queues that each switch is to have now."""
        self._intents, self._tell = intents, tell

    async def run(self, name: str, session: Session) -> None:
        """Tells drops of queues until the session ends. Switches tell no backlog (OpenFlow 1.3, 7.3.5.8)."""
        while True:
            await asyncio.sleep(SAMPLES)
            try:
                counters = await session.queue_counters()
            except RequestRefused:
                continue
            queues = self._intents[name].queues
            ours = {(port, queue.number) for port, held in queues.items() for queue in held}
            samples = tuple(
                # The database repairs rates by itself, so they are not read here.
                ev.QueueSample(Port(name, one.port), one.queue, one.tx_errors, 0)
                for one in counters
                if (one.port, one.queue) in ours
            )
            if samples:
                self._tell(ev.Sampled(samples))
