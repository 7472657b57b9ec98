"""Tells systemd that the controller serves, and goes on telling that its loop turns (sd_notify(3)).

```text
 NOTIFY_SOCKET, WATCHDOG_USEC ─▶ Service: READY=1, then WATCHDOG=1 in each third of the interval ─▶ systemd
```

Started by hand, none of them is there, and nothing is told.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

TELLS = 3
"""Times in the interval of the watchdog: one that comes late is not the end."""

log = logging.getLogger(__name__)


def watchdog(environment: Mapping[str, str], process: int) -> float | None:
    """Returns the interval in s; `None` without a watchdog, or where it is that of another process."""
    text, of = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(process))
    if not text.isdecimal() or int(text) == 0 or of != str(process):
        return None
    return int(text) / 1e6


class Service:
    """What systemd is told of this process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._socket = environment.get("NOTIFY_SOCKET", "")
        self._interval = watchdog(environment, os.getpid())
        self._feeding: asyncio.Task[None] | None = None

    def ready(self) -> None:
        """Tells that the controller serves; from now on the loop has to turn."""
        self._tell("READY=1")
        if self._socket and self._interval is not None:
            self._feeding = asyncio.get_running_loop().create_task(self._feed(self._interval / TELLS))

    def ends(self) -> None:
        """Tells that the controller is about to end. The watchdog is fed on: ending takes writes."""
        self._tell("STOPPING=1")

    async def _feed(self, every: float) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(every)

    def _tell(self, text: str) -> None:
        # An abstract address begins with a zero byte, written as @.
        address = f"\0{self._socket[1:]}" if self._socket.startswith("@") else self._socket
        if not address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one:
                one.setblocking(False)
                one.sendto(text.encode(), address)
        except OSError as error:
            log.warning("systemd is not told %s: %s", text, error)
