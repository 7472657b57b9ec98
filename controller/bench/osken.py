"""Why of os-ken the codec alone is used, and for one direction only.

```text
 50 connections that end ─▶ os-ken's application manager, native hub ─▶ threads that stay
 statistics with an instruction of length 0 ─▶ os-ken's parser ─▶ no end
```

`python controller/bench/osken.py`; os-ken and what it imports have to be there, eventlet need not.
"""

import os
import socket
import struct
import subprocess
import sys
import threading
import time

PORT = 16654
CONNECTIONS = 50
PATIENCE = 2.0
"""Seconds for the parser; it needs microseconds for a message that is right."""
MEMORY = 2 << 30
"""Bytes for the parser, which keeps all that it finds."""


def threads_left() -> tuple[int, int]:
    """Returns the numbers of threads before connections, and some seconds after the last one has ended."""
    os.environ["OSKEN_HUB_TYPE"] = "native"
    from os_ken import cfg  # noqa: PLC0415 - after the hub is chosen
    from os_ken.base import app_manager  # noqa: PLC0415

    cfg.CONF(args=["--ofp-tcp-listen-port", str(PORT), "--ofp-listen-host", "127.0.0.1"], project="gate")
    manager = app_manager.AppManager.get_instance()
    manager.load_apps(["os_ken.controller.ofp_handler"])
    manager.instantiate_apps(**manager.create_contexts())
    time.sleep(1)
    before = threading.active_count()
    for _ in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", PORT)) as connection:
            connection.sendall(struct.pack("!BBHI", 4, 0, 8, 1))
            time.sleep(0.02)
    time.sleep(8)
    return before, threading.active_count()


PARSE = """
import resource, struct
from os_ken.ofproto import ofproto_parser, ofproto_protocol
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
rule = struct.pack("!HBxIIHHHH4xQQQ", 112, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + struct.pack("!HH4x", 1, 4)
body = rule + struct.pack("!HHI", 4, {length}, 0) + bytes(48)
data = struct.pack("!BBHIHHI", 4, 19, 16 + len(body), 1, 1, 0, 0) + body
print("read", flush=True)
ofproto_parser.msg(ofproto_protocol.ProtocolDesc(version=4), 4, 19, len(data), 1, data)
"""


def parses(length: int) -> bool:
    """Returns whether os-ken's parser ends with a rule whose instruction states this length."""
    program = PARSE.format(memory=MEMORY, length=length)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"read\n"
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            return False
    return True


if __name__ == "__main__":
    print(f"an instruction of 56 bytes: the parser ends: {parses(56)}")
    print(f"an instruction of 0 bytes: the parser ends within {PATIENCE:g} s: {parses(0)}")
    before, after = threads_left()
    print(f"threads before {before}, after {CONNECTIONS} connections that ended {after}", flush=True)
    # The threads that are left would keep the process.
    os._exit(0)
