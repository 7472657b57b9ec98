"""Which of several controllers leads: one key in etcd, held by a lease.

```text
 standby: look at PREFIX/leader ─ absent ─▶ lease ─▶ transaction: absent? put ─▶ leads
                                └ there ─▶ again            term = its create revision │
 leader:  renew the lease ◀────────────────────────────────────────────────────────────┘
            └ not renewed in time, or gone ─▶ Fenced, before another one can lead
```

The time of the lease counts from before the request that renewed it, by a clock that also counts while the
machine sleeps. So the leader's end of it is never after etcd's.
"""

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate_controller.state.etcd import (
    Client,
    EtcdError,
    Unreachable,
    b64,
    first_pair,
    get,
    is_created,
    put,
    unb64,
)
from tidegate_controller.state.store import Damaged, Fenced

LOOK = 0.2
"""s between two looks of a standby, and before a renewal that failed is tried again."""
RENEWALS = 5
"""Times that a lease is renewed in its length."""
MARGIN = 0.1
"""Part of the lease that is not used."""
COMPLAIN = 5.0
"""s between two lines about an etcd that does not answer."""
LEADER, SEQUENCE = "leader", "sequence"
LONGEST_URL = 2000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Leader:
    """Who leads."""

    term: int
    """Greater with each leader."""
    url: str
    """Of its API, as it states it; empty if it states none."""
    name: str
    """Host and process, for people."""


def clock() -> float:
    """s; goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """This process in the election."""

    def __init__(
        self, client: Client, prefix: str, lease: float, url: str = "", seen: Callable[[], None] | None = None
    ) -> None:
        """`lease` is in s; `url` is published while this process leads; `seen` is told of each new leader."""
        self.leader: Leader | None = None
        """The last one seen."""
        self.term = 0
        """While this process leads."""
        self.seen = seen
        self._client, self._lease, self._url = client, lease, url
        self.prefix = prefix
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._id = ""
        self._until = 0.0

    @property
    def holds(self) -> bool:
        """Whether this process leads, for certain."""
        return bool(self.term) and clock() < self._until

    async def campaign(self) -> int:
        """Returns the term as soon as this process leads. An etcd that does not answer is asked for ever."""
        complained = 0.0
        while True:
            try:
                if await self._look() and await self._try():
                    log.info("this controller leads, in term %d", self.term)
                    return self.term
            except (Unreachable, EtcdError) as error:
                if isinstance(error, EtcdError):
                    # Such as a lease that has ended.
                    self._id = ""
                if clock() - complained > COMPLAIN:
                    complained = clock()
                    log.warning("no leader can be elected: %s", error)
            await asyncio.sleep(LOOK)

    async def _look(self) -> bool:
        """Whether no controller leads."""
        found = await self._client.ask("kv/range", {"key": b64(self.prefix + LEADER)}, first_pair)
        # One with our lease is our own try, whose answer was lost.
        if not found or (self._id and found.get("lease") == self._id):
            return True
        self._saw(self._leader(found))
        await self._give_back()
        return False

    def _leader(self, pair: dict[str, Any]) -> Leader:
        try:
            value = json.loads(unb64(pair.get("value", "")))
            url, name, term = value["url"], value["name"], int(pair["create_revision"])
            if not isinstance(url, str) or not isinstance(name, str) or len(url) > LONGEST_URL:
                raise ValueError("no texts")
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"etcd {self.prefix}{LEADER}", f"it is no leader's ({error})") from None
        return Leader(term, url, name)

    def _saw(self, leader: Leader) -> None:
        if leader != self.leader:
            self.leader = leader
            log.info("%s leads, in term %d", leader.name, leader.term)
            if self.seen is not None:
                self.seen()

    async def _try(self) -> bool:
        """Asks for the lead."""
        await self._prepare()
        key = self.prefix + LEADER
        value = json.dumps({"url": self._url, "name": self._name})
        body = {
            "compare": [is_created(key, 0)],
            "success": [put(key, value, self._id), put(self.prefix + SEQUENCE, "0")],
            "failure": [get(key)],
        }
        term, found = await self._client.ask("kv/txn", body, _result)
        if not term:
            if found.get("lease") != self._id:
                return False
            term = self._leader(found).term
        if clock() >= self._until:
            return False
        self.term = term
        self.leader = Leader(term, self._url, self._name)
        return True

    async def _prepare(self) -> None:
        """Gets a lease of which all is left. That of a try before may have won already: it is renewed."""
        began = clock()
        if self._id:
            left = await self._client.ask("lease/keepalive", {"ID": self._id}, _time_to_live)
            if left > 0:
                self._until = self._end(began, left)
                return
            began = clock()
        wanted = {"TTL": str(round(self._lease)), "ID": "0"}
        self._id, left = await self._client.ask(
            "lease/grant", wanted, lambda answer: (str(int(answer["ID"])), _time_to_live(answer))
        )
        self._until = self._end(began, left)

    async def _give_back(self) -> None:
        """Ends a lease that is not used any more, if etcd answers."""
        lease, self._id = self._id, ""
        if lease and clock() < self._until:
            try:
                await self._client.call("lease/revoke", {"ID": lease})
            except (Unreachable, EtcdError) as error:
                log.info("the lease ends by itself: %s", error)

    def _end(self, began: float, left: int) -> float:
        # An etcd that grants more than was asked for does no harm to a leader that uses less.
        return began + min(left, self._lease) * (1 - MARGIN)

    async def hold(self) -> None:
        """Renews the lease. Raises `Fenced` before it ends, or if it is gone."""
        trouble, pause = "", self._lease / RENEWALS
        while True:
            # Renewed early: a member that does not answer leaves time to ask the others.
            await asyncio.sleep(max(0.0, min(pause, self._until - clock())))
            if not self.holds:
                raise Fenced(
                    "the lease of the lead ended without an answer of etcd"
                    f" ({trouble or 'this process was asleep'}); another controller may lead"
                )
            began = clock()
            try:
                async with asyncio.timeout(self._until - began):
                    left = await self._client.ask("lease/keepalive", {"ID": self._id}, _time_to_live)
            except TimeoutError:
                continue
            except Unreachable as error:
                trouble = str(error)
                log.warning("the lead is not renewed yet: %s", error)
                pause = LOOK
                continue
            except EtcdError as error:
                raise Fenced(f"the lead cannot be renewed: {error}") from error
            if left <= 0:
                raise Fenced("the lease of the lead is gone: another controller leads, or will")
            if not self.holds:
                continue
            self._until, pause = self._end(began, left), self._lease / RENEWALS

    async def resign(self) -> None:
        """Lets another one lead at once, if etcd answers."""
        self.term = 0
        await self._give_back()


def _time_to_live(answer: dict[str, Any]) -> int:
    """s of a lease; 0: it is gone."""
    return int(answer.get("TTL", 0))


def _result(answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The term, if the lead was got, else the leader's key."""
    if answer.get("succeeded"):
        term = int(answer["header"]["revision"])
        if term <= 0:
            raise ValueError("a term that is none")
        return term, {}
    return 0, first_pair(answer["responses"][0].get("response_range", {}))
