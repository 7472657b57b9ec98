"""An HTTP server that says when each request came: `SECONDS PATH` a line, by a clock that only goes on.

python3 serve.py FOLDER PORT
"""

import sys
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder, over connections that stay."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """A line for each request."""
        del code, size
        print(f"{time.monotonic():.6f} {self.path}", flush=True)


if __name__ == "__main__":
    folder, port = sys.argv[1], int(sys.argv[2])
    ThreadingHTTPServer(("", port), partial(Handler, directory=folder)).serve_forever()
