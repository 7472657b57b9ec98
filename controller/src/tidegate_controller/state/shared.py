"""The state in etcd, for several controllers, of which one leads and writes.

```text
 write(saves) ─▶ transaction: leader's create revision = our term, sequence = n ? records, sequence = n + 1
                   ├ another leader ─▶ Fenced
                   └ no answer: asked again; sequence = n + 1 already: it was done the first time
```

How each transaction is done once: `fence.py`.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from tidegate_controller.runtime.kept import Kept, Save
from tidegate_controller.state import records
from tidegate_controller.state.codec import Wrong
from tidegate_controller.state.election import COMPLAIN, LEADER, SEQUENCE, Election, clock
from tidegate_controller.state.etcd import (
    Client,
    EtcdError,
    Unreachable,
    delete,
    page_of,
    prefix_end,
    put,
    range_of,
)
from tidegate_controller.state.fence import Fence, Outcome
from tidegate_controller.state.store import Damaged, Fenced, Unwritable

PAGE = 500
"""Records that are read at once."""
MOST_RECORDS = 100_000
LARGEST_RECORD = 32 << 20
"""Bytes of text, unpacked."""
LARGEST_STATE = 256 << 20
"""Bytes of all records, packed; and of their texts."""
AGAIN = 0.1
"""s before a call is tried again."""
FORMAT, RECORDS = "format", "records/"
T = TypeVar("T")

log = logging.getLogger(__name__)


class Shared:
    """The store of an etcd; see `Store`. It is used after this process was elected."""

    def __init__(self, client: Client, election: Election, forget: bool = False) -> None:
        """With `forget`, all records are deleted, and the state begins empty."""
        self.client, self._election, self._forget = client, election, forget
        self._prefix = election.prefix
        self._fence = Fence(self._prefix + LEADER, self._prefix + SEQUENCE)
        self._writer = records.Writer()

    @property
    def where(self) -> str:
        """The place, for people."""
        return f"etcd at {self.client.member}, {self._prefix}"

    async def load(self) -> Kept:
        """Returns what the leader before has kept."""
        own = self._prefix + RECORDS
        version = (await self._pages(self._prefix + FORMAT)).get(self._prefix + FORMAT)
        found = {key[len(own) :]: value for key, value in (await self._pages(own)).items()}
        first = [put(self._prefix + FORMAT, _packed(str(records.FORMAT)))]
        if self._forget:
            await self._commit([delete(own, prefix_end(own)), *first])
            return Kept()
        if version is None and not found:
            await self._commit(first)
            return Kept()
        try:
            if version is None or _unpacked(version) != str(records.FORMAT):
                raise Wrong(f"`{FORMAT}` is not {records.FORMAT}, that of this version of the controller")
            kept = records.kept(_all_unpacked(found))
        except (Wrong, zlib.error) as error:
            raise Damaged(self.where, str(error)) from error
        if kept.network is not None:
            self._writer = records.Writer(kept.network.terms)
        return kept

    async def _pages(self, prefix: str) -> dict[str, bytes]:
        """All keys and values with a prefix, as of one moment."""
        found: dict[str, bytes] = {}
        first, revision, size = prefix.encode(), "0", 0
        while True:
            read = partial(page_of, first=first, prefix=prefix)
            page = await self._ask("kv/range", range_of(first, prefix, PAGE, revision), read)
            try:
                found |= {key.decode(): value for key, value in page.pairs.items()}
            except UnicodeDecodeError as error:
                raise Damaged(self.where, f"a key that no controller has written: {error}") from None
            size += page.size
            if size > LARGEST_STATE or len(found) > MOST_RECORDS:
                raise Damaged(
                    self.where,
                    f"there are more than {MOST_RECORDS} records, or {LARGEST_STATE} bytes of them",
                )
            if not page.more:
                return found
            first = page.next
            revision = page.revision if revision == "0" else revision

    async def write(self, saves: Sequence[Save]) -> None:
        """Returns when etcd has all."""
        own = self._prefix + RECORDS
        done: list[dict[str, Any]] = []
        for one in self._writer.operations(saves):
            if isinstance(one, records.Put):
                done.append(put(own + one.key, _packed(one.value)))
            else:
                done.append(delete(own + one.first, own + one.end))
        await self._commit(done)

    async def _commit(self, operations: list[dict[str, Any]]) -> None:
        term = self._election.term
        body = self._fence.body(term, operations)
        outcome = await self._ask("kv/txn", body, lambda answer: self._fence.outcome(term, answer))
        if outcome == Outcome.OUT:
            raise Fenced(f"{self.where}: this controller led in term {term}; another one leads now")
        if outcome == Outcome.ENDED:
            raise Fenced(f"{self.where}: the lead of this controller has ended")
        if outcome == Outcome.FOREIGN:
            raise Fenced(f"{self.where}: another process writes in the name of this leader")

    async def _ask(self, path: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """Asks until there is an answer, or the lead is over."""
        trouble, told = "nothing was asked yet", clock()
        while self._election.holds:
            try:
                return await self.client.ask(path, body, read)
            except Unreachable as error:
                trouble = str(error)
                if clock() - told > COMPLAIN:
                    told = clock()
                    log.warning("the state waits: %s", error)
                await asyncio.sleep(AGAIN)
            except EtcdError as error:
                raise Unwritable(f"{self.where}: {error}") from error
        raise Fenced(f"{self.where}: the lead ended before an answer came ({trouble})")

    async def close(self) -> None:
        """Closes connections, after the lead was given up."""
        await self._election.resign()
        await self.client.close()


def _packed(text: str) -> bytes:
    """A record as it is written: etcd takes requests of at most 1.5 MiB."""
    return zlib.compress(text.encode(), 6)


def _all_unpacked(found: dict[str, bytes]) -> dict[str, str]:
    """Raises `Wrong`, `zlib.error`."""
    texts: dict[str, str] = {}
    size = 0
    for key, value in found.items():
        texts[key] = _unpacked(value)
        size += len(texts[key])
        if size > LARGEST_STATE:
            raise Wrong(f"all records have more than {LARGEST_STATE} bytes")
    return texts


def _unpacked(data: bytes) -> str:
    """Raises `Wrong`, `zlib.error`."""
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(data, LARGEST_RECORD)
    if not unpacking.eof:
        raise Wrong(f"a record is not whole, or has more than {LARGEST_RECORD} bytes")
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        raise Wrong(str(error)) from None
