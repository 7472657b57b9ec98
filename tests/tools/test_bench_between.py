"""Judgements from outside of the hosts: late frames beside what was done to them, and RTP streams."""

import struct

import pytest

from scenes.between.rtp import NANOSECONDS, stream
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
    assert (found.reports, found.early, found.after) == (1, [], [])
    assert (found.false, found.other_cause) == (0, {})
    wrong = [
        Report(2, 1_151, 50, "network"),
        Report(2, 900, 50, "sender"),
        Report(1, 60, 50, "network"),
        Report(9, 60, 50, "network"),
    ]
    found = compare(FRAMES, DEADLINE, ERROR, counts(2), wrong)
    assert (found.early, found.after) == ([50], [1, 110])
    assert (found.false, found.strange, found.other_cause) == (1, 1, {"sender": 1})


def capture(*seen: tuple[int, int], source: str = "10.9.0.1") -> bytes:
    """A pcap file with RTP packets: sequence number and moment (ns) of each."""
    records = [struct.pack("<I20x", NANOSECONDS)]
    for sequence, moment in seen:
        rtp = struct.pack("!BBHII", 0x80, 8, sequence, 0, 7) + bytes(160)
        header = bytes([0x45]) + bytes(8) + b"\x11" + bytes(2) + bytes(map(int, source.split("."))) + bytes(4)
        frame = bytes(12) + b"\x08\x00" + header + bytes(8) + rtp
        records.append(struct.pack("<4I", 0, moment, len(frame), len(frame)) + frame)
    return b"".join(records)


def test_rtp_packets_are_matched_over_the_end_of_their_numbers() -> None:
    """One of four is lost, one late; the numbers begin anew in between."""
    sent = capture((65534, 0), (65535, 20_000), (0, 40_000), (1, 60_000))
    received = capture((65534, 1_000), (0, 49_000), (1, 61_000))
    found = stream(sent, received, "10.9.0.1", 5_000)
    assert (found.sent, found.lost, found.late, found.worst) == (4, 1, 1, 9.0)
    assert found.jitter == pytest.approx(8 / 16 + (8 - 8 / 16) / 16)


def test_other_senders_are_left_out() -> None:
    """A stream of which nothing arrived is an error, not a good result."""
    with pytest.raises(ValueError, match="none of them arrived"):
        stream(capture((1, 0)), capture((1, 5), source="10.9.0.2"), "10.9.0.1", 5_000)
