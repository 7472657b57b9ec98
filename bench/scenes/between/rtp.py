"""RTP streams (RFC 3550) in captures at both ends: lost, late, jitter. Pure.

```text
 sender's capture:   ssrc, sequence ─ moment ─┐
 receiver's capture: ssrc, sequence ─ moment ─┴▶ delay of each packet ─▶ Stream
```
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from scenes.stacks.figures import percentile

NANOSECONDS = 0xA1B23C4D
"""Magic of a pcap file with times in ns."""
RTP = 2
"""Version, in the two highest bits of the header."""
RTCP = range(192, 224)
"""Second bytes that are no RTP, on a shared port (RFC 5761, section 4)."""


@dataclass(frozen=True)
class Stream:
    """Packets one way; delays in us."""

    sent: int
    lost: int
    late: int
    """Arrived after the deadline."""
    p50: float
    p99: float
    worst: float
    jitter: float
    """Largest interarrival jitter of RFC 3550, section 6.4.1, with the moments of sending for timestamps."""


Key = tuple[int, int]
"""SSRC and sequence number, extended beyond 16 bits."""


def packets(capture: bytes, source: str) -> Iterator[tuple[Key, int]]:
    """RTP packets over UDP and IPv4 of this sender, each with its moment (ns)."""
    address = bytes(map(int, source.split(".")))
    (magic,) = struct.unpack_from("<I", capture)
    if magic != NANOSECONDS:
        raise ValueError(f"a capture with magic {magic:#x}; expected tcpdump --nano's {NANOSECONDS:#x}")
    at, rounds = 24, dict[int, int]()
    while at + 16 <= len(capture):
        seconds, nanoseconds, length, _ = struct.unpack_from("<4I", capture, at)
        frame = capture[at + 16 : at + 16 + length]
        at += 16 + length
        header = 14 + (frame[14] & 15) * 4 if len(frame) > 34 else 0
        payload = frame[header + 8 :]
        if frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[26:30] != address or len(payload) < 12:
            continue
        if payload[0] >> 6 != RTP or payload[1] in RTCP:
            continue
        short, ssrc = struct.unpack_from("!2xH4xI", payload)
        # The same number of the round that is nearest to the last one.
        last = rounds.get(ssrc, short)
        sequence = last + (short - last + 0x8000) % 0x10000 - 0x8000
        rounds[ssrc] = max(last, sequence)
        yield (ssrc, sequence), seconds * 1_000_000_000 + nanoseconds


def stream(sent: bytes, received: bytes, source: str, deadline_ns: int) -> Stream:
    """Compare the captures of both ends. `ValueError` if nothing was sent, or nothing arrived."""
    left, arrived = dict(packets(sent, source)), dict(packets(received, source))
    delays = [arrived[key] - moment for key, moment in left.items() if key in arrived]
    if not delays:
        raise ValueError(f"{len(left)} RTP packets of {source} were sent, and none of them arrived")
    jitter = worst = 0.0
    in_order = sorted((moment, moment - left[key]) for key, moment in arrived.items() if key in left)
    for (_, before), (_, after) in pairwise(in_order):
        jitter += (abs(after - before) - jitter) / 16
        worst = max(worst, jitter)
    us = [delay / 1e3 for delay in delays]
    return Stream(
        len(left),
        len(left) - len(delays),
        sum(delay > deadline_ns for delay in delays),
        percentile(us, 0.5),
        percentile(us, 0.99),
        max(us),
        worst / 1e3,
    )
