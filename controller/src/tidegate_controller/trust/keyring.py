"""The keys of all segments: turned in time, stored before a host gets them.

```text
 Roll ─▶ share ─▶ ┌ rings ┐ ─▶ keys(proof): those of the host's segments, by certificate alone
 clock ─▶ turn ─▶ └───▲───┘
                      └── sealed and durable first ─▶ Store
```

A host asks again after a third of the overlap: two of its requests may fail, and it still has asked within
the overlap. While the store fails, keys stay as they are, and windows begin later.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from tidegate_controller.trust import ring as rings
from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.ring import Ring, Times
from tidegate_controller.trust.roll import Proof, Role, Roll
from tidegate_controller.trust.sealed import Box
from tidegate_controller.trust.stores import Store, StoreError

LONGEST_REFRESH = 10_000.0
"""s: the API's bound."""
LOOKS = 8
"""Times in an overlap that it is looked what is due."""
LOST = 2
"""An overlap's part: if nothing was looked at for so long, no host could ask either."""

log = logging.getLogger(__name__)


class Keyring:
    """Answers the operation `keys`."""

    def __init__(
        self,
        store: Store,
        box: Box,
        times: Times,
        now: Callable[[], float],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`now` is Unix time (s) that never goes back."""
        self._store, self._box, self._times = store, box, times
        self._now, self._random = now, random
        self._rings: dict[int, Ring] = {}
        self._roll = Roll()
        self._looked = 0.0
        self._opened = False
        self._turn = asyncio.Lock()

    async def open(self, roll: Roll) -> None:
        """Reads what is stored; new segments get keys. Raises `StoreError`."""
        now = self._now()
        found = [self._box.open(row) for row in await self._store.load()]
        self._rings = {ring.segment: rings.resume(ring, now) for ring in found}
        self._looked, self._opened = now, True
        await self.share(roll)

    async def share(self, roll: Roll) -> None:
        """Takes what hosts may have from now on. Raises `StoreError`; then new segments have no key yet."""
        self._roll = roll
        if self._opened:
            await self.look()

    async def look(self) -> None:
        """Does what is due. Raises `StoreError`, and then nothing is changed."""
        async with self._turn:
            now = self._now()
            late = now - self._looked > self._times.overlap / LOST
            changed: dict[int, Ring] = {}
            members = self._roll.segments()
            for segment in self._rings.keys() | members.keys():
                before = self._rings.get(segment)
                ring = self._next(segment, before, members.get(segment, frozenset()), now, late)
                if ring is not before:
                    changed[segment] = ring
            if changed:
                rows = [self._box.seal(ring) for ring in changed.values()]
                await self._store.save(rows)
                # What took long to store begins later: `began` must not be before the first answer.
                after = self._now()
                for segment, ring in changed.items():
                    self._rings[segment] = rings.stored(ring, now, after)
            self._looked = self._now()

    def _next(self, segment: int, before: Ring | None, hosts: frozenset[str], now: float, late: bool) -> Ring:
        if before is None:
            return rings.first(segment, hosts, now, self._random)
        ring = before if before.hosts == hosts else rings.share(before, hosts)
        if late:
            ring = rings.resume(ring, now)
        # A segment without hosts keeps its keys, in case it comes back.
        return rings.turn(ring, now, self._times, self._random) if hosts else ring

    async def run(self) -> None:
        """Turns keys in time, until it is cancelled."""
        told = ""
        while True:
            await asyncio.sleep(self._times.overlap / LOOKS)
            try:
                await self.look()
            except StoreError as error:
                if str(error) != told:
                    log.error("keys of segments stay as they are: %s", error)
                told = str(error)
            else:
                told = ""

    def keys(self, proof: Proof) -> dict[str, Any]:
        """Returns `SegmentKeys` of the API. Raises `Refusal`."""
        if proof.role != Role.HOST or proof.serial is None:
            raise Refusal("forbidden", "keys of segments go to hosts alone, by their certificates")
        member = self._roll.members.get(proof.name)
        if member is None:
            raise Refusal("forbidden", f"host {proof.name[:60]!r} is not in the controller's configuration")
        found = []
        for segment in sorted(member.segments):
            ring = self._rings.get(segment)
            if ring is None or proof.name not in ring.hosts:
                raise Refusal("busy", f"the key of segment {segment} is not stored yet; ask again later")
            key, other = rings.answer(ring)
            found.append(
                {
                    "segment": segment,
                    "key": key.reveal().hex(),
                    "next": None if other is None else other.reveal().hex(),
                }
            )
        refresh = min(self._times.overlap / 3, LONGEST_REFRESH)
        return {"segments": found, "refresh": int(refresh * 1e9)}
