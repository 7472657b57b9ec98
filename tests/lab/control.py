"""A client of the switch's control socket, in the place of the agent.

request ─▶ [length][JSON] ─▶ switch ─▶ [length][JSON] + descriptors, which are closed unread ─▶ reply
"""

import json
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Refused(Exception):
    """The switch refused a request."""


class Control:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(str(path))

    def ask(self, request: str | dict[str, Any]) -> Any:  # noqa: ANN401
        """The content of the reply; `None` if it has none."""
        body = json.dumps(request).encode()
        self._socket.sendall(struct.pack("<I", len(body)) + body)
        (length,) = struct.unpack("<I", self._receive(4))
        reply = json.loads(self._receive(length))
        if reply == "done":
            return None
        ((kind, content),) = reply.items()
        if kind == "refused":
            raise Refused(content)
        return content

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part, descriptors, _, _ = socket.recv_fds(self._socket, count - len(data), 4)
            for descriptor in descriptors:
                os.close(descriptor)
            if not part:
                raise ConnectionError("the switch closed the connection")
            data += part
        return data

    def direct(self, workers: dict[int, int] | None = None, vnics: dict[str, int] | None = None) -> None:
        """Direct the CPU of each worker, and the worker of each vNIC, in place of earlier directions."""
        self.ask({"direct": {"workers": workers or {}, "vnics": vnics or {}}})

    def work(self) -> dict[str, Any]:
        """The directions in force, and their outcome."""
        return dict(self.ask("work"))

    def workers_of_vnics(self) -> dict[str, int]:
        """The worker of each port."""
        return {port["vnic"]["name"]: port["worker"] for port in self.ask("ports")}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
