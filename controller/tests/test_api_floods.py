"""Clients that ask too much, come in numbers, are slow, talk garbage or read nothing: others are served."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest
from apis import Served, announcement, configuration, run, served, vnic, wanted
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.api import buckets, server
from tidegate_controller.api.buckets import Bucket, Limits
from tidegate_controller.api.identity import Kind

NAME = "a1>b1"
WIDE = {kind: Limits(10**6, 10**6, 1e9, 1e9, open=2000) for kind in Kind}
"""For tests of something else."""


def test_a_flood_is_its_senders_problem() -> None:
    """One host, and all strangers together, use up their own tokens; the others are served."""

    async def test() -> None:
        limits = {Kind.HOST: Limits(1, 5), Kind.UNKNOWN: Limits(1, 5)}
        async with served(limits=limits) as one:
            await one.register("h2")
            for token in ("token-h1", "wrong", None):
                found = [await one.call("view", token, host="h1") for _ in range(20)]
                statuses = [status for status, _ in found]
                assert statuses.count(429) >= 10
                assert set(statuses) <= {404, 401, 429}
            assert (await one.call("health", None))[0] == 429
            assert (await one.good("view", "token-h2", host="h2"))["remotes"] == []
            assert (await one.good("hosts"))["hosts"]
            async with one.client.session.get(f"{one.client.url}/v1/health") as response:
                assert int(response.headers["Retry-After"]) >= 1

    run(test)


def test_bytes_of_one_host() -> None:
    """Batches beyond its bytes are not read."""

    async def test() -> None:
        async with served(limits={Kind.HOST: Limits(100, 100, bytes=1000, bytes_burst=20_000)}) as one:
            await one.register("h1")
            record = {"name": NAME, "total": 5, "worst": 0, "last": 0}
            body = {"run": "r1", "paths": [record] * 100}
            found = [(await one.call("misses", "token-h1", body, host="h1"))[0] for _ in range(10)]
            assert found[0] == 204
            assert found[-1] == 429

    run(test)


def test_large_answers_cost_their_reader() -> None:
    """A host that asks for its large view again and again waits; others do not."""

    async def test() -> None:
        limits = {Kind.HOST: Limits(1000, 1000, bytes=1000, bytes_burst=40_000)}
        async with served(limits=limits) as one:
            await one.register("h1", vnics=[vnic(f"v{n}", 1000 + n) for n in range(100)])
            await one.register("h2")
            await asyncio.sleep(0.1)
            found = [(await one.call("view", "token-h2", host="h2"))[0] for _ in range(20)]
            assert found[0] == 200
            assert 429 in found
            await one.register("h3")

    run(test)


def test_a_thousand_long_polls() -> None:
    """So many hosts wait at one time, all are woken; of one host only a few may."""

    async def test() -> None:
        count, each = 130, buckets.HOST.open
        async with served(configuration(lease="60s", hosts=count)) as one:
            versions = {}
            for n in range(1, count + 1):
                versions[n] = (await one.register(f"h{n}", vnics=[]))["version"]

            def poll(n: int) -> "asyncio.Task[tuple[int, Any]]":
                wait, after = 50 * 10**9, versions[n]
                return asyncio.create_task(
                    one.call("view", f"token-h{n}", host=f"h{n}", after=after, wait=wait)
                )

            polls: list[asyncio.Task[tuple[int, Any]]] = []

            async def all_wait() -> object:
                return sum(account.open.total() for account in one.api._accounts.values()) == len(polls)

            for n in versions:
                polls += [poll(n) for _ in range(each)]
                if n % 13 == 0:
                    await one.until("the polls", all_wait)
            assert len(polls) > 1000
            status, found = await one.call("view", "token-h1", host="h1")
            assert (status, f"{each} requests of kind view are open" in found["message"]) == (429, True)
            # Its lease goes on nevertheless.
            await one.register("h1", vnics=[])
            # Others are served meanwhile.
            assert len((await one.good("hosts"))["hosts"]) == count
            # One that is gone gives its place back.
            polls.pop(0).cancel()

            async def place() -> object:
                return (await one.call("view", "token-h1", host="h1"))[0] == 200

            await one.until("a place", place)
            one.api.service.leave(f"h{count}")
            for n in versions:
                one.api.service.registry.changed(f"h{n}")
            one.api.service.wake()
            statuses = [status for status, _ in await asyncio.gather(*polls)]
            assert statuses.count(404) == each
            assert statuses.count(200) == len(polls) - each

    run(test)


def test_places_of_requests_that_wait() -> None:
    """With all of them taken a host can still register, release its path and leave."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            one.runtime.held = True
            other = wanted(rate=2_000_000)
            asks = [
                asyncio.create_task(one.call("request", "token-h1", other, name=NAME))
                for _ in range(buckets.HOST.open)
            ]

            async def all_wait() -> object:
                accounts = one.api._accounts.values()
                return sum(account.open["request"] for account in accounts) == len(asks)

            await one.until("the questions", all_wait)
            assert (await one.call("request", "token-h1", other, name=NAME))[0] == 429
            await one.register("h1")
            assert (await one.call("path", "token-h1", name=NAME))[0] == 200
            await one.good("leave", "token-h1", host="h1")
            for ask in asks:
                ask.cancel()

    run(test)


def test_numbers_without_end() -> None:
    """A number beyond all others is no fault of the controller."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            for number in ("1" + "0" * 400, "-1" + "0" * 400, "1e400", "1" + "0" * 5000):
                record = f'{{"name": "a1>b1", "total": 1, "worst": 1, "last": {number}}}'
                body = f'{{"run": "r1", "paths": [{record}]}}'.encode()
                status, found = await one.call("misses", "token-h2", body, bad=True, host="h2")
                assert (status, found["code"]) == (400, "invalid")

    run(test)


def test_a_host_that_flaps(caplog: pytest.LogCaptureFixture) -> None:
    """Others read few new views, the host pays for each, and the log stays short."""

    async def test() -> None:
        async with served(configuration(hosts=40)) as one:
            for n in range(2, 41):
                await one.register(f"h{n}")
            versions, statuses = set[int](), []
            for n in range(1, 61):
                body = announcement("h1", vnics=[vnic("a1", 1000 + n), vnic("x1", 1, segment=999)])
                statuses.append((await one.call("register", "token-h1", body, host="h1"))[0])
                await one.call("leave", "token-h1", host="h1")
                versions.add(one.api.service.registry.version("h2"))
            assert 429 in statuses, "39 views for each"
            assert len(versions) < 30

    run(test)
    assert sum("host h1" in record.getMessage() for record in caplog.records) <= 25


async def raw(one: Served, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that sends what it wants."""
    reader, writer = await asyncio.open_connection("127.0.0.1", one.api.port)
    writer.write(data)
    return reader, writer


def test_slow_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, bodies that do not come, and silence: all of them end; others are served."""
    monkeypatch.setattr(server, "BODY", 0.5)
    monkeypatch.setattr(server, "IDLE", 1.0)

    async def test() -> None:
        async with served() as one:
            head = b"PUT /v1/hosts/h1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-h1\r\n"
            halves = [await raw(one, b"GET /v1/health HT") for _ in range(20)]
            silent = [await raw(one, b"") for _ in range(20)]
            slow_body = await raw(one, head + b"Content-Length: 100\r\n\r\n{")
            answer = await asyncio.wait_for(slow_body[0].readuntil(b"\r\n"), 20)
            assert b"400" in answer
            assert (await one.good("health", None))["leader"]
            for reader, writer in (*halves, *silent):
                with pytest.raises((ConnectionResetError, EOFError, asyncio.IncompleteReadError)):
                    await asyncio.wait_for(reader.readexactly(1000), 20)
                writer.close()
            slow_body[1].close()
            assert (await one.good("health", None))["leader"]

    run(test)


def test_a_client_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends, however much it has asked for."""
    monkeypatch.setattr(server, "IDLE", 1.0)
    monkeypatch.setattr(server, "FRESH", 0.5)

    async def test() -> None:
        async with served(limits=WIDE) as one:
            asked = b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
            reader, writer = await raw(one, asked * 400)
            transport = reader._transport  # type: ignore[attr-defined]
            transport.pause_reading()
            runner = one.api._runner
            assert runner is not None
            assert runner.server is not None
            connections = runner.server

            async def ended() -> object:
                return not connections.connections

            await one.until("the end of the connection", ended)
            assert (await one.good("health", None))["leader"]
            writer.close()

    run(test)


def test_connections_are_bounded() -> None:
    """One too many is closed; afterwards there is room again."""

    async def test() -> None:
        async with served() as one:
            one.api.places.most = 10
            there = [await raw(one, b"") for _ in range(10)]
            await asyncio.sleep(0.1)
            reader, writer = await raw(one, b"")
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            for _, other in there:
                other.close()

            async def served_again() -> object:
                try:
                    return await one.good("health", None)
                except aiohttp.ClientError:
                    return None

            await one.until("room", served_again)

    run(test)


def test_garbage() -> None:
    """Bytes at random, and parts of good requests: the server answers others as before."""
    source = random.Random(1)

    async def test() -> None:
        async with served() as one:
            good = b"GET /v1/health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde"
            for _ in range(60):
                data = bytearray(good)
                for _ in range(source.randint(1, 8)):
                    data[source.randrange(len(data))] = source.randrange(256)
                _, writer = await raw(one, bytes(data[: source.randint(1, len(data))]))
                writer.close()
            assert (await one.good("hosts"))["hosts"]

    run(test)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 4)), max_size=30))
def test_a_bucket(asks: list[tuple[float, float]]) -> None:
    """In any time it gives at most its burst and its rate; when it says, there is enough."""
    bucket, now, taken = Bucket(2.0, 5.0), 0.0, 0.0
    for later, count in asks:
        now += later
        wait = bucket.take(count, now)
        if wait == 0.0:
            taken += count
        else:
            assert Bucket.take(bucket, count, now + wait + 1e-6) == 0.0
            now += wait + 1e-6
            taken += count
        assert taken <= 5.0 + 2.0 * now + 1e-6
