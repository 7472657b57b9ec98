"""SIGHUP: the file is read again.

```text
 FILE ─▶ load ─▶ renewed ─▶ Trust: certificates, members ─▶ Api: hosts, tokens ─▶ Runtime: new hosts
          └ a fault: nothing is read anew    └ keys that take a restart: a line for each
```
"""

import asyncio
import logging
from pathlib import Path

from tidegate_controller.api.server import Api
from tidegate_controller.config import Config, ConfigError, load
from tidegate_controller.config.anew import renewed
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.trust import Trust
from tidegate_controller.trust.secret import SecretError
from tidegate_controller.trust.stores import StoreError

MOST_LINES = 20
"""About keys that take a restart."""

log = logging.getLogger(__name__)


class Reload:
    """Of one file; `config` is what is in force."""

    def __init__(self, config: Config, file: Path, trust: Trust | None, runtime: Runtime, api: Api) -> None:
        self.config = config
        self._file, self._trust, self._runtime, self._api = file, trust, runtime, api
        self.wanted = asyncio.Event()
        """Set by the signal."""

    async def run(self) -> None:
        """Reads the file whenever that is wanted, until it is cancelled."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            try:
                await self._read()
            except (ConfigError, SecretError) as error:
                log.error("nothing is read anew: %s", error)
            except Exception:
                log.exception("a fault of the controller while it read its files anew")

    async def _read(self) -> None:
        known = self._runtime.core.engine.book.terms.values()
        try:
            new, left = renewed(self.config, load(self._file), known)
        except ConfigError as error:
            where = str(self._file)
            raise ConfigError(str(error) if where in str(error) else f"{where}: {error}") from None
        if self._trust is not None and new.trust is not None:
            try:
                await self._trust.reload(new.trust)
            except StoreError as error:
                log.error("keys of new segments are not stored yet: %s", error)
        before, self.config = self.config, new
        self._api.take(new)
        self._runtime.take(new)
        self._runtime.rechecked()
        for line in left[:MOST_LINES]:
            log.warning("%s: %s", self._file, line)
        if len(left) > MOST_LINES:
            log.warning("%s: %d keys more take a restart", self._file, len(left) - MOST_LINES)
        come = new.api.allowed.keys() - before.api.allowed.keys()
        gone = before.api.allowed.keys() - new.api.allowed.keys()
        for name in sorted(gone):
            log.info("host %s left the file: it may nothing; its port is free at a restart", name)
        for name in sorted(come):
            log.info("host %s is in the file now", name)
        log.info(
            "hosts, what they may announce, tokens, certificates and what is revoked are those of %s now",
            self._file,
        )
