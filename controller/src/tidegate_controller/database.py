"""A SQLite database in a thread of its own.

```text
 do(work) ─▶ thread: one work after the other ─▶ result
 transaction ─▶ BEGIN IMMEDIATE ... COMMIT, or ROLLBACK
```
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


class Thread:
    """Where all work with a database is done."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    async def do(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns, or raises what it raises."""
        # A write that has begun is not given up: whether it is durable would be unknown.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._pool, work))

    def end(self) -> None:
        """Takes no more work."""
        self._pool.shutdown(wait=False)


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All that is done within is durable, or none of it."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def identity(database: sqlite3.Connection) -> tuple[int, int]:
    """Returns `application_id` and `user_version`."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return int(application), int(version)
