"""What hosts, operators and strangers may not do, and how much of anything."""

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from apis import Served, announcement, configuration, run, served, vnic, wanted
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tidegate_controller.api import buckets, server
from tidegate_controller.api.buckets import Bucket, Limits
from tidegate_controller.api.contract import LARGE, SMALL
from tidegate_controller.api.identity import Identities, Identity, Kind
from tidegate_controller.api.schema import Invalid, compiled, contract, named, parse
from tidegate_controller.config.api import Api

NAME = "a1>b1"
HOSTS_ONLY = ("register", "view", "leave", "misses")
SCHEMAS = contract()["components"]["schemas"]


def body_of(operation: str) -> Any:  # noqa: ANN401
    """A good body."""
    bodies = {
        "register": announcement("h1"),
        "misses": {"run": "r1", "paths": []},
        "request": wanted(),
        "enrol": {"request": "-----BEGIN CERTIFICATE REQUEST-----\n"},
    }
    return bodies.get(operation)


def test_who_may_do_what() -> None:
    """Without a token 401; with another kind's token, or another host's, 403."""

    async def test() -> None:
        async with served() as one:
            for name, (_, path, operation) in one.client.operations.items():
                values: dict[str, Any] = {"host": "h1"} if "{host}" in path else {}
                if "{name}" in path:
                    values["name"] = NAME
                schemes = {scheme for choice in operation["security"] for scheme in choice}
                body = body_of(name)
                for token in (None, "", "token-h9", "token-h1 ", "x" * 5000):
                    status, _ = await one.call(name, token, body, **values)
                    good = not schemes or (token == "token-h1 " and status != 401)
                    assert good or status == 401, (name, token, status)
                if "operator" in schemes:
                    assert (await one.call(name, body=body, **values))[0] != 403
                elif schemes:
                    assert (await one.call(name, body=body, **values))[0] == 403
                if name in HOSTS_ONLY:
                    assert (await one.call(name, "token-h2", body, **values))[0] == 403
                if schemes == {"operator"}:
                    assert (await one.call(name, "token-h1", **values))[0] == 403
            # Only a certificate opens the keys, and none is signed here.
            assert (await one.call("keys", "token-h1", host="h1"))[0] == 403
            assert (await one.call("enrol", "token-h1", body_of("enrol"), host="h1"))[0] == 503

    run(test)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"source": "h2"}, 403, "a path from host h2 is asked for by host h1"),
        ({"vnic": "z1"}, 403, "vNIC z1 does not count at host h1: it is not announced"),
        ({"remote": "z1"}, 409, "vNIC z1 is announced by no host"),
        ({"target": "h3"}, 409, "vNIC b1 is at host h2, not by a host h3"),
        ({"key": {**wanted()["key"], "source": "10.0.0.3"}}, 403, "its frames leave from 10.0.0.3"),
        ({"key": {**wanted()["key"], "target": "10.0.0.3"}}, 409, "its frames go to 10.0.0.3 port 4789"),
        ({"key": {**wanted()["key"], "target_port": 1}}, 409, "go to 10.0.0.2 port 1; host h2 has 10.0.0.2"),
        ({"key": {**wanted()["key"], "target": "fd00:0::1"}}, 400, "to be written as fd00::1"),
        ({"key": {**wanted()["key"], "target": "ten"}}, 400, "'ten' is no IP address"),
        ({"smallest_frame": 2000}, 400, "its smallest frame has 2000 bytes, its largest 1000"),
        ({"rate": 10**13}, 409, "is refused; what was before stays"),
        ({"budget": 10**13, "burst": 2**32}, 409, "is refused; what was before stays"),
        ({"largest_frame": 2**32}, 409, "is refused; what was before stays"),
    ],
)
def test_requests_that_lie(change: dict[str, Any], code: int, text: str) -> None:
    """Each with its reason; no question reaches the core but that for too much."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            body = {**wanted(), **change}
            name = f"{body['vnic']}>{body['remote']}"
            status, found = await one.call("request", "token-h1", body, name=name)
            assert (status, text in found["message"]) == (code, True), found
            assert one.runtime.questions == (1 if "refused;" in text else 0)
            status, found = await one.call("request", "token-h1", wanted(), name="b1>a1")
            assert (status, found["code"]) == (400, "invalid")

    run(test)


def test_another_hosts_path() -> None:
    """A third host neither sees, changes nor releases it; late frames are counted by the far host alone."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.register("h3")
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            assert (await one.call("path", "token-h3", name=NAME))[0] == 403
            assert (await one.call("request", "token-h3", wanted(), name=NAME))[0] == 403
            assert (await one.call("release", "token-h3", name=NAME))[0] == 403
            assert (await one.call("release", "token-h2", name=NAME))[0] == 403
            record = {"name": NAME, "total": 5, "worst": 0, "last": 0}
            for host in ("h1", "h3"):
                await one.good("misses", f"token-{host}", host=host, body={"run": "r1", "paths": [record]})
            assert (await one.good("path", name=NAME))["misses"] == 0
            assert one.api.service.ignored == 2
            record["total"] = 2**53 - 1
            await one.good("misses", "token-h2", host="h2", body={"run": "r1", "paths": [record]})
            assert (await one.good("path", name=NAME))["misses"] == 1_000_000_000

    run(test)


def test_lying_announcements() -> None:
    """They are listed as refused, and no other host sees them."""

    async def test() -> None:
        async with served() as one:
            await one.register("h2")
            lies = [
                vnic("b1", 9),
                vnic("b9", 2),
                vnic("x", 10, segment=300),
                vnic("y", 11, mac="52:54:00:00:00:01"),
                vnic("good", 12),
            ]
            view = await one.register("h1", vnics=lies)
            assert {item["item"] for item in view["refused"]} == {"vnic b1", "vnic b9", "vnic x", "vnic y"}
            seen = await one.good("view", "token-h2", host="h2")
            assert [remote["vnic"]["name"] for remote in seen["remotes"]] == ["good"]
            other = {"name": "up", "address": "10.0.0.2", "port": 1, "arrival_budget": 0}
            view = await one.register("h1", uplinks=[other])
            assert "its address is 10.0.0.2" in view["refused"][0]["reason"]
            seen = await one.good("view", "token-h2", host="h2")
            assert (seen["peers"], seen["remotes"]) == ([], [])
            address = announcement("h1", vnics=[vnic("a1", 1, addresses=["1.2.3"])])
            status, found = await one.call("register", "token-h1", address, host="h1")
            assert (status, "'1.2.3' is no IP address" in found["message"]) == (400, True)

    run(test)


BODIES: list[tuple[bytes, str]] = [
    (b"", "needs a body"),
    (b"{", "no JSON"),
    (b"\xff", "no JSON"),
    (b"null", "body: is None; object was expected"),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"a":' * 100_000, "nested too deeply"),
    (b'{"run": NaN}', "NaN is no number"),
    (b'{"run": "r"}', "is missing"),
    (b'{"run":"r","uplinks":[],"vnics":[],"arrivals":[],"x":1}', "body: 'x' is not known"),
    (b'{"run":"\\ud800","uplinks":[],"vnics":[],"arrivals":[]}', "half a character"),
    (b'{"run":"r","uplinks":[],"vnics":[],"arrivals":[{"remote":"a\\n"}]}', "the form"),
    (
        b'{"run":"r","uplinks":[],"vnics":[],"arrivals":%s}' % json.dumps([{"remote": "a"}] * 4097).encode(),
        "at most 4096",
    ),
    (b'{"run":%s}' % (b"9" * 5000), "no JSON"),
    (b" " * (LARGE + 1), f"at most {LARGE} are read"),
]


def test_bodies() -> None:
    """Each is refused with its reason; a large one is not even read."""

    async def test() -> None:
        async with served(limits=WIDE) as one:
            for data, text in BODIES:
                status, found = await one.call("register", "token-h1", data, bad=True, host="h1")
                assert (status, text in found["message"]) == (400, True), (data[:40], found)
            big = wanted(vnic="x" * SMALL)
            status, found = await one.call("request", "token-h1", big, bad=True, name=NAME)
            assert (status, f"at most {SMALL}" in found["message"]) == (400, True)
            packed = {"Content-Encoding": "gzip"}
            status, _ = await one.call("register", "token-h1", b"x", bad=True, headers=packed, host="h1")
            assert status == 400
            status, found = await one.call("hosts", body=b"{}", bad=True)
            assert (status, found["message"]) == (400, "hosts takes no body")
            for name, value in (("after", "-1"), ("after", "x"), ("wait", "60000000001"), ("other", "1")):
                query: dict[str, Any] = {name: value, "host": "h1"}
                assert (await one.call("view", "token-h1", bad=True, **query))[0] == 400
            assert (await one.call("view", "token-h1", bad=True, host="h 1"))[0] in (400, 403)
            async with one.client.session.post(f"{one.client.url}/v1/hosts") as response:
                assert response.status == 405
                assert (await response.json())["code"] == "not-found"
            async with one.client.session.get(f"{one.client.url}/v2") as response:
                assert response.status == 404

            async def pieces() -> Any:  # noqa: ANN401
                yield b"{}"

            headers = {"Authorization": "Bearer token-h1"}
            url = f"{one.client.url}/v1/hosts/h1"
            async with one.client.session.put(url, data=pieces(), headers=headers) as response:
                assert (response.status, "Content-Length" in (await response.json())["message"]) == (
                    400,
                    True,
                )

    run(test)


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
                return sum(account.open for account in one.api._accounts.values()) == len(polls)

            for n in versions:
                polls += [poll(n) for _ in range(each)]
                if n % 13 == 0:
                    await one.until("the polls", all_wait)
            assert len(polls) > 1000
            status, found = await one.call("view", "token-h1", host="h1")
            assert (status, f"{each} requests are open" in found["message"]) == (429, True)
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
            one.api._most = 10
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


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**54)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda one: not one.is_integer())
    | st.text(max_size=70)
    | st.sampled_from(["a1", "r1", "10.0.0.1", "02:00:00:00:00:01", "active", "0" * 32]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data(), st.sampled_from(sorted(SCHEMAS)))
def test_checks_are_those_of_the_library(data: st.DataObject, name: str) -> None:
    """A good example with a change somewhere: both say yes, or both say no."""
    examples = SCHEMAS[name].get("examples")
    value: Any = json.loads(json.dumps(examples[0])) if examples else {}
    place = value
    for _ in range(4):
        keys: list[Any] = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            place = inner
            continue
        if isinstance(place, dict) and data.draw(st.booleans()):
            del place[key]
        else:
            place[key] = data.draw(values)
        break
    whole = {"$ref": f"#/components/schemas/{name}", "components": contract()["components"]}
    expected = Draft202012Validator(whole).is_valid(value)
    problem = ""
    try:
        named(name)(value, "body")
    except Invalid as invalid:
        problem = str(invalid)
    stricter = "half a character" in problem or "\\n" in problem
    assert bool(problem) != expected or stricter, (value, problem)


@given(st.binary(max_size=200))
def test_json_of_any_bytes(data: bytes) -> None:
    """A value, or `Invalid`."""
    with suppress(Invalid):
        parse(data)


def test_a_keyword_that_is_not_known() -> None:
    """A fault of the file, at the start."""
    with pytest.raises(ValueError, match="multipleOf"):
        compiled({"type": "integer", "multipleOf": 2})
    with pytest.raises(ValueError, match="additionalProperties"):
        compiled({"type": "object", "properties": {}})


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


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["h1"], Identity(Kind.HOST, "h1", True)),
        (["operator"], Identity(Kind.OPERATOR, certified=True)),
        (["h9"], Identity(Kind.UNKNOWN)),
        (["h1", "h1"], Identity(Kind.UNKNOWN)),
        ([], Identity(Kind.UNKNOWN)),
    ],
)
def test_certificates(names: list[str], found: Identity) -> None:
    """By their one common name; a wrong token beside it counts."""
    identities = Identities(["h1"], {}, None)
    subject = (*((("commonName", name),) for name in names), (("organizationName", "h1"),))
    certificate: dict[str, Any] = {"subject": subject}
    assert identities.of(certificate, None) == found
    assert identities.of(certificate, "Bearer x").kind == Kind.UNKNOWN
    assert identities.of({}, None).kind == Kind.UNKNOWN


def test_plain_text_over_a_network() -> None:
    """Only where the configuration says that it is safe."""
    assert Api(("10.0.0.1", 1)).needs_tls
    assert not any(
        one.needs_tls
        for one in (Api(("10.0.0.1", 1), plain=True), Api(("::1", 1)), Api(("127.0.0.2", 1)), Api())
    )


def test_a_client_of_tests_knows_the_file() -> None:
    """An operation that is not there is a fault of the test."""

    async def test() -> None:
        async with served() as one:
            with pytest.raises(KeyError):
                await one.client.call("nothing")

    run(test)
