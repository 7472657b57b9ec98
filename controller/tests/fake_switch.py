"""A switch for tests, which says exactly what a test wants.

```text
 test ─▶ FakeSwitch.connect(port) ─▶ hello, features, ports ─▶ the test reads and answers, or does not
```
"""

import asyncio
import struct
from typing import Self

from os_ken.ofproto import ofproto_v1_3 as of

HEADER = struct.Struct("!BBHI")


def message(kind: int, xid: int, body: bytes = b"", *, version: int = 4, length: int | None = None) -> bytes:
    """Returns a message; with another length than its own, if asked."""
    return HEADER.pack(version, kind, 8 + len(body) if length is None else length, xid) + body


def port(number: int, state: int = 0) -> bytes:
    """Returns the description of a port."""
    name = f"p{number}".encode()
    return struct.pack(of.OFP_PORT_PACK_STR, number, b"\2" + bytes(5), name, 0, state, 0, 0, 0, 0, 10_000, 0)


def multipart(kind: int, xid: int, body: bytes, *, more: bool = False) -> bytes:
    """Returns a part of a long answer."""
    return message(of.OFPT_MULTIPART_REPLY, xid, struct.pack("!HH4x", kind, int(more)) + body)


def error(xid: int, kind: int, code: int) -> bytes:
    """Returns an error."""
    return message(of.OFPT_ERROR, xid, struct.pack("!HH", kind, code) + bytes(64))


def packet_in(at: int, frame: bytes) -> bytes:
    """Returns a frame that came in at a port."""
    head = struct.pack(of.OFP_PACKET_IN_PACK_STR, of.OFP_NO_BUFFER, len(frame), 1, 0, 0)
    match = struct.pack("!HHII", 1, 12, of.OXM_OF_IN_PORT, at) + bytes(4)
    return message(of.OFPT_PACKET_IN, 0, head + match + bytes(2) + frame)


class FakeSwitch:
    """The switch's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Opens a connection, and says nothing."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def write(self, data: bytes) -> None:
        """Sends bytes."""
        self.writer.write(data)

    async def read(self) -> tuple[int, int, bytes]:
        """Returns type, transaction and content of the next message."""
        _, kind, length, xid = HEADER.unpack(await self.reader.readexactly(8))
        return kind, xid, await self.reader.readexactly(length - 8)

    async def read_until(self, kind: int) -> tuple[int, list[tuple[int, int, bytes]]]:
        """Returns the transaction of the next message of a type, and the messages before it."""
        before: list[tuple[int, int, bytes]] = []
        while True:
            found, xid, body = await self.read()
            if found == kind:
                return xid, before
            before.append((found, xid, body))

    async def greet(self, datapath: int = 1, ports: tuple[int, ...] = (1, 2)) -> Self:
        """Does all that a switch does until it has a session."""
        self.write(message(of.OFPT_HELLO, 1))
        xid, _ = await self.read_until(of.OFPT_FEATURES_REQUEST)
        self.write(message(of.OFPT_FEATURES_REPLY, xid, struct.pack("!QIBB2xII", datapath, 0, 3, 0, 0, 0)))
        xid, _ = await self.read_until(of.OFPT_MULTIPART_REQUEST)
        self.write(multipart(of.OFPMP_PORT_DESC, xid, b"".join(port(number) for number in ports)))
        return self

    async def obey(self) -> None:
        """Answers barriers and echoes, and that it holds and counts nothing, until the connection ends."""
        try:
            while True:
                kind, xid, body = await self.read()
                if kind == of.OFPT_BARRIER_REQUEST:
                    self.write(message(of.OFPT_BARRIER_REPLY, xid))
                elif kind == of.OFPT_ECHO_REQUEST:
                    self.write(message(of.OFPT_ECHO_REPLY, xid, body))
                elif kind == of.OFPT_MULTIPART_REQUEST:
                    self.write(multipart(int.from_bytes(body[:2]), xid, b""))
        except (asyncio.IncompleteReadError, OSError):
            pass

    async def closed(self) -> bytes:
        """Waits until the controller closes the connection; returns what it sent before."""
        try:
            return await self.reader.read()
        except OSError:
            return b""

    def close(self) -> None:
        """Closes the connection."""
        self.writer.close()
