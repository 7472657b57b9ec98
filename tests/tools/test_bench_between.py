"""The comparison of late frames with what was done to them."""

from scenes.between.truth import Counts, Frame, Report, compare

DEADLINE, ERROR = 1_000, 50


def frame(sequence: int, low: int, high: int, cause: str = "network") -> Frame:
    """A frame with these bounds."""
    return Frame(sequence, low, high, cause)


FRAMES = [frame(1, 100, 900), frame(2, 2_000, 2_100), frame(3, 1_200, 1_210), frame(4, 990, 1_010)]


def counts(late: int, uncertain: int = 0) -> Counts:
    """Counts of these four frames."""
    return Counts(4 - late - uncertain, late, uncertain, {"network": late + uncertain})


def test_what_is_right_is_right() -> None:
    """Two late frames for sure, one in time, and one that may be either."""
    for of_host in (counts(2), counts(3), counts(2, 1)):
        found = compare(FRAMES, DEADLINE, ERROR, of_host, [])
        assert (found.missed, found.kept, found.open) == (2, 1, 1)
        assert (found.not_found, found.invented, found.not_certain) == (0, 0, 0)


def test_what_is_left_out_or_invented_is_seen() -> None:
    """Too few or too many late frames, and late frames that are only uncertain."""
    assert compare(FRAMES, DEADLINE, ERROR, counts(1), []).not_found == 1
    assert compare(FRAMES, DEADLINE, ERROR, counts(4), []).invented == 1
    assert compare(FRAMES, DEADLINE, ERROR, counts(0, 3), []).not_certain == 2


def test_reports_are_compared_one_by_one() -> None:
    """A time beyond the error, a frame that was in time or never sent, and another cause."""
    right = Report(2, 1_030, 50, "network")
    found = compare(FRAMES, DEADLINE, ERROR, counts(2), [right])
    assert (found.reports, found.wrong, found.false, found.other_cause) == (1, [], 0, {})
    wrong = [
        Report(2, 1_151, 50, "network"),
        Report(2, 900, 50, "sender"),
        Report(1, 60, 50, "network"),
        Report(9, 60, 50, "network"),
    ]
    found = compare(FRAMES, DEADLINE, ERROR, counts(2), wrong)
    assert found.wrong == [1, 50, 110]
    assert (found.false, found.strange, found.other_cause) == (1, 1, {"sender": 1})
