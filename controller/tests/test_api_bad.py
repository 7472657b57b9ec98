"""What hosts, operators and strangers may not do, and how much of anything."""

import json
from contextlib import suppress
from typing import Any

import pytest
from apis import announcement, run, served, vnic, wanted
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tidegate_controller.api.buckets import Limits
from tidegate_controller.api.contract import LARGE, SMALL
from tidegate_controller.api.identity import Identities, Identity, Kind
from tidegate_controller.api.schema import Invalid, compiled, contract, named, parse
from tidegate_controller.config.api import Api

NAME = "a1>b1"
HOSTS_ONLY = ("register", "view", "leave", "misses")
SCHEMAS = contract()["components"]["schemas"]
WIDE = {kind: Limits(10**6, 10**6, 1e9, 1e9, open=2000) for kind in Kind}
"""For tests of something else."""


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
        ({"rate": 10**13}, 409, "its rate is 10000000000000 bit/s; vNIC a1 announces 1000000000"),
        ({"budget": 10**13, "burst": 2**32}, 409, "are more than the deadline of 2000000000 ns"),
        ({"burst": 2**32}, 409, "its burst is 4294967296 bytes; by the announcement of vNIC a1"),
        ({"largest_frame": 2**32}, 409, "its largest frame has 4294967296 bytes; vNIC a1 announces"),
        ({"smallest_frame": 900}, 409, "its smallest frame has 900 bytes"),
    ],
)
def test_requests_that_lie(change: dict[str, Any], code: int, text: str) -> None:
    """Each with its reason; no question reaches the core."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            body = {**wanted(), **change}
            name = f"{body['vnic']}>{body['remote']}"
            status, found = await one.call("request", "token-h1", body, name=name)
            assert (status, text in found["message"]) == (code, True), found
            assert one.runtime.questions == 0
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
            seen = await one.newer("h2")
            assert [remote["vnic"]["name"] for remote in seen["remotes"]] == ["good"]
            other = {"name": "up", "address": "10.0.0.2", "port": 1, "arrival_budget": 0}
            view = await one.register("h1", uplinks=[other])
            assert "its address is 10.0.0.2" in view["refused"][0]["reason"]
            seen = await one.newer("h2")
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
