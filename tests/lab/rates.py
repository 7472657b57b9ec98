"""A rate that is kept: at most, in every window; at least, in one.

 look ── bytes sent, between two moments ─┬─▶ all earlier looks: never beyond rate * time + burst
                                          └─▶ windows of a few seconds: one reaches the rate

A host that takes the CPU from the switch for a while spoils the rate of a window. It never makes it more.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

SUPER_FRAME = 68_000
"""The longest frame, 64 KiB in segments, bytes on the wire."""

TOLERANCE = 1.01
"""A rate that is more by less is not told from it."""

_PAUSE = 0.25
"""Seconds between two looks: so short are the shortest windows."""
_SHARP = 0.25
"""A look that took as many seconds says too little of when, or may be of an earlier one: the API answers
with what it knows already where a place does not tell within 0.3 s."""
_LONGEST = 24.0
"""Seconds until a window has to have reached the rate."""


@dataclass(frozen=True)
class Limit:
    """What is to be kept."""

    rate: float
    """Bit/s."""
    burst: float
    """Bytes."""

    def most(self, seconds: float) -> float:
        """Bytes that may be sent in so many seconds: what the rate gives, the burst, and one frame."""
        return TOLERANCE * self.rate / 8 * seconds + self.burst + SUPER_FRAME


@dataclass(frozen=True)
class Look:
    """Bytes sent at some moment between two."""

    began: float
    bytes: int
    ended: float


class Rate:
    """Looks at what is sent under a limit, and fails where that is more than the limit lets through."""

    def __init__(self, what: str, sent: Callable[[], int], limit: Limit) -> None:
        """`sent` says how many bytes were on the wire so far."""
        self._what = what
        self._sent = sent
        self._limit = limit
        self._looks: list[Look] = []

    def look(self) -> Look:
        """Look once."""
        while True:
            began = time.monotonic()
            now = Look(began, self._sent(), time.monotonic())
            if now.ended - now.began < _SHARP:
                break
        for before in self._looks:
            # At most so long: what is too much is so for certain.
            seconds = now.ended - before.began
            sent, most = now.bytes - before.bytes, self._limit.most(seconds)
            assert sent <= most, (
                f"{self._what} sent {sent} bytes in {seconds:.2f} s; {self._limit}: {most:.0f}"
            )
        self._looks.append(now)
        return now

    def window(self, seconds: float) -> float:
        """What was sent in a window of `seconds`, as a share of the limit: at most so much."""
        first = self.look()
        while (last := self.look()).began < first.ended + seconds:
            time.sleep(_PAUSE)
        return (last.bytes - first.bytes) * 8 / (last.began - first.ended) / self._limit.rate

    def reaches(self, least: float, seconds: float) -> None:
        """Fail unless one of the next windows has this share of the limit."""
        seen: list[float] = []
        while not seen or seen[-1] < least:
            assert len(seen) * seconds < _LONGEST, f"{self._what} sent {seen} of its rate, expected {least}"
            seen.append(self.window(seconds))
