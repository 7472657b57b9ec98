"""What of etcd's API is needed here, by its JSON gateway (etcd 3.4 and later, `/v3/...`).

```text
 call(path, body) ─▶ the member that answered last ─▶ answer ─▶ ask: read
                       └ no answer in time, none of this form, or it has no leader
                           ─▶ Unreachable; the next call asks another
```

Keys and values are base64, 64-bit numbers are texts (protobuf's JSON mapping). A call that ends in
`Unreachable` may have been done, or may be done later: callers make it harmless to ask again.
"""

import base64
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

T = TypeVar("T")
LARGEST_ANSWER = 64 << 20
"""Bytes; a page of records is below it."""
TELL = 200
"""Characters of an answer that are told in an error."""


class Unreachable(Exception):
    """A member did not answer, or cannot: whether the call was done is unknown."""


class EtcdError(Exception):
    """A member refused a call."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        """Of gRPC: 5 is not found."""


TRANSIENT = {1, 4, 8, 10, 13, 14}
"""gRPC: cancelled, deadline, exhausted (too many requests), aborted, internal, unavailable (no leader)."""
NOT_FOUND = 5


def b64(text: str | bytes) -> str:
    """Returns a key or value as the gateway wants it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def unb64(text: str) -> str:
    """Returns the text of a key or value. Raises `ValueError`."""
    return base64.b64decode(text, validate=True).decode()


def prefix_end(prefix: str) -> str:
    """Returns the first key after all that begin with a prefix, which ends with a character below U+007F."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Client:
    """Asks one member after the other."""

    def __init__(self, members: Sequence[str], tls: ssl.SSLContext | None, timeout: float) -> None:
        """`timeout` (s) is for one call."""
        self._members = [member.rstrip("/") for member in members]
        self._tls, self._timeout = tls, timeout
        self._at = 0
        self._session: aiohttp.ClientSession | None = None

    @property
    def member(self) -> str:
        """The one that is asked."""
        return self._members[self._at]

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer. Raises `Unreachable`, `EtcdError`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout), trust_env=False
            )
        member = self.member
        try:
            async with self._session.post(
                f"{member}/v3/{path}", json=body, ssl=self._tls or True, allow_redirects=False
            ) as response:
                data = await response.content.read(LARGEST_ANSWER + 1)
                while not response.content.at_eof() and len(data) <= LARGEST_ANSWER:
                    data += await response.content.read(LARGEST_ANSWER + 1 - len(data))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._next(member, str(error) or type(error).__name__) from error
        try:
            found = json.loads(data) if len(data) <= LARGEST_ANSWER else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._next(member, f"an answer that is no JSON: {data[:TELL]!r}")
        # A stream's answers are in a table of their own.
        fault = found.get("error")
        if fault is not None:
            known = fault if isinstance(fault, dict) else found
            code = known.get("code", known.get("grpc_code"))
            text = f"{member}: {str(known.get('message') or fault)[:TELL]}"
            if not isinstance(code, int) or code in TRANSIENT:
                raise self._next(member, text)
            raise EtcdError(code, text)
        result = found.get("result", found)
        return result if isinstance(result, dict) else found

    async def ask(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """Returns what `read` makes of the answer. Raises as `call`; one of another form counts as none."""
        answer, member = await self.call(path, body), self.member
        try:
            return read(answer)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._next(member, f"an answer of another form ({error}): {str(answer)[:TELL]}") from None

    def _next(self, member: str, text: str) -> Unreachable:
        if self.member == member:
            self._at = (self._at + 1) % len(self._members)
        return Unreachable(f"etcd at {member}: {text}")

    async def close(self) -> None:
        """Closes connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


@dataclass(frozen=True)
class Page:
    """Some keys in their order, with their values."""

    pairs: dict[bytes, bytes]
    more: bool
    revision: str
    """Of the store when it was read."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(key) + len(value) for key, value in self.pairs.items())

    @property
    def next(self) -> bytes:
        """Where the next page begins, if there are more keys."""
        return next(reversed(self.pairs)) + b"\0"


def range_of(first: bytes, prefix: str, limit: int, revision: str = "0") -> dict[str, Any]:
    """The body of `kv/range` for keys with a prefix, from one of them on."""
    end = prefix_end(prefix)
    return {"key": b64(first), "range_end": b64(end), "limit": str(limit), "revision": revision}


def page_of(answer: dict[str, Any], first: bytes, prefix: str) -> Page:
    """Reads the answer to `range_of`. Raises as `Client.ask` expects.

    Keys ascend, and more of them follow at least one: so pages come to an end, whatever a member says.
    """
    found: dict[bytes, bytes] = {}
    for pair in answer.get("kvs", []):
        key = base64.b64decode(pair["key"], validate=True)
        if not key.startswith(prefix.encode()) or key < first:
            raise ValueError("a key out of its order")
        first = key + b"\0"
        found[key] = base64.b64decode(pair.get("value", ""), validate=True)
    more = bool(answer.get("more"))
    if more and not found:
        raise ValueError("more keys, but none of them")
    return Page(found, more, str(int(answer["header"]["revision"])))


def first_pair(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the first key of a range, empty if there is none. Raises as `Client.ask` expects."""
    found: dict[str, Any] = answer["kvs"][0] if answer.get("kvs") else {}
    if not isinstance(found, dict):
        raise TypeError("a key that is no table")
    return found


def put(key: str, value: str | bytes, lease: str | None = None) -> dict[str, Any]:
    """An operation of a transaction."""
    with_lease = {"lease": lease} if lease else {}
    return {"requestPut": {"key": b64(key), "value": b64(value), **with_lease}}


def delete(first: str, end: str | None = None) -> dict[str, Any]:
    """An operation of a transaction: one key, or those from `first` on before `end`."""
    until = {"range_end": b64(end)} if end else {}
    return {"requestDeleteRange": {"key": b64(first), **until}}


def get(key: str) -> dict[str, Any]:
    """An operation of a transaction."""
    return {"requestRange": {"key": b64(key)}}


def is_created(key: str, revision: int) -> dict[str, Any]:
    """A condition: the key was created at this revision; 0: it is not there."""
    return {"key": b64(key), "target": "CREATE", "result": "EQUAL", "createRevision": str(revision)}


def has_value(key: str, value: str) -> dict[str, Any]:
    """A condition."""
    return {"key": b64(key), "target": "VALUE", "result": "EQUAL", "value": b64(value)}
