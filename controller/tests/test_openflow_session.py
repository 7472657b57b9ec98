"""Sessions with switches that answer, refuse, vanish, flood, or say nothing."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from fake_switch import error, message, multipart, packet_in, port
from hypothesis import given
from hypothesis import strategies as st
from openflow_bench import bench, run
from os_ken.ofproto import ofproto_v1_3 as of

from tidegate_controller.model.intent import OURS, Match, Output, Rule, Table
from tidegate_controller.openflow import codec, sync
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.limits import Limits
from tidegate_controller.openflow.requests import RequestRefused
from tidegate_controller.openflow.server import Event, PacketIn, PortsChanged, SwitchDown, SwitchUp
from tidegate_controller.openflow.session import CHUNK, Role, Session, SessionLost


def changes(count: int) -> list[bytes]:
    """Returns additions of rules."""
    rules = (Rule(Table.EDGE, number, Match(in_port=1), (Output(2),), OURS) for number in range(count))
    return [codec.encode(Change(None, rule)) for rule in rules]


def test_a_switch_comes_and_goes() -> None:
    """Up with its ports, changes of ports, down with the reason."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join(0xAB, (1, 2, of.OFPP_LOCAL))
            up = at.of(SwitchUp)[0]
            assert up.switch == "00000000000000ab"
            assert sorted(up.ports) == [1, 2]
            assert up.ports[1].up
            switch.write(message(of.OFPT_PORT_STATUS, 0, bytes(8) + port(7)))
            switch.write(message(of.OFPT_PORT_STATUS, 0, bytes([of.OFPPR_DELETE]) + bytes(7) + port(1)))
            switch.write(message(of.OFPT_PORT_STATUS, 0, b"\2" + bytes(7) + port(2, of.OFPPS_LINK_DOWN)))
            await at.until(lambda: at.of(PortsChanged))
            await at.until(lambda: sorted(session.ports) == [2, 7])
            changed = at.of(PortsChanged)[-1].ports
            assert sorted(changed) == [2, 7]
            assert not changed[2].up
            switch.close()
            assert "closed the connection" in await at.reason()
            assert not at.server.sessions

    run(test)


def test_changes_are_done_or_refused() -> None:
    """Errors belong to the changes with their transactions, across chunks."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            count = 3 * CHUNK + 5
            applying = asyncio.create_task(session.apply(changes(count)))
            xids: list[int] = []
            while len(xids) < count:
                barrier, before = await switch.read_until(of.OFPT_BARRIER_REQUEST)
                xids += [xid for kind, xid, _ in before if kind == of.OFPT_FLOW_MOD]
                for index in (1, CHUNK + 2):
                    if xids[index : index + 1] and xids[index] in [xid for _, xid, _ in before]:
                        switch.write(error(xids[index], of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL))
                        # A second error of the same change adds nothing.
                        switch.write(error(xids[index], of.OFPET_FLOW_MOD_FAILED, 0))
                switch.write(error(0x7FFFFFFF, 1, 1))
                switch.write(message(of.OFPT_BARRIER_REPLY, barrier))
            refusals = await applying
            assert [refusal.index for refusal in refusals] == [1, CHUNK + 2]
            assert all(refusal.error.table_full for refusal in refusals)
            assert session.counts.stray == 4
            assert await session.apply([]) == []

    run(test)


def test_a_switch_that_vanishes_amid_changes() -> None:
    """All that wait for it are told, and nothing is left behind."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            waiting = [asyncio.create_task(session.apply(changes(2000))) for _ in range(3)]
            waiting.append(asyncio.create_task(session.rules()))  # type: ignore[arg-type]
            await switch.read_until(of.OFPT_BARRIER_REQUEST)
            switch.writer.transport.abort()
            for one in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(one, SessionLost)
            await at.reason()
            with pytest.raises(SessionLost):
                await session.apply(changes(1))
            assert not session.send(codec.packet_out(1, b"frame"))

    run(test)


def test_a_deaf_switch_loses_its_session_and_no_other_waits() -> None:
    """It reads nothing more: the outbox stays bounded, single frames are dropped, another switch goes on."""

    async def test() -> None:
        limits = Limits(outbox=64 << 10, answer=2.0)
        async with bench(limits) as at:
            deaf, session = await at.join(1)
            other, live = await at.join(2)
            obeying = asyncio.create_task(other.obey())
            deaf.reader._limit = 1  # type: ignore[attr-defined]
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
            frame = codec.packet_out(1, bytes(1400))
            while session.send(frame):
                await asyncio.sleep(0)
            assert session.counts.sent_dropped == 1
            stuck = asyncio.create_task(session.apply(changes(1000)))
            while not at.of(SwitchDown):
                assert await live.apply(changes(50)) == []
                session.send(frame)
                assert session.waiting <= limits.outbox + len(frame)
                await asyncio.sleep(0)
            assert "no answer for 2 s" in await at.reason()
            with pytest.raises(SessionLost, match="no answer"):
                await stuck
            assert [event.switch for event in at.of(SwitchDown)] == [f"{1:016x}"]
            obeying.cancel()

    run(test)


def test_a_slow_switch_has_time_for_each_barrier() -> None:
    """All of it may take longer than one answer."""

    async def test() -> None:
        async with bench(Limits(answer=2.0, outstanding=4)) as at:
            switch, session = await at.join()
            begin = asyncio.get_running_loop().time()
            applying = asyncio.create_task(session.apply(changes(10 * CHUNK)))
            for _ in range(10):
                barrier, _ = await switch.read_until(of.OFPT_BARRIER_REQUEST)
                await asyncio.sleep(0.25)
                switch.write(message(of.OFPT_BARRIER_REPLY, barrier))
            assert await applying == []
            assert asyncio.get_running_loop().time() - begin > session.limits.answer

    run(test)


def test_silence_is_asked_for_an_echo() -> None:
    """A switch that answers echoes stays; a connection that is half open ends."""

    async def test() -> None:
        async with bench(Limits(echo=0.1, answer=2.0)) as at:
            silent, _ = await at.join(1)
            talking, _ = await at.join(2)
            obeying = asyncio.create_task(talking.obey())
            await silent.read_until(of.OFPT_ECHO_REQUEST)
            assert "no answer for 2 s" in await at.reason()
            assert list(at.server.sessions) == [f"{2:016x}"]
            obeying.cancel()

    run(test)


def test_a_switch_asks_for_an_echo() -> None:
    """It gets its content back."""

    async def test() -> None:
        async with bench() as at:
            switch, _ = await at.join()
            switch.write(message(of.OFPT_ECHO_REQUEST, 77, b"content"))
            xid, _ = await switch.read_until(of.OFPT_ECHO_REPLY)
            assert xid == 77

    run(test)


def test_an_answer_in_parts() -> None:
    """All parts are read; a refusal of the request is an error of the caller alone."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            asking = asyncio.create_task(session.port_counters())
            xid, _ = await switch.read_until(of.OFPT_MULTIPART_REQUEST)
            for number in range(3):
                switch.write(multipart(of.OFPMP_PORT_STATS, xid, bytes(112), more=number < 2))
            assert len(await asking) == 3
            asking = asyncio.create_task(session.port_counters())
            xid, _ = await switch.read_until(of.OFPT_MULTIPART_REQUEST)
            switch.write(error(xid, 1, 2))
            with pytest.raises(RequestRefused, match="bad-request"):
                await asking
            role = asyncio.create_task(session.role(Role.MASTER, 5))
            xid, _ = await switch.read_until(of.OFPT_ROLE_REQUEST)
            switch.write(message(of.OFPT_ROLE_REPLY, xid, (3).to_bytes(4) + bytes(4) + (5).to_bytes(8)))
            assert await role is Role.SLAVE
            assert session.lost is None

    run(test)


ENDS: dict[str, Callable[[int], bytes]] = {
    "more than 4096 bytes": lambda xid: multipart(of.OFPMP_FLOW, xid, b"", more=True) * 257,
    "a part of type 4": lambda xid: multipart(of.OFPMP_PORT_STATS, xid, b""),
    "an answer of type 27": lambda xid: message(of.OFPT_GET_ASYNC_REPLY, xid),
    "a rule has a length of 0": lambda xid: multipart(of.OFPMP_FLOW, xid, bytes(56)),
    "version 1": lambda _: message(of.OFPT_ECHO_REQUEST, 1, version=1),
    "says that it has 0 bytes": lambda _: message(of.OFPT_ECHO_REQUEST, 1, length=0),
    "a packet_in has 0 bytes": lambda _: message(of.OFPT_PACKET_IN, 0),
    "a report about a port has 3 bytes": lambda _: message(of.OFPT_PORT_STATUS, 0, bytes(3)),
    "more than 8 ports": lambda _: b"".join(
        message(of.OFPT_PORT_STATUS, 0, bytes(8) + port(number)) for number in range(1, 20)
    ),
    "an error has 1 bytes": lambda _: message(of.OFPT_ERROR, 0, bytes(1)),
}


@pytest.mark.parametrize("words", ENDS)
def test_wrong_bytes_end_the_session_with_the_reason(words: str) -> None:
    """Each bound and each check says what it found."""

    async def test() -> None:
        async with bench(Limits(reply=4096, ports=8)) as at:
            switch, session = await at.join()
            asking = asyncio.create_task(session.rules())
            xid, _ = await switch.read_until(of.OFPT_MULTIPART_REQUEST)
            switch.write(ENDS[words](xid))
            with pytest.raises(SessionLost, match=words):
                await asking
            assert words in await at.reason()

    run(test)


def test_barriers_out_of_order_end_the_session() -> None:
    """Else a switch could leave one barrier without answer for ever."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            applying = asyncio.create_task(session.apply(changes(2 * CHUNK)))
            await switch.read_until(of.OFPT_BARRIER_REQUEST)
            second, _ = await switch.read_until(of.OFPT_BARRIER_REQUEST)
            switch.write(message(of.OFPT_BARRIER_REPLY, second))
            with pytest.raises(SessionLost, match="before an earlier one"):
                await applying

    run(test)


def test_a_flood_of_frames_is_dropped_by_port() -> None:
    """Port 1 floods; frames of port 2 come through; unknown ports have no allowance."""

    async def test() -> None:
        async with bench(Limits(port_packets=5)) as at:
            switch, session = await at.join()
            for _ in range(5000):
                switch.write(packet_in(1, b"flood"))
                switch.write(packet_in(9, b"unknown"))
            for number in range(5):
                switch.write(packet_in(2, bytes([number])))
            await at.until(lambda: PacketIn(f"{1:016x}", 2, b"\4") in at.events)
            assert session.counts.frames == len(at.of(PacketIn)) < 5000
            assert session.counts.frames_dropped > 5000
            assert session.counts.frames + session.counts.frames_dropped == 10005
            assert sum(event.port == 2 for event in at.of(PacketIn)) == 5

    run(test)


def test_a_caller_that_gives_up_harms_no_other() -> None:
    """Answers that come later are not taken for others'."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            giving_up = [
                asyncio.create_task(session.apply(changes(1000))),
                asyncio.create_task(session.rules()),
            ]
            await asyncio.sleep(0.05)
            for one in giving_up:
                one.cancel()
            await asyncio.gather(*giving_up, return_exceptions=True)
            obeying = asyncio.create_task(switch.obey())
            assert await session.apply(changes(1000)) == []
            assert session.lost is None
            obeying.cancel()

    run(test)


def test_a_caller_learns_of_its_own_fault() -> None:
    """What an event's receiver raises ends that session, with the reason, and no other."""

    async def test() -> None:
        async with bench() as at:
            told = at.server._tell

            def broken(event: Event) -> None:
                if isinstance(event, PacketIn):
                    raise RuntimeError("broken")
                told(event)

            at.server._tell = broken
            switch, _ = await at.join(1)
            await at.join(2)
            switch.write(packet_in(1, b"frame"))
            assert "fault of the controller: broken" in await at.reason()
            assert list(at.server.sessions) == [f"{2:016x}"]

    run(test)


A_RULE = struct.pack(of.OFP_FLOW_STATS_0_PACK_STR, 80, 0, 0, 0, 1, 0, 0, 0, OURS, 0, 0)
A_RULE += struct.pack(
    "!HH4xHH4xHHIH6x", of.OFPMT_OXM, 4, of.OFPIT_APPLY_ACTIONS, 24, of.OFPAT_OUTPUT, 16, 2, 0
)
A_GROUP = bytes([0, 8, of.OFPGT_FF, 0]) + bytes(4)

Asks = Callable[[Session], Awaitable[object]]
ANSWERS: dict[str, tuple[Asks, int, bytes]] = {
    "rules": (Session.rules, of.OFPT_MULTIPART_REPLY, bytes([0, of.OFPMP_FLOW]) + bytes(6) + A_RULE),
    "groups": (
        Session.groups,
        of.OFPT_MULTIPART_REPLY,
        bytes([0, of.OFPMP_GROUP_DESC]) + bytes(6) + A_GROUP,
    ),
    "ports": (Session.port_counters, of.OFPT_MULTIPART_REPLY, bytes([0, of.OFPMP_PORT_STATS]) + bytes(118)),
    "queues": (Session.queue_counters, of.OFPT_MULTIPART_REPLY, bytes([0, of.OFPMP_QUEUE]) + bytes(46)),
    "role": (lambda session: session.role(Role.MASTER, 7), of.OFPT_ROLE_REPLY, bytes(16)),
}


@pytest.mark.parametrize("asked", ANSWERS)
def test_answers_that_are_cut(asked: str) -> None:
    """Whatever the length, the caller has an answer or `SessionLost`: nothing that none catches."""
    ask, kind, whole = ANSWERS[asked]

    async def test() -> None:
        outcomes = set()
        async with bench(most=1000) as at:
            for size in range(len(whole) + 1):
                switch, session = await at.join(size + 1)
                asking = asyncio.ensure_future(ask(session))
                _, xid, _ = await switch.read()
                switch.write(message(kind, xid, whole[:size]))
                try:
                    await asking
                    outcomes.add("answer")
                except SessionLost:
                    assert "fault" not in (session.lost or "")
                    outcomes.add("lost")
                switch.close()
        assert outcomes == {"answer", "lost"}

    run(test)


def test_an_answer_that_drips() -> None:
    """Each part comes in time, but the whole does not."""

    async def test() -> None:
        async with bench(Limits(answer=2.0, whole=1.0)) as at:
            switch, session = await at.join()
            asking = asyncio.create_task(session.queue_counters())
            xid, _ = await switch.read_until(of.OFPT_MULTIPART_REQUEST)
            while not asking.done():
                switch.write(multipart(of.OFPMP_QUEUE, xid, bytes(40), more=True))
                await asyncio.sleep(0.05)
            with pytest.raises(SessionLost, match="not whole within 1 s"):
                await asking
            assert "not whole" in await at.reason()

    run(test)


def test_ports_that_come_and_go() -> None:
    """A flood of reports is told a few times, the last state among them."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            for number in range(100):
                state = of.OFPPS_LINK_DOWN if number % 2 else 0
                switch.write(message(of.OFPT_PORT_STATUS, 0, b"\2" + bytes(7) + port(2, state)))
                await asyncio.sleep(0.006)
            await at.until(lambda: not session.ports[2].up)
            await at.until(lambda: at.of(PortsChanged) and not at.of(PortsChanged)[-1].ports[2].up)
            assert len(at.of(PortsChanged)) < 40

    run(test)


def test_a_lead_that_is_over() -> None:
    """No change is written any more, also of those that wait for room."""

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            applying = asyncio.create_task(session.apply(changes(CHUNK * session.limits.outstanding + 1)))
            barrier, _ = await switch.read_until(of.OFPT_BARRIER_REQUEST)
            session.may = lambda: False
            switch.write(message(of.OFPT_BARRIER_REPLY, barrier))
            with pytest.raises(SessionLost, match="another controller may lead"):
                await applying

    run(test)


def test_a_switch_that_holds_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing it would take long, so it loses its session, with what to do."""
    monkeypatch.setattr(sync, "SPARE", 3)

    async def test() -> None:
        async with bench() as at:
            for count in (7, 8):
                switch, session = await at.join(count)
                reading = asyncio.create_task(sync.read(session, sync.most_held(1)))
                for kind, body in ((of.OFPMP_FLOW, A_RULE * count), (of.OFPMP_GROUP_DESC, A_GROUP)):
                    if session.lost is None:
                        _, xid, _ = await switch.read()
                        switch.write(multipart(kind, xid, body))
                    await asyncio.sleep(0.05)
                if count == 7:
                    assert (await reading).other_groups == 1
                    continue
                with pytest.raises(SessionLost, match=r"holds 8 rules; at most 7 .* del-flows"):
                    await reading

    run(test)


VALID = [
    codec.hello(),
    packet_in(1, b"frame"),
    error(3, 5, 1),
    message(of.OFPT_PORT_STATUS, 0, bytes(8) + port(3)),
    message(of.OFPT_BARRIER_REPLY, 4),
    message(of.OFPT_ECHO_REQUEST, 5, b"content"),
    multipart(of.OFPMP_FLOW, 5, bytes(56)),
    multipart(of.OFPMP_PORT_STATS, 6, bytes(112), more=True),
    message(of.OFPT_ROLE_REPLY, 7, bytes(16)),
]


@given(st.lists(st.sampled_from(VALID), min_size=1, max_size=6), st.data())
def test_spoilt_bytes_are_never_a_fault_of_the_controller(sent: list[bytes], data: st.DataObject) -> None:
    """Whatever a switch sends, its session goes on or ends for a reason that names the bytes."""
    stream = bytearray(b"".join(sent))
    for _ in range(data.draw(st.integers(0, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))

    async def test() -> None:
        async with bench() as at:
            switch, session = await at.join()
            asking = [
                asyncio.create_task(session.rules()),
                asyncio.create_task(session.apply(changes(3))),
            ]
            await asyncio.sleep(0)
            switch.write(bytes(stream))
            switch.writer.write_eof()
            reason = await at.reason()
            assert "fault" not in reason
            for outcome in await asyncio.gather(*asking, return_exceptions=True):
                assert isinstance(outcome, list | SessionLost | RequestRefused)

    run(test)
