"""Keys of segments and used tokens in a real etcd: two controllers, lost answers, damage.

```text
 test ─ Keyring ─ SharedVault, Election ─HTTP─ etcd ─ etcdctl: what a hand does
```
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from tidegate_controller.state.election import Election
from tidegate_controller.trust.keyring import Keyring
from tidegate_controller.trust.ring import Times
from tidegate_controller.trust.roll import Member, Proof, Role, Roll
from tidegate_controller.trust.sealed import Box
from tidegate_controller.trust.secret import Secret
from tidegate_controller.trust.shared import SharedVault
from tidegate_controller.trust.stores import Row, StoreError, Use

from lab.etcd import Etcd, Lossy, alone

pytestmark = pytest.mark.abreast
LEASE = 15.0
KEK = Secret(bytes(32))
ROLL = Roll({"h1": Member(None, frozenset(range(1, 301)))})
HOST = Proof(Role.HOST, "h1", 1)
numbers = count(1)


@pytest.fixture(name="etcd", scope="module")
def _etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with alone(tmp_path_factory.mktemp("e")) as running:
        yield running


class One:
    """One controller's part."""

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self.client = Lossy(etcd.urls, None, LEASE / 6)
        self.election = Election(self.client, prefix, LEASE)
        self.vault = SharedVault(
            self.client, prefix, lambda: self.election.term if self.election.holds else 0
        )
        self.now = 1000.0
        self.keyring = Keyring(self.vault, Box(KEK), Times(100.0, 9.0), lambda: self.now)

    async def lead(self) -> None:
        """Be elected, and read."""
        async with asyncio.timeout(60):
            await self.election.campaign()
        await self.keyring.open(ROLL)

    @property
    def keys(self) -> list[dict[str, Any]]:
        """All keys of the host."""
        found: list[dict[str, Any]] = self.keyring.keys(HOST)["segments"]
        return found


def run(etcd: Etcd, test: Callable[[str], Awaitable[None]]) -> None:
    """Runs a test with a prefix of its own."""

    async def limited() -> None:
        async with asyncio.timeout(120):
            await test(f"/trust/{next(numbers)}/")

    etcd.stack.call(lambda: asyncio.run(limited()))


def test_the_next_leader_has_the_same_keys(etcd: Etcd) -> None:
    """And remembers tokens; the one before writes no more."""

    async def test(prefix: str) -> None:
        one, other = One(etcd, prefix), One(etcd, prefix)
        await one.lead()
        keys = one.keys
        assert len(keys) == 300
        assert await one.vault.first("m", "a", 1.0) == Use("a", 1.0)
        with pytest.raises(StoreError, match="does not lead"):
            await other.vault.first("m", "b", 2.0)
        term = one.election.term
        await one.election.resign()
        await other.lead()
        assert other.keys == keys
        assert await other.vault.first("m", "b", 2.0) == Use("a", 1.0)
        # As one that does not know yet that its lead is over.
        one.vault._term = lambda: term
        one.now += 1000
        with pytest.raises(StoreError, match="another controller leads"):
            await one.keyring.look()
        with pytest.raises(StoreError, match="another controller leads"):
            await one.vault.first("n", "b", 2.0)
        assert other.keys == keys
        assert keys[0]["key"] not in etcd.ctl("get", "--prefix", prefix)
        for part in (one, other):
            await part.vault.close()

    run(etcd, test)


def test_an_answer_that_is_lost(etcd: Etcd) -> None:
    """Keys stay as they are, then others are made; a token is used up by the same key only."""

    async def test(prefix: str) -> None:
        one = One(etcd, prefix)
        await one.lead()
        before = one.keys
        one.now += 91
        one.client.lose = 1
        with pytest.raises(StoreError, match="lost"):
            await one.keyring.look()
        assert one.keys == before
        with pytest.raises(StoreError, match="an earlier transaction was done without an answer"):
            await one.keyring.look()
        assert one.keys == before
        await one.keyring.look()
        announced = one.keys
        assert all(key["next"] for key in announced)
        one.client.lose = 1
        with pytest.raises(StoreError, match="lost"):
            await one.vault.first("m", "a", 1.0)
        assert await one.vault.first("m", "a", 2.0) == Use("a", 1.0)
        again = One(etcd, prefix)
        await one.election.resign()
        await again.lead()
        assert again.keys == announced
        for part in (one, again):
            await part.vault.close()

    run(etcd, test)


@pytest.mark.parametrize("value", ["", "x", "{}", '{"generation": 0, "sealed": "AAAA"}', "[]"])
def test_what_another_wrote(etcd: Etcd, value: str) -> None:
    """Is told, and never a fault of ours."""

    async def test(prefix: str) -> None:
        one = One(etcd, prefix)
        await one.election.campaign()
        etcd.ctl("put", f"{prefix}trust/rings/7", value)
        with pytest.raises(StoreError):
            await one.keyring.open(ROLL)
        etcd.ctl("put", f"{prefix}trust/used/m", value)
        with pytest.raises(StoreError):
            await one.vault.first("m", "a", 1.0)
        etcd.ctl("del", "--prefix", f"{prefix}trust/")
        await one.keyring.open(ROLL)
        etcd.ctl("put", f"{prefix}trust/sequence", value)
        with pytest.raises(StoreError, match="sequence is not as this controller"):
            await one.vault.save([Row(1, 1, os.urandom(9))])
        await one.vault.close()

    run(etcd, test)
