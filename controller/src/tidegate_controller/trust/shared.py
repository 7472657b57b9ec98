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
from typing import Any

from tidegate_controller.state.election import LEADER
from tidegate_controller.state.etcd import (
    Client,
    EtcdError,
    Unreachable,
    b64,
    get,
    has_value,
    is_created,
    prefix_end,
    put,
)
from tidegate_controller.trust.stores import Row, StoreError, Use

GROUP = 100
"""Operations of one transaction; etcd takes 128 (`--max-txn-ops`)."""
LARGEST_GROUP = 1 << 20
"""Bytes of one transaction; etcd takes 1.5 MiB (`--max-request-bytes`)."""
PAGE = 200
ANOTHER = "another controller leads: certificates and keys are its business"
MOST_ROWS = 100_000


class SharedVault:
    """A `Store` and a `Once`."""

    def __init__(self, client: Client, prefix: str, term: Callable[[], int]) -> None:
        """`prefix` is that of the state; `term` is that of this controller while it leads, else 0."""
        self._client, self._term = client, term
        self._leader, self._rings, self._used, self._sequence = (
            prefix + part for part in (LEADER, "trust/rings/", "trust/used/", "trust/sequence")
        )
        self._count = 0

    async def load(self) -> list[Row]:
        """Returns all rows; what is written from now on is in the name of this leader."""
        body = {"compare": [self._leads()], "success": [put(self._sequence, "0")], "failure": []}
        if not (await self._call("kv/txn", body)).get("succeeded"):
            raise StoreError(ANOTHER)
        self._count = 0
        found: list[Row] = []
        first, end = self._rings, prefix_end(self._rings)
        while True:
            answer = await self._call(
                "kv/range", {"key": b64(first), "range_end": b64(end), "limit": str(PAGE)}
            )
            for pair in answer.get("kvs", []):
                key, row = self._row(pair)
                found.append(row)
                first = key + "\0"
            if not answer.get("more"):
                return found
            if len(found) > MOST_ROWS:
                raise StoreError(f"{self._rings} in etcd: more than {MOST_ROWS} rows")

    def _row(self, pair: dict[str, Any]) -> tuple[str, Row]:
        try:
            key = base64.b64decode(pair["key"], validate=True).decode()
            value = json.loads(base64.b64decode(pair["value"], validate=True))
            segment = int(key.removeprefix(self._rings))
            return key, Row(
                segment, int(value["generation"]), base64.b64decode(value["sealed"], validate=True)
            )
        except (ValueError, KeyError, TypeError) as error:
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
        body = {
            "compare": [self._leads(), has_value(self._sequence, str(self._count))],
            "success": [put(self._sequence, str(self._count + 1)), *operations],
            "failure": [get(self._leader), get(self._sequence)],
        }
        answer = await self._call("kv/txn", body)
        if answer.get("succeeded"):
            self._count += 1
            return
        leader, sequence = _pairs(answer)
        if str(leader.get("create_revision")) != str(self._term()):
            raise StoreError(ANOTHER)
        if sequence.get("value") == b64(str(self._count + 1)):
            # Written, but with keys that this process has given up.
            self._count += 1
            raise StoreError("etcd: an earlier transaction was done without an answer; it is written anew")
        raise StoreError(f"etcd: {self._sequence} is not as this controller has written it")

    async def first(self, mark: str, by: str, at: float) -> Use:
        """Returns the first use of a mark."""
        key = self._used + mark
        body = {
            "compare": [self._leads(), is_created(key, 0)],
            "success": [put(key, json.dumps({"by": by, "at": at}))],
            "failure": [get(self._leader), get(key)],
        }
        answer = await self._call("kv/txn", body)
        if answer.get("succeeded"):
            return Use(by, at)
        leader, used = _pairs(answer)
        if str(leader.get("create_revision")) != str(self._term()):
            raise StoreError(ANOTHER)
        try:
            value = json.loads(base64.b64decode(used["value"], validate=True))
            return Use(str(value["by"]), float(value["at"]))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StoreError(f"{self._used} in etcd: not as a controller has written it: {error}") from None

    def _leads(self) -> dict[str, Any]:
        term = self._term()
        if not term:
            raise StoreError("this controller does not lead")
        return is_created(self._leader, term)

    async def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.call(path, body)
        except (Unreachable, EtcdError) as error:
            raise StoreError(f"etcd: {error}") from None

    async def close(self) -> None:
        """Closes connections."""
        await self._client.close()


def _pairs(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two keys of a transaction that was not done; empty where there is none."""
    try:
        one, other = (part.get("response_range", {}).get("kvs", []) for part in answer["responses"])
        return (one or [{}])[0], (other or [{}])[0]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StoreError(f"etcd: an answer of another form: {error}") from None
