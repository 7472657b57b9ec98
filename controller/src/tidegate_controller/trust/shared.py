"""Sealed keys and used tokens in etcd, for several controllers: the one that leads reads and writes.

```text
 save ─▶ transaction: leader's create revision = our term, sequence = n ? trust/rings/SEGMENT = ..., n + 1
 first ─▶ transaction: the same, and trust/used/MARK is absent ? put     else that use
                         └ another one leads ─▶ StoreError
```

Only sealed values go there: a reader of etcd has no key of a segment. Rows are written in groups. A group
whose answer is lost counts as not written, and is written anew with other keys, since no host has them yet;
the sequence keeps the first one from being done later than the second.
"""

import base64
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from tidegate_controller.state.election import LEADER
from tidegate_controller.state.etcd import (
    Client,
    EtcdError,
    Unreachable,
    get,
    is_created,
    page_of,
    put,
    range_of,
)
from tidegate_controller.state.fence import Fence, Outcome, is_another, two
from tidegate_controller.trust.stores import Row, StoreError, Use

GROUP = 100
"""Operations of one transaction; etcd takes 128 (`--max-txn-ops`)."""
LARGEST_GROUP = 1 << 20
"""Bytes of one transaction; etcd takes 1.5 MiB (`--max-request-bytes`)."""
PAGE = 200
ANOTHER = "another controller leads: certificates and keys are its business"
MOST_ROWS = 100_000
LARGEST = 64 << 20
"""Bytes of all rows."""
T = TypeVar("T")


class SharedVault:
    """A `Store` and a `Once`."""

    def __init__(self, client: Client, prefix: str, term: Callable[[], int]) -> None:
        """`prefix` is that of the state; `term` is that of this controller while it leads, else 0."""
        self._client, self._term = client, term
        self._leader, self._rings, self._used, self._sequence = (
            prefix + part for part in (LEADER, "trust/rings/", "trust/used/", "trust/sequence")
        )
        self._fence = Fence(self._leader, self._sequence)

    async def load(self) -> list[Row]:
        """Returns all rows; what is written from now on is in the name of this leader."""
        body = {"compare": [self._leads()], "success": [self._fence.begin()], "failure": []}
        if not await self._ask("kv/txn", body, lambda answer: bool(answer.get("succeeded"))):
            raise StoreError(ANOTHER)
        found: list[Row] = []
        first, size = self._rings.encode(), 0
        while True:
            read = partial(page_of, first=first, prefix=self._rings)
            page = await self._ask("kv/range", range_of(first, self._rings, PAGE), read)
            found += [self._row(key, value) for key, value in page.pairs.items()]
            size += page.size
            if len(found) > MOST_ROWS or size > LARGEST:
                raise StoreError(f"{self._rings} in etcd: more than {MOST_ROWS} rows, or {LARGEST} bytes")
            if not page.more:
                return found
            first = page.next

    def _row(self, key: bytes, text: bytes) -> Row:
        try:
            value = json.loads(text)
            segment = int(key.decode().removeprefix(self._rings))
            sealed = base64.b64decode(value["sealed"], validate=True)
            return Row(segment, int(value["generation"]), sealed)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{self._rings} in etcd: a row that no controller has written: {error}"
            ) from None

    async def save(self, rows: Sequence[Row]) -> None:
        """Replaces these rows, group by group."""
        group: list[dict[str, Any]] = []
        size = 0
        for row in rows:
            sealed = base64.b64encode(row.sealed).decode()
            value = json.dumps({"generation": row.generation, "sealed": sealed})
            if group and (len(group) == GROUP or size + 2 * len(value) > LARGEST_GROUP):
                await self._write(group)
                group, size = [], 0
            group.append(put(f"{self._rings}{row.segment}", value))
            size += 2 * len(value)
        if group:
            await self._write(group)

    async def _write(self, operations: list[dict[str, Any]]) -> None:
        term = self._leading()
        body = self._fence.body(term, operations)
        outcome = await self._ask("kv/txn", body, lambda answer: self._fence.outcome(term, answer))
        if outcome in (Outcome.OUT, Outcome.ENDED):
            raise StoreError(ANOTHER)
        if outcome == Outcome.REPEATED:
            # Written, but with keys that this process has given up.
            raise StoreError("etcd: an earlier transaction was done without an answer; it is written anew")
        if outcome == Outcome.FOREIGN:
            raise StoreError(f"etcd: {self._sequence} is not as this controller has written it")

    async def first(self, mark: str, by: str, at: float) -> Use:
        """Returns the first use of a mark."""
        key = self._used + mark
        body = {
            "compare": [self._leads(), is_created(key, 0)],
            "success": [put(key, json.dumps({"by": by, "at": at}))],
            "failure": [get(self._leader), get(key)],
        }
        found = await self._ask(
            "kv/txn", body, lambda answer: None if answer.get("succeeded") else two(answer)
        )
        if found is None:
            return Use(by, at)
        leader, used = found
        if is_another(leader, self._term()):
            raise StoreError(ANOTHER)
        try:
            value = json.loads(base64.b64decode(used["value"], validate=True))
            return Use(str(value["by"]), float(value["at"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StoreError(f"{self._used} in etcd: not as a controller has written it: {error}") from None

    def _leading(self) -> int:
        term = self._term()
        if not term:
            raise StoreError("this controller does not lead")
        return term

    def _leads(self) -> dict[str, Any]:
        return self._fence.leads(self._leading())

    async def _ask(self, path: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        try:
            return await self._client.ask(path, body, read)
        except (Unreachable, EtcdError) as error:
            raise StoreError(f"etcd: {error}") from None

    async def close(self) -> None:
        """Closes connections."""
        await self._client.close()
