"""Sessions with databases that are hostile, mad or deaf."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate_controller.model.intent import Queue, SwitchIntent
from tidegate_controller.model.topology import Port
from tidegate_controller.ovsdb import connection, session
from tidegate_controller.ovsdb.connection import Connection
from tidegate_controller.ovsdb.events import Changed, Connected, Event, Left, LinkDown, LinkUp, Lost, NotSet
from tidegate_controller.ovsdb.framing import MOST_MESSAGE
from tidegate_controller.ovsdb.session import Database, NotInForce

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

QUEUES = (Queue(0, 1_000_000, 20_000_000, 1600, 1), Queue(1, 9_000_000, 20_000_000, 9000, 0))
EMPTY = ["map", []]


def rows(applied: int = 0, **bfd_status: str) -> dict[str, Any]:
    """A bridge `br` with the datapath id 1 and one port, as `monitor` tells it."""
    status = ["map", [list(pair) for pair in bfd_status.items()]]
    ours = ["map", [["tidegate-bfd", "true"]]]
    return {
        "Open_vSwitch": {"o": {"new": {"cur_cfg": applied}}},
        "Bridge": {"b": {"new": {"name": "br", "datapath_id": "1", "ports": ["uuid", "p"]}}},
        "Port": {"p": {"new": {"name": "p1", "interfaces": ["uuid", "i"], "qos": ["set", []]}}},
        "Interface": {
            "i": {
                "new": {"name": "p1", "ofport": 1, "bfd": EMPTY, "bfd_status": status, "external_ids": ours}
            }
        },
    }


class Peer:
    """Reads requests and answers as a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._text = ""

    async def request(self, method: str) -> dict[str, Any]:
        """The next request of this method; echoes are answered meanwhile."""
        while True:
            try:
                found, end = json.JSONDecoder().raw_decode(self._text)
            except ValueError:
                chunk = await self._reader.read(1 << 16)
                if not chunk:
                    raise ConnectionError from None
                self._text += chunk.decode()
                continue
            self._text = self._text[end:]
            assert isinstance(found, dict)
            if found["method"] == method:
                return found
            self.answer(found, [])

    def answer(self, request: dict[str, Any], result: object, error: object = None) -> None:
        """Answer a request."""
        self.say({"id": request["id"], "result": result, "error": error})

    def say(self, message: dict[str, Any]) -> None:
        """Send anything."""
        self._writer.write(json.dumps(message).encode())

    async def monitored(self, *initial: dict[str, Any]) -> None:
        """Answer `monitor`, and update at once."""
        request = await self.request("monitor")
        self.answer(request, initial[0])
        for update in initial[1:]:
            self.say({"method": "update", "params": [None, update], "id": None})


def run(
    folder: Path,
    behave: Callable[[Peer], Awaitable[None]],
    until: Callable[[Database, list[Event]], Awaitable[None]],
    only: set[int] | None = None,
) -> list[Event]:
    """Run a session with a database that behaves so; the events until `until` returns."""

    async def main() -> list[Event]:
        events: list[Event] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await behave(Peer(reader, writer))
            except (ConnectionError, asyncio.CancelledError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_unix_server(serve, folder / "db")
        database = Database(f"unix:{folder}/db", events.append, {1: "s1"}, only=only)
        task = asyncio.create_task(database.run())
        try:
            async with asyncio.timeout(20):
                await until(database, events)
        finally:
            task.cancel()
            await asyncio.wait([task])
            server.close()
        return events

    return asyncio.run(main())


async def seen(events: list[Event], kind: type[Event], count: int = 1) -> None:
    """Wait for events of a kind."""
    while sum(isinstance(event, kind) for event in events) < count:
        await asyncio.sleep(0.005)


async def lost(_: Database, events: list[Event]) -> None:
    """Until the session has given up a connection."""
    await seen(events, Lost)


def reason(events: list[Event]) -> str:
    """Why the first connection was lost."""
    return next(event.reason for event in events if isinstance(event, Lost))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(connection, "DEADLINE", 0.4)
    monkeypatch.setattr(connection, "IDLE", 0.1)
    monkeypatch.setattr(session, "APPLIED", 0.4)
    monkeypatch.setattr(session, "AGAIN", 0.2)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "no JSON object begins with"),
        (b'{"id": 1, "result": {]}}', "not JSON"),
        (b'{"method": 7, "params": [], "id": 1}', "without method"),
        (b'{"id": 1, "error": null, "result": ["no", "object"]}', "where an object belongs"),
        (b'{"id": 1, "error": null, "result": {"Bridge": {"b": {"new": {"name": 3}}}}}', "where a string"),
        (b'{"id": 1, "error": null, "result": {"Route": {}}}', "was not asked for"),
        (b'{"id": 1, "error": {"error": "unknown database"}, "result": null}', "unknown database"),
        (b'{"x": "' + b"x" * MOST_MESSAGE + b'"}', "more than 2097152 bytes"),
        (b'{"half": "of an obj', "deaf: no answer to"),
        (b"", "deaf: no answer to"),
    ],
)
def test_a_database_that_talks_nonsense(tmp_path: Path, says: bytes, why: str) -> None:
    """It is dropped, and the reason says what it did."""

    async def behave(peer: Peer) -> None:
        peer._writer.write(says)
        await asyncio.sleep(30)

    assert why in reason(run(tmp_path, behave, lost))


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    """The session tries again, with longer and longer pauses, and tells of it once."""

    async def main() -> list[Event]:
        events: list[Event] = []
        task = asyncio.create_task(Database(f"unix:{tmp_path}/none", events.append).run())
        await asyncio.sleep(0.5)
        task.cancel()
        return events

    (event,) = asyncio.run(main())
    assert isinstance(event, Lost)
    assert "no connection to unix:" in event.reason


def test_a_database_that_goes_deaf(tmp_path: Path) -> None:
    """Silence is asked about, and then dropped; the next connection works."""
    connections = 0

    async def behave(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        await peer.monitored(rows())
        if connections == 1:
            await asyncio.sleep(30)
        await peer.request("never")

    async def until(_: Database, events: list[Event]) -> None:
        await seen(events, Connected, 2)

    assert reason(run(tmp_path, behave, until)) == "deaf: no answer to echo in 0.4 s"


def test_a_database_that_asks_and_never_reads(tmp_path: Path) -> None:
    """Answers to it are not piled up."""

    async def behave(peer: Peer) -> None:
        text = json.dumps({"method": "echo", "params": ["x" * 60_000], "id": 1}).encode()
        while True:
            peer._writer.write(text)
            await peer._writer.drain()

    assert "deaf" in reason(run(tmp_path, behave, lost))


def test_rows_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica has a size that it does not pass."""
    monkeypatch.setattr(connection, "IDLE", 30)

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows())
        for batch in range(1000):
            config = ["map", [["k", "x" * 900]]]
            many = {
                f"{batch}-{n}": {"new": {"other_config": config, "external_ids": EMPTY}} for n in range(50)
            }
            peer.say({"method": "update", "params": [None, {"Queue": many}], "id": None})
            await peer._writer.drain()

    assert "rows of more than" in reason(run(tmp_path, behave, lost))


def test_a_flood_of_updates_leaves_the_thread_to_others(tmp_path: Path) -> None:
    """One database that talks without end takes a fraction of the thread."""
    turns = 0

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows())
        text = json.dumps(
            {"method": "update", "params": [None, rows(forwarding="true")], "id": None}
        ).encode()
        while True:
            peer._writer.write(text * 100)
            await peer._writer.drain()

    async def until(_: Database, events: list[Event]) -> None:
        nonlocal turns
        await seen(events, LinkUp)
        end = asyncio.get_running_loop().time() + 1
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.001)
            turns += 1

    run(tmp_path, behave, until)
    print(f"{turns} turns of 1 ms in a second beside a flood")
    assert turns > 20


def test_errors_of_a_transaction(tmp_path: Path) -> None:
    """The error is told with its operation, what was wanted is tried again, and nothing is in force."""
    refusals = 0

    async def behave(peer: Peer) -> None:
        nonlocal refusals
        await peer.monitored(rows())
        while True:
            request = await peer.request("transact")
            refusals += 1
            peer.answer(request, [{}, {"error": "constraint violation", "details": "no such row"}, None])

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        # Why depends on the moment: it is tried again and again.
        with pytest.raises(NotInForce):
            await database.settled("s1", 0.1)
        await seen(events, NotSet, 2)

    events = run(tmp_path, behave, until)
    told = {event.reason for event in events if isinstance(event, NotSet)}
    assert all("operation 2 of 4: constraint violation: no such row" in reason for reason in told)
    assert refusals >= 2


def test_who_waits_is_not_held_up_by_newer_wishes(tmp_path: Path) -> None:
    """While intents come without end, each waits for the one that it asked for, or a newer one."""

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows(applied=1000))
        number = 0
        while True:
            request = await peer.request("transact")
            number += 1
            await asyncio.sleep(0.05)
            peer.answer(request, [{}] * (len(request["params"]) - 2) + [{"rows": [{"next_cfg": number}]}])

    async def until(database: Database, _: list[Event]) -> None:
        async def wish() -> None:
            for more in range(10_000):
                first = replace(QUEUES[0], minimum=1_000_000 + more)
                database.want("s1", SwitchIntent(queues={1: (first, QUEUES[1])}))
                await asyncio.sleep(0.01)

        wishing = asyncio.create_task(wish())
        await asyncio.sleep(0.1)
        for _again in range(3):
            await database.settled("s1", 5)
        wishing.cancel()

    run(tmp_path, behave, until)


def test_wishes_gather_while_a_slow_switch_rests(tmp_path: Path) -> None:
    """After each write it has as long for its other work as it took, and all wishes of then go together."""
    asked: list[float] = []
    applied: list[float] = []
    takes = 0.15

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows(applied=0))
        while True:
            request = await peer.request("transact")
            asked.append(time.monotonic())
            number = len(asked)
            peer.answer(request, [{}] * (len(request["params"]) - 2) + [{"rows": [{"next_cfg": number}]}])
            await asyncio.sleep(takes)
            applied.append(time.monotonic())
            update = {"Open_vSwitch": {"o": {"new": {"cur_cfg": number}}}}
            peer.say({"method": "update", "params": [None, update], "id": None})

    async def until(database: Database, _: list[Event]) -> None:
        while len(asked) < 4:
            first = replace(QUEUES[0], minimum=QUEUES[0].minimum + len(asked))
            database.want("s1", SwitchIntent(queues={1: (first, QUEUES[1])}))
            await asyncio.sleep(0.01)

    run(tmp_path, behave, until)
    rests = [later - before for before, later in zip(applied, asked[1:], strict=False)]
    assert len(rests) == 3
    assert min(rests) > 0.9 * takes


@pytest.mark.parametrize("refused", [False, True])
def test_switches_of_one_database_are_set_together(tmp_path: Path, refused: bool) -> None:
    """One transaction; if that is refused, one for each, so that no switch waits for another one's fault."""
    asked: list[int] = []

    async def behave(peer: Peer) -> None:
        both = rows(applied=9)
        for table, other, row in (
            ("Bridge", "c", {"name": "br2", "datapath_id": "2", "ports": ["uuid", "q"]}),
            ("Port", "q", {"name": "p2", "interfaces": ["uuid", "j"], "qos": ["set", []]}),
            ("Interface", "j", both["Interface"]["i"]["new"] | {"name": "p2"}),
        ):
            both[table][other] = {"new": row}
        await peer.monitored(both)
        while True:
            request = await peer.request("transact")
            text = json.dumps(request)
            asked.append(text.count('"table": "QoS"'))
            if refused and asked[-1] > 1:
                peer.answer(request, [{"error": "timed out", "details": "wait"}])
                continue
            peer.answer(request, [{}] * (len(request["params"]) - 2) + [{"rows": [{"next_cfg": 9}]}])

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        database.want(f"{2:016x}", SwitchIntent(queues={1: QUEUES}))
        await database.settled("s1")
        await database.settled(f"{2:016x}")
        await seen(events, Changed, 2)

    events = run(tmp_path, behave, until)
    assert {event.switch for event in events if isinstance(event, Changed)} == {"s1", f"{2:016x}"}
    assert asked[:3] == ([2, 1, 1] if refused else [2, *asked[1:3]])


@pytest.mark.parametrize("answers", [None, [], {}, "yes", [{}] * 7, [{"rows": [{"next_cfg": "many"}]}] * 7])
def test_answers_that_are_none(tmp_path: Path, answers: object) -> None:
    """An answer of the wrong shape is no success."""

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows())
        while True:
            peer.answer(await peer.request("transact"), answers)

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        await seen(events, NotSet)

    events = run(tmp_path, behave, until)
    assert not any(isinstance(event, Lost) for event in events)


def test_ovs_vswitchd_that_does_not_apply(tmp_path: Path) -> None:
    """The database took it, the switch did not: that is not in force."""

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows(applied=1))
        while True:
            request = await peer.request("transact")
            peer.answer(request, [{}] * (len(request["params"]) - 2) + [{"rows": [{"next_cfg": 2}]}])

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        await seen(events, NotSet)
        with pytest.raises(NotInForce):
            await database.settled("s1", 0.1)

    events = run(tmp_path, behave, until)
    told = next(event for event in events if isinstance(event, NotSet))
    assert told.reason == "ovs-vswitchd has not applied configuration 2 in 0.4 s"


def test_ovs_vswitchd_that_stops_between_two_ports(tmp_path: Path) -> None:
    """One port's changes are refused, and those of the other one are never applied: the session lives."""

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows(applied=1))
        peer.answer(await peer.request("transact"), [{"error": "timed out", "details": "wait\nfailed"}])
        while True:
            request = await peer.request("transact")
            peer.answer(request, [{}] * (len(request["params"]) - 2) + [{"rows": [{"next_cfg": 2}]}])

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        await seen(events, NotSet)

    events = run(tmp_path, behave, until)
    assert [event.reason for event in events if isinstance(event, NotSet)] == [
        "ovs-vswitchd has not applied configuration 2 in 0.4 s"
    ]
    assert not any(isinstance(event, Lost) for event in events)


def test_a_database_that_never_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It says that all is applied, and tells ever new rows without what was written: we write ever slower."""
    written = 0

    async def behave(peer: Peer) -> None:
        nonlocal written
        await peer.monitored(rows(applied=2**40))
        while True:
            request = await peer.request("transact")
            written += 1
            peer.say({"method": "update", "params": [None, rows(applied=2**40 + written)], "id": None})
            peer.answer(request, [{}] * (len(request["params"]) - 3) + [{}, {"rows": [{"next_cfg": 2}]}])

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        await seen(events, Changed, 4)
        await asyncio.sleep(2.0)
        # A new wish does not wait until the pause is over.
        before = written
        database.want("s1", SwitchIntent(queues={1: QUEUES[:1]}))
        async with asyncio.timeout(0.5):
            while written == before:
                await asyncio.sleep(0.01)

    with caplog.at_level("INFO"):
        run(tmp_path, behave, until)
    assert written < 15


def test_a_lead_that_is_over_writes_nothing(tmp_path: Path) -> None:
    """Databases know no roles, so it is asked before each write."""
    asked = False

    async def behave(peer: Peer) -> None:
        nonlocal asked
        await peer.monitored(rows())
        await peer.request("transact")
        asked = True

    async def until(database: Database, events: list[Event]) -> None:
        database._may = lambda: False
        database.want("s1", SwitchIntent(queues={1: QUEUES}))
        await seen(events, NotSet)

    events = run(tmp_path, behave, until)
    assert not asked
    assert "another controller may lead" in next(e.reason for e in events if isinstance(e, NotSet))


def test_a_fault_while_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told and tried again, and ends nothing else."""

    async def broken(*_: object) -> Connection:
        raise LookupError("no such field")

    async def behave(peer: Peer) -> None:
        del peer

    monkeypatch.setattr(session, "opened", broken)
    assert reason(run(tmp_path, behave, lost)) == "no such field"


def test_lines_about_a_database_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """All is told to the controller, but not to its log."""
    events: list[Event] = []
    database = Database("unix:/nowhere", events.append)
    with caplog.at_level("INFO"):
        for _ in range(5000):
            database._tell(Changed("s1", "p1: 2 queues"))
    assert len(events) == 5000
    assert len(caplog.records) < 500


def test_a_database_speaks_for_its_own_switches(tmp_path: Path) -> None:
    """A bridge with the datapath id of a switch elsewhere is no switch."""

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows(forwarding="true"))
        await peer.request("never")

    async def until(database: Database, events: list[Event]) -> None:
        await seen(events, Connected)
        assert database.switches == {}

    events = run(tmp_path, behave, until, only={2})
    assert events == [Connected(f"unix:{tmp_path}/db", ())]


def test_what_bfd_hears_is_known_while_the_database_is_there(tmp_path: Path) -> None:
    """A session that is lost knows no end; the next one has them without a change. No status is none."""
    connections, looked = 0, asyncio.Event()

    async def behave(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        await peer.monitored(rows(forwarding="true"))
        serving = asyncio.create_task(peer.request("never"))
        await looked.wait()
        looked.clear()
        serving.cancel()
        if connections == 1:
            raise ConnectionError
        peer.say({"method": "update", "params": [None, rows()], "id": None})
        await peer.request("never")

    async def until(database: Database, events: list[Event]) -> None:
        assert database.heard == set()
        await seen(events, Connected)
        assert database.heard == {Port("s1", 1)}
        looked.set()
        await seen(events, Lost)
        assert database.heard == set()
        await seen(events, Connected, 2)
        assert database.heard == {Port("s1", 1)}
        looked.set()
        while database.heard:
            await asyncio.sleep(0.005)

    events = run(tmp_path, behave, until)
    assert [event for event in events if isinstance(event, LinkUp | LinkDown)] == [LinkUp(Port("s1", 1))]


def test_bfd_tells_and_ports_vanish(tmp_path: Path) -> None:
    """A link is told up once, down once; no status is no news; a port that goes was a link."""

    async def behave(peer: Peer) -> None:
        request = await peer.request("monitor")
        peer.answer(request, rows())
        steps = [
            rows(forwarding="false"),
            rows(forwarding="true"),
            rows(),
            rows(forwarding="true"),
            rows(forwarding="false", diagnostic="Control Detection Time Expired"),
            rows(forwarding="true"),
            {"Port": {"p": {"old": {}}}},
        ]
        for step in steps:
            await asyncio.sleep(0.05)
            peer.say({"method": "update", "params": [None, step], "id": None})
        await peer.request("never")

    async def until(database: Database, events: list[Event]) -> None:
        database.want("s1", SwitchIntent(watched={1}, queues={7: QUEUES}))
        await seen(events, LinkDown, 2)

    events = run(tmp_path, behave, until)
    links = [event for event in events if isinstance(event, LinkUp | LinkDown)]
    assert [type(event) for event in links] == [LinkUp, LinkDown, LinkUp, LinkDown]
    assert [event.reason for event in links if isinstance(event, LinkDown)] == [
        "BFD: Control Detection Time Expired",
        "the port is gone",
    ]
    assert [event.reason for event in events if isinstance(event, Left)] == ["br has no port 7"]


def test_what_follows_from_a_failure_is_no_work_for_the_database() -> None:
    """The paths of a link that failed are moved at once, and their queues are written right after that."""
    moving = 0.5

    def slow(event: Event) -> None:
        if isinstance(event, LinkDown):
            time.sleep(moving)

    database = Database("unix:/nowhere", slow, {1: "s1"})
    for forwarding in ("true", "false"):
        database._replica.update(rows(forwarding=forwarding))
        began = time.monotonic()
        work = database._see()
    assert time.monotonic() - began >= moving
    assert work < moving


def test_an_answer_is_read_before_the_updates_behind_it(tmp_path: Path) -> None:
    """Updates that come in one piece with the first answer change what that said."""

    async def behave(peer: Peer) -> None:
        await peer.monitored(rows(), {"Port": {"p": {"old": {}}}})
        await peer.request("never")

    async def until(database: Database, events: list[Event]) -> None:
        await seen(events, Connected)
        assert database.switches == {"s1": {}}

    run(tmp_path, behave, until)


@pytest.mark.parametrize("remote", ["tcp:", "tcp:host", "tcp:host:x", "udp:host:1", "tcp::1"])
def test_addresses_that_are_none(remote: str) -> None:
    """The forms that there are, are in the error."""
    with pytest.raises(ValueError, match="ssl:HOST:PORT"):
        connection.split_address(remote)


@pytest.mark.parametrize("remote", ["unix:", "ssl:switch:6640", "tcp:switch", ""])
def test_no_session_without_an_address(remote: str) -> None:
    """TLS without certificates is no TCP."""
    with pytest.raises(ValueError, match=r"is no address|needs a certificate"):
        Database(remote, print)


def test_addresses() -> None:
    """IPv6 has brackets."""
    assert connection.split_address("ssl:[2001:db8::1]:6640") == ("2001:db8::1", 6640)
    assert connection.split_address("tcp:switch7:6640") == ("switch7", 6640)
