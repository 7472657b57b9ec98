"""Several controllers: the standby, its roles at switches, and members of etcd that answer badly."""

import asyncio
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from aiohttp import web
from test_config import GOOD
from test_outbox import Slow

from tidegate_controller import events as ev
from tidegate_controller.config import parse
from tidegate_controller.openflow.replies import SwitchError
from tidegate_controller.openflow.requests import RequestRefused
from tidegate_controller.openflow.session import Role, Session, SessionLost
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime, Standby
from tidegate_controller.runtime.roles import assume
from tidegate_controller.state.codec import Wrong
from tidegate_controller.state.election import Election, Leader
from tidegate_controller.state.etcd import Client, EtcdError, Unreachable, b64, prefix_end
from tidegate_controller.state.shared import Shared, _all_unpacked
from tidegate_controller.state.store import Damaged, Fenced
from tidegate_controller.trust.shared import SharedVault
from tidegate_controller.trust.stores import StoreError


class Switch:
    """A session that answers one question about the role."""

    def __init__(self, answer: Role | Exception) -> None:
        self.answer, self.asked, self.lost = answer, list[tuple[Role, int]](), ""

    async def role(self, role: Role, generation: int) -> Role:
        """As `Session.role`."""
        self.asked.append((role, generation))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def lose(self, reason: str) -> None:
        """As `Session.lose`."""
        self.lost = reason


STALE = RequestRefused(SwitchError(11, 0))


@pytest.mark.parametrize(
    ("leads", "answer", "ready", "lost"),
    [
        (True, Role.MASTER, True, ""),
        (False, Role.SLAVE, True, ""),
        (True, STALE, False, "role refused"),
        (False, STALE, False, ""),
        (True, Role.EQUAL, False, "EQUAL was given instead of MASTER"),
        (True, SessionLost("gone"), False, ""),
    ],
)
def test_roles(leads: bool, answer: Role | Exception, ready: bool, lost: str) -> None:
    """A leader whom a switch does not take does not work there; a standby of an old term waits."""
    switch = Switch(answer)
    session = cast(Session, switch)
    assert asyncio.run(assume("s1", session, leads, 7)) == ready
    assert switch.asked == [(Role.MASTER if leads else Role.SLAVE, 7)]
    assert lost in switch.lost
    assert bool(lost) == bool(switch.lost)
    assert not asyncio.run(assume("s1", session, leads, 0))
    assert len(switch.asked) == 1


class Voted(Election):
    """An election whose outcome a test decides."""

    def __init__(self) -> None:
        super().__init__(Client(["http://127.0.0.1:1"], None, 1.0), "/t/", 10.0, "https://me")
        self.won = asyncio.Event()
        self.valid = True

    @property
    def holds(self) -> bool:
        """Until it is taken away."""
        return bool(self.term) and self.valid

    async def campaign(self) -> int:
        """Wait for the outcome."""
        await self.won.wait()
        self.term = 9
        self.leader = Leader(9, "https://me", "me")
        return 9

    async def hold(self) -> None:
        """For ever."""
        await asyncio.Event().wait()


def test_a_standby_leads_when_it_is_elected() -> None:
    """Until then it answers with the leader's URL; when its lease is over it does nothing more, and ends."""

    async def main() -> None:
        store, election = Slow(), Voted()
        config = parse(GOOD.replace("[::1]:6653", "127.0.0.1:0"), "f")
        runtime = Runtime(config, Kept(), store=store, election=election)
        await runtime.start()
        assert (runtime.leading, runtime.leader, runtime.term) == (False, None, 0)
        with pytest.raises(Standby, match="which one is not known"):
            await runtime.release("v")
        election.leader = Leader(5, "https://other", "o")
        with pytest.raises(Standby, match="https://other"):
            await runtime.release("v")
        runtime.happened(ev.Tick())
        election.won.set()
        while not runtime.leading:
            await asyncio.sleep(0)
        assert (runtime.leader, runtime.term) == ("https://me", 9)
        for _ in range(9):
            store.let.release()
        assert (await runtime.release("v")).reasons
        election.valid = False
        asked = asyncio.create_task(runtime.release("v"))
        with pytest.raises(Fenced, match="the lead is over"):
            await runtime.run()
        await runtime.stop()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(main())


BAD = {
    "garbage": (200, b"\xff\xfe"),
    "a list": (200, b"[]"),
    "deep": (200, b"[" * 100_000),
    "no leader": (503, b'{"error":"etcdserver: no leader","code":14,"message":"etcdserver: no leader"}'),
    "a proxy": (502, b"<html>"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_member_that_answers_badly(kind: str) -> None:
    """It counts as unreachable, with its URL; the next call asks the next member."""

    async def main() -> None:
        async def bad(_: web.Request) -> web.Response:
            status, body = BAD[kind]
            return web.Response(status=status, body=body)

        async def good(_: web.Request) -> web.Response:
            return web.json_response({"ok": "1"})

        async def refuses(_: web.Request) -> web.Response:
            return web.json_response({"error": {"grpc_code": 5, "message": "not found"}}, status=404)

        urls = []
        runners = []
        for handler in (bad, good, refuses):
            app = web.Application()
            app.router.add_post("/v3/kv/range", handler)
            runner = web.AppRunner(app)
            runners.append(runner)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            address: Any = runner.addresses[0]
            urls.append(f"http://127.0.0.1:{address[1]}")
        client = Client([*urls[:2], "http://127.0.0.1:1"], None, 5.0)
        with pytest.raises(Unreachable, match=f"etcd at {urls[0]}"):
            await client.call("kv/range", {})
        assert await client.call("kv/range", {}) == {"ok": "1"}
        assert client.member == urls[1]
        refused = Client([urls[2]], None, 5.0)
        with pytest.raises(EtcdError, match="not found") as found:
            await refused.call("kv/range", {})
        assert found.value.code == 5
        for one in (client, refused):
            await one.close()
        for runner in runners:
            await runner.cleanup()

    asyncio.run(main())


def test_no_member_answers() -> None:
    """They are asked in turn."""

    async def main() -> None:
        client = Client(["http://127.0.0.1:1", "http://127.0.0.1:2"], None, 5.0)
        for port in (1, 2, 1):
            with pytest.raises(Unreachable, match=f"etcd at http://127.0.0.1:{port}:"):
                await client.call("kv/range", {})
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "pair",
    [
        {"value": "%%%", "create_revision": "1"},
        {"value": "W10=", "create_revision": "1"},
        {"value": "eyJ1cmwiOiI3IiwibmFtZSI6N30=", "create_revision": "1"},
        {"value": "eyJ1cmwiOiI3IiwibmFtZSI6IjcifQ=="},
    ],
)
def test_a_leader_that_is_none(pair: dict[str, str]) -> None:
    """Another program has written the key."""
    election = Election(Client(["http://127.0.0.1:1"], None, 1.0), "/t/", 10.0)
    with pytest.raises(Damaged, match="etcd /t/leader: it is no leader's"):
        election._leader(pair)


class Says(Client):
    """A member whose answers a test makes; one for each path, or several in turn."""

    def __init__(self, answers: dict[str, list[dict[str, Any]]]) -> None:
        super().__init__(["http://one", "http://two"], None, 1.0)
        self.answers, self.asked = answers, list[tuple[str, Mapping[str, Any]]]()

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The next answer."""
        self.asked.append((path, body))
        found = self.answers[path]
        return found.pop(0) if len(found) > 1 else found[0]


WON = {"succeeded": True, "header": {"revision": "7"}}
GRANT: dict[str, Any] = {"ID": "5", "TTL": "10"}


def test_a_winner_has_all_of_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the rest of one from a try before: that is renewed. A lease that is not used is given back."""
    now = [100.0]
    monkeypatch.setattr("tidegate_controller.state.election.clock", lambda: now[0])
    other = {"create_revision": "3", "lease": "4", "value": b64('{"url": "", "name": "o"}')}
    lost = {"responses": [{"response_range": {"kvs": [other]}}]}
    client = Says(
        {
            "lease/grant": [GRANT],
            "lease/keepalive": [{"TTL": "10"}],
            "lease/revoke": [{}],
            "kv/txn": [lost, WON],
            "kv/range": [{"kvs": [other]}],
        }
    )
    election = Election(client, "/t/", 10.0)

    async def main() -> None:
        assert not await election._try()
        now[0] += 8.5
        assert await election._try()
        assert election.holds
        now[0] += 8.9
        assert election.holds
        assert not await election._look()
        assert client.asked[-1] == ("lease/revoke", {"ID": "5"})
        assert election.leader == Leader(3, "", "o")

    asyncio.run(main())


@pytest.mark.parametrize("ttl", ["20", "1e9", "9" * 30, 20])
def test_a_lease_is_not_longer_than_was_asked_for(ttl: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a member says."""
    now = [100.0]
    monkeypatch.setattr("tidegate_controller.state.election.clock", lambda: now[0])
    election = Election(Says({"lease/grant": [GRANT | {"TTL": ttl}], "kv/txn": [WON]}), "/t/", 10.0)

    async def main() -> None:
        with suppress(Unreachable):
            await election._try()
        now[0] += 9.1
        assert not election.holds

    asyncio.run(main())


@pytest.mark.parametrize(
    "answers",
    [
        {"lease/grant": {}},
        {"lease/grant": {"ID": [], "TTL": "10"}},
        {"lease/grant": {"ID": "5", "TTL": {}}},
        {"kv/txn": {"succeeded": True}},
        {"kv/txn": {"succeeded": True, "header": {"revision": "-1"}}},
        {"kv/txn": {}},
        {"kv/txn": {"responses": [7]}},
        {"kv/txn": {"responses": [{"response_range": {"kvs": [7]}}]}},
        {"kv/range": {"kvs": {"a": 1}}},
        {"kv/range": {"kvs": "x"}},
    ],
)
def test_fields_that_are_missing_or_of_another_kind(answers: dict[str, dict[str, Any]]) -> None:
    """The member counts as unreachable, and the next one is asked."""
    said: dict[str, dict[str, Any]] = {"kv/range": {}, "lease/grant": GRANT, "kv/txn": WON} | answers
    client = Says({path: [answer] for path, answer in said.items()})
    election = Election(client, "/t/", 10.0)

    async def main() -> None:
        assert await election._look()
        await election._try()

    with pytest.raises(Unreachable, match="etcd at http://one: an answer of another form"):
        asyncio.run(main())
    assert client.member == "http://two"


def _pair(key: str, value: bytes = b"") -> dict[str, str]:
    return {"key": b64(key), "value": b64(value)}


def test_pages_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that says `more` without keys, or the same keys again, is asked no more; sums are bounded."""
    head = {"header": {"revision": "9"}}
    empty = head | {"more": True}
    first = head | {"more": True, "kvs": [_pair("/t/records/a")]}
    last = head | {"kvs": [_pair("/t/records/b")]}
    client = Says({"kv/range": [empty, first, first, {"kvs": [_pair("/x")]}, last]})
    election = Voted()
    election.term = 9
    store = Shared(client, election)

    async def main(prefix: str) -> list[str]:
        async with asyncio.timeout(30):
            return list(await store._pages(prefix))

    assert asyncio.run(main("/t/records/")) == ["/t/records/a", "/t/records/b"]
    assert [body["revision"] for _, body in client.asked] == ["0", "0", "9", "9", "9"]
    monkeypatch.setattr("tidegate_controller.state.shared.LARGEST_STATE", 1000)
    client.answers["kv/range"] = [head | {"kvs": [_pair("/t/records/a", bytes(1000))]}]
    with pytest.raises(Damaged, match="or 1000 bytes of them"):
        asyncio.run(main("/t/records/"))
    client.answers["kv/range"] = [head | {"kvs": [{"key": b64(b"/t/records/\xff")}]}]
    with pytest.raises(Damaged, match="a key that no controller has written"):
        asyncio.run(main("/t/records/"))
    packed = {str(number): zlib.compress(b"x" * 300) for number in range(4)}
    with pytest.raises(Wrong, match="all records have more than 1000 bytes"):
        _all_unpacked(packed)
    vault = SharedVault(client, "/t/", lambda: 9)
    client.answers = {"kv/txn": [WON], "kv/range": [empty]}
    with pytest.raises(StoreError, match=r"etcd at http://two: an answer of another form .more keys"):
        asyncio.run(vault.load())


def test_the_end_of_a_prefix() -> None:
    """It is after all keys with the prefix, and before others."""
    assert prefix_end("/a/") == "/a0"
