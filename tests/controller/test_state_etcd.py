"""The state in a real etcd of one member: election, fencing, lost answers, damage.

```text
 test ─ Shared, Election ─HTTP─ etcd ─ etcdctl: what a partition, another leader or a hand does
```
"""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tidegate_controller import events as ev
from tidegate_controller.config.state import StateEtcd
from tidegate_controller.decide.admission import Level, LinkTerms
from tidegate_controller.decide.flood import Tree
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import FlowKey, PathRequest, PathState, Route
from tidegate_controller.model.paths import Path as NetworkPath
from tidegate_controller.model.topology import Link, Port, Topology
from tidegate_controller.runtime.kept import Kept, Save
from tidegate_controller.state.election import Election, clock
from tidegate_controller.state.etcd import b64
from tidegate_controller.state.opening import opened
from tidegate_controller.state.shared import Shared
from tidegate_controller.state.store import MOST_SAVES, Damaged, Fenced, Store

from lab.etcd import Etcd, Lossy, alone
from lab.need import need_commands

pytestmark = pytest.mark.abreast
LEASE = 15.0
"""s; long, since only one test renews it, and machines are loaded."""
SHORT = 5.0
NETWORK = ev.SaveNetwork(Topology({"s1"}), (), Tree(1, frozenset()))
numbers = count(1)


@pytest.fixture(name="etcd", scope="module")
def _etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with alone(tmp_path_factory.mktemp("e")) as running:
        yield running


class One:
    """One controller's part."""

    def __init__(
        self, etcd: Etcd, prefix: str, url: str = "", forget: bool = False, lease: float = LEASE
    ) -> None:
        self.client = Lossy(etcd.urls, None, lease / 6)
        self.election = Election(self.client, prefix, lease, url)
        self.store = Shared(self.client, self.election, forget)

    async def lead(self) -> Kept:
        """Be elected, and load."""
        async with asyncio.timeout(60):
            await self.election.campaign()
        return await self.store.load()


def run(etcd: Etcd, test: Callable[[str], Awaitable[None]]) -> None:
    """Runs a test with a prefix of its own."""

    async def limited() -> None:
        async with asyncio.timeout(120):
            await test(f"/test/{next(numbers)}/")

    etcd.stack.call(lambda: asyncio.run(limited()))


def path(name: str = "v>r", generation: int = 1) -> NetworkPath:
    """Any path."""
    request = PathRequest(name, "h1", "h2", FlowKey("10.0.0.1", "10.0.0.2", 9), 40, 10, 10, 10, 10, 10)
    return NetworkPath(request, Route(("a", "b"), 0), generation, 7, 0, 0, PathState.ACTIVE, 1)


def saves(number: int = 200) -> list[Save]:
    """Of all kinds, for many paths."""
    found: list[Save] = [NETWORK]
    for n in range(number):
        one, next_one = path(f"v{n}>r"), path(f"v{n}>r", 2)
        found += [ev.SaveChange(None, one, (), (), frozenset()), ev.SavePath(one)]
        found += [ev.SaveDecision(Decision(n + 1, 1.5, one.request.name, "é", Verdict.ADMITTED, ("a",)))]
        if n % 3 == 0:
            found.append(ev.SaveChange(one, next_one, (), (), frozenset({"x"})))
        if n % 9 == 0:
            found.append(ev.DropPath(one.request.name))
    return found


def test_what_was_kept_is_there(etcd: Etcd) -> None:
    """In several transactions and pages; the next leader's term is greater, and it is seen."""

    async def test(prefix: str) -> None:
        one, kept = One(etcd, prefix, "https://one"), Kept()
        assert await one.lead() == kept
        all_saves = saves()
        for first in range(0, len(all_saves), MOST_SAVES):
            await one.store.write(all_saves[first : first + MOST_SAVES])
        for save in all_saves:
            kept.take(save)
        other = One(etcd, prefix, "https://other")
        campaign = asyncio.create_task(other.lead())
        await asyncio.sleep(1)
        assert not campaign.done()
        assert other.election.leader == one.election.leader
        assert other.election.leader is not None
        assert (other.election.leader.url, other.election.leader.term) == ("https://one", one.election.term)
        began = clock()
        await one.store.close()
        assert await campaign == kept
        counted = f"{len(kept.paths)} paths, {len(kept.decisions)} decisions"
        print(f"{counted}: taken over {clock() - began:.2f} s later")
        assert other.election.term > one.election.term
        await other.store.write([ev.DropPath("v1>r")])
        await other.store.close()

    run(etcd, test)


def test_an_old_leader_cannot_write(etcd: Etcd) -> None:
    """Its lease ended without its knowledge; what it writes changes nothing."""

    async def test(prefix: str) -> None:
        one, other = One(etcd, prefix), One(etcd, prefix)
        await one.lead()
        await one.store.write([NETWORK])
        await one.client.call("lease/revoke", {"ID": one.election._id})
        assert one.election.holds
        with pytest.raises(Fenced, match="the lead of this controller has ended"):
            await one.store.write([ev.SavePath(path())])
        await other.lead()
        with pytest.raises(Fenced, match=f"led in term {one.election.term}; another one leads now"):
            await one.store.write([ev.SavePath(path())])
        with pytest.raises(Fenced, match="the lease of the lead is gone"):
            await one.election.hold()
        await other.store.write([ev.SaveDecision(Decision(1, 1.0, "v", "miss", Verdict.KEPT, ()))])
        await other.store.close()
        third = One(etcd, prefix)
        kept = await third.lead()
        assert (kept.paths, kept.network, kept.decided) == ({}, NETWORK, 1)
        for each in (one, third):
            await each.store.close()

    run(etcd, test)


def test_answers_that_are_lost(etcd: Etcd) -> None:
    """What was done is not done again, also not when it comes late."""

    async def test(prefix: str) -> None:
        one = One(etcd, prefix)
        one.client.lose = 3
        await one.lead()
        late: list[Mapping[str, Any]] = []
        call = one.client.call

        async def remember(where: str, body: Mapping[str, Any]) -> dict[str, Any]:
            if where == "kv/txn":
                late.append(body)
            return await call(where, body)

        one.client.call = remember  # type: ignore[method-assign,assignment]
        await one.store.write([NETWORK])
        for generation in range(1, 6):
            one.client.lose = generation % 3
            await one.store.write([ev.SavePath(path(generation=generation))])
        for body in late:
            assert not (await call("kv/txn", body)).get("succeeded")
        await one.store.close()
        other = One(etcd, prefix)
        assert (await other.lead()).paths == {"v>r": path(generation=5)}
        await other.store.close()

    run(etcd, test)


@pytest.mark.nightly
def test_a_partition(etcd: Etcd) -> None:
    """A leader that reaches no etcd stops before its lease ends there; a write fails with the reason."""

    async def test(prefix: str) -> None:
        one = One(etcd, prefix, lease=SHORT)
        await one.lead()
        holding = asyncio.create_task(one.election.hold())
        await asyncio.sleep(SHORT * 1.5)
        assert one.election.holds
        began = clock()
        etcd.hold()
        try:
            with pytest.raises(Fenced, match="the lead ended before an answer came"):
                await one.store.write([NETWORK])
            assert not one.election.holds
            with pytest.raises(Fenced, match="ended without an answer of etcd"):
                await holding
            took = clock() - began
        finally:
            etcd.go_on()
        print(f"stopped {took:.2f} s after the partition began; the lease has {SHORT:g} s")
        await one.store.close()

    run(etcd, test)


def test_damage(etcd: Etcd) -> None:
    """Records that do not parse, another format, others' keys; `--forget` begins anew."""

    async def lead(prefix: str, forget: bool = False) -> Kept:
        one = One(etcd, prefix, forget=forget)
        try:
            return await one.lead()
        finally:
            await one.store.close()

    async def test(prefix: str) -> None:
        one = One(etcd, prefix)
        await one.lead()
        await one.store.write([NETWORK, ev.SavePath(path())])
        await one.store.close()
        for key, text in (("records/path/v>r", "incorrect header"), ("format", "incorrect header")):
            before = await one.client.call("kv/range", {"key": b64(prefix + key)})
            etcd.ctl("put", prefix + key, "garbage")
            with pytest.raises(Damaged, match=text):
                await lead(prefix)
            put_back = {"key": b64(prefix + key), "value": before["kvs"][0]["value"]}
            await one.client.call("kv/put", put_back)
        etcd.ctl("del", prefix + "format")
        with pytest.raises(Damaged, match="`format` is not 1"):
            await lead(prefix)
        assert await lead(prefix, forget=True) == Kept()
        assert await lead(prefix) == Kept()
        await one.client.close()

    run(etcd, test)


def certificates(folder: Path) -> None:
    """An authority, and a certificate of it for 127.0.0.1 that both ends use."""
    folder.mkdir()
    extension = folder / "extension"
    extension.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    made = ("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    authority = ("-x509", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2")
    signed = ("openssl", "x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2")
    for words in (
        (*made, *authority),
        (*made, "-subj", "/CN=etcd", "-keyout", "key.pem", "-out", "csr"),
        (*signed, "-CAcreateserial", "-extfile", "extension", "-out", "cert.pem"),
    ):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)


def test_by_tls(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Both ends show certificates; without one, and with an unknown authority, no leader is elected."""
    need_commands("openssl")
    folder = tmp_path_factory.mktemp("t")
    tls, other = folder / "tls", folder / "other"
    certificates(tls)
    certificates(other)

    async def test() -> None:
        def opened_with(ca: Path, own: Path | None) -> tuple[Store, Election]:
            pair = (own / "cert.pem", own / "key.pem") if own else (None, None)
            state = StateEtcd(tuple(etcd.urls), "/t/", LEASE, ca / "ca.pem", *pair)
            store, election = opened(state, "https://me")
            assert election is not None
            return store, election

        store, election = opened_with(tls, tls)
        async with asyncio.timeout(60):
            await election.campaign()
        assert await store.load() == Kept()
        await store.write([NETWORK])
        await store.close()
        for ca, own in ((tls, None), (other, tls), (tls, other)):
            store, election = opened_with(ca, own)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await election.campaign()
            await store.close()
        store, election = opened_with(tls, tls)
        async with asyncio.timeout(60):
            await election.campaign()
        assert (await store.load()).network == NETWORK
        await store.close()

    with alone(folder, tls) as etcd:
        etcd.stack.call(lambda: asyncio.run(test()))


def test_the_largest_network(etcd: Etcd) -> None:
    """As many links as the configuration may have fit into etcd's largest request."""
    levels = (Level(200_000, 5000), Level(2_000_000, 5000))
    links = {
        Link(Port(f"switch-{n // 40}", n % 40 + 1), Port(f"switch-{n * 7 % 211}", n % 43 + 1))
        for n in range(8192)
    }
    terms = tuple(
        LinkTerms(one.name, one.source.switch, one.target.switch, 10**9 + n, 10**8 * 5 + n, levels)
        for n, one in enumerate(sorted(links))
    )
    switches = {one.source.switch for one in links}
    network = ev.SaveNetwork(Topology(switches, links), terms, Tree(1, frozenset(links)))

    async def test(prefix: str) -> None:
        one = One(etcd, prefix)
        await one.lead()
        holding = asyncio.create_task(one.election.hold())
        await one.store.write([network])
        await one.store.close()
        holding.cancel()
        other = One(etcd, prefix)
        assert (await other.lead()).network == network
        await other.store.close()

    run(etcd, test)
