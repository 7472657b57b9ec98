"""Objects of a stream of JSON, which has no delimiters (RFC 7047, 4).

```text
 bytes as they arrive ─▶ Splitter ─▶ whole objects
```

Each byte is looked at once, however the stream is cut. What the peer may make us hold is bounded.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

MOST_MESSAGE = 2 << 20
"""Bytes of one object: the first answer of 600 ports with nine queues each."""

_OUTSIDE = re.compile(rb'["{}]')
_INSIDE = re.compile(rb'["\\]')


class NotJson(Exception):
    """The stream has no objects of JSON, or too large ones; the text says which."""


class Splitter:
    """Collects bytes until an object is whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._looked = 0
        self._depth = 0
        self._quoted = False

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yields the objects that end in this chunk. Raises `NotJson`; the stream is of no use then."""
        self._bytes += chunk
        while self._begun() and (end := self._end()) is not None:
            whole = bytes(self._bytes[:end])
            del self._bytes[:end]
            self._looked = 0
            yield _decoded(whole)
        if len(self._bytes) > MOST_MESSAGE:
            raise NotJson(f"a message has more than {MOST_MESSAGE} bytes")

    def _begun(self) -> bool:
        """Returns whether an object has begun."""
        if self._looked == 0:
            blank = len(self._bytes) - len(self._bytes.lstrip())
            del self._bytes[:blank]
            if self._bytes and self._bytes[0] != ord("{"):
                raise NotJson(f"no JSON object begins with {bytes(self._bytes[:20])!r}")
        return bool(self._bytes)

    def _end(self) -> int | None:
        """Returns where the first object ends, if it does."""
        while True:
            found = (_INSIDE if self._quoted else _OUTSIDE).search(self._bytes, self._looked)
            if found is None:
                self._looked = max(self._looked, len(self._bytes))
                return None
            self._looked = found.end()
            match found.group():
                case b'"':
                    self._quoted = not self._quoted
                case b"\\":
                    # The next byte is not looked at, even if it has not arrived yet.
                    self._looked += 1
                case b"{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        return self._looked


def _decoded(text: bytes) -> dict[str, Any]:
    if len(text) > MOST_MESSAGE:
        raise NotJson(f"a message has more than {MOST_MESSAGE} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"not JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise NotJson("a message is not an object")
    return found
