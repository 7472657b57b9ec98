"""The state in etcd, for several controllers, of which one leads and writes.

```text
 write(saves) ─▶ transaction: leader's create revision = our term, sequence = n ? records, sequence = n + 1
                   ├ another leader ─▶ Fenced
                   └ no answer: asked again; sequence = n + 1 already: it was done the first time
```

The sequence makes it harmless that a transaction whose answer was lost may be done later: it then finds
another number, and changes nothing.
"""

import asyncio
import base64
import zlib
from collections.abc import Sequence
from typing import Any

from tidegate_controller.runtime.kept import Kept, Save
from tidegate_controller.state import records
from tidegate_controller.state.codec import Wrong
from tidegate_controller.state.election import LEADER, SEQUENCE, Election
from tidegate_controller.state.etcd import (
    Client,
    EtcdError,
    Unreachable,
    b64,
    delete,
    get,
    has_value,
    is_created,
    prefix_end,
    put,
)
from tidegate_controller.state.store import Damaged, Fenced, Unwritable

PAGE = 500
"""Records that are read at once."""
MOST_RECORDS = 100_000
LARGEST_RECORD = 32 << 20
"""Bytes of text, unpacked."""
AGAIN = 0.1
"""s before a call is tried again."""
FORMAT, RECORDS = "format", "records/"


class Shared:
    """The store of an etcd; see `Store`. It is used after this process was elected."""

    def __init__(self, client: Client, election: Election, forget: bool = False) -> None:
        """With `forget`, all records are deleted, and the state begins empty."""
        self.client, self._election, self._forget = client, election, forget
        self._prefix = election.prefix
        self._sequence = 0
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
            kept = records.kept({key: _unpacked(value) for key, value in found.items()})
        except (Wrong, zlib.error) as error:
            raise Damaged(self.where, str(error)) from error
        if kept.network is not None:
            self._writer = records.Writer(kept.network.terms)
        return kept

    async def _pages(self, prefix: str) -> dict[str, bytes]:
        """All keys and values with a prefix, as of one moment."""
        found: dict[str, bytes] = {}
        first, revision = prefix, "0"
        while True:
            answer = await self._ask(
                "kv/range",
                {
                    "key": b64(first),
                    "range_end": b64(prefix_end(prefix)),
                    "limit": str(PAGE),
                    "revision": revision,
                },
            )
            try:
                revision = answer["header"]["revision"] if revision == "0" else revision
                for pair in answer.get("kvs", []):
                    first = base64.b64decode(pair["key"]).decode()
                    found[first] = base64.b64decode(pair.get("value", ""))
            except (ValueError, KeyError, TypeError) as error:
                raise Damaged(self.where, f"a key or value that no controller has written: {error}") from None
            if not answer.get("more"):
                return found
            if len(found) > MOST_RECORDS:
                raise Damaged(self.where, f"there are more than {MOST_RECORDS} records")
            first += "\0"

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
        leader, sequence = self._prefix + LEADER, self._prefix + SEQUENCE
        before, after = str(self._sequence), str(self._sequence + 1)
        body = {
            "compare": [is_created(leader, self._election.term), has_value(sequence, before)],
            "success": [put(sequence, after), *operations],
            "failure": [get(leader), get(sequence)],
        }
        answer = await self._ask("kv/txn", body)
        if not answer.get("succeeded"):
            leads, number = (one.get("response_range", {}).get("kvs", [{}])[0] for one in answer["responses"])
            if str(leads.get("create_revision", "0")) != str(self._election.term):
                raise Fenced(
                    f"{self.where}: this controller led in term {self._election.term}; another one leads now"
                    if leads
                    else f"{self.where}: the lead of this controller has ended"
                )
            if number.get("value") != b64(after):
                raise Fenced(f"{self.where}: another process writes in the name of this leader")
        self._sequence += 1

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Asks until there is an answer, or the lead is over."""
        trouble = "nothing was asked yet"
        while self._election.holds:
            try:
                return await self.client.call(path, body)
            except Unreachable as error:
                trouble = str(error)
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
