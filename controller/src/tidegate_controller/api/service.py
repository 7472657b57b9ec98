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
import logging
from typing import Any

from tidegate_controller import events as ev
from tidegate_controller.api import write
from tidegate_controller.api.problem import Code, Problem, busy
from tidegate_controller.config import Config
from tidegate_controller.decide.hosts import Registry
from tidegate_controller.decide.leases import Unclaimed
from tidegate_controller.decide.misses import Totals
from tidegate_controller.decide.standing import Standing
from tidegate_controller.model.hosts import Registration
from tidegate_controller.model.paths import Path, PathRequest
from tidegate_controller.runtime.loop import Busy, Runtime

LOOK = 0.2
"""s between two looks at paths and leases."""
ANSWER = 4.0
"""s after which a question whose change is still under way is answered with that; hosts give up at 5 s."""
PART = 64
"""Records of misses between which others have their turn."""

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
        self._led = False
        self._begin()

    def _begin(self) -> None:
        api, now = self.config.api, self.runtime.now
        # Versions of an earlier process are smaller, so no host takes a new view for an old one.
        self.registry = Registry(api.allowed, api.lease, now, int(now * 1000))
        self.totals, self.unclaimed = Totals(), Unclaimed()
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
        return bool(getattr(self.runtime, "leading", True))

    @property
    def term(self) -> int:
        """Of the leader."""
        return int(getattr(self.runtime, "term", 1))

    @property
    def leader(self) -> str | None:
        """The URL of the leader, if it is known."""
        url = getattr(self.runtime, "leader", None)
        return url[:300] if isinstance(url, str) else None

    def standby(self) -> Problem:
        """Another controller leads."""
        where = self.leader or "which one is not known"
        return Problem(Code.STANDBY, f"another controller leads: {where}", leader=self.leader, retry=1.0)

    # Time.

    async def run(self) -> None:
        """Looks at paths and leases, until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    def look(self) -> None:
        """What has changed since the last look, and what is over."""
        if not self.leads:
            if self._led:
                self._led = False
                self._wake_all()
            return
        if not self._led:
            self._led = True
            self._begin()
            self._wake_all()
        now, paths = self.runtime.now, self.engine.paths
        for host in self.registry.expire(now):
            log.warning("host %s: its lease is over", host)
        for name in self.unclaimed.over(self.registry, [path.request for path in paths.values()], now):
            self.let_go(name)
        for name in self.standing.pass_time(paths, now):
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
        """The core has changed a path of a host without its question, or cannot help it."""
        self.standing.told(change.path, change.verdict, change.reasons, self.runtime.now)
        self.registry.changed(change.host)
        self.wake()

    def wake(self) -> None:
        """Lets hosts with another version go on."""
        bumped, self.registry.bumped = self.registry.bumped, set()
        for host in bumped:
            if (event := self._waiting.pop(host, None)) is not None:
                event.set()

    def _wake_all(self) -> None:
        for event in self._waiting.values():
            event.set()
        self._waiting.clear()

    # Hosts.

    def register(self, host: str, one: Registration) -> None:
        """A host announces itself. Raises `Problem`."""
        registry = self.registry
        if not registry.allows(host):
            # It went while its request came in.
            raise Problem(Code.FORBIDDEN, f"host {host} is not in the controller's configuration")
        if not registry.registered(host):
            log.info("host %s registers", host)
        registry.register(host, one, self.runtime.now)
        self.totals.begin(host, one.run)
        self.wake()
        refused = registry.surroundings(host).refused
        if refused != self._refused.get(host, ()):
            self._refused[host] = refused
            for item in refused[:8]:
                log.warning("host %s: %s does not count: %s", host, item.item, ascii(item.reason))
            if len(refused) > 8:
                log.warning("host %s: %d announcements do not count", host, len(refused))

    def leave(self, host: str) -> None:
        """A host ends its registration, and its paths."""
        if self.registry.registered(host):
            log.info("host %s leaves", host)
        self.registry.leave(host)
        self._refused.pop(host, None)
        for name, path in list(self.engine.paths.items()):
            if path.request.source == host and not path.request.lasting:
                self.let_go(name)
        self.wake()

    async def wait(self, host: str, after: int, seconds: float) -> None:
        """Waits until the version is another one, or the registration is over; at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.leads and self.registry.registered(host) and self.registry.version(host) == after:
                    await self._waiting.setdefault(host, asyncio.Event()).wait()

    def view(self, host: str) -> dict[str, Any]:
        """What a registered host is to know."""
        registry, until = self.registry, self.registry.until(host)
        assert until is not None
        return {
            "version": registry.version(host),
            "term": self.term,
            "lease": max(0, int((until - self.runtime.now) * 1e9)),
            **write.surroundings(registry.surroundings(host)),
            "paths": [
                self.path(path)
                for _, path in sorted(self.engine.paths.items())
                if path.request.source == host
            ],
        }

    async def misses(self, host: str, records: list[dict[str, Any]]) -> None:
        """Takes totals of late frames of paths to this host."""
        runtime = self.runtime
        for number, one in enumerate(records, 1):
            name = one["name"]
            path = self.engine.paths.get(name)
            if path is None or path.request.target != host:
                self.ignored += 1
            elif count := self.totals.take(host, name, one["total"]):
                now = runtime.now
                self.late += count
                self.standing.missed(name, now)
                runtime.happened(ev.Missed(name, count, one["worst"], min(one["last"], now)))
            if not number % PART:
                await asyncio.sleep(0)

    # Paths.

    def path(self, path: Path) -> dict[str, Any]:
        """A path as it stands."""
        state, reasons = self.standing.of(path)
        return write.path(path, state, reasons, self.engine.misses.get(path.request.name, 0))

    def known(self, name: str) -> Path | None:
        """A path, also one that is just being installed."""
        path = self.engine.paths.get(name)
        running = self.engine.running.get(name)
        return path or (running.new if running is not None else None)

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
        """The path, if a change is under way that leaves it with these terms."""
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
        """A path is wanted no more."""
        return await self._answer(self.let_go(name), f"path {name} is being released; ask again")

    def let_go(self, name: str) -> "asyncio.Task[ev.Answer]":
        """Begins to release a path, once."""
        task = self._releasing.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self.runtime.release(name))
            self._releasing[name] = task
            task.add_done_callback(lambda done: self._released(name, done))
        return task

    def _released(self, name: str, task: "asyncio.Task[ev.Answer]") -> None:
        self._releasing.pop(name, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.warning("path %s is not released yet: %s", name, fault)
        self._compare(name)
        self.wake()

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
        tasks = [*(task for _, task in self._asked.values()), *self._releasing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
