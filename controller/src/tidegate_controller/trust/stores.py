"""What outlives the process: sealed keys of segments, tokens that were used.

```text
 Keyring ─▶ Row(segment, generation, sealed) ─▶ Store ─▶ one file (vault.py), or a shared one
 Enrolment ─▶ first(mark, by) ─▶ Once ──────────┘
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """What is stored cannot be read or written; the text says why."""


@dataclass(frozen=True)
class Row:
    """The ring of a segment, sealed."""

    segment: int
    generation: int
    sealed: bytes


@dataclass(frozen=True)
class Use:
    """The first use of something that counts once."""

    by: str
    at: float
    """Unix time, s."""


class Store(Protocol):
    """Keeps one row for each segment."""

    async def load(self) -> list[Row]:
        """Returns all rows. Raises `StoreError`."""

    async def save(self, rows: Sequence[Row]) -> None:
        """Replaces these rows, each of them whole; durable when it returns.

        Raises `StoreError`; then it may have written some.
        """


class Once(Protocol):
    """Remembers first uses."""

    async def first(self, mark: str, by: str, at: float) -> Use:
        """Returns the first use of a mark: this one, durable, if there was none. Raises `StoreError`."""


class Place(Store, Once, Protocol):
    """Both, in one place."""

    async def close(self) -> None:
        """Ends the use of it, after all that was asked."""
