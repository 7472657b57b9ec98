"""The store that the configuration names, and the election where controllers are several.

```text
 StateFile ─▶ File        StateEtcd ─▶ Client ─▶ Election, Shared
```
"""

from tidegate_controller.config.state import State, StateFile
from tidegate_controller.state.election import Election
from tidegate_controller.state.etcd import Client
from tidegate_controller.state.shared import Shared
from tidegate_controller.state.sqlite import File
from tidegate_controller.state.store import Store

CALLS = 6
"""Calls without an answer that a lease has room for."""


def opened(where: State, public: str = "", forget: bool = False) -> tuple[Store, Election | None]:
    """Returns both; nothing is read yet. Raises `ConfigError` for files of TLS.

    `public` is the URL of this controller's API, which a leader publishes.
    """
    if isinstance(where, StateFile):
        return File(where.path, forget), None
    client = Client(where.members, where.tls(), timeout=where.lease / CALLS)
    election = Election(client, where.prefix, where.lease, public)
    return Shared(client, election, forget), election
