"""Carries out the core's effects by the edges, and turns their events into the core's.

```text
 Server: ports, LLDP ─▶ ┌ Seen ┐ ─▶ TopologyChanged ─▶ ┌──────┐   ┌────────┐ ─▶ Install, Sync ─▶ Switch
 Database: BFD ───────▶ └──────┘                       │ Core │ ─▶│ Outbox │ ─▶ SetQueues ─────▶ Database
 ask, release ────────────────────▶ Requested ... ───▶ └──────┘   └────────┘ ─▶ Answer, TellHost
 timers, counters of queues ──────▶ Tick, Sampled         ▲           ▲ durable
 answers of switches, databases ──▶ SwitchDone, ... ──────┘         Store
```

One thread; an event is handled whole before the next one. A fault of the core, or a change that cannot be
made durable, ends the process: a successor goes on with what was kept.

Where controllers are several, this one is a standby until it is elected: switches have sessions with it and
see it as SLAVE; it decides nothing, and asks no database. Then it loads what was kept, and becomes their
MASTER.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from tidegate_controller import events as ev
from tidegate_controller.config import Config
from tidegate_controller.core import Core
from tidegate_controller.model.paths import PathRequest
from tidegate_controller.model.topology import Port, Topology
from tidegate_controller.openflow import codec, server
from tidegate_controller.openflow.lldp import Discovery
from tidegate_controller.openflow.replies import PortState
from tidegate_controller.openflow.session import Session
from tidegate_controller.ovsdb import events as db
from tidegate_controller.ovsdb.session import Database
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.outbox import Outbox
from tidegate_controller.runtime.questions import Busy, Questions
from tidegate_controller.runtime.queues import Queues
from tidegate_controller.runtime.roles import assume
from tidegate_controller.runtime.sampling import Sampling
from tidegate_controller.runtime.secure import Secure
from tidegate_controller.runtime.seen import Seen
from tidegate_controller.runtime.start import restore
from tidegate_controller.runtime.switch import Switch, guarded
from tidegate_controller.state.election import Election
from tidegate_controller.state.store import Store
from tidegate_controller.trust import Trust

LOOKS = 4
"""How often ports are served with LLDP in an interval."""

log = logging.getLogger(__name__)


FLUSH = 5.0
"""s that the last writes may take at the end."""


class Standby(Exception):
    """Another controller leads."""


class Runtime:
    """The controller: `start`, `run` until it is cancelled or fails, `stop`."""

    def __init__(
        self,
        config: Config,
        kept: Kept,
        told: Callable[[ev.TellHost], None] | None = None,
        trust: Trust | None = None,
        store: Store | None = None,
        election: Election | None = None,
    ) -> None:
        """`told` gets changes that hosts did not ask for; it must not wait. `trust`: if anything uses TLS.

        `kept` is what was kept, and has each change as soon as it is durable. With a store, it becomes what
        is loaded from there at `start`; with an election, when this controller is elected.
        """
        self.core = Core(config.settings)
        self._config, self._kept = config, kept
        self._told = told
        self.led: Callable[[], None] = lambda: None
        """Hears that this controller leads, before anything else does; must not wait."""
        self._store, self._election = store, election
        self.leading = False
        """Whether this controller decides; a standby does not."""
        if election is not None:
            election.seen = self._leader_seen
        self._outbox = Outbox(store, self._carry_out, self._may)
        self._seen = self._anew(Topology())
        self._topology: Topology | None = None
        names = config.datapaths
        self._trust = trust
        secure = Secure(config, trust)
        self.server = server.Server(self._of_switch, tls=secure.switches, most=len(names), name=secure.name)
        self.databases = {
            remote: Database(
                remote,
                self._of_database,
                names,
                secure.databases,
                only=numbers,
                fault=secure.fault(numbers),
                may=self._may,
                bfd=config.bfd_interval,
            )
            for remote, numbers in config.databases.items()
        }
        database_of = {
            names[number]: self.databases[remote]
            for remote, numbers in config.databases.items()
            for number in numbers
        }
        self._queues = Queues(names.values(), database_of, self._begin, self.happened)
        sampling = Sampling(self._queues.intents, self.happened)
        self.switches = {
            name: Switch(name, self.happened, sampling.run, self._may) for name in names.values()
        }
        self._questions = Questions(self.happened)
        self._events: deque[ev.Event] = deque()
        self._at_work = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: asyncio.Future[None] | None = None
        self._began = time.time() - time.monotonic()

    @property
    def now(self) -> float:
        """Unix time (s) that never goes back."""
        return self._began + time.monotonic()

    @property
    def term(self) -> int:
        """Of the leader that is known, greater with each one; 0 without an election, or if none is known."""
        leader = self._election.leader if self._election else None
        return leader.term if leader else 0

    @property
    def leader(self) -> str | None:
        """The API's URL of the leader that is known, as it states it; `None` without an election."""
        leader = self._election.leader if self._election else None
        return leader.url if leader else None

    async def start(self) -> None:
        """Takes over what was kept, unless it has to be elected first, and listens.

        `OSError` if an address is taken; `StateError` if the state cannot be read.
        """
        self._fault = asyncio.get_running_loop().create_future()
        if self._election is None:
            await self._take_over()
        else:
            self._begin(self._stand_by(self._election))
        await self.server.start(*self._config.listen)
        log.info("switches are served at %s port %d", self._config.listen[0], self.server.port)

    def _anew(self, before: Topology) -> Seen:
        config = self._config
        names = config.datapaths.values()
        return Seen(names, config.links, config.hosts, Discovery(config.interval), before)

    async def _stand_by(self, election: Election) -> None:
        await election.campaign()
        # The lease is renewed while the state is read.
        self._begin(election.hold())
        await self._take_over()
        for name, session in list(self.server.sessions.items()):
            self._ask_role(name, session)

    async def _take_over(self) -> None:
        """Goes on where the process before has ended."""
        config, kept = self._config, self._kept
        if self._store is not None:
            kept.become(await self._store.load())
            self._begin(self._outbox.run())
        if self._trust is not None:
            await self._trust.lead()
        before = kept.network.topology if kept.network else Topology()
        self._seen = self._anew(before)
        where = self._store.where if self._store else "the state"
        effects, terms = restore(self.core, kept, config, self.now, where)
        self.leading = True
        self.led()
        self._outbox.put(effects)
        self._look(terms)
        for database in self.databases.values():
            self._begin(database.run())
        self._begin(self._discover())
        if self._trust is not None:
            self._begin(self._trust.run())

    def _may(self) -> bool:
        return self._election is None or self._election.holds

    def take(self, config: Config) -> None:
        """Takes hosts that are new in a configuration that is read again."""
        before, self._config = self._config, config
        fresh = {name: host for name, host in config.hosts.items() if name not in before.hosts}
        if fresh and self.leading:
            self._seen.attach(fresh, self.now)
            self._look(config.terms)

    def rechecked(self) -> None:
        """Certificates, or what is revoked, are other ones."""
        if self._trust is not None:
            for database in self.databases.values():
                database.tls = self._trust.contexts.databases
                database.recheck()
            self.server.recheck()

    async def run(self) -> None:
        """Raises what ended it, if that was a fault."""
        assert self._fault is not None
        # The caller may be cancelled; a fault can still come while the controller stops.
        await asyncio.shield(self._fault)

    async def stop(self) -> None:
        """Ends all sessions; switches keep what they have. What was decided is made durable, if it can be."""
        # What sessions tell at their end is no news of the network.
        self._at_work = True
        if self._fault is not None and not self._fault.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH):
                    await self._outbox.flushed()
        await self.server.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for switch in self.switches.values():
            switch.down("the controller ends")
        self._questions.end()
        if self._store is not None:
            await self._store.close()

    async def ask(self, request: PathRequest) -> ev.Answer:
        """A host wants a path; returns when its frames take it, or why not. Raises `Busy`, `Standby`."""
        return await self._question(lambda asker: ev.Requested(asker, request))

    async def release(self, name: str) -> ev.Answer:
        """A path is wanted no more. Raises `Busy`, `Standby`."""
        return await self._question(lambda asker: ev.Released(asker, name))

    async def _question(self, event: Callable[[int], ev.Event]) -> ev.Answer:
        if not self.leading:
            raise Standby(f"another controller leads: {self.leader or 'which one is not known'}")
        if self._outbox.crowded:
            raise Busy("the state is written more slowly than it changes; ask again later")
        return await self._questions.ask(event)

    def happened(self, event: ev.Event) -> None:
        """Tells the core, after all that is told already. A standby hears nothing: it will be told anew."""
        if not self.leading:
            return
        self._events.append(event)
        if self._at_work:
            return
        self._at_work = True
        try:
            while self._events:
                self._outbox.put(self.core.handle(self._events.popleft(), self.now))
            self._at_work = False
        except BaseException as fault:
            # A panic of the native module is no `Exception`. It stays at work: what the core would decide now
            # is worth nothing.
            self._fail(fault)

    def _fail(self, fault: BaseException) -> None:
        if self._fault is not None and not self._fault.done():
            if not isinstance(fault, Exception):
                fault = RuntimeError(f"{type(fault).__name__}: {fault}")
            self._fault.set_exception(fault)
            # Databases of switches know no roles: nothing is written there from now on.
            for task in self._tasks:
                task.cancel()

    def fail(self, fault: BaseException) -> None:
        """A part beside it has a fault, so the process is to end."""
        self._fail(fault)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fail(fault)

    # Effects.

    def _carry_out(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Install():
                self._order(effect.update.switch, effect)
            case ev.Sync():
                self._order(effect.switch, effect)
            case ev.SetQueues():
                self._queues.set(effect)
            case ev.Answer():
                self._questions.answer(effect)
            case ev.TellHost():
                log.info("to host %s: path %s: %s", effect.host, effect.path.request.name, effect.verdict)
                if self._told is not None:
                    self._told(effect)
            case ev.Wake(at):
                self._wake(at)
            case _:
                self._kept.take(effect)
                if isinstance(effect, ev.SaveDecision):
                    log.info("%s", effect.decision)

    def _order(self, name: str, order: ev.Install | ev.Sync) -> None:
        switch = self.switches.get(name)
        if switch is not None:
            switch.order(order)
        elif isinstance(order, ev.Install):
            # It was kept, and is not in the configuration any more: nothing is there that could be wrong, so
            # what was in use there can end.
            self.happened(ev.SwitchDone(name, order.ticket))

    def _wake(self, at: float) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_later(max(0.0, at - self.now), self._tick, at)

    def _tick(self, at: float) -> None:
        # The loop's clock may be coarser: a tick that came early would be the last one.
        if self.now < at:
            self._wake(at)
        else:
            self.happened(ev.Tick())

    # Events.

    def _of_switch(self, event: server.Event) -> None:
        match event:
            case server.SwitchUp(name, session, ports):
                if self._election is None:
                    self._up(name, session, ports)
                else:
                    self._ask_role(name, session)
            case server.SwitchDown(name, reason):
                self._seen.no_session(name)
                self.switches[name].down(reason)
                self._withdraw(name, reason)
            case server.PortsChanged(name, ports) if self.switches[name].session is not None:
                self._ports(name, ports)
            case server.PacketIn(name, port, frame) if self.leading:
                self._seen.frame(Port(name, port), frame, self.now)
            case _:
                pass
        self._look()

    def _up(self, name: str, session: Session, ports: Mapping[int, PortState]) -> None:
        self._withdraw(name, "not connected")
        self._seen.session(name, self.now)
        self.switches[name].up(session)
        self._ports(name, ports)
        self.happened(ev.SwitchBack(name))

    def _withdraw(self, name: str, reason: str) -> None:
        """What was decided for an earlier session of a switch, and waits for the store, fails with that."""
        while orders := self._outbox.withdraw(name):
            for order in orders:
                self.happened(ev.SwitchFailed(name, order.ticket, reason))

    def _ask_role(self, name: str, session: Session) -> None:
        self._begin(guarded(name, session, self._assume(name, session)))

    async def _assume(self, name: str, session: Session) -> None:
        """Takes the role of this moment at a switch; a leader's work there begins with it."""
        leads = self.leading
        ready = await assume(name, session, leads, self.term)
        if ready and leads and self.server.sessions.get(name) is session:
            self._up(name, session, dict(session.ports))
            self._look()

    def _leader_seen(self) -> None:
        for name, session in list(self.server.sessions.items()):
            self._ask_role(name, session)

    def _ports(self, name: str, ports: Mapping[int, PortState]) -> None:
        self._seen.ports(name, {number: port.up for number, port in ports.items()}, self.now)

    def _of_database(self, event: db.Event) -> None:
        match event:
            # What is left of BFD where it is switched off ends, which is no news of the link.
            case db.LinkUp(port) if self._config.settings.bfd:
                self._seen.bfd(port, True)
            case db.LinkDown(port) if self._config.settings.bfd:
                self._seen.bfd(port, False)
            case _:
                pass
        self._look()

    def _heard(self) -> set[Port]:
        return {port for database in self.databases.values() for port in database.heard}

    def _look(self, terms: tuple[Any, ...] = ()) -> None:
        """Tells the core if what works has changed."""
        now = self.now
        if not self.leading or not (terms or self._seen.changed(now)):
            return
        topology = self._seen.topology(now)
        if terms or topology != self._topology:
            self._topology = topology
            self.happened(ev.TopologyChanged(topology, terms))

    async def _discover(self) -> None:
        discovery = self._seen.discovery
        while True:
            for port, frame in discovery.due(self.now):
                session = self.switches[port.switch].session
                if session is not None:
                    session.send(codec.packet_out(port.number, frame))
            self._seen.expire(self.now, self._heard)
            self._look()
            await asyncio.sleep(discovery.interval / LOOKS)
