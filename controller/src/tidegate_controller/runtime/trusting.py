"""The trust that the configuration names, with the store that controllers share if they are several.

```text
 Config, Election ─▶ Vault, or SharedVault in the etcd of the state ─▶ Trust
```
"""

import asyncio
import time

from tidegate_controller.config import Config
from tidegate_controller.config.state import StateEtcd
from tidegate_controller.state.election import Election
from tidegate_controller.state.etcd import Client
from tidegate_controller.state.opening import CALLS
from tidegate_controller.trust import Trust
from tidegate_controller.trust.shared import SharedVault
from tidegate_controller.trust.trust import Clock


async def trusting(config: Config, election: Election | None) -> Trust | None:
    """Returns it, if there is a table [tls]. Raises `ConfigError`, `SecretError`, `StoreError`."""
    if config.trust is None:
        return None
    now, where = Clock(time.time(), asyncio.get_running_loop().time()), config.state
    if election is None or not isinstance(where, StateEtcd):
        return await Trust.open(config.trust, now)
    client = Client(where.members, where.tls(), timeout=where.lease / CALLS)
    vault = SharedVault(client, where.prefix, lambda: election.term if election.holds else 0)
    return await Trust.open(config.trust, now, vault)
