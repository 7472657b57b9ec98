"""What a place for the state does: load it once, then write each change before anything follows from it.

```text
 load ─▶ Kept      write(Save, ...) ─▶ durable, all or a first part of them in their order      close
                     └ Fenced: another controller leads      └ Unwritable: the disk is full, ...
```
"""

from collections.abc import Sequence
from typing import Protocol

from tidegate_controller.runtime.kept import Kept, Save


class StateError(Exception):
    """The state cannot be read or written; says where, what is wrong and what to do."""


class Damaged(StateError):
    """It is not what a controller of this version wrote, so nothing is begun with it."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(
            f"{where}: {text}. The controller does not start with another state than the one it kept: restore"
            " it from a backup, or give up all paths that were kept (`--forget`; a copy of a file stays)"
        )


class InUse(StateError):
    """Another controller has it."""


class Fenced(StateError):
    """This controller may not write any more: another one leads, or may lead by now."""


class Unwritable(StateError):
    """A change could not be made durable."""


class Store(Protocol):
    """A place for the state, of one controller at a time."""

    @property
    def where(self) -> str:
        """The place, for people."""

    async def load(self) -> Kept:
        """Returns what was kept. Once, before any `write`. Raises any `StateError`."""

    async def write(self, saves: Sequence[Save]) -> None:
        """Returns when they are durable. Raises `Fenced`, `Unwritable`: then nothing may follow from them.

        At a crash, all or none are there; of more than `MOST_SAVES`, a first part in their order.
        """

    async def close(self) -> None:
        """Ends the use of it."""


MOST_SAVES = 50
"""Saves of one transaction: each has at most two changes, and etcd takes 128 (`--max-txn-ops`)."""
