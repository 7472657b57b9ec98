"""The agent's API, by HTTP on a Unix socket."""

import json
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any


class _Connection(HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("tidegate", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        """To the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(
    api: Path, method: str, path: str, body: str = "", *, kind: str = "text/plain", timeout: float = 10
) -> tuple[int, Any]:
    """Status and JSON body of the answer. `kind` is the content type of `body`, `timeout` in seconds."""
    with closing(_Connection(api, timeout)) as connection:
        connection.request(method, path, body or None, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def get(api: Path, path: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """The JSON body of `GET path`."""
    return request(api, "GET", path)[1]
