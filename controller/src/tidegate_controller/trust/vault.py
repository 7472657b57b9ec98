"""A file of sealed keys and used tokens, for one controller: SQLite, in a thread of its own.

```text
 load, save, first ─▶ queue ─▶ thread: one transaction each, synchronous=FULL ─▶ FILE (WAL)
```

Nothing in it needs to be read by another user: it is made with mode 0600, and its folder with 0700.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from tidegate_controller.database import Thread, identity, transaction
from tidegate_controller.owned import own
from tidegate_controller.trust.stores import Row, StoreError, Use

T = TypeVar("T")
APPLICATION = 0x74696B65
"""`PRAGMA application_id`: "tike", another one than that of the state."""
FORMAT = 1
TABLES = """
CREATE TABLE ring (segment INTEGER PRIMARY KEY, generation INTEGER NOT NULL, sealed BLOB NOT NULL) STRICT;
CREATE TABLE used (mark TEXT PRIMARY KEY, by TEXT NOT NULL, at REAL NOT NULL) STRICT;
"""


class Vault:
    """A `Store` and a `Once`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = Thread("vault")
        self._base: sqlite3.Connection | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Opens or makes the file. Raises `StoreError`."""
        vault = cls(path)
        try:
            await vault._do(vault._begin)
        except BaseException:
            await vault.close()
            raise
        return vault

    async def load(self) -> list[Row]:
        """Returns all rows."""
        return await self._do(
            lambda: [
                Row(*row)
                for row in self._execute("SELECT segment, generation, sealed FROM ring ORDER BY segment")
            ]
        )

    async def save(self, rows: Sequence[Row]) -> None:
        """Replaces these rows, all or none."""
        values = [(row.segment, row.generation, row.sealed) for row in rows]
        await self._do(lambda: self._write("INSERT OR REPLACE INTO ring VALUES (?, ?, ?)", values))

    async def first(self, mark: str, by: str, at: float) -> Use:
        """Returns the first use of a mark."""

        def use() -> Use:
            self._write("INSERT OR IGNORE INTO used VALUES (?, ?, ?)", [(mark, by, at)])
            return Use(*self._execute("SELECT by, at FROM used WHERE mark = ?", (mark,)).fetchone())

        return await self._do(use)

    async def close(self) -> None:
        """Ends the thread, after all that was asked; once is enough."""
        if self._closed:
            return
        self._closed = True

        def end() -> None:
            if self._base is not None:
                self._base.close()
                self._base = None

        await self._thread.do(end)
        self._thread.end()

    async def _do(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path} is closed")
        try:
            return await self._thread.do(work)
        except (sqlite3.Error, OSError, OverflowError) as error:
            raise StoreError(f"{self._path}: {error}") from None

    def _begin(self) -> None:
        try:
            own(self._path.parent)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"{self._path} cannot be opened: {error.strerror or error}; the folder has to belong"
                " to the controller's user, or name another file in keys.store"
            ) from None
        if self._path.stat().st_mode & 0o077:
            raise StoreError(f"{self._path} is reached by others: chmod 600 {self._path}")
        # Each statement is a transaction but those of `_write`.
        self._base = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        self._execute("PRAGMA synchronous=FULL")
        found = identity(self._base)
        if found == (0, 0) and not self._execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._execute("PRAGMA journal_mode=WAL")
            about = f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORMAT};"
            self._base.executescript(f"BEGIN IMMEDIATE; {TABLES} {about} COMMIT;")
        elif found != (APPLICATION, FORMAT):
            raise StoreError(
                f"{self._path} is no store of keys of this version (is it the file of `[state]`?):"
                " name another file in keys.store"
            )
        elif (fault := self._execute("PRAGMA quick_check").fetchone()[0]) != "ok":
            raise StoreError(f"{self._path} is damaged: {str(fault)[:200]}; restore it from a copy")

    def _execute(self, text: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._base is None:
            raise StoreError(f"{self._path} is closed")
        return self._base.execute(text, values)

    def _write(self, text: str, rows: Sequence[tuple[object, ...]]) -> None:
        if self._base is None:
            raise StoreError(f"{self._path} is closed")
        with transaction(self._base):
            self._base.executemany(text, rows)
