"""A controller of the network that does as a file says: `python fake_controller.py FOLDER ADDRESS PORT`.

```text
 agent ──HTTP, bearer token──▶ fake ──▶ FOLDER/requests.jsonl: each request
                                ▲ FOLDER/rules.json: verdict, lease, peers, remotes
```
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REASON = "s1:2>s2:1: level 0 needs 1200000 ns with this path, and has 1000000 ns"


class State:
    """What it knows; nothing of it outlives the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.version = 1
        self.registration: dict[str, Any] | None = None
        self.paths: dict[str, dict[str, Any]] = {}
        self.token = (folder / "token").read_text().strip()

    def rules(self) -> dict[str, Any]:
        """The rules, as they are now."""
        return dict(json.loads((self.folder / "rules.json").read_text()))

    def log(self, method: str, path: str, body: Any) -> None:  # noqa: ANN401 - JSON
        """Add a request to the log."""
        with self.lock, (self.folder / "requests.jsonl").open("a") as file:
            file.write(json.dumps({"method": method, "path": path, "body": body}) + "\n")

    def view(self) -> dict[str, Any]:
        """What the host is to know."""
        rules = self.rules()
        return {
            "version": self.version,
            "term": 1,
            "lease": rules["lease"],
            "peers": rules["peers"],
            "remotes": rules["remotes"],
            "paths": list(self.paths.values()),
            "refused": [],
        }

    def register(self, registration: dict[str, Any] | None) -> None:
        """Take a registration in."""
        if registration != self.registration:
            self.registration = registration
            self.version += 1

    def wait(self, version: int, seconds: float) -> None:
        """Wait until the version is another one."""
        end = time.monotonic() + seconds
        while self.version == version and time.monotonic() < end:
            time.sleep(0.05)

    def release(self, name: str) -> bool:
        """End a path; whether there was one."""
        self.version += 1
        return self.paths.pop(name, None) is not None

    def grant(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        """Let a path have what it asks for."""
        before = self.paths.get(name)
        self.paths[name] = {
            "name": name,
            "request": request,
            "state": "active",
            "level": 0,
            "links": ["h1>s1:1", "s1:2>s2:1", "s2:2>h2"],
            "generation": before["generation"] + 1 if before else 1,
            "tag": 7,
            "bound": request["budget"] // 2,
            "far_burst": request["burst"] * 2,
            "misses": 0,
            "reasons": [],
            "lasting": False,
        }
        self.version += 1
        return self.paths[name]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as there
        """Nothing: the requests are in a file."""

    def _answer(self, status: int, body: Any = None) -> None:  # noqa: ANN401 - JSON
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve(self) -> None:
        state, url = self.state, urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = [unquote(part) for part in url.path.split("/")][2:]
        if self.headers.get("Authorization") != f"Bearer {state.token}":
            self._answer(401, {"code": "unauthorized", "message": "no such token"})
            return
        if self.command != "GET":
            state.log(self.command, "/".join(parts), body)
        if parts[0] == "paths":
            self._answer(*self._path(parts[1], body))
        elif self.command == "GET" and state.registration is None:
            self._answer(404, {"code": "not-found", "message": "the host is not registered"})
        elif self.command in {"GET", "PUT"}:
            if self.command == "PUT":
                state.register(body)
            else:
                query = parse_qs(url.query)
                state.wait(int(query["after"][0]), int(query["wait"][0]) / 1e9)
            self._answer(200, state.view())
        else:
            self._answer(204)

    def _path(self, name: str, body: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        """What becomes of a path: a status, and a body."""
        if self.command == "DELETE":
            return (204 if self.state.release(name) else 404), None
        verdict = self.state.rules()["verdict"]
        if verdict == "grant":
            return 200, self.state.grant(name, body)
        code = {"refuse": "refused", "wait": "waiting"}[verdict]
        return 409, {"code": code, "message": "no route fits", "reasons": [REASON]}

    do_GET = do_PUT = do_POST = do_DELETE = _serve


def main() -> None:
    """Serve until killed."""
    folder, address, port = sys.argv[1:]
    handler = type("Bound", (Handler,), {"state": State(Path(folder))})
    ThreadingHTTPServer((address, int(port)), handler).serve_forever()


if __name__ == "__main__":
    main()
