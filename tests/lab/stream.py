"""Numbered datagrams, each with the time it was sent, and what a receiver says of them.

stream.py send ADDRESS PORT SOURCE-PORT DSCP COUNT SIZE INTERVAL-IN-MICROSECONDS
stream.py receive PORT COUNT PATIENCE-IN-SECONDS [DEADLINE-IN-MICROSECONDS]

The receiver ends after COUNT datagrams, or PATIENCE without any, longer before the first; then it prints, as
JSON: received, lost (of the numbers up to COUNT), reordered (a higher number came first), duplicates, delays
in microseconds (sorted), and the longest silence between two of them. SIZE is of the UDP payload. Arrival is
by the kernel's clock.

With a deadline it prints, at most each 0.1 s, how many were later since (`late`), by how much (`worst`,
microseconds) and when the last one came (`at`, Unix time); the report has the numbers of those that were
`late` and of those that were `gone`.
"""

import contextlib
import json
import socket
import struct
import sys
import time

HEAD = struct.Struct("!QQ")
"""Number, and Unix time in ns."""
SO_TIMESTAMPNS, SO_SNDBUFFORCE = 35, 32
READY, SENDING = "listening", "sending"
FIRST = 15.0
"""s until the first datagram at least: the sender is a process that has yet to start."""
BATCH = 100_000_000
"""ns between two reports of late datagrams."""


def send(words: list[str]) -> None:
    """Send at even intervals; a datagram that is late goes at once, and its delay counts from then."""
    address, (port, own, dscp, count, size, interval) = words[0], map(int, words[1:])
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    # Else frames in a queue of this machine would hold the sender back, as those of a wire do not.
    with contextlib.suppress(PermissionError):
        link.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 16 << 20)
    link.bind(("", own))
    link.connect((address, port))
    rest = bytes(size - HEAD.size)
    print(SENDING, flush=True)
    begin = time.monotonic_ns()
    for number in range(count):
        wait = begin + number * interval * 1000 - time.monotonic_ns()
        if wait > 0:
            time.sleep(wait / 1e9)
        try:
            link.send(HEAD.pack(number, time.time_ns()) + rest)
        except (ConnectionRefusedError, BlockingIOError):
            continue
    print("sent", count)


class Watch:
    """Tells of late datagrams while they come."""

    def __init__(self, deadline: int | None) -> None:
        self.deadline = deadline
        self.late: list[int] = []
        self.first = 0.0
        self._count = self._worst = self._told = 0

    def see(self, number: int, sent: int, at: int) -> None:
        """A datagram; Unix times in ns."""
        delay = (at - sent) // 1000
        self.first = self.first or sent / 1e9
        if self.deadline is not None and delay > self.deadline:
            self.late.append(number)
            self._count += 1
            self._worst = max(self._worst, delay - self.deadline)
        if self._count and at > self._told + BATCH:
            print(json.dumps({"late": self._count, "worst": self._worst, "at": at / 1e9}), flush=True)
            self._count, self._worst, self._told = 0, 0, at


def receive(words: list[str]) -> None:
    """Collect, and print the report."""
    port, count, patience = int(words[0]), int(words[1]), float(words[2])
    watch = Watch(int(words[3]) if len(words) > 3 else None)
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    link.bind(("", port))
    link.settimeout(max(patience, FIRST))
    print(READY, flush=True)
    seen: set[int] = set()
    delays, highest, reordered, duplicates, last, silence = [], -1, 0, 0, 0, 0
    while len(seen) < count:
        try:
            data, ancillary, _, _ = link.recvmsg(2048, 64)
        except TimeoutError:
            break
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        at = seconds * 10**9 + nanoseconds
        number, sent = HEAD.unpack_from(data)
        if number in seen:
            duplicates += 1
            continue
        if not seen:
            link.settimeout(patience)
        seen.add(number)
        watch.see(number, sent, at)
        delays.append((at - sent) // 1000)
        reordered += number < highest
        highest = max(highest, number)
        silence = max(silence, at - last if last else 0)
        last = at
    report = {
        "received": len(seen),
        "lost": count - len(seen),
        "reordered": reordered,
        "duplicates": duplicates,
        "silence": silence // 1000,
        "delays": sorted(delays),
        "first": watch.first,
        "late": watch.late,
        "gone": [] if watch.deadline is None else sorted(set(range(count)) - seen),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](sys.argv[2:])
