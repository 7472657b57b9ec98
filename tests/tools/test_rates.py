"""lab/rates.py: a limit that is exceeded in any window is found, a window that is spoiled is forgiven."""

from collections.abc import Callable, Iterator

import pytest

from lab import rates
from lab.rates import Limit, Rate

LIMIT = Limit(rate=80e6, burst=64_000)
"""10 MB in a second."""


class Clock:
    """Time that passes while another program sleeps, and a sender with a speed for each second."""

    def __init__(self, speeds: Iterator[float]) -> None:
        self._speeds = speeds
        self._speed = next(speeds)
        self._steps = 0
        self.bytes = 0.0

    def monotonic(self) -> float:
        """Now."""
        return self._steps / 1000

    def sleep(self, seconds: float) -> None:
        """Let it pass, a millisecond at a time."""
        for _ in range(round(seconds * 1000)):
            self._steps += 1
            self.bytes += self._speed / 1000
            if self._steps % 1000 == 0:
                self._speed = next(self._speeds)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rate]:
    """The rate of a sender with these speeds, in parts of the limit."""

    def start(*speeds: float) -> Rate:
        def always() -> Iterator[float]:
            yield from (speed * LIMIT.rate / 8 for speed in speeds)
            while True:
                yield speeds[-1] * LIMIT.rate / 8

        clock = Clock(always())
        monkeypatch.setattr(rates, "time", clock)
        return Rate("a", lambda: int(clock.bytes), LIMIT)

    return start


def test_a_window_spoiled_by_the_host_is_ignored(sends: Callable[..., Rate]) -> None:
    """The rate is reached later; in no window it was more."""
    sends(0.2, 0.5, 0.3, 1.0).reaches(0.95, 2)


def test_more_than_the_limit_is_found_in_any_window(sends: Callable[..., Rate]) -> None:
    """Also where it is made up for by less, and where there are good windows before or after."""
    for speeds in [(1.1,), (1.0, 1.1, 0.9), (0.2, 1.2, 0.2, 1.0), (0.5, 0.9, 0.5, 0.9, 1.05)]:
        with pytest.raises(AssertionError, match="a sent"):
            sends(*speeds, 0.5).reaches(0.95, 4)


def test_a_burst_and_a_frame_are_no_fault(sends: Callable[..., Rate]) -> None:
    """Once: they are not earned again."""
    beyond = (LIMIT.burst + rates.SUPER_FRAME) / (LIMIT.rate / 8)
    sends(1.0 + beyond, 1.0).reaches(0.95, 2)
    with pytest.raises(AssertionError, match="a sent"):
        sends(*[1.0 + beyond] * 3, 0.5).reaches(1.5, 2)


def test_a_rate_that_is_never_reached(sends: Callable[..., Rate]) -> None:
    """All windows are told."""
    with pytest.raises(AssertionError, match=r"expected 0\.95"):
        sends(0.8).reaches(0.95, 4)
