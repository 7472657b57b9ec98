"""What the API knows between two requests.

```text
 registrations, misses ─▶ Registry, Totals ─▶ Missed ─▶ Runtime
 paths of the core, TellHost, time ─▶ versions of views ─▶ hosts that wait
 leases and vNICs that are over ─▶ release
```

Paths are compared with those of the last look, so changes that were not told are seen, too. A standby
knows nothing of hosts; a controller that begins to lead begins anew.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterable
from typing import Any

from tidegate_controller import events as ev
from tidegate_controller.api import write
from tidegate_controller.api.buckets import Bucket
from tidegate_controller.api.problem import Code, Problem, busy
from tidegate_controller.api.views import Views
from tidegate_controller.config import Config
from tidegate_controller.decide.hosts import PACE, Registry
from tidegate_controller.decide.leases import Clock, Unclaimed
from tidegate_controller.decide.misses import Totals
from tidegate_controller.decide.standing import Standing
from tidegate_controller.decide.words import Words
from tidegate_controller.model.hosts import Registration
from tidegate_controller.model.paths import EthernetKey, Path, PathRequest, PathState
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.runtime.questions import Busy

LOOK = 0.2
"""s between two looks at paths and leases."""
ANSWER = 4.0
"""s after which a question whose change is still under way is answered with that; hosts give up at 5 s."""
OLDEST = 3.0
"""s; late frames that are new in a report are no older, since hosts report once a second. A host whose clock
is wrong would otherwise say for long after each change of a path that its late frames were before that."""
PART = 64
"""Records of misses between which others have their turn."""
MOST_ENDING = 32
"""Paths without a host that are released at one time; the others wait."""
LINES = (0.2, 20)
"""Lines/s of the log for one host, and how many at once."""

log = logging.getLogger(__name__)


class Service:
    """Of one controller."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        self.config, self.runtime = config, runtime
        self.engine = runtime.core.engine
        self.ignored = 0
        """Records of misses of paths that are not there, or not of their host."""
        self.late = 0
        """Late frames of all reports."""
        self._waiting: dict[str, asyncio.Event] = {}
        self._asked: dict[str, tuple[PathRequest, asyncio.Task[ev.Answer]]] = {}
        self._releasing: dict[str, asyncio.Task[ev.Answer]] = {}
        self._ending: dict[str, None] = {}
        """Paths that are to be released, in order."""
        self._unreleased: list[str] = []
        """Why paths could not be released since the last look."""
        self._lines: dict[str, Bucket] = {}
        self._later: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        api, now = self.config.api, self.runtime.now
        self.clock = Clock(now)
        # Versions of an earlier process are smaller, so no host takes a new view for an old one.
        behind = self.runtime.core.best_effort.places.all()
        self.registry = Registry(api.allowed, api.lease, now, int(now * 1_000_000), behind=behind)
        self._views = Views(self.registry)
        self.totals, self.unclaimed, self._words = Totals(), Unclaimed(), Words()
        self._vlans: frozenset[int] = frozenset()
        """What the core knows of plain NICs."""
        self._withdrawn: dict[str, str] = {}
        """Why far hosts stand by paths no more."""
        self.standing = Standing(self.config.settings.hold)
        self._seen: dict[str, Path] = {}
        self._refused: dict[str, object] = {}
        """What is in the log already."""

    def take(self, config: Config) -> None:
        """Takes hosts of a configuration that is read again. Those that are gone leave, with their paths."""
        allowed = config.api.allowed
        if self.leads:
            for host in sorted(self.config.api.allowed.keys() - allowed.keys()):
                self.leave(host)
        self.config = config
        self.registry.allow(allowed)
        self.wake()

    # Who leads.

    @property
    def leads(self) -> bool:
        """Whether this controller decides."""
        return self.runtime.leading

    @property
    def term(self) -> int:
        """Of the leader."""
        return self.runtime.term

    @property
    def leader(self) -> str | None:
        """The URL of the leader, if it is known."""
        url = self.runtime.leader
        return url[:300] if url is not None else None

    def lead(self) -> None:
        """Begins anew: this controller leads from now on."""
        self._begin()
        self._ending.clear()
        self._wake_all()

    def standby(self) -> Problem:
        """Returns the problem that another controller leads."""
        where = self.leader or "which one is not known"
        return Problem(Code.STANDBY, f"another controller leads: {where}", leader=self.leader, retry=1.0)

    # Time.

    async def run(self) -> None:
        """Looks at paths and leases, until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    def look(self) -> None:
        """Finds what has changed since the last look, and what is over."""
        if not self.leads:
            self._wake_all()
            return
        now, paths = self.runtime.now, self.engine.paths
        time = self.clock.look(now)
        for host in self.registry.expire(time):
            self._say(host, logging.WARNING, "its lease is over")
        requests = [path.request for path in paths.values()]
        self.end(self.unclaimed.over(self.registry, requests, time), "no host announces their vNICs")
        if self._unreleased:
            log.warning("%d paths are not released yet: %s", len(self._unreleased), self._unreleased[-1])
            self._unreleased.clear()
        before, self._withdrawn = self._withdrawn, self._words.withdrawn(self.registry, requests, time)
        differ = {name for name, _ in before.items() ^ self._withdrawn.items() if name in paths}
        for name in differ.union(self.standing.pass_time(paths, now)):
            self.registry.changed(paths[name].request.source)
        gone = self._seen.keys() - paths.keys()
        for name in [*gone, *(name for name, path in paths.items() if self._seen.get(name) is not path)]:
            self._compare(name)
        if gone:
            self.totals.forget(set(paths))
        self.wake()

    def _compare(self, name: str) -> None:
        """Lets the hosts of a path see what has changed of it."""
        before, path = self._seen.pop(name, None), self.engine.paths.get(name)
        if path is not None:
            self._seen[name] = path
        if before is not path:
            for host in {one.request.source for one in (before, path) if one is not None}:
                self.registry.changed(host)

    def told(self, change: ev.TellHost) -> None:
        """Hears that the core has changed a path without its host's question, or cannot help it."""
        self.standing.told(change.path, change.verdict, change.reasons, self.runtime.now)
        self.registry.changed(change.host)
        self.wake()

    def wake(self) -> None:
        """Lets hosts with another version go on, and the core know what is behind plain NICs."""
        if self.leads and (vlans := self.registry.all_vlans()) != self._vlans:
            self._vlans = vlans
            self.runtime.happened(ev.VlansAnnounced(vlans))
        if self.leads and (moved := self.registry.moved):
            self.registry.moved = set()
            self.runtime.happened(ev.PlainNics({host: self.registry.places.behind(host) for host in moved}))
        for host in self.registry.publish(self.runtime.now):
            if (event := self._waiting.pop(host, None)) is not None:
                event.set()
        if self.registry.bumped and self._later is None:
            self._later = asyncio.get_running_loop().call_later(PACE, self._wake_later)

    def _wake_later(self) -> None:
        self._later = None
        self.wake()

    def _wake_all(self) -> None:
        for event in self._waiting.values():
            event.set()
        self._waiting.clear()

    # Hosts.

    def register(self, host: str, one: Registration) -> int:
        """Takes what a host announces. Returns how many other hosts see a difference.

        Raises `Problem`.
        """
        registry = self.registry
        if not registry.allows(host):
            # It went while its request came in.
            raise Problem(Code.FORBIDDEN, f"host {host} is not in the controller's configuration")
        if not registry.registered(host):
            self._say(host, logging.INFO, "registers")
        others = registry.register(host, one, self.clock.look(self.runtime.now))
        self.totals.begin(host, one.run)
        self.wake()
        refused = registry.refused(host)
        if refused != self._refused.get(host, ()):
            self._refused[host] = refused
            for item in refused[:8]:
                self._say(host, logging.WARNING, f"{item.item} does not count: {item.reason!a}")
            if len(refused) > 8:
                self._say(host, logging.WARNING, f"{len(refused)} announcements do not count")
        return others

    def leave(self, host: str) -> int:
        """Ends the registration of a host, and its paths. Returns how many other hosts see a difference."""
        if self.registry.registered(host):
            self._say(host, logging.INFO, "leaves")
        others = self.registry.leave(host)
        self._refused.pop(host, None)
        own = [
            name
            for name, path in self.engine.paths.items()
            if path.request.source == host and not path.request.lasting
        ]
        self.end(own, f"host {host} leaves")
        self.wake()
        return others

    def lease_left(self, host: str) -> int | None:
        """Returns the ns until a host's registration ends; `None`: it is not registered."""
        until = self.registry.until(host)
        return None if until is None else max(0, int((until - self.clock.time) * 1e9))

    def _say(self, host: str, level: int, text: str) -> None:
        """Writes a line about a host, unless it has had its lines."""
        lines = self._lines.setdefault(host, Bucket(*LINES))
        now = self.runtime.now
        if lines.take(2, now) == 0:
            lines.give(1)
            log.log(level, "host %s: %s", host, text)
        elif lines.take(1, now) == 0:
            log.warning("host %s: more lines than %g/s; further ones are left out", host, LINES[0])

    async def wait(self, host: str, after: int, seconds: float) -> None:
        """Waits until the version is another one, or the registration is over; at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.leads and self.registry.registered(host) and self.registry.version(host) == after:
                    await self._waiting.setdefault(host, asyncio.Event()).wait()

    def view(self, host: str) -> str:
        """Returns what a registered host is to know, as JSON."""
        own = [path for path in self.engine.paths.values() if path.request.source == host]
        own.sort(key=lambda path: path.request.name)
        found = {
            "version": self.registry.version(host),
            "term": self.term,
            "lease": self.lease_left(host),
            "paths": [self.path(path) for path in own],
        }
        return f"{json.dumps(found)[:-1]}, {self._views.text(host)}}}"

    async def misses(self, host: str, records: list[dict[str, Any]]) -> None:
        """Takes totals of late frames of paths to this host."""
        runtime = self.runtime
        for number, one in enumerate(records, 1):
            name = one["name"]
            path = self.engine.paths.get(name)
            # The first total after a start may be of long ago.
            known = self.totals.knows(host, name)
            if path is None or path.request.target != host or isinstance(path.request.key, EthernetKey):
                # Over a plain NIC nothing judges arrivals, so no host can know of any.
                self.ignored += 1
            elif count := self.totals.take(host, name, one["total"]):
                now = runtime.now
                self.late += count
                self.standing.missed(name, now)
                when = max(one["last"], now - OLDEST) if known else one["last"]
                runtime.happened(ev.Missed(name, count, one["worst"], min(when, now)))
            if not number % PART:
                await asyncio.sleep(0)

    # Paths.

    def path(self, path: Path) -> dict[str, Any]:
        """Returns a path as it stands."""
        state, reasons = self.state(path)
        return write.path(path, state, reasons, self.engine.misses.get(path.request.name, 0))

    def state(self, path: Path) -> tuple[str, tuple[str, ...]]:
        """Returns the state of a path, and why."""
        state, reasons = self.standing.of(path)
        why = self._withdrawn.get(path.request.name)
        if why is None or path.state not in (PathState.ACTIVE, PathState.MOVING):
            return state, reasons
        return "violated", (why, *reasons)

    def known(self, name: str) -> Path | None:
        """Finds a path, also one that is just being installed."""
        path = self.engine.paths.get(name)
        running = self.engine.running.get(name)
        return path or (running.new if running is not None else None)

    def requests(self) -> Iterable[PathRequest]:
        """Returns what paths were asked for, those on their way among them."""
        running = self.engine.running
        fresh = {name: one.new for name, one in running.items() if one.new is not None}
        return [path.request for path in {**self.engine.paths, **fresh}.values()]

    async def ask(self, request: PathRequest) -> ev.Answer:
        """Asks the core; the same question while it is under way waits for the same answer."""
        asked = self._asked.get(request.name)
        if asked is None:
            if request.name in self.engine.running:
                if (path := self._only_moves(request)) is not None:
                    return ev.Answer(0, path)
                raise busy(f"path {request.name} is being changed; ask again")
            task = asyncio.get_running_loop().create_task(self.runtime.ask(request))
            asked = self._asked[request.name] = (request, task)
            task.add_done_callback(lambda done: self._done(request.name, done))
        elif asked[0] != request:
            raise busy(f"path {request.name} is being changed; ask again")
        return await self._answer(asked[1], f"path {request.name} is being installed; ask again")

    def _only_moves(self, request: PathRequest) -> Path | None:
        """Returns the path if a change is under way that leaves it with these terms."""
        path, running = self.engine.paths.get(request.name), self.engine.running[request.name]
        if path is None or running.new is None or running.release is not None:
            return None
        return path if path.request == running.new.request == request else None

    def _done(self, name: str, task: "asyncio.Task[ev.Answer]") -> None:
        self._asked.pop(name, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.warning("path %s: %s", name, fault)
        self._compare(name)
        self.wake()

    async def release(self, name: str) -> ev.Answer:
        """Releases a path that is wanted no more."""
        return await self._answer(self.let_go(name), f"path {name} is being released; ask again")

    def let_go(self, name: str) -> "asyncio.Task[ev.Answer]":
        """Begins to release a path, once."""
        task = self._releasing.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self.runtime.release(name))
            self._releasing[name] = task
            task.add_done_callback(lambda done: self._released(name, done))
        return task

    def end(self, names: Iterable[str], why: str) -> None:
        """Releases paths, a few at one time."""
        fresh = [name for name in names if name not in self._ending and name not in self._releasing]
        if fresh:
            log.info("%d paths end, %s the first: %s", len(fresh), fresh[0], why)
            self._ending.update(dict.fromkeys(fresh))
            self._end_some()

    def _end_some(self) -> None:
        while self._ending and len(self._releasing) < MOST_ENDING:
            name = next(iter(self._ending))
            del self._ending[name]
            if name in self.engine.paths:
                self.let_go(name)

    def _released(self, name: str, task: "asyncio.Task[ev.Answer]") -> None:
        self._releasing.pop(name, None)
        if task.cancelled():
            return
        if (fault := task.exception()) is not None:
            self._unreleased.append(f"path {name}: {fault}")
        self._compare(name)
        self.wake()
        self._end_some()

    async def _answer(self, task: "asyncio.Task[ev.Answer]", meanwhile: str) -> ev.Answer:
        try:
            async with asyncio.timeout(ANSWER):
                # A client that is gone does not undo what it asked for.
                answer = await asyncio.shield(task)
        except TimeoutError:
            raise busy(meanwhile) from None
        except Busy as error:
            raise busy(str(error)) from None
        except Exception:
            if not self.leads:
                raise self.standby() from None
            raise
        return answer

    async def stop(self) -> None:
        """Ends what is under way; the core goes on with changes, or a successor undoes them."""
        self._ending.clear()
        if self._later is not None:
            self._later.cancel()
        tasks = [*(task for _, task in self._asked.values()), *self._releasing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
