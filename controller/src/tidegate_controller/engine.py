"""What is known of paths, and the machinery that changes them.

```text
 run(old, new) ─▶ queues' rates, rules in steps ─▶ Install, Wake
 answers of switches, time ─▶ flipped: the requester is answered, the host is told
                            ─▶ done: the old reservation and tag are free     undone: those of the new one
```

`requests` and `reactions` decide what to change; this carries it out. A path has one change at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tidegate_controller import events as ev
from tidegate_controller.decide import react
from tidegate_controller.decide.admission import Granted, LinkTerms, Refused, Wanted
from tidegate_controller.decide.book import Book
from tidegate_controller.decide.intent import place
from tidegate_controller.decide.marks import Marks
from tidegate_controller.decide.move import GATE, Change, Order, Stage, Update, drain_time
from tidegate_controller.decide.queues import Load, Loads, port_of, queues_of, watched
from tidegate_controller.decide.refusals import Refusals
from tidegate_controller.decide.routes import Routes
from tidegate_controller.decide.tags import Tags
from tidegate_controller.decide.transactions import reservations
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import EthernetKey, Key, Path, PathRequest, PathState
from tidegate_controller.model.topology import Port, Topology


@dataclass(frozen=True)
class Settings:
    """What the operator chose."""

    marks: Marks = field(default_factory=Marks)
    hold: float = react.HOLD
    """s: a path is changed at most once in that time; so long a broken path waits for the next try."""
    remedies: frozenset[react.Remedy] = react.ALL
    """What is tried when frames are late or queues run short."""
    bfd: bool = True
    """Whether BFD watches links; without it, silence is seen by LLDP alone."""
    protect: bool = False
    """Whether paths get a backup where one fits."""
    first_tag: int = 1
    last_tag: int = 4094
    most_paths: int = 4000
    most_of_host: int = 500
    """Paths that one host may have."""


@dataclass
class Running:
    """A change of one path that is under way."""

    number: int
    change: Change
    old: Path | None
    new: Path | None
    verdict: Verdict
    cause: str
    reasons: tuple[str, ...]
    asker: int | None = None
    narrow: tuple[Wanted, ...] = ()
    """Reservations of the new generation that are made smaller at the end."""
    freed: frozenset[str] = frozenset()
    """Reservations of the old generation that are gone already."""
    told: bool = False
    errors: list[str] = field(default_factory=list)
    release: int | None = None
    """It is to be released afterwards, for this asker."""


class Engine:
    """All that is known; one event's effects are collected in `effects`."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.book = Book()
        self.tags = Tags(self.settings.first_tag, self.settings.last_tag)
        self.paths: dict[str, Path] = {}
        """Those in force, and those that are broken."""
        self.running: dict[str, Running] = {}
        self.keys: dict[tuple[Key, int], str] = {}
        """Which path has a flow's key; while it changes, the old and the new one."""
        self.announced: frozenset[int] = frozenset()
        """VLANs of plain NICs that hosts announce now."""
        self.plain_tags: set[int] = set()
        """Ids in use by best effort between plain NICs."""
        self.newest = Topology()
        """As the edges see it; rules may not follow it yet."""
        self.routes = Routes(self.newest)
        self.calm = react.Calm(self.settings.hold)
        self.calm_ports = react.Calm(self.settings.hold)
        self.refusals = Refusals(self.settings.hold)
        self.trends = react.Trends()
        self.raised: dict[tuple[str, int], int] = {}
        self.loads = Loads(self.book.terms)
        self.links: dict[Port, str] = {}
        """The link that begins at a port."""
        self.misses: dict[str, int] = {}
        self.ended: set[str] = set()
        """Paths whose change has just been done."""
        self.timers: list[tuple[float, ev.Ticket]] = []
        self.effects: list[ev.Effect] = []
        self.now = 0.0
        self.decided = 0
        self.numbered = 0
        self._changes = 0
        self._ordered = 0
        self._gates: dict[int, ev.Ticket] = {}
        """Changes that wait for queues, by the number of the order."""
        self.unsettled = False
        """Whether paths are to be looked at again after the hold time."""
        self._dirty: set[str] = set()
        self._there: set[str] = set()
        self._gone: dict[str, float] = {}
        """Links that do not work, and since when."""

    @property
    def levels(self) -> int:
        """Returns the number of real-time levels."""
        return len(self.settings.marks.levels)

    def take_tag(self, owner: str, key: Key | None = None) -> int:
        """Takes an id for a generation of a path with this key, or for a tree.

        It is none that frames of paths have at hosts. One that hosts only announce is taken last: else a host
        that announces all of them would stop all paths.
        Raises `TagsUsedUp`.
        """
        vlans = self.vlans_of_paths()
        if isinstance(key, EthernetKey):
            vlans.add(key.vlan)
        return self.tags.take(owner, vlans, self.announced)

    def vlans_of_paths(self) -> set[int]:
        """Returns VLANs that frames of paths have at hosts."""
        return {one.vlan for one, _ in self.keys if isinstance(one, EthernetKey)}

    def learn(self, terms: Iterable[LinkTerms]) -> None:
        """Adds links."""
        terms = list(terms)
        self.book.learn(terms)
        self.loads.know(self.book.terms)
        for link in terms:
            port = port_of(link.name)
            if port is not None:
                self.links[port] = link.name
                self._dirty.add(link.name)

    def ways(self, request: PathRequest, without: frozenset[str] = frozenset()) -> list[tuple[str, ...]]:
        """Returns ways between the hosts of a request."""
        return list(self.routes.ways(request.source, request.target, without))

    def up(self, links: Iterable[str]) -> bool:
        """Returns whether all links of a way work."""
        there = self._there
        return all(link in there for link in links)

    def arrange(self, topology: Topology) -> None:
        """Takes ways from this topology, as long as the newest one has them."""
        both = replace(self.newest, links=self.newest.links & topology.links)
        self.routes = Routes(both)
        hosts = self.newest.hosts.values()
        ends = {name for host in hosts for name in (host.to_switch, host.to_host)}
        self._there = {link.name for link in self.newest.links} | ends
        gone = self.book.terms.keys() - self._there
        self._gone = {link: self._gone.get(link, self.now) for link in gone}

    def gone_for(self, links: Iterable[str]) -> float:
        """Returns for how long at least one of the links does not work, s."""
        return max((self.now - self._gone[link] for link in links if link in self._gone), default=0.0)

    def run(
        self,
        old: Path | None,
        new: Path | None,
        verdict: Verdict,
        cause: str,
        reasons: tuple[str, ...],
        asker: int | None = None,
        narrow: tuple[Wanted, ...] = (),
        freed: frozenset[str] = frozenset(),
        told: bool = False,
        undo: bool = False,
    ) -> None:
        """Begins a change; what it needs is reserved already."""
        path = new or old
        assert path is not None
        name = path.request.name
        assert name not in self.running
        self._changes += 1
        placed = [place(one, self.settings.marks) if one else None for one in (old, new)]
        drains = (drain_time(old.bound) if old else 0.0, drain_time(new.bound) if new else 0.0)
        change = Change(placed[0], placed[1], *drains, gate=not undo, undo=undo)
        running = Running(
            self._changes, change, old, new, verdict, cause, reasons, asker, narrow, freed, told
        )
        self.running[name] = running
        if new is not None:
            self._dirty |= self.loads.add(new)
            self.keys[flow(new.request)] = name
            held = [one for path in (old, new) if path for one in path.reservations if one not in freed]
            reserved = tuple(self.book.held(one) for one in held)
            self.effects.append(ev.SaveChange(old, new, reserved, narrow, freed))
        if old is not None and new is not None:
            self.paths[name] = replace(old, state=PathState.MOVING)
            if old.tag == new.tag:
                self.tags.hand_on(new.tag, new.reservation)
        asked = self.set_queues()
        self.order(name, running.number, change.start())
        if new is not None and not undo:
            # No frame is marked before its queues have their rates.
            self._gates[asked] = ev.Ticket(name, running.number, change.serial)
        self._progress(name)

    def order(self, owner: str, change: int, orders: list[Order]) -> None:
        """Passes orders on."""
        for one in orders:
            ticket = ev.Ticket(owner, change, one.serial)
            if isinstance(one, Update):
                self.effects.append(ev.Install(ticket, one))
            else:
                self.timers.append((self.now + one.seconds, ticket))
                self.effects.append(ev.Wake(self.now + one.seconds))

    def answered(self, switch: str, ticket: ev.Ticket, error: str | None) -> None:
        """Takes in that a switch has done an order, or failed."""
        running = self.running.get(ticket.owner)
        if running is None or running.number != ticket.change:
            return
        if error is None:
            orders = running.change.done(ticket.serial, switch)
        else:
            failed = f"switch {switch}" if switch else "queues"
            running.errors.append(f"{failed}: {error}"[:200])
            orders = running.change.failed(ticket.serial, switch)
        self.order(ticket.owner, running.number, orders)
        self._progress(ticket.owner)

    def elapsed(self, ticket: ev.Ticket) -> None:
        """Goes on with a change whose wait is over."""
        running = self.running.get(ticket.owner)
        if running is not None and running.number == ticket.change:
            self.order(ticket.owner, running.number, running.change.elapsed(ticket.serial))
            self._progress(ticket.owner)

    def back(self, switch: str) -> None:
        """Goes on with changes that wait for this switch: it is connected again."""
        for name, running in sorted(self.running.items()):
            self.order(name, running.number, running.change.back(switch))

    def decide(self, path: str, cause: str, verdict: Verdict, reasons: tuple[str, ...]) -> None:
        """Records a decision."""
        self.decided += 1
        decision = Decision(self.decided, self.now, path, cause, verdict, reasons)
        self.effects.append(ev.SaveDecision(decision))

    def refuse(self, asker: int | None, request: PathRequest, cause: str, reasons: tuple[str, ...]) -> None:
        """Answers, and records a refusal unless its host has too many."""
        host = "" if request.lasting else request.source
        counted = self.refusals.tell(host, request.name, cause, reasons, self.now)
        if counted is not None:
            of = f"host {host}" if host else "operators"
            more = (f"{counted} refusals of {of} before this one have no record",) if counted else ()
            self.decide(request.name, cause, Verdict.REFUSED, (*reasons, *more))
        if asker is not None:
            self.effects.append(ev.Answer(asker, None, reasons))

    def tell(self, path: Path, verdict: Verdict, reasons: tuple[str, ...]) -> None:
        """Tells the sending host of a path."""
        self.effects.append(ev.TellHost(path.request.source, path, verdict, reasons))

    def violated(self, path: Path, cause: str, reasons: tuple[str, ...]) -> None:
        """Records that no remedy is left, and tells the host."""
        self.decide(path.request.name, cause, Verdict.VIOLATED, reasons)
        self.tell(path, Verdict.VIOLATED, reasons)

    def close(self, path: Path, cause: str, reasons: tuple[str, ...], freed: frozenset[str]) -> None:
        """Takes a path off its way; it stays known as broken, and its frames are best effort."""
        self.paths[path.request.name] = broken = replace(path, state=PathState.BROKEN)
        self.unsettled = True
        self.violated(broken, cause, reasons)
        self.run(path, None, Verdict.VIOLATED, cause, reasons, freed=freed, told=True)

    def raise_rate(self, more: react.MoreRate) -> None:
        """Sets the rate of a queue that ran short."""
        self.raised[more.link, more.level] = more.minimum
        self._dirty.add(more.link)

    def queues_answered(self, number: int, error: str | None) -> None:
        """Takes in that queues have been set, or not."""
        ticket = self._gates.pop(number, None)
        if ticket is not None:
            self.answered(GATE, ticket, error)

    def set_queues(self) -> int:
        """Passes on rates that have changed. Returns the number of the order."""
        queues = {}
        for name in sorted(self._dirty):
            port = port_of(name)
            if port is not None:
                terms = self.book.terms[name]
                queues[port] = queues_of(terms, self.loads, self.settings.marks, self.raised)
        between = frozenset(watched(self._dirty)) if self.settings.bfd else frozenset[Port]()
        self._dirty.clear()
        if queues:
            self._ordered += 1
            self.effects.append(ev.SetQueues(self._ordered, queues, between))
        return self._ordered

    def forget(self, path: Path) -> None:
        """Forgets a path that is gone."""
        name = path.request.name
        self.paths.pop(name, None)
        self.keys = {key: owner for key, owner in self.keys.items() if owner != name}
        self.calm.forget(name)
        self.misses.pop(name, None)
        self.effects.append(ev.DropPath(name))

    def take_over(self, path: Path) -> None:
        """Takes over a path that was kept beyond the process. Raises `Refused`, `ValueError`."""
        name = path.request.name
        self.paths[name] = path
        self.keys[flow(path.request)] = name
        self.numbered = max(self.numbered, path.number)
        if path.state != PathState.BROKEN:
            # What a move has left behind goes when its switches are set.
            self.paths[name] = active = replace(path, state=PathState.ACTIVE)
            if active != path:
                self.effects.append(ev.SavePath(active))
            self.tags.claim(path.tag, path.reservation)
            self.book.change([], reservations(path, path.request))
            self._dirty |= self.loads.add(path)
            # Hosts report late frames by totals: those of before the restart lead to no change.
            self.calm.changed(name, self.now)

    def undo(self, saved: ev.SaveChange) -> None:
        """Takes over a change that was under way, and goes back to the old generation, step by step.

        Whether the flow was flipped is unknown: the rules of both stay until it is not. Raises `ValueError`.
        """
        old, new = saved.old, saved.new
        self.book.change([], saved.reserved)
        self.tags.claim(new.tag, new.reservation)
        if old is not None:
            self.paths[old.request.name] = old
            self.keys[flow(old.request)] = old.request.name
            self._dirty |= self.loads.add(old)
            if old.tag != new.tag:
                self.tags.claim(old.tag, old.reservation)
        self.numbered = max(self.numbered, new.number)
        self.run(old, new, Verdict.KEPT, "a restart", (), None, saved.narrow, saved.freed, undo=True)

    def _progress(self, name: str) -> None:
        """Tells the host when its frames take the new way, and ends a change that is over."""
        running = self.running.get(name)
        if running is None:
            return
        change, new = running.change, running.new
        if new is not None and change.flipped and not running.told:
            running.told = True
            settled = drain_time(running.old.bound) if running.old else 0.0
            self.calm.changed(name, self.now + settled)
            self.paths[name] = replace(new, state=PathState.MOVING if running.old else PathState.ACTIVE)
            self.effects.append(ev.SavePath(self.paths[name]))
            self.decide(name, running.cause, running.verdict, running.reasons)
            if running.asker is None:
                self.tell(self.paths[name], running.verdict, running.reasons)
            else:
                self.effects.append(ev.Answer(running.asker, self.paths[name]))
        if change.over:
            del self.running[name]
            if change.stage == Stage.DONE:
                self._done(name, running)
                # A link may have gone meanwhile. A failed change waits for the next look: no endless tries.
                self.ended.add(name)
            else:
                self._undone(name, running)
            if running.release is not None:
                self._release_after(name, running.release)

    def _release_after(self, name: str, asker: int) -> None:
        """Goes on with a release that came during a change."""
        path, closing = self.paths.get(name), self.running.get(name)
        if closing is not None:
            closing.release = asker
        elif path is not None:
            self.release(asker, path)
        else:
            self.effects.append(ev.Answer(asker, None, (f"path {name} could not be begun",)))

    def release(self, asker: int, path: Path) -> None:
        """Begins to take a path away."""
        if path.state == PathState.BROKEN:
            self.forget(path)
            self.decide(path.request.name, "release", Verdict.RELEASED, ())
            self.effects.append(ev.Answer(asker, path))
        else:
            self.run(path, None, Verdict.RELEASED, "release", (), asker)

    def _unload(self, path: Path) -> None:
        """Counts a generation no more. A rate that was raised falls when nothing is left of its level."""
        links = self.loads.remove(path)
        self._dirty |= links
        for at in [at for at in self.raised if at[0] in links and self.loads.at(*at) == Load()]:
            del self.raised[at]

    def _done(self, name: str, running: Running) -> None:
        old, new = running.old, running.new
        if old is not None:
            self._unload(old)
            gone = [one for one in old.reservations if one not in running.freed]
            self.book.change([*gone, *(wanted.reservation for wanted in running.narrow)], running.narrow)
            if new is None or new.tag != old.tag:
                self.tags.free(old.tag)
        if new is not None:
            self.keys = {key: who for key, who in self.keys.items() if who != name}
            self.keys[flow(new.request)] = name
            self.paths[name] = replace(new, state=PathState.ACTIVE)
            self.effects.append(ev.SavePath(self.paths[name]))
        elif old is not None and running.verdict == Verdict.RELEASED:
            self.forget(old)
            self.decide(name, running.cause, running.verdict, running.reasons)
            if running.asker is not None:
                self.effects.append(ev.Answer(running.asker, old))
        else:
            self.effects.append(ev.SavePath(self.paths[name]))

    def _undone(self, name: str, running: Running) -> None:
        old, new = running.old, running.new
        assert new is not None
        self.effects.append(ev.DropChange(name))
        self.unsettled = True
        self._unload(new)
        if old is None or old.tag != new.tag:
            self.tags.free(new.tag)
        else:
            self.tags.hand_on(old.tag, old.reservation)
        reasons = (*running.errors[-4:], "all is as before")
        lost = False
        if old is None:
            self.book.change(new.reservations, [])
        else:
            again = [one for one in reservations(old, old.request) if one.reservation in running.freed]
            try:
                self.book.change(new.reservations, again)
            except Refused:
                self.book.change(new.reservations, [])
                lost = True
        before = self.paths.get(name)
        self.keys = {key: who for key, who in self.keys.items() if who != name}
        if before is not None:
            self.keys[flow((old or before).request)] = name
        if running.asker is not None:
            self.refuse(running.asker, new.request, running.cause, reasons)
        else:
            self.decide(name, running.cause, Verdict.KEPT, reasons)
        if old is not None:
            self.paths[name] = replace(old, state=PathState.ACTIVE)
            self.calm.changed(name, self.now)
            if lost:
                self.close(old, "its reservation was lost", reasons, running.freed)


def flow(request: PathRequest) -> tuple[Key, int]:
    """Returns the fields by which the edge knows a flow."""
    return request.key, request.dscp


def numbers(granted: Granted) -> str:
    """Returns the text of a grant for decisions."""
    way = ", ".join(granted.route.links)
    return (
        f"level {granted.route.level} over {way}: at most {granted.bound} ns, burst {granted.far_burst} bytes"
    )
