"""The API when the configuration is read again: what hosts may, who they are, who operates."""

from dataclasses import replace
from random import Random

import pytest
from apis import Served, announcement, configuration, run, served, wanted
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.api.problem import Problem
from tidegate_controller.config import Config
from tidegate_controller.decide.hosts import Registry
from tidegate_controller.model.hosts import Allowed, MacRange, Registration, Uplink, Vnic

NAME = "a1>b1"


def narrowed(config: Config, host: str, segments: frozenset[int]) -> Config:
    """The same, but for what a host may announce."""
    allowed = {**config.api.allowed}
    allowed[host] = replace(allowed[host], segments=segments)
    return replace(config, api=replace(config.api, allowed=allowed))


def without(config: Config, host: str) -> Config:
    """The same, without a host."""
    tokens = {name: token for name, token in config.api.tokens.items() if name != host}
    allowed = {name: one for name, one in config.api.allowed.items() if name != host}
    return replace(config, api=replace(config.api, tokens=tokens, allowed=allowed))


def test_a_host_that_may_less() -> None:
    """What it announced counts no more, at once; and again when it may."""

    async def test() -> None:
        async with served(configuration(lease="60s")) as one:
            await one.pair()
            one.api.take(narrowed(one.config, "h2", frozenset({200})))
            assert (await one.good("view", "token-h1", host="h1"))["remotes"] == []
            refused = (await one.good("view", "token-h2", host="h2"))["refused"]
            assert [each["item"] for each in refused] == ["vnic b1"]
            assert "segment 100 is not in `segments`" in refused[0]["reason"]
            assert (await one.call("request", "token-h1", wanted(), name=NAME))[0] == 409
            one.api.take(one.config)
            assert len((await one.good("view", "token-h1", host="h1"))["remotes"]) == 1
            assert (await one.good("view", "token-h2", host="h2"))["refused"] == []

    run(test)


async def _ended(one: Served) -> None:
    async def over() -> object:
        return (await one.good("paths"))["paths"] == []

    await one.until("the end of the path", over)


def test_a_host_that_is_gone_and_back() -> None:
    """Its registration and paths end, its token is worth nothing; it comes back as a new one."""

    async def test() -> None:
        async with served(configuration(lease="60s")) as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            one.api.take(without(one.config, "h1"))
            await _ended(one)
            assert (await one.good("view", "token-h2", host="h2"))["remotes"] == []
            status, _ = await one.call("register", "token-h1", announcement("h1"), host="h1")
            assert status == 401
            # A request that was known as that of the host before.
            with pytest.raises(Problem, match="host h1 is not in the controller's configuration"):
                one.api.service.register("h1", Registration("r1"))
            one.api.take(one.config)
            await one.register("h1")
            assert len((await one.good("view", "token-h2", host="h2"))["remotes"]) == 1

    run(test)


def test_other_tokens() -> None:
    """Those of before are worth nothing."""

    async def test() -> None:
        async with served() as one:
            api = one.config.api
            assert api.operator is not None
            tokens = {"h1": api.tokens["h2"], "h2": api.tokens["h1"], "h3": api.operator}
            one.api.take(replace(one.config, api=replace(api, tokens=tokens, operator=api.tokens["h3"])))
            await one.good("register", "token-h2", body=announcement("h1"), host="h1")
            assert (await one.call("register", "token-h1", announcement("h1"), host="h1"))[0] == 403
            await one.good("hosts", "token-h3")
            assert (await one.call("hosts"))[0] == 403

    run(test)


def _fresh(seed: int, hosts: int, rights: list[dict[str, Allowed]]) -> Registry:
    """A registry in which the hosts announce the same, and rights change meanwhile."""
    random = Random(seed)
    registry = Registry(rights[0], 60.0, 0.0)
    for n in range(hosts):
        vnics = tuple(
            Vnic(f"v{n}-{k}", f"02:00:00:00:0{n}:0{k}", random.choice([1, 2, 3]), ()) for k in range(3)
        )
        name = f"h{n}"
        if registry.allows(name):
            registry.register(name, Registration("r", (Uplink("up", f"10.0.0.{n}", 4789, 1),), vnics), 1.0)
    for allowed in rights[1:]:
        registry.allow(allowed)
    return registry


@given(
    st.integers(0, 999), st.lists(st.lists(st.sets(st.integers(1, 3)), min_size=3, max_size=3), max_size=4)
)
def test_rights_in_the_end_decide(seed: int, changes: list[list[set[int]]]) -> None:
    """Views are as if the last rights had been there from the beginning."""
    macs = (MacRange(0x0200_0000_0000, 24),)
    rights = [
        {f"h{n}": Allowed(f"10.0.0.{n}", frozenset(segments), macs) for n, segments in enumerate(each)}
        for each in [[{1, 2, 3}] * 3, *changes]
    ]
    found, expected = _fresh(seed, 3, rights), _fresh(seed, 3, rights[-1:])
    for n in range(3):
        assert found.surroundings(f"h{n}") == expected.surroundings(f"h{n}")
