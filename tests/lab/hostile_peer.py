"""A wrong peer on a VXLAN port, run in its namespace: `python3 hostile_peer.py ROLE ADDRESS ...`.

```text
 reflect ADDRESS                      returns each datagram to the host it came from; says how many at SIGTERM
 flood ADDRESS PEER VNI MAC           sends frames for MAC from ever new addresses, as fast as it can
```

Standard library only.
"""

import random
import signal
import socket
import struct
import sys

PORT = 4789
UDP_SEGMENT = 103
SEGMENTS = 60
"""Datagrams of one call."""
FRAME = 100


def reflect(address: str) -> None:
    """Return what comes."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, PORT))
    count = 0

    def stop(*_: object) -> None:
        print(f"reflected {count}", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    while True:
        data, sender = sock.recvfrom(65_536)
        count += 1
        sock.sendto(data, (sender[0], PORT))


def flood(address: str, peer: str, vni: str, mac: str) -> None:
    """Send 60 datagrams a call."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.connect((peer, PORT))
    header = struct.pack("!BxxxI", 8, int(vni) << 8)
    sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(header) + FRAME)
    to = bytes.fromhex(mac.replace(":", ""))
    messages = []
    for _ in range(200):
        froms = [b"\x02" + random.randbytes(5) for _ in range(SEGMENTS)]
        frames = [to + own + b"\x88\xb5" + bytes(FRAME - 14) for own in froms]
        messages.append(b"".join(header + frame for frame in frames))
    print("ready", flush=True)
    while True:
        for message in messages:
            sock.send(message)


if __name__ == "__main__":
    if sys.argv[1] == "reflect":
        reflect(*sys.argv[2:])
    else:
        flood(*sys.argv[2:])
