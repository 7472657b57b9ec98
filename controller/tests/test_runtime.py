"""The loop around the core: what links work, a switch's orders, start and end of the program."""

import asyncio
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_config import GOOD

import tidegate_controller
from tidegate_controller import events as ev
from tidegate_controller.config import parse
from tidegate_controller.decide.leases import Clock
from tidegate_controller.decide.move import Update
from tidegate_controller.main import main
from tidegate_controller.model.topology import Link, Port, Topology
from tidegate_controller.openflow.lldp import Discovery
from tidegate_controller.ovsdb import events as db
from tidegate_controller.runtime.damping import FIRST, LONGEST, Damping
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.runtime.seen import Seen
from tidegate_controller.runtime.switch import Switch

LINK = Link(Port("s1", 1), Port("s2", 1))
BOTH = {LINK, LINK.back}


def seen(before: Topology | None = None) -> Seen:
    """Of two switches, with one link."""
    return Seen({"s1", "s2"}, BOTH, {}, Discovery(1.0), before or Topology())


def sessions(one: Seen, now: float) -> None:
    """Both switches connect."""
    for switch in ("s1", "s2"):
        one.session(switch, now)
        one.ports(switch, {1: True}, now)


def cross(one: Seen, now: float) -> None:
    """Frames cross the link in both directions."""
    for port, frame in one.discovery.due(now):
        target = LINK.target if port == LINK.source else LINK.source
        one.frame(target, frame, now)


def listen(one: Seen, since: float, until: float, *heard: Port) -> None:
    """No LLDP frame comes for some time, in which it looks as often as it should; BFD hears ends."""
    while since < until:
        since = min(since + 0.25, until)
        one.expire(since, lambda: set(heard))


def test_a_link_comes_by_lldp_and_goes_by_each_sign() -> None:
    """Its port, BFD, and no frame for too long; it counts again after it worked for a while."""
    one = seen()
    sessions(one, 0.0)
    assert one.topology(0.0) == Topology({"s1", "s2"})
    cross(one, 0.0)
    assert one.topology(0.0).links == BOTH
    one.bfd(LINK.source, False)
    assert one.topology(0.0).links == set()
    one.bfd(LINK.source, True)
    assert one.topology(0.0).links == set()
    assert one.topology(1.0).links == BOTH
    one.ports("s2", {1: False}, 1.0)
    assert one.topology(1.0).links == set()
    one.ports("s2", {1: True}, 1.0)
    listen(one, 0.0, 2.0)
    assert one.topology(2.0).links == set()
    assert one.topology(4.0).links == BOTH
    cross(one, 4.0)
    listen(one, 4.0, 6.5)
    assert one.topology(6.5).links == BOTH
    listen(one, 6.5, 8.0)
    assert one.topology(8.0).links == set()


def test_it_says_when_something_is_new() -> None:
    """So no event costs a topology that changes nothing."""
    one = seen()
    sessions(one, 0.0)
    assert one.changed(0.0)
    one.topology(0.0)
    cross(one, 0.0)
    assert one.changed(0.0)
    one.topology(0.0)
    for now in (1.0, 2.0, 3.0):
        cross(one, now)
        one.expire(now)
        sessions(one, now)
        one.bfd(LINK.source, True)
        assert not one.changed(now)
    one.bfd(LINK.source, False)
    assert one.changed(4.0)
    one.topology(4.0)
    one.bfd(LINK.source, True)
    one.topology(4.0)
    assert not one.changed(4.9)
    assert one.changed(5.0)


@given(st.lists(st.tuples(st.floats(0.01, 30), st.booleans()), max_size=60))
def test_a_link_that_comes_and_goes(steps: list[tuple[float, bool]]) -> None:
    """It never counts while it is down; it counts first at once, then after it worked for ever longer."""
    damping, now, hold, since, was = Damping(), 0.0, 0.0, 0.0, False
    for after, works in steps:
        now += after
        if was and not works:
            quiet = now >= since + hold + LONGEST
            hold = FIRST if quiet or not hold else min(2 * hold, LONGEST)
        if works and not was:
            since = now
        was = works
        counts = damping.take({LINK} if works else set(), now) == {LINK}
        assert counts == (works and now >= since + hold)
        assert damping.due == (since + hold if works and not counts else None)


def test_a_flapping_link_changes_little() -> None:
    """A minute of a change each 50 ms becomes one or two changes."""
    damping, states = Damping(), [True]
    for step in range(1200):
        states.append(bool(damping.take({LINK} if step % 2 else set(), step * 0.05)))
    assert sum(one != other for one, other in pairwise(states)) <= 3
    damping.take({LINK}, 60.0)
    assert damping.take({LINK}, 60.0 + LONGEST) == {LINK}


def test_without_a_session_links_stay() -> None:
    """A switch forwards without us; after it is back, frames have to come again."""
    one = seen()
    sessions(one, 0.0)
    cross(one, 0.0)
    one.no_session("s1")
    one.expire(100.0)
    assert one.topology(100.0).links == BOTH
    one.session("s1", 100.0)
    listen(one, 100.0, 104.0)
    assert one.topology(104.0).links == BOTH
    one.expire(104.1)
    assert one.topology(104.1).links == set()


def test_what_was_kept_counts_until_it_should_have_come() -> None:
    """A restart changes nothing at first."""
    before = Topology({"s1", "s2"}, set(BOTH))
    one = seen(before)
    assert one.topology(9.0) == before
    sessions(one, 0.0)
    listen(one, 0.0, 4.0)
    assert one.topology(9.0) == before
    one.expire(4.1)
    assert one.topology(9.0).links == set()


def test_a_link_that_is_silent_in_one_direction_counts_as_down() -> None:
    """Also when that began while no controller ran, so that BFD never heard the other end."""
    one = seen(Topology({"s1", "s2"}, set(BOTH)))
    sessions(one, 0.0)
    for now in (0.0, 2.0, 4.0):
        frames = dict(one.discovery.due(now))
        one.frame(LINK.target, frames[LINK.source], now)
        listen(one, now, min(now + 2.0, 4.0))
    assert one.topology(9.0).links == BOTH
    one.expire(4.1)
    assert one.topology(9.0).links == set()


def test_silence_counts_while_the_process_listened() -> None:
    """A process that got no CPU for a minute forgets no link; then it listens as long as always."""
    one = seen()
    sessions(one, 0.0)
    cross(one, 0.0)
    listen(one, 0.0, 2.0)
    one.expire(62.0)
    assert one.topology(62.0).links == BOTH
    listen(one, 62.0, 63.5)
    assert one.topology(63.5).links == BOTH
    listen(one, 63.5, 63.75)
    assert one.topology(63.75).links == set()


@given(st.lists(st.floats(-1, 100), max_size=60))
def test_a_clock_of_what_was_heard(steps: list[float]) -> None:
    """It never goes back, and is as fast as the time if the looks are frequent."""
    clock, now, before = Clock(1000.0, 0.5), 1000.0, 1000.0
    latest = now
    for step in steps:
        now += step
        gained = clock.look(now) - before
        assert gained == pytest.approx(min(max(0.0, now - latest), 0.5), abs=1e-6)
        before, latest = before + gained, now


def test_bfd_of_both_ends_keeps_a_link_whose_lldp_frames_are_late() -> None:
    """They go through the controller; one end alone tells too little."""
    ends = (LINK.source, LINK.target)
    for heard in (ends, ends[:1], ends[1:], ()):
        one = seen(Topology({"s1", "s2"}, set(BOTH)))
        sessions(one, 0.0)
        listen(one, 0.0, 9.0, *heard)
        assert (one.topology(9.0).links == BOTH) == (heard == ends)
    one = seen(Topology({"s1", "s2"}, set(BOTH)))
    sessions(one, 0.0)
    listen(one, 0.0, 9.0, *ends)
    one.bfd(LINK.target, False)
    assert one.topology(9.0).links == set()


def test_another_cable_counts_more_than_bfd() -> None:
    """The ends of two links were swapped while no controller ran: all four hear something."""
    wires = (LINK, Link(Port("s1", 2), Port("s3", 1)))
    links = {way for link in wires for way in (link, link.back)}
    one = Seen({"s1", "s2", "s3"}, links, {}, Discovery(1.0), Topology({"s1", "s2", "s3"}, set(links)))
    for switch, ports in (("s1", {1: True, 2: True}), ("s2", {1: True}), ("s3", {1: True})):
        one.session(switch, 0.0)
        one.ports(switch, ports, 0.0)
    ends = [link.source for link in links]
    swapped = {Port("s1", 1): Port("s3", 1), Port("s1", 2): Port("s2", 1)}
    swapped |= {target: source for source, target in swapped.items()}
    for port, frame in one.discovery.due(0.0):
        one.frame(swapped[port], frame, 0.0)
    listen(one, 0.0, 3.0, *ends)
    assert one.topology(3.0).links == links
    for port, frame in one.discovery.due(3.0):
        one.frame(swapped[port], frame, 3.0)
    listen(one, 3.0, 4.25, *ends)
    assert (one.topology(4.25).links, one.unknown) == (set(), 8)


def test_frames_of_others_show_no_link() -> None:
    """Nor does one over a cable that is not configured."""
    one = seen()
    sessions(one, 0.0)
    one.frame(LINK.target, bytes(64), 0.0)
    one.ports("s1", {1: True, 7: True}, 0.0)
    frames = dict(one.discovery.due(0.0))
    one.frame(LINK.target, frames[Port("s1", 7)], 0.0)
    assert (one.topology(9.0).links, one.unknown) == (set(), 1)


def test_time_in_which_the_controller_stood_still_is_no_silence() -> None:
    """LLDP frames wait in sockets while the core moves hundreds of paths."""

    async def test() -> None:
        runtime = Runtime(parse(GOOD, "f"), Kept())
        one = runtime._seen
        sessions(one, runtime.now)
        cross(one, runtime.now)
        for step, looks, links in ((60.0, 1, BOTH), (0.25, 60, set())):
            for _ in range(looks):
                runtime._began += step
                task = asyncio.create_task(runtime._discover())
                await asyncio.sleep(0)
                task.cancel()
            assert one.topology(runtime.now).links == links

    asyncio.run(test())


@pytest.mark.parametrize("bfd", [True, False])
def test_bfd_that_ends_where_it_is_switched_off_is_no_news(bfd: bool) -> None:
    """A predecessor had switched it on: both ends hear nothing any more as it goes."""
    text = GOOD if bfd else GOOD.replace('"1.5s"', '"1.5s"\nbfd = false')
    runtime = Runtime(parse(text, "f"), Kept())
    one = runtime._seen
    sessions(one, 0.0)
    cross(one, 0.0)
    runtime._of_database(db.LinkDown(LINK.source, "no BFD any more"))
    assert one.topology(0.0).links == (set() if bfd else BOTH)


def test_orders_of_a_switch_that_is_not_there() -> None:
    """They fail at once."""
    told: list[ev.Event] = []
    ticket = ev.Ticket("v", 1, 2)
    Switch("s1", told.append).order(ev.Install(ticket, Update(2, "s1")))
    assert told == [ev.SwitchFailed("s1", ticket, "not connected")]


def test_a_fault_of_the_core_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor goes on with what was kept: nothing is decided after a fault."""

    async def main() -> None:
        runtime = Runtime(parse(GOOD.replace("[::1]:6653", "127.0.0.1:0"), "f"), Kept())
        await runtime.start()

        def fault(event: ev.Event, now: float) -> list[ev.Effect]:
            raise RuntimeError(f"{event} at {now}")

        monkeypatch.setattr(runtime.core, "handle", fault)
        runtime.happened(ev.Tick())
        with pytest.raises(RuntimeError, match="Tick"):
            await runtime.run()
        await runtime.stop()

    asyncio.run(main())


def test_a_damaged_state_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The program ends with what is wrong and what to do, without a traceback; it has not listened."""
    file, kept = tmp_path / "c.toml", tmp_path / "s"
    kept.write_bytes(b"garbage" * 99)
    file.write_text(GOOD + f'[state]\nfile = "{kept}"\n')
    assert main(["--config", str(file)]) == 3
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"{kept}: file is not a database. The controller does not start" in record.message
    assert record.message.endswith("switches keep what they have")
    assert record.exc_info is None
    assert "served" not in caplog.text


def test_the_program_ends_cleanly(tmp_path: Path) -> None:
    """By SIGTERM, with status 0."""
    file = tmp_path / "c.toml"
    kept = tmp_path / "kept" / "state.sqlite"
    file.write_text(GOOD.replace("[::1]:6653", "127.0.0.1:0") + f'[state]\nfile = "{kept}"\n')
    folder = Path(tidegate_controller.__file__).parents[1]
    words = [sys.executable, "-m", "tidegate_controller.main", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "switches are served at" in line:
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, lines
    assert "SIGTERM: the controller ends" in "".join(lines)
    assert "Traceback" not in "".join(lines)
    assert kept.exists()
