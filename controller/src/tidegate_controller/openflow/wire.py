"""Bytes of a connection as OpenFlow 1.3 messages, and lists of variable length within them, checked.

```text
 bytes as they arrive ─▶ Framer ─▶ Message(kind, xid, data), ...    data ─▶ items() ─▶ (start, end), ...
                           └ wrong version or length: Malformed              └ length 0 or too long: Malformed
```

A switch is not trusted. os-ken's own parsers never end when the length of an instruction or of a statistics
entry is 0, so lengths are checked here before any content is read. A message has at most 65,535 bytes, by its
length field.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from os_ken.ofproto import ofproto_v1_3 as of

HEADER = struct.Struct("!BBHI")
LENGTH = struct.Struct("!H")


class Malformed(ValueError):
    """A switch sent bytes that are not OpenFlow 1.3; says which."""


class Message(NamedTuple):
    """One message, whole."""

    kind: int
    xid: int
    data: bytes
    """With the header."""


class Framer:
    """Cuts a stream of bytes into messages. Holds less than one message."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that are complete with these bytes. `Malformed` ends the connection."""
        complete = []
        data = self._rest + data
        start = 0
        while len(data) - start >= HEADER.size:
            version, kind, length, xid = HEADER.unpack_from(data, start)
            # A hello has the sender's highest version (OpenFlow 1.3, 6.3.1).
            if version != of.OFP_VERSION and not (kind == of.OFPT_HELLO and version > of.OFP_VERSION):
                raise Malformed(
                    f"OpenFlow version {version} (0x{version:02x}) in a message of type {kind};"
                    " version 4 (OpenFlow 1.3) was expected: set the switch's protocols to OpenFlow13"
                )
            if length < HEADER.size:
                raise Malformed(
                    f"a message of type {kind} says that it has {length} bytes; at least 8 were expected"
                )
            if len(data) - start < length:
                break
            complete.append(Message(kind, xid, data[start : start + length]))
            start += length
        self._rest = data[start:]
        return complete


def need(data: bytes, offset: int, size: int, end: int | None = None, *, what: str) -> None:
    """Raises `Malformed` unless `size` bytes are there from `offset` on."""
    have = (len(data) if end is None else end) - offset
    if have < size:
        raise Malformed(f"{what} has {have} bytes; at least {size} were expected")


def items(
    data: bytes, offset: int, end: int, *, length_at: int, smallest: int, what: str
) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of entries that state their length in 2 bytes at `length_at`, until `end`.

    `smallest` is the least length, 4 at least.
    """
    while offset < end:
        need(data, offset, smallest, end, what=what)
        (length,) = LENGTH.unpack_from(data, offset + length_at)
        if not smallest <= length <= end - offset:
            raise Malformed(f"{what} has a length of {length}; {smallest} to {end - offset} were expected")
        yield offset, offset + length
        offset += length


def records(data: bytes, offset: int, form: struct.Struct, *, what: str) -> Iterator[tuple[int, ...]]:
    """Yields entries of fixed size from `offset` to the end."""
    left = (len(data) - offset) % form.size
    if offset > len(data) or left:
        raise Malformed(f"{what}: {left} bytes are left after entries of {form.size} bytes")
    return form.iter_unpack(memoryview(data)[offset:])
