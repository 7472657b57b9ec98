"""The state in a SQLite database: one process, one thread, each transaction on the disk before it counts.

```text
 write(saves) ─▶ thread ─▶ BEGIN, records, COMMIT (WAL, synchronous=FULL) ─▶ returns
 load ─▶ lock, header, integrity_check, each record ─▶ Kept         a fault anywhere ─▶ Damaged
```

A new database is made beside its place and renamed, so that an empty or half-made file in that place is
always damage, never a beginning. While it is open the lock's file says so: after a crash, the write-ahead log
has to be there.
"""

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tidegate_controller.database import Thread, identity, transaction
from tidegate_controller.owned import own
from tidegate_controller.runtime.kept import Kept, Save
from tidegate_controller.state import records
from tidegate_controller.state.codec import Wrong
from tidegate_controller.state.store import Damaged, InUse, Unwritable

APPLICATION = 0x7469_6465
""""tide", in the header of the file (SQLite, PRAGMA application_id)."""
LARGEST_RECORD = 32 << 20
"""Bytes of text."""
OPEN = b"open\n"
"""What the lock's file says while there is a write-ahead log."""
BESIDE = ("", "-wal", "-shm")
"""Files of a database."""
ERRORS = 5
"""Lines of `integrity_check` that are told."""
SYNCHRONOUS = "FULL"
"""Each transaction is on the disk when it is over, not only with the kernel."""
PUT = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


class File:
    """The store of a file; see `Store`."""

    def __init__(self, path: Path, forget: bool = False) -> None:
        """With `forget`, the file is moved aside, and the state begins empty."""
        self.path = path
        self._forget = forget
        self._writer = records.Writer()
        self._thread = Thread("state")
        self._lock: int | None = None
        self._database: sqlite3.Connection | None = None

    @property
    def where(self) -> str:
        """The place, for people."""
        return str(self.path)

    async def load(self) -> Kept:
        """Takes the file, and returns what was kept."""
        kept = await self._thread.do(self._load)
        if kept.network is not None:
            self._writer = records.Writer(kept.network.terms)
        return kept

    async def write(self, saves: Sequence[Save]) -> None:
        """Returns when all are on the disk."""
        operations = self._writer.operations(saves)
        try:
            await self._thread.do(lambda: self._write(operations))
        except (sqlite3.Error, UnicodeError) as error:
            raise Unwritable(f"{self.where}: {error}; is the disk full, or gone?") from error

    async def close(self) -> None:
        """Closes the file, after a write that is under way."""
        await self._thread.do(self._close)
        self._thread.end()

    # In the thread.

    def _load(self) -> Kept:
        try:
            self._take()
            if self._forget:
                self._move_aside()
            if self.path.exists():
                self._check_log()
            else:
                self._mark(b"")
                self._make()
        except (OSError, sqlite3.Error) as error:
            raise Unwritable(f"{self.where}: {error}; the folder must be there and writable") from error
        self._database = database = self._open()
        try:
            self._check(database)
            sizes = database.execute("SELECT key, length(value) FROM records").fetchall()
            for key, size in sizes:
                if not isinstance(key, str) or not isinstance(size, int) or size > LARGEST_RECORD:
                    raise Damaged(self.where, f"record {str(key)[:60]!r} has {size} bytes")
            found = dict(database.execute("SELECT key, value FROM records"))
            for key, value in found.items():
                if not isinstance(value, str):
                    raise Damaged(self.where, f"record {key[:60]!r} is no text")
            kept = records.kept(found)
            self._mark(OPEN)
            return kept
        except Wrong as error:
            raise Damaged(self.where, str(error)) from error
        except (sqlite3.Error, UnicodeError) as error:
            raise Damaged(self.where, f"{error}") from error
        except OSError as error:
            raise Unwritable(f"{self.where}.lock: {error}") from error

    def _take(self) -> None:
        own(self.path.parent)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise InUse(
                f"{self.where}: another controller uses it. Stop that one, or give this one a `[state] file`"
                " of its own; several controllers of one network share their state by `[state] etcd`"
            ) from None
        self._lock = lock

    def _check_log(self) -> None:
        """Without its log, SQLite would show the state of some time before the crash."""
        assert self._lock is not None
        if os.pread(self._lock, len(OPEN), 0) == OPEN and not os.path.lexists(f"{self.path}-wal"):
            raise Damaged(
                self.where,
                f"{self.path.name}-wal is missing, and the controller before has not ended cleanly: what it"
                " kept last is lost. If the database is a whole copy from elsewhere, delete"
                f" {self.path.name}.lock",
            )

    def _mark(self, text: bytes) -> None:
        """Says whether there is a log: after it was made, and before it is deleted."""
        assert self._lock is not None
        self._sync_folder()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, text, 0)
        os.fsync(self._lock)

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _move_aside(self) -> None:
        aside = f"{self.path}.forgotten-{time.strftime('%Y%m%dT%H%M%S')}"
        for end in BESIDE:
            with suppress(FileNotFoundError):
                os.rename(f"{self.path}{end}", f"{aside}{end}")

    def _make(self) -> None:
        new = f"{self.path}.new"
        for end in (*BESIDE, "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{new}{end}")
        # A log without its database would be taken for that of the new one.
        for end in BESIDE[1:]:
            if os.path.lexists(f"{self.path}{end}"):
                raise Damaged(self.where, f"there is {self.path.name}{end}, but not the database itself")
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(new, isolation_level=None)
        try:
            database.executescript(
                f"PRAGMA synchronous = {SYNCHRONOUS}; PRAGMA application_id = {APPLICATION};"
                f"PRAGMA user_version = {records.FORMAT};"
                "CREATE TABLE records (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID;"
            )
        finally:
            database.close()
        os.rename(new, self.path)
        self._sync_folder()

    def _open(self) -> sqlite3.Connection:
        try:
            mode = os.lstat(self.path)
            if not stat.S_ISREG(mode.st_mode):
                raise Damaged(self.where, "it is no file")
            if stat.S_IMODE(mode.st_mode) & 0o077:
                os.chmod(self.path, 0o600)
            if not mode.st_size:
                raise Damaged(self.where, "it is empty")
            return sqlite3.connect(self.path, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise Damaged(self.where, f"{error}") from error

    def _check(self, database: sqlite3.Connection) -> None:
        application, version = identity(database)
        if application != APPLICATION:
            raise Damaged(
                self.where,
                "it is the database of another program, or the store of keys: each has a file of its own",
            )
        if version != records.FORMAT:
            raise Damaged(
                self.where, f"it has format {version}, this version of the controller {records.FORMAT}"
            )
        faults = [str(one) for (one,) in database.execute(f"PRAGMA integrity_check({ERRORS})")]
        if faults != ["ok"]:
            raise Damaged(self.where, "; ".join(faults))
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")

    def _write(self, operations: Iterable[records.Operation]) -> None:
        database = self._database
        assert database is not None
        with transaction(database):
            for one in operations:
                if isinstance(one, records.Put):
                    database.execute(PUT, (one.key, one.value))
                else:
                    database.execute("DELETE FROM records WHERE key >= ? AND key < ?", (one.first, one.end))

    def _close(self) -> None:
        if self._database is not None:
            with suppress(OSError):
                self._mark(b"")
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
