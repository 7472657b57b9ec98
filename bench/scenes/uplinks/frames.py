"""Sends frames out of an interface as fast as they arrive elsewhere. Standard library only.

```text
 frames ─ AF_PACKET, 64 a call ─▶ eth0 ═══ what is measured ═══▶ eth0 of another namespace: frames counted
    ▲                                                                    │
    └──────────── never more than WINDOW on their way ◀──────────────────┘
```

    python3 frames.py PID SECONDS DESTINATION SOURCE LENGTH FLOWS

PID is a process of the receiving namespace, SOURCE and DESTINATION are MACs, LENGTH is that of a frame in
bytes without FCS. The receiver's stack drops the frames, whose IP address is not its own. Prints `ready`; at
the end the frames sent, those that arrived, and the seconds as JSON. A frame without trace for 20 ms is lost.
"""

import ctypes
import json
import os
import socket
import struct
import sys
import time

BATCH = 64
"""Frames of a call."""
WINDOW = 512
"""Frames on their way: a tap's queue has 1000 by default, and so has a CPU's backlog."""
LOST = 0.02
"""Without progress for so long, frames on their way are lost (s)."""
PACKET_QDISC_BYPASS = 20
SOL_PACKET = 263


class Vector(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


class Header(ctypes.Structure):
    """`struct mmsghdr`."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(Vector)),
        ("count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    )


def checksum(words: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total ^ 0xFFFF)


def frame(destination: str, source: str, length: int, flow: int) -> bytes:
    """A UDP datagram from 198.51.100.1 to 198.51.100.2 without a UDP checksum."""
    addresses = socket.inet_aton("198.51.100.1") + socket.inet_aton("198.51.100.2")
    head = struct.pack("!BBHHHBBH", 0x45, 0, length - 14, 0, 0x4000, 64, 17, 0) + addresses
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    macs = bytes.fromhex((destination + source).replace(":", ""))
    udp = struct.pack("!HHHH", 10_000 + flow, 9, length - 34, 0)
    return macs + b"\x08\x00" + head + udp + bytes(length - 42)


class Arrived:
    """Frames that `eth0` of another namespace has received."""

    def __init__(self, pid: int) -> None:
        self.file = os.open(f"/proc/{pid}/net/dev", os.O_RDONLY)

    def __call__(self) -> int:
        """Reads their number."""
        text = os.pread(self.file, 4096, 0)
        return int(text[text.index(b"eth0:") + 5 :].split(None, 2)[1])


def main() -> None:
    """See the module's text."""
    pid, seconds, destination, source, length, flows = sys.argv[1:]
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    out.bind(("eth0", 0x0800))
    made = [
        ctypes.create_string_buffer(frame(destination, source, int(length), flow), int(length))
        for flow in range(int(flows))
    ]
    vectors = (Vector * BATCH)()
    headers = (Header * BATCH)()
    for at in range(BATCH):
        buffer = made[at % len(made)]
        vectors[at] = Vector(ctypes.addressof(buffer), int(length))
        headers[at].vectors = ctypes.pointer(vectors[at])
        headers[at].count = 1
    sendmmsg = ctypes.CDLL(None, use_errno=True).sendmmsg
    arrived = Arrived(int(pid))
    descriptor, first = out.fileno(), arrived()
    print("ready", flush=True)
    began = moved = time.monotonic()
    sent, lost, seen = 0, 0, first
    while (now := time.monotonic()) - began < float(seconds):
        if sent - lost - (seen - first) <= WINDOW - BATCH:
            sent += max(0, sendmmsg(descriptor, headers, BATCH, 0))
            continue
        before, seen = seen, arrived()
        if seen > before:
            moved = now
        elif now - moved > LOST:
            lost, moved = sent - (seen - first), now
        else:
            time.sleep(20e-6)
    took = time.monotonic() - began
    time.sleep(LOST)
    print(
        json.dumps({"sent": sent, "arrived": arrived() - first, "seconds": took}),
        flush=True,
    )


main()
