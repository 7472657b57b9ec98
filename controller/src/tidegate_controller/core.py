"""All that is known, and what follows from what happens.

```text
 Event ─▶ Core.handle ─▶ Effect, ...
            │ topology ─▶ Basis: rules of no path ──────────────┐
            │ request, release ─▶ requests  ─┐                  ├─▶ Install, SetQueues, Wake
            │ miss, sample, link ─▶ reactions┴▶ Engine: changes ┴─▶ Answer, TellHost, Save...
            └ answers of switches, time ─▶ Basis, Engine
```

The time comes in as an argument; nothing here waits.
"""

from collections.abc import Iterable, Mapping

from tidegate_controller import events as ev
from tidegate_controller import reactions, requests
from tidegate_controller.best_effort import BestEffort
from tidegate_controller.decide.basis import Basis
from tidegate_controller.decide.flood import Tree, spanning
from tidegate_controller.decide.intent import place, put
from tidegate_controller.decide.move import Order, merge
from tidegate_controller.decide.phases import Phase
from tidegate_controller.decide.queues import end_of, port_of, queues_of, watched
from tidegate_controller.decide.tags import TagsUsedUp
from tidegate_controller.engine import Engine, Settings
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.paths import Path, PathState
from tidegate_controller.model.plain import NO_TAGS, Behind, Tagged
from tidegate_controller.model.topology import Port, Topology

BASIS = ""
"""The owner of orders for rules of no path."""
BASE, PLAIN = 0, 1
"""Which ones, in the place of the number of a change: those of all frames, those of plain NICs alone."""


class Core:
    """The controller without its edges."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.engine = Engine(settings)
        self.basis = Basis(self.engine.settings.marks)
        self.best_effort = BestEffort(self.engine)
        self.followed = Topology()
        self._used: dict[str, Port] = {}
        """As of `_in_use`, when it was last looked at: these ports are open."""
        self._tree: Tree | None = None
        self._trees = 0
        self.tree_tags: set[int] = set()
        self._retry: float | None = None
        self.stale: set[str] = set()
        """Switches that failed: they may hold other rules than they are to hold."""

    def restore(
        self,
        network: ev.SaveNetwork,
        paths: Iterable[Path],
        changes: Iterable[ev.SaveChange],
        decisions: int,
        now: float,
        behind: Mapping[str, Behind] | None = None,
        tagged: Tagged = NO_TAGS,
    ) -> list[ev.Effect]:
        """Takes over what was kept, and the number of decisions. Raises `Refused`, `ValueError`.

        The topology is what it was until the edges say otherwise, so a switch that connects loses no rule.
        Changes that were under way are undone.
        """
        engine, changes = self.engine, list(changes)
        paths = list(paths)
        self._have_levels([*paths, *(one for change in changes for one in (change.old, change.new) if one)])
        engine.effects, engine.now, engine.decided = [], now, decisions
        engine.learn(network.terms)
        moving = {change.old.request.name for change in changes if change.old}
        for path in paths:
            if path.request.name not in moving:
                engine.take_over(path)
        self._tree = network.tree
        self._trees = 1
        engine.tags.claim(network.tree.tag, "broadcast#1")
        self.tree_tags.add(network.tree.tag)
        self.best_effort.restore(network.topology, behind or {}, tagged)
        self.followed = engine.newest = network.topology
        engine.arrange(self.followed)
        for change in changes:
            engine.undo(change)
        self._used = self._in_use()
        self.basis.assume(network.topology, network.tree, frozenset(self._used.values()))
        self._wake()
        engine.set_queues()
        return engine.effects

    def handle(self, event: ev.Event, now: float) -> list[ev.Effect]:  # noqa: PLR0912 - one case each
        """Takes in an event. Returns what is to be done."""
        engine = self.engine
        engine.effects, engine.now = [], now
        match event:
            case ev.Requested():
                requests.requested(engine, event.asker, event.request)
            case ev.Released():
                requests.released(engine, event.asker, event.name)
            case ev.Missed():
                reactions.missed(engine, event)
            case ev.Sampled():
                reactions.sampled(engine, event.samples)
            case ev.Dropped():
                reactions.dropped(engine, event)
            case ev.VlansAnnounced(vlans):
                engine.announced = vlans
            case ev.PlainNics(hosts):
                self.best_effort.told(hosts)
            case ev.TopologyChanged():
                self._changed(event)
            case ev.SwitchDone():
                self._answered(event.switch, event.ticket, None)
            case ev.SwitchFailed():
                self._answered(event.switch, event.ticket, event.error)
            case ev.QueuesDone():
                engine.queues_answered(event.number, None)
            case ev.QueuesFailed():
                engine.queues_answered(event.number, event.error)
            case ev.SwitchBack():
                self._sync(event.switch)
                engine.back(event.switch)
            case ev.Tick():
                pass
        self._pass_time()
        self._look_after()
        self._follow_plain_nics()
        engine.set_queues()
        return engine.effects

    @property
    def is_still(self) -> bool:
        """Returns whether rules of no path are as the newest topology and hosts want them."""
        idle = self.basis.phase == self.best_effort.plain.phase == Phase.IDLE
        return idle and self.followed == self.engine.newest

    def intent(self, switch: str) -> SwitchIntent:
        """Returns what one switch is to hold at this moment, without the work for all others."""
        return self.intents(switch).get(switch, SwitchIntent())

    def intents(self, only: str | None = None) -> dict[str, SwitchIntent]:
        """Returns what all switches are to hold at this moment; or, whole, what one of them is to hold."""
        engine = self.engine
        held = self.basis.held().items()
        found = {switch: SwitchIntent(set(rules)) for switch, rules in held if only in (None, switch)}
        plain = self.best_effort.plain
        for switch in plain.there if only is None else {only}:
            if rules := plain.held(switch):
                found.setdefault(switch, SwitchIntent()).rules |= rules
        for name, path in engine.paths.items():
            if name in engine.running or path.state == PathState.BROKEN:
                continue
            if only is None or _may_cross(path, only):
                put(found, place(path, engine.settings.marks))
        for running in engine.running.values():
            merge(found, running.change.present())
        for link in engine.book.terms.values():
            port = port_of(link.name)
            if port is not None and only in (None, port.switch):
                queues = queues_of(link, engine.loads, engine.settings.marks, engine.raised)
                found.setdefault(port.switch, SwitchIntent()).queues[port.number] = queues
        for port in watched(engine.book.terms) if engine.settings.bfd else ():
            found.setdefault(port.switch, SwitchIntent()).watched.add(port.number)
        return found

    def _have_levels(self, paths: Iterable[Path]) -> None:
        """Raises `ValueError` for a path at a level that has no mark any more."""
        levels = self.engine.levels
        for path in paths:
            route = path.route
            if path.state != PathState.BROKEN and route.level >= levels:
                raise ValueError(
                    f"path {path.request.name} is at level {route.level}, and `paths.marks` of the"
                    f" configuration has {levels} marks: start with at least {route.level + 1} marks, and"
                    " release the path before the marks become fewer"
                )

    def _changed(self, event: ev.TopologyChanged) -> None:
        self.engine.learn(event.terms)
        there = event.topology
        self.engine.newest = Topology(set(there.switches), set(there.links), dict(there.hosts))
        self._follow()
        self._repair()

    def _follow(self) -> None:
        """Lets the rules of no path follow the newest topology, one change after the other."""
        engine = self.engine
        if self.basis.phase == Phase.IDLE:
            stale = self.tree_tags - self.basis.tags
            for tag in stale:
                engine.tags.free(tag)
            self.tree_tags -= stale
            moved, before = self.followed != engine.newest, self._used
            self.followed = engine.newest
            self._used = self._in_use()
            if moved:
                self._tree = self._next_tree()
                terms = tuple(engine.book.terms.values())
                engine.effects.append(ev.SaveNetwork(self.followed, terms, self._tree))
            if self._tree is not None and (moved or self._used != before):
                self._order(self.basis.follow(self.followed, self._tree, frozenset(self._used.values())))
        engine.arrange(self.followed)

    def _in_use(self) -> dict[str, Port]:
        """Returns links that are gone though paths have rules over them, and where they end."""
        there = {link.name for link in self.followed.links}
        gone = sorted(self.engine.loads.links - there)
        return {link: port for link in gone if (port := end_of(link)) is not None}

    def _next_tree(self) -> Tree:
        links = spanning(self.followed)
        if self._tree is None or links != self._tree.links:
            self._trees += 1
            try:
                tag = self.engine.take_tag(f"broadcast#{self._trees}")
            except TagsUsedUp:
                if self._tree is None:
                    raise
                # Broadcast stays on the tree that is there.
                return self._tree
            self.tree_tags.add(tag)
            self._tree = Tree(tag, links)
        return self._tree

    def _follow_plain_nics(self, again: bool = False) -> None:
        """Lets best effort between plain NICs follow what all other rules follow."""
        self._order(self.best_effort.follow(self.followed, again), PLAIN)
        if self.best_effort.is_short:
            self._wake()

    def _order(self, orders: list[Order], which: int = BASE) -> None:
        self.engine.order(BASIS, which, orders)

    def _answered(self, switch: str, ticket: ev.Ticket, error: str | None) -> None:
        if error is not None:
            self.stale.add(switch)
            self._wake()
        if ticket.owner != BASIS:
            self.engine.answered(switch, ticket, error)
            return
        if ticket.change == PLAIN:
            self._order(self.best_effort.plain.done(ticket.serial, switch), PLAIN)
            return
        was = self.basis.phase
        self._order(self.basis.done(ticket.serial, switch))
        self._turned(was)

    def _turned(self, was: Phase) -> None:
        if was != Phase.IDLE and self.basis.phase == Phase.IDLE:
            self._follow()
            self._repair()

    def _pass_time(self) -> None:
        """Does what was to be done by now."""
        engine = self.engine
        self._elapse()
        if self._retry is not None and engine.now >= self._retry:
            for switch in sorted(self.stale):
                self._sync(switch)
            for switch in self._awaited():
                engine.back(switch)
            self._repair()
            self._follow_plain_nics(again=self.best_effort.is_short)

    def _elapse(self) -> None:
        engine = self.engine
        due = [ticket for at, ticket in engine.timers if at <= engine.now]
        engine.timers = [(at, ticket) for at, ticket in engine.timers if at > engine.now]
        for ticket in due:
            if ticket.owner == BASIS and ticket.change == PLAIN:
                self._order(self.best_effort.plain.elapsed(ticket.serial), PLAIN)
            elif ticket.owner == BASIS:
                was = self.basis.phase
                self._order(self.basis.elapsed(ticket.serial))
                self._turned(was)
            else:
                engine.elapsed(ticket)

    def _repair(self) -> None:
        """Looks after paths without a whole way; again after the hold time if some are left."""
        self._retry = None
        if reactions.repair(self.engine) or self._awaited() or self.stale:
            self._wake()

    def _look_after(self) -> None:
        """Looks after paths whose change is over; again after the hold time if one was lost or as before.

        Ports that the last path has left are closed.
        """
        engine = self.engine
        while engine.ended:
            reactions.look_after(engine, engine.ended.pop())
        if not all(map(engine.loads.has, self._used)):
            self._follow()
        if engine.unsettled:
            engine.unsettled = False
            self._wake()

    def _awaited(self) -> list[str]:
        """Returns switches without which a change cannot go on."""
        running = self.engine.running.values()
        return sorted({switch for one in running for switch in one.change.waits_for})

    def _wake(self) -> None:
        """Asks for another look after the hold time."""
        if self._retry is None:
            self._retry = self.engine.now + self.engine.settings.hold
            self.engine.effects.append(ev.Wake(self._retry))

    def _sync(self, switch: str) -> None:
        self.stale.discard(switch)
        self.engine.effects.append(ev.Sync(switch, self.intent(switch)))


def _may_cross(path: Path, switch: str) -> bool:
    """Returns whether a path may have rules at a switch; of a name that ends like another's, too."""
    start = f"{switch}:"
    routes = (path.route, path.backup)
    return any(start in link for route in routes if route is not None for link in route.links)
