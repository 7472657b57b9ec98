"""One JSON-RPC connection to a database, whose server may be deaf, mad or hostile.

```text
 call ─▶ id, deadline ─▶ bounded buffer ─▶ server
 notice(method, params) ◀─┬─ Splitter ◀─── server
 then(result), result ◀───┘ (echo is answered here)
```

A deadline that passes, garbage, or a peer that does not read ends the connection: `Broken` says why.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from .framing import NotJson, Splitter

DEADLINE = 5.0
"""Seconds for an answer, and for opening a connection."""
IDLE = 2.0
"""So many seconds of silence, and the server is asked whether it is there."""
MOST_CALLS = 8
"""Calls that wait for an answer at one time; others wait for their turn."""
MOST_UNSENT = 1 << 20
"""Bytes that wait for a server that does not read."""
SHARE = 4
"""After work for a server, a pause of so many times its length: a flood gets a fifth of the thread."""


class Broken(Exception):
    """The connection is of no more use; the text says why."""


class Refused(Exception):
    """The server answered with an error; the connection lives."""


Notice = Callable[[str, list[Any]], None]
Certificate = Mapping[str, Any] | None
Fault = Callable[[Certificate], str | None]


def no_fault(certificate: Certificate) -> str | None:
    """Accepts each certificate that the context does."""
    del certificate
    return None


def check_remote(remote: str, secure: bool) -> None:
    """Raises `ValueError` for an address that cannot be used: never TCP where TLS was meant."""
    kind, _, where = remote.partition(":")
    if kind != "unix" or not where:
        split_address(remote)
    if kind == "ssl" and not secure:
        raise ValueError(f"{remote} needs a certificate, its key and an authority: [tls]")


async def opened(
    remote: str, tls: ssl.SSLContext | None, notice: Notice, fault: Fault = no_fault
) -> "Connection":
    """Connects to `unix:PATH`, `tcp:HOST:PORT` or `ssl:HOST:PORT`. Raises `Broken`.

    `fault` gets the certificate of the other end, and returns why it is not the one expected.
    """
    kind, _, where = remote.partition(":")
    try:
        async with asyncio.timeout(DEADLINE):
            if kind == "unix":
                streams = await asyncio.open_unix_connection(where)
            else:
                host, port = split_address(remote)
                streams = await asyncio.open_connection(host, port, ssl=tls if kind == "ssl" else None)
    except TimeoutError:
        raise Broken(f"no connection to {remote} in {DEADLINE:g} s") from None
    except (OSError, ValueError) as error:
        raise Broken(f"no connection to {remote}: {error}") from None
    reader, writer = streams
    connection = Connection(reader, writer, notice)
    if kind == "ssl" and (why := fault(connection.certificate)):
        connection.close()
        raise Broken(f"no connection to {remote}: {why}")
    return connection


def split_address(remote: str) -> tuple[str, int]:
    """Returns host and port of `tcp:HOST:PORT` or `ssl:HOST:PORT`; IPv6 in brackets. Raises `ValueError`."""
    kind, _, where = remote.partition(":")
    host, _, port = where.rpartition(":")
    if kind not in ("tcp", "ssl") or not host or not port.isdecimal():
        raise ValueError(f"{remote!r} is no address: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Connection:
    """Calls of ours, notices of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notice: Notice) -> None:
        self._reader = reader
        self._writer = writer
        self._notice = notice
        self.certificate: Certificate = writer.get_extra_info("peercert")
        """Of the other end."""
        self._calls: dict[int, tuple[asyncio.Future[Any], Callable[[Any], None] | None]] = {}
        self._turns = asyncio.Semaphore(MOST_CALLS)
        self._last = 0
        self._heard = time.monotonic()

    async def call(self, method: str, params: list[Any], then: Callable[[Any], None] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Returns the server's result. Raises `Refused` for its error, `Broken` if none comes in time.

        `then` gets the result before any later notice is read.
        """
        async with self._turns:
            self._last += 1
            number = self._last
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._calls[number] = answer, then
            try:
                self._send({"method": method, "params": params, "id": number})
                async with asyncio.timeout(DEADLINE):
                    return await answer
            except TimeoutError:
                raise Broken(f"deaf: no answer to {method} in {DEADLINE:g} s") from None
            finally:
                del self._calls[number]

    async def serve(self) -> None:
        """Reads until the connection ends, and raises `Broken`."""
        splitter = Splitter()
        while True:
            try:
                chunk = await self._reader.read(1 << 16)
            except OSError as error:
                raise Broken(f"the connection ended: {error}") from None
            if not chunk:
                raise Broken("the server closed the connection")
            self._heard = time.monotonic()
            try:
                for message in splitter.feed(chunk):
                    self._take(message)
            except NotJson as error:
                raise Broken(str(error)) from None
            await asyncio.sleep(SHARE * (time.monotonic() - self._heard))

    async def keep_alive(self) -> None:
        """Asks a silent server whether it is there. Raises `Broken` if it does not answer."""
        while True:
            silent = time.monotonic() - self._heard
            if silent < IDLE:
                await asyncio.sleep(IDLE - silent)
            else:
                await self.call("echo", [])

    def close(self) -> None:
        """Ends the connection at once; what was not sent is lost."""
        self._writer.transport.abort()

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer.transport.get_write_buffer_size() > MOST_UNSENT:
            raise Broken(f"deaf: {MOST_UNSENT} bytes wait, and the server does not read")
        self._writer.write(json.dumps(message).encode())

    def _take(self, message: dict[str, Any]) -> None:
        method, params, number = message.get("method"), message.get("params"), message.get("id")
        if method is None:
            self._answer(message, number)
        elif not isinstance(method, str) or not isinstance(params, list):
            raise Broken("a request without method and parameters")
        elif method == "echo":
            self._send({"result": params, "error": None, "id": number})
        else:
            self._notice(method, params)

    def _answer(self, message: dict[str, Any], number: object) -> None:
        # A late answer, or one to nothing, is no reason to end.
        answer, then = self._calls.get(number, (None, None)) if isinstance(number, int) else (None, None)
        if answer is None or answer.done():
            return
        if (error := message.get("error")) is not None:
            answer.set_exception(Refused(json.dumps(error)[:500]))
            return
        result = message.get("result")
        if then is not None:
            then(result)
        answer.set_result(result)
