"""Paths between plain NICs: what a host may ask for, by what it and others announce; by the API, too."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from apis import served, vnic, wanted
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.api.schema import Invalid, named
from tidegate_controller.decide import asked
from tidegate_controller.decide.hosts import Registry
from tidegate_controller.decide.places import Places
from tidegate_controller.decide.words import Words
from tidegate_controller.model.hosts import Allowed, MacRange, PlainNic, Registration, Remote, Uplink, Vnic
from tidegate_controller.model.paths import EthernetKey, PathRequest
from tidegate_controller.model.plain import Place

MS = 1_000_000
VLAN = 42
A, B, C = (f"02:00:00:00:00:{number:02x}" for number in (10, 11, 12))
MACS = (MacRange(0x02 << 40, 40),)


def allowed(number: int, *segments: int) -> Allowed:
    """A host with these segments."""
    return Allowed(f"10.0.0.{number}", frozenset(segments), MACS)


def sender(**rest: Any) -> Vnic:  # noqa: ANN401
    """The vNIC of h1."""
    return replace(Vnic("a", A, VLAN, (), 8 * MS, 6000, 4 * MS, ("b",)), **rest)


def announced(*vnics: Vnic, vlans: tuple[int, ...] = (VLAN,), **rest: Any) -> Registration:  # noqa: ANN401
    """A host with a plain NIC."""
    return Registration("r", (), vnics, plain_nics=(PlainNic("lan", vlans),), **rest)


@pytest.fixture(name="registry")
def _registry() -> Registry:
    hosts = {"h1": allowed(1, VLAN), "h2": allowed(2, VLAN, 43), "h3": allowed(3, VLAN)}
    found = Registry(hosts, 5.0, 0.0)
    found.register("h1", announced(sender()), 10.0)
    found.register("h2", announced(Vnic("b", B, VLAN)), 10.0)
    return found


def request(key: EthernetKey | None = None, **rest: Any) -> PathRequest:  # noqa: ANN401
    """A path from a to b."""
    key = key or EthernetKey(VLAN, 5, A, B)
    # 6,000 bytes, and 8 Mbit/s for 3 ms, in frames of 60 bytes that are 64 on the wire.
    one = PathRequest("a>b", "h1", "h2", key, 0, 8 * MS * 64 // 60 + 1, 9600, 64, 1518, MS)
    return replace(one, **rest)


def ask(registry: Registry, one: PathRequest) -> None:
    """h1 asks."""
    vnic, _, remote = one.name.partition(">")
    asked.sound(one.name, vnic, remote, one)
    asked.of_host(registry, "h1", vnic, remote, one)


def test_what_is_announced_is_enough(registry: Registry) -> None:
    """No word of the far host about the sender is needed: it promises nothing."""
    ask(registry, request())
    assert registry.arrival("h2", "a") is None


@pytest.mark.parametrize(
    ("one", "kind", "reason"),
    [
        (request(dscp=46), asked.Unsound, "`dscp` is 0"),
        (request(EthernetKey(VLAN, 5, A, A)), asked.Unsound, "that of both ends"),
        (request(EthernetKey(VLAN, 5, A, "03:00:00:00:00:0b")), asked.Unsound, "one of a group"),
        (request(EthernetKey(43, 5, A, B)), asked.NotYours, "VLAN 43; host h1 has no plain NIC with it"),
        (request(EthernetKey(VLAN, 5, B, A)), asked.NotYours, f"vNIC a has MAC {A} in segment 42"),
        (request(EthernetKey(VLAN, 5, A, C)), asked.NotYet, f"vNIC b has MAC {B}"),
        (request(target="h3"), asked.NotYet, "vNIC b is at host h2, not behind a plain NIC of a host h3"),
        (request(source="h3"), asked.NotYours, "from host h3 is asked for by host h1"),
        (request(smallest_frame=65), asked.No, "with its tag, 60 to 64 are expected"),
        (request(rate=9 * MS), asked.No, "its rate is"),
        (request(burst=9601), asked.No, "at most 9600 leave at once"),
        (request(budget=4 * MS + 1), asked.No, "more than the deadline"),
    ],
)
def test_what_is_not(registry: Registry, one: PathRequest, kind: type[Exception], reason: str) -> None:
    """A MAC of another host, a VLAN of a foreign segment, more than was announced."""
    with pytest.raises(kind, match=reason):
        ask(registry, one)


def test_two_hosts_that_claim_one_mac(registry: Registry) -> None:
    """The first one has it; the other one gets no path with it."""
    registry.register("h1", announced(sender(), sender(name="c", mac=B)), 11.0)
    assert f"its MAC {B} in segment 42 is that of vNIC b of host h2" in registry.why_not("h1", "c")
    with pytest.raises(asked.NotYours, match="vNIC c does not count at host h1"):
        ask(registry, request(EthernetKey(VLAN, 5, B, A), name="c>b"))


def test_vlans_that_count(registry: Registry) -> None:
    """Those of the configuration, of the first plain NIC; all of them are told to the core."""
    assert registry.all_vlans() == {VLAN}
    two = (PlainNic("lan", (VLAN, 43, 44)), PlainNic("other", (43,)))
    registry.register("h2", replace(announced(Vnic("b", B, VLAN)), plain_nics=two), 11.0)
    assert registry.vlans("h2") == registry.all_vlans() == {VLAN, 43}
    texts = {one.item: one.reason for one in registry.refused("h2")}
    assert "VLANs 44 are not in `segments`" in texts["uplink lan"]
    assert "plain NIC lan counts; a host has one port" in texts["uplink other"]
    registry.leave("h2")
    assert registry.all_vlans() == {VLAN}
    registry.allow({"h1": allowed(1, 7)})
    assert registry.all_vlans() == frozenset()


def test_who_sees_whom(registry: Registry) -> None:
    """A remote behind a plain NIC is told to hosts with that VLAN at one of their own; no peer is needed."""
    there = registry.surroundings("h1")
    assert (there.peers, there.remotes) == ((), (Remote(Vnic("b", B, VLAN), "h2", True),))
    registry.publish(11.0)
    version = registry.version("h1")
    # By VXLAN it is no neighbour of hosts without such an uplink.
    outer = Uplink("up", "10.0.0.3", 4789, 1)
    registry.register("h3", Registration("r", (outer,), (Vnic("c", C, VLAN),)), 12.0)
    assert registry.surroundings("h3").remotes == ()
    assert [remote.vnic.name for remote in registry.surroundings("h1").remotes] == ["b", "c"]
    assert [remote.plain for remote in registry.surroundings("h1").remotes] == [True, False]
    registry.publish(13.0)
    assert registry.version("h1") > version
    version = registry.version("h1")
    registry.register("h2", announced(Vnic("b", B, VLAN), vlans=()), 14.0)
    registry.publish(15.0)
    assert [remote.vnic.name for remote in registry.surroundings("h1").remotes] == ["c"]
    assert registry.version("h1") > version


some_vlans = st.sets(st.sampled_from([VLAN, 43])).map(lambda found: tuple(sorted(found)))
some_vnics = st.sets(st.tuples(st.integers(1, 3), st.sampled_from([VLAN, 43])))
registrations = st.tuples(st.sampled_from(["h1", "h2", "h3"]), some_vlans, some_vnics, st.booleans())


@given(st.lists(registrations, max_size=8), st.booleans())
def test_a_version_for_what_differs(steps: list[tuple[Any, ...]], mixed: bool) -> None:
    """Who sees something else has a new version; without VXLAN, no other host has one."""
    hosts = ["h1", "h2", "h3"]
    real = Registry({host: allowed(number, VLAN, 43) for number, host in enumerate(hosts, 1)}, 1e9, 0.0)
    for host in hosts:
        real.register(host, Registration("r"), 0.0)
    for now, (host, vlans, numbers, outer) in enumerate(steps, 1):
        real.publish(now - 0.5)
        before = {one: (real.version(one), real.surroundings(one)) for one in hosts}
        vnics = [
            Vnic(f"{host}-{number}-{vlan}", f"02:00:00:00:0{host[1]}:{number:02x}", vlan)
            for number, vlan in sorted(numbers)
        ]
        uplinks = (Uplink("up", f"10.0.0.{host[1]}", 4789, 1),) if outer and mixed else ()
        real.register(host, replace(announced(*vnics, vlans=vlans), uplinks=uplinks), float(now))
        real.publish(float(now))
        for one, (version, seen) in before.items():
            if real.surroundings(one) != seen:
                assert real.version(one) > version, one
            elif not mixed:
                assert real.version(one) == version, one


def test_what_is_behind_a_plain_nic(registry: Registry) -> None:
    """What counts, until the host leaves, or another one has the vNIC; also while its agent is away."""

    def behind() -> dict[str, set[str]]:
        return {host: {place.mac for place in one.places} for host, one in registry.places.all().items()}

    assert behind() == {"h1": {A}, "h2": {B}}
    assert registry.moved == {"h1", "h2"}
    registry.moved = set()
    # A MAC of another host, one that it may not have, a segment and a VLAN that it may not have.
    lies = [Vnic("x", A, VLAN), Vnic("y", "06:00:00:00:00:01", VLAN), Vnic("z", C, 44), Vnic("w", C, 43)]
    registry.register("h2", announced(Vnic("b", B, VLAN), *lies, vlans=(VLAN, 44)), 11.0)
    assert behind() == {"h1": {A}, "h2": {B}}
    assert registry.moved == set()
    registry.register("h2", announced(Vnic("b", B, VLAN), *lies, vlans=(VLAN, 43)), 12.0)
    assert behind() == {"h1": {A}, "h2": {B, C}}
    assert registry.moved == {"h2"}
    # h1 is away: it keeps its vNIC, unless another host has it now.
    assert registry.expire(15.5) == ["h1"]
    assert behind() == {"h1": set(), "h2": {A, B, C}}
    assert registry.expire(30.0) == ["h2"]
    assert behind() == {"h1": set(), "h2": {A, B, C}}
    registry.register("h1", announced(sender()), 31.0)
    assert behind() == {"h1": {A}, "h2": {B, C}}
    # What an operator takes goes, also of a host that is away.
    registry.allow({"h1": allowed(1, VLAN), "h2": allowed(2, 43)})
    assert behind() == {"h1": {A}, "h2": {C}}
    assert registry.expire(60.0) == ["h1"]
    assert behind()["h1"] == {A}
    registry.leave("h1")
    registry.allow({"h1": allowed(1, VLAN)})
    assert behind() == {}


def test_no_room_behind_plain_nics(registry: Registry) -> None:
    """Hosts are told, and get room when there is some."""
    registry.places = Places(most_places=2, most_vlans=1)
    for host in ("h1", "h2"):
        registry.leave(host)
    registry.register("h1", announced(sender(), sender(name="c", mac=C)), 11.0)
    registry.register("h2", announced(Vnic("b", B, VLAN), vlans=(VLAN, 43)), 11.0)
    texts = {one.item: one.reason for one in registry.refused("h2")}
    assert "VLANs 43: the network has" in texts["uplink lan"]
    assert texts["vnic b"].startswith("it counts, but 4096 vNICs are behind plain NICs already")
    registry.register("h1", announced(sender()), 12.0)
    assert {one.item for one in registry.refused("h2")} == {"uplink lan"}
    assert Place(VLAN, B) in registry.places.behind("h2").places
    registry.leave("h1")
    registry.register("h2", announced(vlans=(43,)), 12.0)
    assert registry.refused("h2") == ()


def test_the_word_of_the_far_host_is_its_announcement(registry: Registry) -> None:
    """Without it for one lease, the promise is violated."""
    words, one = Words(), request()
    assert words.withdrawn(registry, [one], 12.0) == {}
    registry.register("h2", announced(Vnic("b", B, VLAN), vlans=()), 13.0)
    assert words.withdrawn(registry, [one], 13.0) == {}
    why = "host h2 announces vNIC b behind a plain NIC with VLAN 42 no more"
    assert words.withdrawn(registry, [one], 18.0) == {"a>b": why}
    registry.register("h2", announced(Vnic("b", B, VLAN)), 19.0)
    assert words.withdrawn(registry, [one], 19.0) == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vlan": 0}, "key.vlan: is 0; 1 to 4094"),
        ({"priority": 8}, "key.priority: is 8; 1 to 7"),
        ({"source": "10.0.0.1"}, "key: 'source' is not known; vlan, priority"),
        ({"target_mac": "02:00:0A:00:00:02"}, "key.target_mac: is '02:00:0A:00:00:02'; the form"),
        ({"target_mac": 7}, "key.target_mac: is 7; string"),
        (None, "key: `vlan` is missing"),
        ([], "key: is an array of 0; object"),
    ],
)
def test_forms_of_a_key(change: Any, reason: str) -> None:  # noqa: ANN401
    """What is wrong is told of the form that is meant."""
    key: Any = {"vlan": 100, "priority": 5, "source_mac": A, "target_mac": B}
    if isinstance(change, dict):
        key |= change
    elif change is None:
        del key["vlan"]
    else:
        key = change
    with pytest.raises(Invalid, match=re.escape(reason)):
        named("PathRequest")(wanted(key=key), "body")


def test_by_the_api() -> None:
    """Asked for, shown, and without misses: no host can know of any."""
    plain = {"name": "lan", "address": None, "port": None, "arrival_budget": 100_000, "vlans": [100]}

    async def test() -> None:
        async with served() as one:
            for host, name, number in (("h1", "a1", 1), ("h2", "b1", 2)):
                await one.register(host, uplinks=[plain], vnics=[vnic(name, number)])
            view = await one.newer("h1")
            assert view["peers"] == []
            assert view["remotes"] == [{"vnic": vnic("b1", 2), "host": "h2", "plain": True}]
            key = {
                "vlan": 100,
                "priority": 5,
                "source_mac": vnic("a1", 1)["mac"],
                "target_mac": vnic("b1", 2)["mac"],
            }
            body = wanted(key=key, dscp=0, smallest_frame=64)
            for change, status, text in (
                ({"key": {**key, "vlan": 101}}, 403, "host h1 has no plain NIC with it"),
            ):
                found = await one.call("request", "token-h1", name="a1>b1", body={**body, **change})
                assert found[0] == status, found
                assert text in found[1]["message"]
            path = await one.good("request", "token-h1", name="a1>b1", body=body)
            assert (path["request"]["key"], path["state"]) == (key, "active")
            assert 100 in one.api.service.engine.announced
            core = one.api.service.runtime.core
            macs = {
                host: {at.mac for at in there.places} for host, there in core.best_effort.places.all().items()
            }
            assert macs == {"h1": {key["source_mac"]}, "h2": {key["target_mac"]}}
            report = {"run": "r1", "paths": [{"name": "a1>b1", "total": 9, "worst": 1, "last": 1.0}]}
            await one.good("misses", "token-h2", host="h2", body=report)
            assert (await one.good("path", "token-h1", name="a1>b1"))["misses"] == 0
            assert one.api.service.ignored == 1

    asyncio.run(test())
