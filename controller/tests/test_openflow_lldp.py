"""Links by LLDP: found, kept, gone; forged, replayed and carried frames are of no use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.lib.packet import lldp

from tidegate_controller.model.topology import Link, Port
from tidegate_controller.openflow.lldp import CONFIRMATIONS, Discovery

A, B, C = Port("s1", 1), Port("s2", 7), Port("s3", 3)


def network() -> Discovery:
    """Three switches with some ports, at time 0."""
    found = Discovery()
    for switch, ports in (("s1", (1, 2)), ("s2", (7,)), ("s3", (3,))):
        assert found.set_ports(switch, ports, 0.0) == set()
    return found


def frame_of(found: Discovery, port: Port, now: float) -> bytes:
    """The frame that is due at a port."""
    return dict(found.due(now))[port]


def test_frames_are_lldp() -> None:
    """Another implementation reads them, and no switch forwards them."""
    frame = frame_of(network(), B, 0.0)
    assert frame[:6].hex() == "0180c200000e"
    assert len(frame) >= 60
    read, _, _ = lldp.lldp.parser(frame[14:])
    chassis, port, time, ours, _ = read.tlvs
    assert (chassis.chassis_id, port.port_id, time.ttl) == (b"s2", b"7", 3)
    assert ours.oui == b"\x02tg"


def test_a_link_is_found_kept_and_gone() -> None:
    """It is there with the first frame, and gone when none came for 3 intervals."""
    found = network()
    for now in (0.0, 1.0, 2.0):
        frame = frame_of(found, A, now)
        assert found.received(B, frame, now + 0.1) == Link(A, B)
    assert found.links == {Link(A, B)}
    assert found.expire(2.1 + CONFIRMATIONS) == set()
    assert found.expire(2.2 + CONFIRMATIONS) == {Link(A, B)}
    assert found.links == set()


def test_frames_are_due_once_an_interval() -> None:
    """Of every port that is there."""
    found = network()
    assert len(found.due(0.0)) == 4
    assert found.due(0.9) == []
    found.set_ports("s2", (), 0.9)
    assert [port for port, _ in found.due(1.0)] == [A, Port("s1", 2), C]
    found.set_ports("s2", (7,), 1.5)
    assert [port for port, _ in found.due(1.5)] == [B]


@pytest.mark.parametrize(("switch", "left"), [("s1", (2,)), ("s2", ())])
def test_a_port_that_is_down_takes_its_links_along(switch: str, left: tuple[int, ...]) -> None:
    """At either end, at once."""
    found = network()
    found.received(B, frame_of(found, A, 0.0), 0.0)
    assert found.set_ports(switch, left, 0.5) == {Link(A, B)}
    assert found.links == set()


@given(st.data())
def test_forged_frames_show_nothing(data: st.DataObject) -> None:
    """Whatever is changed in a frame, or cut off."""
    found = network()
    frame = bytearray(frame_of(found, A, 0.0))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(14, len(frame) - 3))
        frame[at] ^= data.draw(st.integers(1, 255))
    else:
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    assert found.received(B, bytes(frame), 0.0) is None
    assert found.forged == 1


@given(st.binary(max_size=200))
def test_garbage_shows_nothing(frame: bytes) -> None:
    """No other error comes of it."""
    found = network()
    assert found.received(B, frame, 0.0) is None
    assert found.received(B, frame[:12] + b"\x88\xcc" + frame[12:], 0.0) is None


def test_frames_of_another_process_show_nothing() -> None:
    """Each has a key of its own."""
    ours, theirs = network(), network()
    assert ours.received(B, frame_of(theirs, A, 0.0), 0.0) is None


def test_recorded_frames_are_of_no_use() -> None:
    """Only the last few numbers of a port count."""
    found = network()
    old = frame_of(found, A, 0.0)
    for now in range(1, CONFIRMATIONS):
        frame_of(found, A, float(now))
        assert found.received(B, old, float(now)) == Link(A, B)
    frame_of(found, A, float(CONFIRMATIONS))
    assert found.received(B, old, float(CONFIRMATIONS)) is None


def test_a_carried_frame_does_not_move_a_link() -> None:
    """A second target counts when the first is not confirmed any more."""
    found = network()
    frame = frame_of(found, A, 0.0)
    assert found.received(B, frame, 0.0) == Link(A, B)
    assert found.received(C, frame, 0.0) is None
    assert (found.contested, found.links) == (1, {Link(A, B)})
    later = 2.0 * CONFIRMATIONS
    assert found.received(C, frame_of(found, A, later), later) == Link(A, C)


def test_frames_at_ports_of_hosts_show_nothing() -> None:
    """Links are between ports that were named."""
    found = network()
    assert found.received(Port("s2", 9), frame_of(found, A, 0.0), 0.0) is None
    with pytest.raises(ValueError, match="200"):
        found.set_ports("s" * 201, (1,), 0.0)
