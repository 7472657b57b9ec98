"""The API by its file: hosts, views, paths, misses, what operators see."""

import asyncio
import time
from dataclasses import replace

import pytest
from apis import Served, announcement, configuration, run, served, vnic, wanted

from tidegate_controller import events as ev
from tidegate_controller.api import service
from tidegate_controller.api.operations import Call
from tidegate_controller.api.schema import contract
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import PathState

NAME = "a1>b1"


def test_every_operation_has_a_handler() -> None:
    """And each handler is in the file; a new one without a place is a fault at the start."""

    async def test() -> None:
        async with served() as one:
            names = set(one.client.operations)
            assert names == set(one.api._handlers)
            routes = {
                (route.method, route.resource.canonical)
                for route in one.api.application().router.routes()
                if route.resource is not None and route.method != "HEAD"
            }
            file = {(method.upper(), path) for path, all_ in contract()["paths"].items() for method in all_}
            assert routes == file
            assert await one.good("openapi", None) == contract()
            assert await one.good("health", None) == {"leader": True, "term": 7, "switches": 2}

        async def other(call: Call) -> None:
            raise AssertionError(call)

        with pytest.raises(ValueError, match="other"):
            async with served(handlers={"other": other}):
                pass

    run(test)


def test_hosts_see_each_other() -> None:
    """Peers and remotes of common segments; each change is a new version, and wakes who waits."""

    async def test() -> None:
        async with served() as one:
            first = await one.register("h1")
            assert (first["peers"], first["remotes"], first["term"]) == ([], [], 7)
            assert 4_000_000_000 < first["lease"] <= 5_000_000_000
            waits = asyncio.create_task(
                one.good("view", "token-h1", host="h1", after=first["version"], wait=20 * 10**9)
            )
            await asyncio.sleep(0.05)
            assert not waits.done()
            await one.register("h2", vnics=[vnic("b1", 2), vnic("b2", 3, segment=200)])
            seen = await waits
            assert seen["version"] > first["version"]
            peer = {"host": "h2", "address": "10.0.0.2", "port": 4789, "segments": [100]}
            assert seen["peers"] == [{**peer, "arrival_budget": 100_000}]
            assert seen["remotes"] == [{"vnic": vnic("b1", 2), "host": "h2", "plain": False}]
            again = await one.register("h2", vnics=[vnic("b1", 2), vnic("b2", 3, segment=200)])
            same = await one.good("view", "token-h1", host="h1", after=seen["version"], wait=10**8)
            assert (same["version"], same["remotes"]) == (seen["version"], seen["remotes"])
            assert again["remotes"] == [{"vnic": vnic("a1", 1), "host": "h1", "plain": False}]
            await one.good("leave", "token-h2", host="h2")
            gone = await one.good("view", "token-h1", host="h1", after=seen["version"], wait=10**9)
            assert gone["remotes"] == []
            assert (await one.call("view", "token-h2", host="h2"))[0] == 404
            hosts = (await one.good("hosts"))["hosts"]
            assert [(host["name"], host["registered"], host["vnics"]) for host in hosts] == [
                ("h1", True, 1),
                ("h2", False, 0),
                ("h3", False, 0),
            ]

    run(test)


def test_a_path_of_a_host() -> None:
    """Waits for the far host, is installed, seen in the view, and released."""

    async def test() -> None:
        async with served() as one:
            await one.register("h1")
            status, found = await one.call("request", "token-h1", wanted(), name=NAME)
            assert (status, found["code"]) == (409, "waiting")
            assert "vNIC b1 is announced by no host" in found["message"]
            await one.register("h2")
            status, found = await one.call("request", "token-h1", wanted(), name=NAME)
            assert (status, found["code"]) == (409, "waiting")
            assert "host h2 has not admitted vNIC a1 yet" in found["message"]
            await one.register("h2", arrivals=[{"remote": "a1", "refused": "no room"}])
            status, found = await one.call("request", "token-h1", wanted(), name=NAME)
            assert (status, found["code"]) == (409, "refused")
            assert found["reasons"] == ["host h2 refuses vNIC a1: no room"]
            view = await one.register("h1")
            await one.register("h2", arrivals=[{"remote": "a1", "refused": None}])
            path = await one.good("request", "token-h1", body=wanted(), name=NAME)
            assert (path["name"], path["state"], path["generation"]) == (NAME, "active", 1)
            assert path["request"] == wanted()
            assert path["links"] == ["h1>s1:2", "s1:1>s2:1", "s2:3>h2"]
            seen = await one.good("view", "token-h1", host="h1", after=view["version"], wait=10**10)
            assert seen["paths"] == [path]
            assert await one.good("path", "token-h2", name=NAME) == path
            assert (await one.good("paths"))["paths"] == [path]
            assert await one.good("request", "token-h1", body=wanted(), name=NAME) == path
            assert one.runtime.questions == 2
            status, found = await one.call("request", "token-h1", wanted(rate=10**9), name=NAME)
            assert (status, found["code"]) == (409, "refused")
            assert "would be reserved" in found["reasons"][0]
            assert await one.good("path", name=NAME) == path
            await one.good("release", "token-h1", name=NAME)
            assert (await one.good("view", "token-h1", host="h1"))["paths"] == []
            assert (await one.call("release", "token-h1", name=NAME))[0] == 404
            assert (await one.call("path", name=NAME))[0] == 404
            decisions = await one.good("decisions", path=NAME)
            verdicts = [decision["verdict"] for decision in decisions["decisions"]]
            assert verdicts == ["admitted", "refused", "released"]
            assert [
                decision["number"]
                for decision in (await one.good("decisions", after=1, limit=1))["decisions"]
            ] == [2]
            assert [
                decision["number"] for decision in (await one.good("decisions", limit=1))["decisions"]
            ] == [3]

    run(test)


def test_quotas_of_a_host() -> None:
    """Number and rate of all its paths; other terms of a path count in place of those of before."""

    async def test() -> None:
        config = configuration()
        allowed = replace(config.api.allowed["h1"], most_paths=2, most_rate=3_000_000)
        api = replace(config.api, allowed={**config.api.allowed, "h1": allowed})
        async with served(replace(config, api=api)) as one:
            await one.register("h1", vnics=[vnic("a1", 1), vnic("a2", 11), vnic("a3", 12)])
            await one.register("h2")
            await one.register("h2", arrivals=[{"remote": f"a{n}", "refused": None} for n in (1, 2, 3)])

            async def ask(n: int, rate: int) -> str:
                key = {**wanted()["key"], "source_port": 50_000 + n}
                body = wanted(vnic=f"a{n}", key=key, rate=rate)
                status, found = await one.call("request", "token-h1", body, name=f"a{n}>b1")
                return "" if status == 200 else str(found["message"])

            assert await ask(1, 2_000_000) == ""
            assert "would have 3000001 bit/s" in await ask(2, 1_000_001)
            assert await ask(2, 1_000_000) == ""
            assert "would have 3000001 bit/s" in await ask(1, 2_000_001)
            assert await ask(1, 1_000_000) == ""
            assert "host h1 has 2 paths" in await ask(3, 1)

    run(test)


def test_a_vm_moves_to_another_host() -> None:
    """The new host's request is other terms of the same path."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            before = await one.good("request", "token-h1", body=wanted(), name=NAME)
            moved = wanted(3, vnic="a1")
            assert (await one.call("request", "token-h3", moved, name=NAME))[0] == 403
            await one.register("h3", vnics=[vnic("a1", 1)])
            status, found = await one.call("request", "token-h3", moved, name=NAME)
            assert (status, found["code"]) == (403, "forbidden")
            assert "its name is that of vNIC a1 of host h1" in found["message"]
            await one.register("h1", vnics=[])
            await one.register("h2", arrivals=[{"remote": "a1", "refused": None}])
            after = await one.good("request", "token-h3", body=moved, name=NAME)
            assert (after["generation"], after["request"]["source"]) == (before["generation"] + 1, "h3")
            assert after["links"] == ["h3>s2:4", "s2:3>h2"]
            assert (await one.good("view", "token-h1", host="h1"))["paths"] == []
            assert (await one.good("view", "token-h3", host="h3"))["paths"][0]["name"] == NAME
            assert (await one.call("release", "token-h1", name=NAME))[0] == 403

    run(test)


def test_a_far_host_takes_its_word_back() -> None:
    """The path stays, and is told as violated with the reason until the word is there again."""

    async def test() -> None:
        async with served(configuration(lease="1s")) as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)

            async def state(refused: str | None) -> str:
                await one.register("h1")
                await one.register("h2", arrivals=[{"remote": "a1", "refused": refused}])
                path = (await one.good("view", "token-h1", host="h1"))["paths"][0]
                assert bool(path["reasons"]) == (path["state"] == "violated")
                return str(path["state"]) + "".join(path["reasons"])

            async def violated() -> object:
                return await state("no room") == "violatedhost h2 admits vNIC a1 no more: no room"

            async def active() -> object:
                return await state(None) == "active"

            await one.until("the reason", violated)
            await one.until("the word", active)

    run(test)


def test_many_paths_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A few at one time, with one line of the log."""
    caplog.set_level("INFO")
    monkeypatch.setattr(service, "MOST_ENDING", 2)

    async def test() -> None:
        async with served() as one:
            await one.pair()
            for n in range(9):
                await one.register("h1", vnics=[vnic(f"a{m}", 100 + m) for m in range(n + 1)])
                await one.newer("h2")
                words = [{"remote": f"a{n}", "refused": None}]
                await one.register("h2", arrivals=words)
                key = {**wanted()["key"], "source_port": 50_000 + n}
                body = wanted(vnic=f"a{n}", key=key)
                await one.good("request", "token-h1", body=body, name=f"a{n}>b1")
            await one.good("leave", "token-h1", host="h1")
            assert len(one.api.service._releasing) <= 2

            async def over() -> object:
                return not (await one.good("paths"))["paths"]

            await one.until("the end of the paths", over)

    run(test)
    lines = [record.getMessage() for record in caplog.records if "paths end" in record.getMessage()]
    assert lines == ["9 paths end, a0>b1 the first: host h1 leaves"]


def test_a_word_from_an_older_view() -> None:
    """A far host that has read of other terms, but speaks of those before, is not believed."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            before = one.versions["h2"]
            await one.register("h1", vnics=[vnic("a1", 1, rate=2 * 10**9)])
            await one.newer("h2")
            words = [{"remote": "a1", "refused": None}]
            await one.register("h2", arrivals=words, view=before)
            status, found = await one.call("request", "token-h1", wanted(), name=NAME)
            assert (status, found["code"]) == (409, "waiting")
            await one.register("h2", arrivals=words)
            await one.good("request", "token-h1", body=wanted(), name=NAME)

    run(test)


async def late(one: Served, total: int, run_: str = "r1", name: str = NAME, ago: float = 0.0) -> int:
    """h2 reports late frames."""
    record = {"name": name, "total": total, "worst": 5000, "last": time.time() - ago}
    body = {"run": run_, "paths": [record]}
    status, _ = await one.call("misses", "token-h2", body, host="h2")
    return status


def test_a_host_whose_clock_is_wrong() -> None:
    """Its first report may be of long ago; those after it are as old as reports can be."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            told: list[float] = []

            def happened(event: ev.Event) -> None:
                assert isinstance(event, ev.Missed)
                told.append(one.runtime.now - event.time)

            await one.good("request", "token-h1", body=wanted(), name=NAME)
            one.runtime.happened = happened  # type: ignore[method-assign]
            for total, ago in enumerate((3600, 3600, 1, -3600), 1):
                assert await late(one, total, ago=ago) == 204
            first, second, third, fourth = told
            assert first > 3599
            assert service.OLDEST <= second < 60
            assert 1 <= third < 60
            assert 0 <= fourth < 60

    run(test)


def test_misses_move_a_path_and_then_violate_it() -> None:
    """By totals; the host sees what is done, and `violated` until no frame was late for the hold time."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            view = await one.good("view", "token-h1", host="h1")
            assert await late(one, 1) == 204
            same = await one.good("view", "token-h1", host="h1")
            assert (same["version"], same["paths"][0]["misses"]) == (view["version"], 1)
            await asyncio.sleep(0.4)
            assert await late(one, 3) == 204
            assert await late(one, 3) == 204
            assert await late(one, 2) == 204
            assert await late(one, 7, name="x>y") == 204
            assert await late(one, 7, run_="other") == 404

            async def raised() -> object:
                path = await one.good("path", name=NAME)
                return path["level"] == 0 and path["state"] == "active" and path

            path = await one.until("a raise", raised)
            assert (path["misses"], path["generation"]) == (3, 2)
            assert (one.api.service.late, one.api.service.ignored) == (3, 1)
            await asyncio.sleep(0.5)
            await late(one, 10)
            path = await one.good("path", name=NAME)
            assert (path["state"], path["misses"]) == ("violated", 10)
            assert "no other way" in path["reasons"][0]
            view = await one.good("view", "token-h1", host="h1")
            assert view["paths"] == [path]
            calm = await one.good("view", "token-h1", host="h1", after=view["version"], wait=10**10)
            assert (calm["paths"][0]["state"], calm["paths"][0]["reasons"]) == ("active", [])
            # A new process of the agent counts from 0.
            await one.register("h2", run="r2", arrivals=[{"remote": "a1", "refused": None}])
            assert await late(one, 4, run_="r2") == 204
            assert (await one.good("path", name=NAME))["misses"] == 14

    run(test)


def test_a_lease_ends() -> None:
    """Its remotes vanish, its paths are released; an operator's path stays."""

    async def test() -> None:
        async with served(configuration(lease="1s")) as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            key = {**wanted()["key"], "source_port": 7}
            await one.good("request", body=wanted(vnic="x", key=key), name="x>b1")

            async def over() -> object:
                await one.register("h2")
                names = [path["name"] for path in (await one.good("paths"))["paths"]]
                return names == ["x>b1"]

            await one.until("the end of the path", over)
            assert (await one.good("view", "token-h2", host="h2"))["remotes"] == []
            assert (await one.call("view", "token-h1", host="h1"))[0] == 404
            assert (await one.call("misses", "token-h1", {"run": "r", "paths": []}, host="h1"))[0] == 404
            await one.good("release", name="x>b1")

    run(test)


def test_a_host_takes_no_path_from_an_operator() -> None:
    """It may ask for the same; it can neither end it nor change it."""

    async def test() -> None:
        async with served(configuration()) as one:
            await one.pair()
            path = await one.good("request", body=wanted(), name=NAME)
            assert await one.good("request", "token-h1", body=wanted(), name=NAME) == path
            status, found = await one.call("request", "token-h1", wanted(rate=2_000_000), name=NAME)
            assert (status, found["code"]) == (409, "refused")
            assert "an operator has to change it" in found["reasons"][0]
            status, found = await one.call("release", "token-h1", name=NAME)
            assert (status, found["code"]) == (403, "forbidden")
            assert await one.good("path", name=NAME) == path
            await one.good("release", name=NAME)

    run(test)


def test_a_host_that_leaves() -> None:
    """Its paths end at once, also where their vNIC was not announced any more."""

    async def test() -> None:
        async with served(configuration(lease="60s")) as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            await one.register("h1", vnics=[])
            assert len((await one.good("paths"))["paths"]) == 1
            await one.good("leave", "token-h1", host="h1")

            async def over() -> object:
                return not (await one.good("paths"))["paths"]

            await one.until("the end of the path", over)

    run(test)


def test_after_a_start_no_path_ends_within_a_lease() -> None:
    """Paths of before wait for their hosts to register."""

    async def test() -> None:
        async with served(configuration(lease="2s")) as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            began = time.monotonic()
            version = (await one.good("view", "token-h1", host="h1"))["version"]
            poll = asyncio.create_task(
                one.call("view", "token-h1", host="h1", after=version, wait=50 * 10**9)
            )
            await asyncio.sleep(0.1)
            one.runtime.leading = False
            assert (await poll)[0] == 503
            status, found = await one.call("hosts")
            assert (status, found["code"], found["leader"]) == (503, "standby", None)
            assert (await one.good("health", None))["leader"] is False
            one.runtime.leader = "https://10.0.0.9:6654"  # type: ignore[assignment]
            assert (await one.call("register", "token-h1", announcement("h1"), host="h1"))[1]["leader"] == (
                "https://10.0.0.9:6654"
            )
            one.runtime.leading = True
            one.runtime.led()
            assert (await one.good("hosts"))["hosts"][0]["registered"] is False

            async def over() -> object:
                return not (await one.good("paths"))["paths"]

            await one.until("the end of the path", over)
            assert time.monotonic() - began > 2

    run(test)


def test_a_link_that_goes_is_seen_by_its_host() -> None:
    """The path is broken, with the reason; then it comes back."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            seen = await one.good("view", "token-h1", host="h1")
            newest = one.runtime.core.engine.newest
            one.runtime.happened(ev.TopologyChanged(replace(newest, links=set()), ()))
            seen = await one.good("view", "token-h1", host="h1", after=seen["version"], wait=10**10)
            assert seen["paths"][0]["state"] == "broken"
            assert one.runtime.core.engine.paths[NAME].state == PathState.BROKEN
            topology = await one.good("topology")
            links = {link["name"]: link for link in topology["links"]}
            assert (links["s1:1>s2:1"]["up"], links["h1>s1:2"]["up"]) == (False, True)
            one.runtime.begin()

            async def active() -> object:
                return (await one.good("path", name=NAME))["state"] == "active"

            await one.until("the path", active)

    run(test)


def test_topology_and_metrics() -> None:
    """What is reserved at each link and level."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            topology = await one.good("topology")
            assert [(one["name"], one["connected"], one["error"]) for one in topology["switches"]] == [
                ("s1", True, None),
                ("s2", True, None),
            ]
            link = next(link for link in topology["links"] if link["name"] == "s1:1>s2:1")
            assert (link["source"], link["target"], link["reservable"]) == ("s1", "s2", 500_000_000)
            # (110 + 4 + 24) / 110 of 1 Mbit/s.
            assert link["reserved"] == 1_254_546
            assert [level["rate"] for level in link["levels"]] == [0, 1_254_546]
            assert all(0 < level["bound"] < level["delay"] for level in link["levels"])
            text = await one.good("metrics")
            for line in (
                'tidegate_controller_paths{state="active"} 1.0',
                'tidegate_controller_link_reserved_bits{link="s1:1>s2:1"} 1.254546e+06',
                'tidegate_controller_requests_total{operation="register",status="200"} 3.0',
                'tidegate_controller_decisions_total{verdict="admitted"} 1.0',
                "tidegate_controller_hosts_registered 2.0",
                "tidegate_controller_plain_vnics 0.0",
                "tidegate_controller_plain_tags_missing 0.0",
            ):
                assert line in text.splitlines(), text
            assert (await one.call("metrics", "token-h1"))[0] == 403

    run(test)


def test_a_question_goes_on_without_its_client() -> None:
    """The same question waits for the same answer; another one is told to wait."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            one.runtime.held = True
            first = asyncio.create_task(one.call("request", "token-h1", wanted(), name=NAME))
            again = asyncio.create_task(one.call("request", "token-h1", wanted(), name=NAME))
            await asyncio.sleep(0.1)
            first.cancel()
            status, found = await one.call("request", "token-h1", wanted(rate=2_000_000), name=NAME)
            assert (status, found["code"]) == (503, "busy")
            path = (await one.good("paths"))["paths"][0]
            assert path["state"] == "installing"
            engine = one.runtime.core.engine
            one.runtime.held = False
            running = engine.running[NAME]
            ticket = ev.Ticket(NAME, running.number, running.change.serial)
            for switch in ("s1", "s2"):
                one.runtime.happened(ev.SwitchDone(switch, ticket))
            assert (await again)[0] == 200
            assert one.runtime.questions == 1
            await asyncio.sleep(0.4)
            one.runtime.held = True
            one.runtime.happened(ev.Missed(NAME, 1, 1, one.runtime.now))
            path = await one.good("request", "token-h1", body=wanted(), name=NAME)
            assert (path["state"], NAME in engine.running) == ("moving", True)
            assert (await one.call("request", "token-h1", wanted(rate=2_000_000), name=NAME))[0] == 503

    run(test)


def test_what_a_host_is_told_of() -> None:
    """`told` of a path without a name on it changes nothing."""

    async def test() -> None:
        async with served() as one:
            await one.pair()
            await one.good("request", "token-h1", body=wanted(), name=NAME)
            path = one.runtime.core.engine.paths[NAME]
            one.api.service.told(ev.TellHost("h9", path, Verdict.MOVED, ("why",)))
            assert (await one.good("path", name=NAME))["reasons"] == ["why"]

    run(test)
