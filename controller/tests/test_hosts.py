"""The registry of hosts against a simple model, and what it makes of hosts that lie."""

from dataclasses import dataclass, field, replace
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.decide.claims import MOST_KEPT, Claims
from tidegate_controller.decide.hosts import Registry
from tidegate_controller.decide.leases import Clock, Unclaimed
from tidegate_controller.decide.misses import MOST_AT_ONCE, Totals
from tidegate_controller.decide.standing import Standing
from tidegate_controller.decide.words import Words
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.hosts import (
    Allowed,
    Arrival,
    MacRange,
    Peer,
    Registration,
    Remote,
    Uplink,
    Vnic,
)
from tidegate_controller.model.paths import FlowKey, Path, PathRequest, PathState, Route

ANY = (MacRange(0x020000000000, 40),)
HOSTS = ("h1", "h2", "h3")
ALLOWED = {host: Allowed(f"10.0.0.{host[1]}", frozenset({1, 2}), ANY) for host in HOSTS}
LEASE = 10.0
MOST = 4


def mac(number: int) -> str:
    """A MAC that hosts may have."""
    return f"02:00:00:00:00:{number:02x}"


def uplink(host: str, port: int = 4789, name: str = "up") -> Uplink:
    """An uplink that counts."""
    return Uplink(name, ALLOWED[host].address, port, 1000)


def vnic(name: str, number: int, segment: int = 1, rate: int | None = None) -> Vnic:
    """A vNIC."""
    return Vnic(name, mac(number), segment, rate=rate)


def registry(most: int = 100) -> Registry:
    """Of three hosts."""
    return Registry(ALLOWED, LEASE, began=0.0, first=7, most=most)


@dataclass
class Model:
    """What should count: announcements in their order, each counts if nothing is in its way when it may."""

    announced: dict[tuple[str, str], Vnic] = field(default_factory=dict)
    uplinks: dict[str, Uplink | None] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    counted: set[tuple[str, str]] = field(default_factory=set)
    kept: dict[str, tuple[str, str, float]] = field(default_factory=dict)
    """Host and MAC that had a name, and until when it is theirs."""
    away: dict[str, tuple[Uplink, set[int]]] = field(default_factory=dict)

    def register(self, host: str, one: Registration, now: float) -> None:
        """Replaces what the host announced."""
        self.away.pop(host, None)
        self.until[host] = now + LEASE
        self.uplinks[host] = next((up for up in one.uplinks if up.address == ALLOWED[host].address), None)
        vnics: dict[str, Vnic] = {}
        for each in one.vnics:
            if each.segment in ALLOWED[host].segments:
                vnics.setdefault(each.name, each)
        self._put(host, vnics, now)

    def leave(self, host: str, now: float) -> None:
        """Nothing of it is announced any more."""
        if host in self.until:
            del self.until[host], self.uplinks[host]
            self._put(host, {}, now)

    def expire(self, now: float) -> None:
        """Hosts whose lease is over, in order."""
        self._count(now)
        for host in sorted(host for host, until in self.until.items() if until <= now):
            up, segments = self.uplinks[host], {one.segment for (of, _), one in self._counted() if of == host}
            self.leave(host, now)
            if up is not None and segments:
                self.away[host] = (up, segments)

    def _put(self, host: str, vnics: dict[str, Vnic], now: float) -> None:
        for key in [key for key in self.announced if key[0] == host]:
            new, old = vnics.get(key[1]), self.announced[key]
            if new is None or (new.mac, new.segment) != (old.mac, old.segment):
                del self.announced[key]
                if key in self.counted:
                    self.counted.discard(key)
                    self.kept[key[1]] = (host, old.mac, now + LEASE)
        for name, one in vnics.items():
            self.announced[(host, name)] = one
        self._count(now)

    def _count(self, now: float) -> None:
        for key, one in self.announced.items():
            of, mac_, until = self.kept.get(key[1], ("", "", 0.0))
            if until > now and key[0] != of and one.mac != mac_:
                continue
            held = [self.announced[other] for other in self.counted]
            names = {other.name for other in held}
            macs = {(other.mac, other.segment) for other in held}
            if len(held) < MOST and one.name not in names and (one.mac, one.segment) not in macs:
                self.counted.add(key)
                self.kept.pop(key[1], None)

    def remotes(self, host: str) -> list[Remote]:
        """vNICs of others with an uplink, in segments of this one."""
        own = {one.segment for (of, _), one in self._counted() if of == host}
        found = [
            Remote(one, of)
            for (of, _), one in self._counted()
            if of != host and one.segment in own and self.uplinks[of] is not None
        ]
        return sorted(found, key=lambda remote: remote.vnic.name)

    def peers(self, host: str) -> list[Peer]:
        """Their hosts."""
        found: dict[str, set[int]] = {}
        for remote in self.remotes(host):
            found.setdefault(remote.host, set()).add(remote.vnic.segment)
        peers = []
        for of, segments in sorted(found.items()):
            up = self.uplinks[of]
            assert up is not None
            peers.append(Peer(of, up.address, up.port, tuple(sorted(segments)), up.arrival_budget))
        own = {one.segment for (of, _), one in self._counted() if of == host}
        for of, (up, segments) in self.away.items():
            if common := own & segments:
                peers.append(Peer(of, up.address, up.port, tuple(sorted(common)), up.arrival_budget))
        return sorted(peers, key=lambda peer: peer.host)

    def _counted(self) -> list[tuple[tuple[str, str], Vnic]]:
        return [(key, self.announced[key]) for key in self.counted]


vnics = st.builds(
    vnic, st.sampled_from("abcd"), st.integers(1, 4), st.sampled_from([1, 2, 3]), st.sampled_from([None, 5])
)


@st.composite
def registrations(draw: st.DrawFn, host: str) -> Registration:
    """Of up to four vNICs, some in a segment that is not allowed, with doubles."""
    ups = draw(
        st.lists(
            st.builds(uplink, st.just(host), st.sampled_from([4789, 4790]), st.sampled_from(["up", "x"]))
            | st.just(Uplink("lie", "10.9.9.9", 1, 1)),
            max_size=2,
        )
    )
    return Registration("r", tuple(ups), tuple(draw(st.lists(vnics, max_size=4))))


steps = st.lists(
    st.one_of(
        st.sampled_from(HOSTS).flatmap(
            lambda host: st.tuples(st.just("register"), st.just(host), registrations(host))
        ),
        st.tuples(st.just("leave"), st.sampled_from(HOSTS), st.none()),
        st.tuples(st.just("time"), st.integers(1, 9), st.none()),
    ),
    max_size=12,
)


@given(steps)
def test_against_the_model(todo: list[tuple[str, str | int, Registration | None]]) -> None:
    """What counts, what each host sees, and versions that grow exactly with what is seen."""
    real, model, now = registry(MOST), Model(), 100.0
    seen: dict[str, object] = {}
    for what, who, one in todo:
        fresh = str(who) if what == "register" and who not in model.until else ""
        if one is not None:
            real.register(str(who), one, now)
            model.register(str(who), one, now)
        elif what == "leave":
            real.leave(str(who))
            model.leave(str(who), now)
        else:
            now += int(who)
            assert real.expire(now) == sorted(host for host, until in model.until.items() if until <= now)
            model.expire(now)
        bumped, real.bumped = real.bumped, set()
        for host in HOSTS:
            assert real.registered(host) == (host in model.until)
            if host not in model.until:
                assert seen.pop(host, None) is None or host in bumped
                continue
            found = real.surroundings(host)
            assert list(found.remotes) == model.remotes(host)
            assert list(found.peers) == model.peers(host)
            counted = sum(of == host for of, _ in model.counted)
            assert real.vnics(host) == counted
            assert len(found.refused) + counted >= sum(of == host for of, _ in model.announced)
            assert (host in bumped) == (host == fresh or found != seen[host]), (host, found)
            seen[host] = found
        for name in "abcd":
            holder = real.holder(name)
            expected = {key for key in model.counted if key[1] == name}
            assert ({(holder[0], holder[1].name)} if holder else set()) == expected
    for host in HOSTS:
        real.leave(host)
    claims = real._claims
    left = (real._in, real._terms, claims._holders, claims._waiting, claims._crowded)
    assert [len(one) for one in left] == [0] * 5


def test_a_vm_moves() -> None:
    """The new host waits until the old one has let go; then it counts there, without another word."""
    real = registry()
    one = Registration("r", (uplink("h1"),), (vnic("a", 1),))
    real.register("h1", one, 0.0)
    real.register("h2", replace(one, uplinks=(uplink("h2"),)), 0.0)
    assert real.holder("a") == ("h1", vnic("a", 1))
    assert real.surroundings("h2").refused[0].reason == (
        "its name is that of vNIC a of host h1; one has to go"
    )
    real.publish(0.0)
    before = real.version("h2")
    real.register("h1", replace(one, vnics=()), 1.0)
    assert real.holder("a") == ("h2", vnic("a", 1))
    assert real.publish(1.0) == ["h1", "h2"] or real.publish(1.0) == []
    assert real.version("h2") > before
    assert real.surroundings("h2").refused == ()


def test_a_name_is_kept() -> None:
    """For the MAC that had it, wherever that is, and for its host; for others only after a lease."""
    real = registry()
    real.register("h1", Registration("r", (uplink("h1"),), (vnic("a", 1),)), 0.0)
    real.register("h2", Registration("r", (uplink("h2"),), (vnic("a", 2),)), 0.0)
    real.leave("h1")
    assert real.holder("a") is None
    assert real.refused("h2")[0].reason == (
        "its name was that of MAC 02:00:00:00:00:01 of host h1, and is kept for these for one lease"
    )
    real.register("h3", Registration("r", (uplink("h3"),), (vnic("a", 1),)), 2.0)
    assert real.holder("a") == ("h3", vnic("a", 1))
    real.register("h3", Registration("r", (uplink("h3"),), (vnic("a", 3),)), 3.0)
    assert real.holder("a") == ("h3", vnic("a", 3)), "another MAC of the same host"
    real.register("h2", Registration("r", (uplink("h2"),), (vnic("a", 2),)), 4.0)
    real.leave("h3")
    assert (real.expire(13.9), real.holder("a")) == ([], None)
    real.register("h2", Registration("r", (uplink("h2"),), (vnic("a", 2),)), 13.9)
    assert (real.expire(14.0), real.holder("a")) == ([], ("h2", vnic("a", 2)))
    assert real.refused("h2") == ()


def test_names_that_are_kept_are_bounded() -> None:
    """Of each host: one that announces ever new names takes nothing from others."""
    claims = Claims(100, LEASE)
    claims.replace("h1", set(), {"own": vnic("own", 1)}, 0.0)
    claims.replace("h1", {"own"}, {}, 0.0)
    for n in range(MOST_KEPT + 9):
        claims.replace("h2", set(), {f"x{n}": vnic(f"x{n}", 2)}, 0.0)
        claims.replace("h2", {f"x{n}"}, {}, 0.0)
    assert len(claims._kept) == 1 + MOST_KEPT
    assert "own" in claims._kept
    assert claims.expire(LEASE) == set()
    assert not claims._kept
    assert not claims._kept_of.total()


def test_hosts_that_lie() -> None:
    """Foreign segments, MACs and addresses do not count, and are named."""
    real = Registry({"h1": Allowed("10.0.0.1", frozenset({1}), (MacRange(0x020000000000, 40),))}, LEASE, 0.0)
    foreign = (
        vnic("a", 1, segment=9),
        replace(vnic("b", 1), mac="02:00:00:01:00:01"),
        vnic("c", 1),
        vnic("c", 2),
        vnic("d", 1),
    )
    ups = (Uplink("x", "10.0.0.2", 1, 1), uplink("h1"), uplink("h1", name="again"))
    real.register("h1", Registration("r", ups, foreign), 0.0)
    found = {one.item: one.reason for one in real.surroundings("h1").refused}
    assert "segment 9 is not in `segments`" in found["vnic a"]
    assert "MAC 02:00:00:01:00:01 is not in `macs`" in found["vnic b"]
    assert found["vnic c"] == "it is announced twice"
    assert "its MAC 02:00:00:00:00:01 in segment 1 is that of vNIC c of this host" in found["vnic d"]
    assert "its address is 10.0.0.2; the configuration has 10.0.0.1" in found["uplink x"]
    assert "uplink up has the same address" in found["uplink again"]
    assert (real.vnics("h1"), real.uplink("h1")) == (1, uplink("h1"))
    assert real.why_not("h1", "a") == found["vnic a"]
    assert real.why_not("h1", "z") == "it is not announced"


def test_an_arrival_is_about_what_its_host_was_told() -> None:
    """Its word counts from the view on that told it of these terms, also if it has been shown a newer one."""
    real = registry()
    sender = Registration("r", (uplink("h1"),), (vnic("a", 1, rate=5),))
    far = Registration("r", (uplink("h2"),), (vnic("b", 2),), (Arrival("a"),))

    def seen(now: float) -> int:
        real.publish(now)
        real.surroundings("h2")
        return real.version("h2")

    real.register("h1", sender, 0.0)
    real.register("h2", far, 0.0)
    assert real.arrival("h2", "a") is None
    first = seen(0.0)
    real.register("h2", far, 1.0)
    assert real.arrival("h2", "a") is None
    far = replace(far, view=first)
    real.register("h2", far, 1.0)
    assert real.arrival("h2", "a") == Arrival("a")
    real.register("h1", replace(sender, vnics=(vnic("a", 1, rate=6),)), 2.0)
    assert real.arrival("h2", "a") is None
    second = seen(2.0)
    assert second > first
    real.register("h2", far, 3.0)
    assert real.arrival("h2", "a") is None, "made from the view of before"
    real.register("h2", replace(far, view=second + 1), 3.0)
    assert real.arrival("h2", "a") is None, "a view that was never made here"
    real.register("h2", replace(far, view=second, arrivals=(Arrival("a", "no room"),)), 4.0)
    assert real.arrival("h2", "a") == Arrival("a", "no room")
    real.register("h1", replace(sender, vnics=(vnic("a", 1, rate=6), vnic("c", 3))), 5.0)
    assert real.arrival("h2", "a") == Arrival("a", "no room"), "another vNIC changes nothing of it"


def test_views_have_a_pace() -> None:
    """A host that changes again and again makes few versions for others; its own are there at once."""
    real = registry()
    real.register("h2", Registration("r", (uplink("h2"),), (vnic("b", 2),)), 0.0)
    versions, own = set(), set()
    for n in range(1, 101):
        one = Registration("r", (uplink("h1"),), (vnic("a", 1, rate=n),))
        assert real.register("h1", one, n / 100) == 1
        assert real.register("h1", one, n / 100) == 0
        real.publish(n / 100)
        versions.add(real.version("h2"))
        own.add(real.version("h1"))
    assert len(versions) <= 6
    real.publish(9.0)
    assert real.version("h2") > max(versions)
    assert not real.bumped


def test_what_the_configuration_lets_a_host_announce() -> None:
    """Names by patterns, addresses by prefixes, and how many vNICs."""
    networks = (ip_network("192.168.1.0/24"), ip_network("fd00::/64"))
    allowed = Allowed("10.0.0.1", frozenset({1}), ANY, ("web-*", "db"), 2, networks)
    real = Registry({"h1": allowed}, LEASE, 0.0)
    addresses = ("192.168.1.7", "10.0.0.1", "fd00::1", "fe80::1")
    vnics = (replace(vnic("web-1", 1), addresses=addresses), vnic("dbx", 2), vnic("db", 3), vnic("web-2", 4))
    real.register("h1", Registration("r", (uplink("h1"),), vnics), 0.0)
    found = {one.item: one.reason for one in real.refused("h1")}
    assert found["vnic dbx"].startswith("its name fits no pattern of `vnics`")
    assert found["vnic web-2"] == "it is one more than `vnics-at-most` of this host, 2"
    assert found["addresses of vnic web-1"].startswith("10.0.0.1, fe80::1: not in `addresses`")
    holder = real.holder("web-1")
    assert holder is not None
    assert holder[1].addresses == ("192.168.1.7", "fd00::1")


def test_the_word_of_a_far_host_that_is_taken_back() -> None:
    """A refusal counts at once, silence after a lease; nothing in the first lease after a start."""
    real, words = registry(), Words()
    real.register("h1", Registration("r", (uplink("h1"),), (vnic("a", 1),)), 20.0)
    far = Registration("r", (uplink("h2"),), (vnic("b", 2),))
    real.register("h2", far, 20.0)
    real.publish(20.0)
    requests = [path("a>b").request, path("o>b", lasting=True).request]

    def says(now: float, *arrivals: Arrival) -> dict[str, str]:
        real.register("h2", replace(far, arrivals=arrivals, view=real.version("h2")), now)
        return words.withdrawn(real, requests, now)

    assert words.withdrawn(real, requests, 9.0) == {}
    assert says(21.0, Arrival("a")) == {}
    assert says(22.0, Arrival("a", "no room")) == {"a>b": "host h2 admits vNIC a no more: no room"}
    assert says(23.0, Arrival("a")) == {}
    assert says(24.0) == {}
    assert says(33.9) == {}
    assert says(34.0) == {"a>b": "host h2 does not say any more that it admits vNIC a"}
    assert says(35.0, Arrival("a")) == {}


def test_the_time_of_leases_stands_still_with_the_controller() -> None:
    """After a standstill hosts have the time to register again."""
    clock = Clock(100.0)
    assert clock.look(100.2) == pytest.approx(100.2)
    assert clock.look(160.0) == pytest.approx(100.7)
    assert clock.look(159.0) == pytest.approx(100.7)
    assert clock.look(159.3) == pytest.approx(101.0)


def path(name: str, host: str = "h1", lasting: bool = False) -> Path:
    """A path."""
    key = FlowKey("10.0.0.1", "10.0.0.2", 5)
    request = PathRequest(name, host, "h2", key, 1, 1, 1, 1, 1, 1, lasting)
    return Path(request, Route(("l",), 0), 1, 1, 1, 1, PathState.ACTIVE)


def test_paths_whose_host_is_gone() -> None:
    """At once at the end of a lease, one lease later for a vNIC; nothing in the first lease after a start."""
    real, unclaimed = registry(), Unclaimed()
    wanted = [path("a>b").request, path("z>b").request, path("o>b", "h3", lasting=True).request]
    assert unclaimed.over(real, wanted, 9.9) == []
    real.register("h1", Registration("r", (), (vnic("a", 1),)), 9.9)
    assert unclaimed.over(real, wanted, 10.0) == []
    real.register("h1", Registration("r", (), (vnic("a", 1),)), 15.0)
    assert unclaimed.over(real, wanted, 19.9) == []
    assert unclaimed.over(real, wanted, 20.0) == ["z>b"]
    assert real.expire(24.9) == []
    assert real.expire(25.0) == ["h1"]
    assert unclaimed.over(real, wanted, 25.0) == ["a>b", "z>b"]


@given(st.lists(st.tuples(st.sampled_from(["p", "q"]), st.integers(0, 60), st.booleans())))
def test_no_late_frame_is_missing(reports: list[tuple[str, int, bool]]) -> None:
    """Lost, doubled and old reports change nothing of the sum; a new process begins anew."""
    totals, counted, real = Totals(), 0, {"p": 0, "q": 0}
    totals.begin("h", "first")
    for name, more, arrives in reports:
        real[name] += more
        if arrives:
            counted += totals.take("h", name, real[name])
            assert totals.take("h", name, real[name]) == 0
            assert totals.take("h", name, real[name] // 2) == 0
    counted += sum(totals.take("h", name, total) for name, total in real.items())
    assert counted == sum(real.values())
    totals.begin("h", "first")
    assert totals.take("h", "p", real["p"]) == 0
    totals.begin("h", "second")
    assert totals.take("h", "p", 3) == 3
    assert totals.take("h", "p", 2**53 - 1) == MOST_AT_ONCE
    totals.forget({"q"})
    assert totals._totals["h"].keys() <= {"q"}


def test_how_a_path_stands() -> None:
    """Violated until it is changed, or until no frame was late for the hold time."""
    standing, one = Standing(5.0), path("a>b")
    standing.told(one, Verdict.VIOLATED, ("why",), 10.0)
    assert standing.of(one) == ("violated", ("why",))
    standing.missed("a>b", 14.0)
    assert standing.pass_time({"a>b": one}, 18.9) == []
    assert standing.pass_time({"a>b": one}, 19.0) == ["a>b"]
    assert standing.of(one) == ("active", ())
    standing.told(one, Verdict.VIOLATED, ("why",), 20.0)
    other = replace(one, generation=2)
    assert standing.of(other) == ("active", ())
    assert standing.pass_time({"a>b": other}, 20.1) == ["a>b"]
    broken = replace(other, state=PathState.BROKEN)
    standing.told(broken, Verdict.VIOLATED, ("cut",), 30.0)
    assert standing.pass_time({"a>b": broken}, 99.0) == []
    assert standing.of(broken) == ("broken", ("cut",))
    assert standing.pass_time({}, 99.0) == []
    assert standing.of(broken) == ("broken", ())
