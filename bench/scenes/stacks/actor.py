"""Programs that run inside a namespace: `python3 actor.py ROLE ...`. Standard library only.

```text
 bulk ADDRESS PORT CONNECTIONS       sends TCP until killed
 drain ADDRESS PORT                  takes TCP and discards it, until killed
 voice ADDRESS PORT SECONDS FILE     sends a small datagram each ms; its times go to FILE
 listen ADDRESS PORT SECONDS FILE    receives them; the times go to FILE
 timer CPU SECONDS FILE              only wakes up each ms; how late goes to FILE
 echo ADDRESS PORT                   returns datagrams until killed
 ping ADDRESS PORT COUNT GAP FILE    one datagram, its echo, GAP s of silence; FILE: round trips
 tap_echo TAP MAC                    the same over a tap that the actor holds: Ethernet frames
 tap_ping TAP MAC PEER COUNT GAP FILE
```
 pump NETNS NETNS                    a tap `eth0` in each; copies frames from one to the other, no more

Each prints `ready` once it is. All times are ns of CLOCK_REALTIME: the kernel's receive stamps
are. Voice sleeps until moments of CLOCK_MONOTONIC, which differs by a constant in a short run.
"""

import array
import contextlib
import ctypes
import fcntl
import gc
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

PERIOD = 1_000_000
"""Between two frames of voice, ns."""
FRAME = 200
"""Bytes of a frame of voice, Ethernet header included."""
PAYLOAD = FRAME - 14 - 20 - 8
PRIORITY = 3
"""SCHED_FIFO priority of the measured threads: above the switch's worker, as in `tidegate demo`."""
SO_TIMESTAMPNS = 35
CHUNK = 256 * 1024
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
CLONE_NEWNET = 0x40000000


def ready() -> None:
    """Prints `ready`: the other programs may begin."""
    print("ready", flush=True)


def realtime(priority: int = PRIORITY) -> None:
    """SCHED_FIFO, memory locked, no pauses for garbage, no timer slack."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlockall(3)
    libc.prctl(29, 1)
    gc.disable()
    sys.setswitchinterval(1)
    # Without the right to it, all contenders run as ordinary threads.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def save(path: str, values: "array.array[int]") -> None:
    """Writes the values, as an ordinary thread: an interpreter that ends takes 5 to 10 ms of a CPU."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with open(path, "wb") as file:
        values.tofile(file)


def bulk(address: str, port: str, connections: str) -> None:
    """Sends as many bytes as TCP takes."""
    chunk = bytes(CHUNK)

    def send(stream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                stream.sendall(chunk)

    streams = []
    for _ in range(int(connections)):
        end = time.monotonic() + 10
        while True:
            try:
                streams.append(socket.create_connection((address, int(port)), 0.5))
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
    for stream in streams:
        stream.settimeout(None)
        threading.Thread(target=send, args=(stream,)).start()
    ready()


def drain(address: str, port: str) -> None:
    """Takes connections and discards what comes, a large read at a time."""

    def take(stream: socket.socket) -> None:
        buffer = bytearray(CHUNK)
        while stream.recv_into(buffer, CHUNK, socket.MSG_WAITALL):
            pass

    listener = socket.create_server((address, int(port)))
    ready()
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=take, args=(stream,), daemon=True).start()


def voice(address: str, port: str, seconds: str, path: str) -> None:
    """FILE: per frame the moment it was due, the moments before and after the send call."""
    count = int(float(seconds) * 1e9 / PERIOD)
    times = array.array("q", bytes(24 * count))
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((address, int(port)))
    payload = bytearray(PAYLOAD)
    realtime()
    ready()
    constant = time.time_ns() - time.monotonic_ns()
    due = time.monotonic_ns()
    for number in range(count):
        due += PERIOD
        left = due - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        before = time.time_ns()
        struct.pack_into("!qq", payload, 0, number, before)
        # A frame the own interface had no room for is a lost frame, and counts as one.
        with contextlib.suppress(BlockingIOError, OSError):
            out.send(payload)
        times[3 * number] = due + constant
        times[3 * number + 1] = before
        times[3 * number + 2] = time.time_ns()
    save(path, times)


def listen(address: str, port: str, seconds: str, path: str) -> None:
    """FILE: per frame its number, the moment it was sent, the kernel's stamp, the moment it was read."""
    end = time.monotonic() + float(seconds)
    room = int(float(seconds) * 1e9 / PERIOD) + 1000
    times = array.array("q", bytes(32 * room))
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind((address, int(port)))
    ear.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    ear.settimeout(0.1)
    realtime()
    ready()
    at = 0
    while time.monotonic() < end and at < room:
        try:
            payload, ancillary, _, _ = ear.recvmsg(PAYLOAD, 64)
        except TimeoutError:
            continue
        now = time.time_ns()
        number, sent = struct.unpack_from("!qq", payload)
        stamp = now
        for _, kind, data in ancillary:
            if kind == SO_TIMESTAMPNS:
                s, ns = struct.unpack("qq", data[:16])
                stamp = s * 1_000_000_000 + ns
        times[4 * at : 4 * at + 4] = array.array("q", (number, sent, stamp, now))
        at += 1
    save(path, times[: 4 * at])


def timer(cpu: str, seconds: str, path: str) -> None:
    """FILE: the moments it was due, and how late it woke: above everything else on this CPU."""
    count = int(float(seconds) * 1e9 / PERIOD)
    times = array.array("q", bytes(16 * count))
    os.sched_setaffinity(0, {int(cpu)})
    realtime(PRIORITY + 10)
    ready()
    constant = time.time_ns() - time.monotonic_ns()
    due = time.monotonic_ns()
    for number in range(count):
        due += PERIOD
        left = due - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        times[2 * number] = due + constant
        times[2 * number + 1] = time.monotonic_ns() - due
    save(path, times)


def echo(address: str, port: str) -> None:
    """Sends every datagram back."""
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind((address, int(port)))
    gc.disable()
    ready()
    while True:
        payload, peer = ear.recvfrom(2048)
        ear.sendto(payload, peer)


def ping(address: str, port: str, count: str, gap: str, path: str) -> None:
    """FILE: round trips, ns; 0 where no echo came within a second."""
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.connect((address, int(port)))
    out.settimeout(1)
    gc.disable()
    trips = array.array("q")
    for _ in range(5):  # ARP, and the code once
        out.send(bytes(18))
        with contextlib.suppress(TimeoutError):
            out.recv(2048)
    ready()
    for number in range(int(count)):
        time.sleep(float(gap))
        payload = number.to_bytes(18, "big")
        began = time.monotonic_ns()
        out.send(payload)
        trip = 0
        with contextlib.suppress(TimeoutError):
            while out.recv(2048) != payload:
                pass
            trip = time.monotonic_ns() - began
        trips.append(trip)
    save(path, trips)


def tap(name: str) -> int:
    """A descriptor of an existing tap (linux/if_tun.h): TUNSETIFF, IFF_TAP | IFF_NO_PI."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), 0x0002 | 0x1000))
    return file


def raw(mac: str) -> bytes:
    """A MAC's bytes."""
    return bytes.fromhex(mac.replace(":", ""))


TEST_TYPE = b"\x88\xb5"
"""EtherType for local experiments (IEEE 802)."""


def tap_echo(name: str, mac: str) -> None:
    """Returns frames of ours that come to `mac`."""
    file, own = tap(name), raw(mac)
    gc.disable()
    ready()
    while True:
        frame = os.read(file, 2048)
        if frame[:6] == own and frame[12:14] == TEST_TYPE:
            os.write(file, frame[6:12] + own + frame[12:])


def tap_ping(name: str, mac: str, peer: str, count: str, gap: str, path: str) -> None:
    """FILE: round trips, ns."""
    file, own, to = tap(name), raw(mac), raw(peer)
    gc.disable()
    trips = array.array("q")
    ready()
    for number in range(-5, int(count)):
        time.sleep(float(gap))
        payload = number.to_bytes(46, "big", signed=True)
        began = time.monotonic_ns()
        os.write(file, to + own + TEST_TYPE + payload)
        while os.read(file, 2048)[12:] != TEST_TYPE + payload:
            pass
        if number >= 0:  # before: the bridge learns, and the code runs once
            trips.append(time.monotonic_ns() - began)
    save(path, trips)


def pump(*namespaces: str) -> None:
    """Frames from each tap to the other, super-frames whole: the least work of a switch of taps."""
    libc = ctypes.CDLL(None, use_errno=True)
    taps = []
    for path in namespaces:
        with open(path, "rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        # IFF_TAP | IFF_NO_PI | IFF_VNET_HDR; checksum, TSO of both IP versions.
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", b"eth0", 0x0002 | 0x1000 | 0x4000))
        fcntl.ioctl(file, TUNSETVNETHDRSZ, struct.pack("i", 12))
        fcntl.ioctl(file, TUNSETOFFLOAD, 0x01 | 0x02 | 0x04)
        taps.append(file)
    gc.disable()
    buffer = bytearray(12 + 65_536 + 18)
    view = memoryview(buffer)
    poll = select.poll()
    for file in taps:
        poll.register(file, select.POLLIN)
    ways = ((taps[0], taps[1]), (taps[1], taps[0]))
    ready()
    while True:
        poll.poll()
        for source, sink in ways:
            with contextlib.suppress(BlockingIOError):
                for _ in range(16):
                    os.write(sink, view[: os.readv(source, (buffer,))])


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (bulk, drain, voice, listen, timer, echo, ping, tap_echo, tap_ping, pump)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
