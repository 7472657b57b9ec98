"""A web page as a browser loads it, and the server of it; run in the namespaces of the scene `pages`.

```text
 look the name up (UDP) ─▶ connect ─▶ the page ─▶ 6 connections, 4 objects each, one after the other ─▶ shown
```

    web.py serve ADDRESS                  until it is killed; prints "ready"
    web.py load ADDRESS SECONDS           one page after the other, each a second apart; prints a JSON list, s
"""

import http.client
import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME_PORT, WEB_PORT = 5300, 8080
PAGE, OBJECT = 40_000, 20_000
"""Bytes."""
CONNECTIONS, OBJECTS = 6, 4
"""At once to one server, as browsers do (HTTP/1.1); objects of each."""
RESOLVER = 5.0
"""Seconds until a resolver asks once more (resolv.conf(5))."""
PATIENCE = 60.0


class Handler(BaseHTTPRequestHandler):
    """`GET /N`: so many bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers."""
        body = bytes(int(self.path[1:]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def serve(address: str) -> None:
    """Names and pages."""
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((address, NAME_PORT))
    web = ThreadingHTTPServer((address, WEB_PORT), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print("ready", flush=True)
    while True:
        question, asker = names.recvfrom(512)
        names.sendto(question, asker)


def look_up(address: str) -> None:
    """One question, asked again until it is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.settimeout(RESOLVER)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            asker.sendto(bytes(40), (address, NAME_PORT))
            try:
                asker.recv(512)
            except TimeoutError:
                continue
            return
    raise TimeoutError("the name was not found")


def fetch(address: str, sizes: list[int]) -> None:
    """One connection, one object after the other."""
    connection = http.client.HTTPConnection(address, WEB_PORT, timeout=PATIENCE)
    for size in sizes:
        connection.request("GET", f"/{size}")
        assert len(connection.getresponse().read()) == size
    connection.close()


def page(address: str) -> float:
    """Seconds until all of it was there."""
    began = time.monotonic()
    look_up(address)
    fetch(address, [PAGE])
    workers = [threading.Thread(target=fetch, args=(address, [OBJECT] * OBJECTS)) for _ in range(CONNECTIONS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.monotonic() - began


def load(address: str, seconds: float) -> None:
    """Pages, one begun every second at most."""
    took = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        took.append(page(address))
        time.sleep(max(0.0, began + 1 - time.monotonic()))
    print(json.dumps(took))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", where]:
            serve(where)
        case ["load", where, length]:
            load(where, float(length))
        case _:
            sys.exit(__doc__)
