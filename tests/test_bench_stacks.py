"""The arithmetic behind the scenes with kernel stacks."""

import pytest

from scenes.delay import Away, Frame, gained, inner
from scenes.stacks.counters import HEADERS, MSS, Interface, tcp_wire_bytes
from scenes.stacks.figures import percentile


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (0.999, 100), (0.001, 1)])
def test_percentile_is_the_smallest_that_covers_its_share(share: float, value: float) -> None:
    """Of 1 to 100, in any order."""
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_a_super_frame_counts_as_its_segments() -> None:
    """One super-frame of 45 segments, one ordinary full one: 46 frames of 1,514 bytes."""
    first = Interface(0.0, 1000, 10, 0, 0)
    last = Interface(1.0, 1000 + 46 * MSS + 2 * HEADERS, 12, 0, 0)
    assert MSS + HEADERS == 1514
    assert tcp_wire_bytes(first, last) == 46 * 1514


def test_the_parts_of_a_delay_add_up() -> None:
    """Also where the receiver's stamp comes before the send call has returned."""
    for returned in (130, 170):
        frame = Frame(due=90, sent=100, returned=returned, stamped=150, read=180)
        parts = frame.parts()
        assert parts.pop("sender woke") == 10
        assert sum(parts.values()) == frame.delay == 80
        assert min(parts.values()) >= 0


def test_a_cpu_was_away_only_if_it_overlaps() -> None:
    """Spans are from due to woken."""
    frame = Frame(due=90, sent=100, returned=130, stamped=150, read=180)
    assert Away(0, ((0, 101),), ()).overlaps(frame)
    assert Away(0, ((179, 300),), ()).overlaps(frame)
    assert not Away(0, ((0, 100), (180, 300)), ()).overlaps(frame)


def test_percentiles_of_what_a_histogram_gained() -> None:
    """What was there before does not count."""
    before = {"delay": {"buckets": [[1_000, 500], [9_000, 1]]}}
    after = {"delay": {"buckets": [[1_000, 500], [2_000, 99], [9_000, 2]]}}
    new = gained(before, after)
    assert new == {2_000: 99, 9_000: 1}
    assert inner(new) == {"inside p50": 2, "inside p99": 2, "inside p99.9": 9, "inside max": 9}
