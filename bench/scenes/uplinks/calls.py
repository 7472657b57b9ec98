"""A voice flow and its ends. Standard library only.

```text
 call ─ a datagram each ms: number, moment ─▶ ... ─▶ wire: when it is on the network ─▶ ... ─▶ echo
   ◀───────────────────────────────────────────────────────────────────────────────────────────┘
```

    python3 calls.py call ADDRESS SECONDS FILE   FILE: each datagram's moment, its round trip or 0 (ns)
    python3 calls.py wire MAC SECONDS FILE       FILE: number and moment of each on eth0, in VXLAN (ns)
    python3 calls.py echo ADDRESS                returns datagrams until killed

MAC is the caller's. Moments are of CLOCK_REALTIME, as the kernel's are.
"""

import array
import contextlib
import ctypes
import gc
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

PERIOD = 1_000_000
"""Between two datagrams (ns)."""
PAYLOAD = 100
"""Bytes of a datagram: a frame of 142 bytes."""
PORT = 7
PRIORITY = 3
"""SCHED_FIFO priority of the ends: above the switch's worker, so that they are not what is measured."""
SO_ATTACH_FILTER, SO_TIMESTAMPNS = 26, 35
INNER = 14 + 20 + 8 + 8
"""The inner frame behind Ethernet, IPv4, UDP and VXLAN headers."""
AT = INNER + 14 + 20 + 8
"""The payload of the inner datagram."""


def first() -> None:
    """Be a real-time thread without pauses."""
    libc = ctypes.CDLL(None)
    libc.mlockall(3)
    libc.prctl(29, 1)
    gc.disable()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))


def save(path: str, values: "array.array[int]") -> None:
    """Write the values, as an ordinary thread."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with open(path + ".new", "wb") as file:
        values.tofile(file)
    os.rename(path + ".new", path)


def call(address: str, seconds: str, path: str) -> None:
    """See the module's text."""
    count = int(float(seconds) * 1e9 / PERIOD)
    times = array.array("q", bytes(16 * count))
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((address, PORT))
    out.setblocking(False)
    poll = select.poll()
    poll.register(out, select.POLLIN)
    payload = bytearray(PAYLOAD)
    first()
    print("ready", flush=True)

    def take() -> None:
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                echo = out.recv(2048)
                number, sent = struct.unpack_from("!qq", echo)
                times[2 * number + 1] = time.time_ns() - sent

    due = time.monotonic_ns()
    for number in range(count):
        due += PERIOD
        while (left := due - time.monotonic_ns()) > 0:
            poll.poll(left / 1e6)
            take()
        sent = time.time_ns()
        struct.pack_into("!qq", payload, 0, number, sent)
        times[2 * number] = sent
        # A frame for which the own interface has no room is lost.
        with contextlib.suppress(BlockingIOError, OSError):
            out.send(payload)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        poll.poll(10)
        take()
    save(path, times)


def wire(mac: str, seconds: str, path: str) -> None:
    """See the module's text."""
    source = bytes.fromhex(mac.replace(":", ""))
    program = [
        # The last four bytes of the inner source address, and the length of the inner IP packet.
        (0x20, 0, 0, INNER + 8),
        (0x15, 0, 3, struct.unpack("!I", source[2:])[0]),
        (0x28, 0, 0, INNER + 16),
        (0x15, 0, 1, PAYLOAD + 28),
        (0x06, 0, 0, 256),
        (0x06, 0, 0, 0),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    # It hears nothing before it has its filter.
    ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    ear.setsockopt(
        socket.SOL_SOCKET,
        SO_ATTACH_FILTER,
        struct.pack("HL", len(program), ctypes.addressof(code)),
    )
    ear.bind(("eth0", 0x0800))
    ear.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    ear.settimeout(0.1)
    seen = array.array("q")
    first()
    print("ready", flush=True)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            frame, ancillary, _, _ = ear.recvmsg(256, 64)
            s, ns = struct.unpack("qq", ancillary[0][2][:16])
            seen.extend((struct.unpack_from("!q", frame, AT)[0], s * 1_000_000_000 + ns))
    save(path, seen)


def echo(address: str) -> None:
    """See the module's text."""
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind((address, PORT))
    first()
    print("ready", flush=True)
    while True:
        payload, peer = ear.recvfrom(2048)
        ear.sendto(payload, peer)


ROLES: dict[str, Callable[..., None]] = {role.__name__: role for role in (call, wire, echo)}
ROLES[sys.argv[1]](*sys.argv[2:])
