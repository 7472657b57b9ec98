"""The core against switches that take in rules in any order, refuse, vanish and come back.

```text
 events at random ─▶ Core ─▶ orders of each switch, in their order ─▶ live rules ─▶ checked by walking frames
```
"""

from dataclasses import dataclass, field, replace
from random import Random

from networks import MBIT, request, terms
from walk import Cables, Frame, frame_of, walk

from tidegate_controller import events as ev
from tidegate_controller.core import Core
from tidegate_controller.decide.marks import BROADCAST
from tidegate_controller.decide.move import key
from tidegate_controller.model.decisions import Decision
from tidegate_controller.model.intent import SwitchIntent
from tidegate_controller.model.paths import EthernetKey, Path, PathRequest, PathState
from tidegate_controller.model.plain import NO_TAGS, Behind, Place, Tagged
from tidegate_controller.model.topology import Port, Topology

PLAIN_VLANS = (2, 900, 4094)
PLAIN_MACS = [f"02:00:00:00:0a:{number:02x}" for number in (99, 0, 1, 2)]


@dataclass
class World:
    """A network around the core; the time goes on by itself."""

    topology: Topology
    random: Random
    core: Core
    faults: float = 0.0
    now: float = 1000.0
    live: dict[str, SwitchIntent] = field(default_factory=dict)
    queues: dict[str, list[ev.Install | ev.Sync]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    decisions: list[Decision] = field(default_factory=list)
    asked: int = 0
    answers: dict[int, ev.Answer] = field(default_factory=dict)
    told: list[ev.TellHost] = field(default_factory=list)
    network: ev.SaveNetwork | None = None
    behind: dict[str, Behind] = field(default_factory=dict)
    tagged: Tagged = NO_TAGS
    changes: dict[str, ev.SaveChange] = field(default_factory=dict)
    saved: dict[str, Path] = field(default_factory=dict)
    rates: dict[Port, int] = field(default_factory=dict)
    setting: list[int] = field(default_factory=list)
    """Orders of queues that are not answered."""
    links_down: set[str] = field(default_factory=set)

    def event(self, event: ev.Event) -> None:
        """Tells the core; keeps what it wants."""
        self.carry_out(self.core.handle(event, self.now))

    def carry_out(self, effects: list[ev.Effect]) -> None:  # noqa: PLR0912
        """Does what the core wants."""
        for effect in effects:
            match effect:
                case ev.Install():
                    self.queues.setdefault(effect.update.switch, []).append(effect)
                case ev.Sync():
                    self.queues.setdefault(effect.switch, []).append(effect)
                case ev.SaveDecision(decision):
                    self.decisions.append(decision)
                case ev.Answer():
                    assert effect.asker not in self.answers
                    self.answers[effect.asker] = effect
                case ev.TellHost():
                    self.told.append(effect)
                case ev.SavePath(path):
                    self.saved[path.request.name] = path
                    self.changes.pop(path.request.name, None)
                case ev.DropPath(name):
                    self.saved.pop(name, None)
                    self.changes.pop(name, None)
                case ev.SaveChange(_, new):
                    self.changes[new.request.name] = effect
                case ev.DropChange(name):
                    self.changes.pop(name, None)
                case ev.SaveNetwork():
                    self.network = effect
                case ev.SaveBehind(host, behind):
                    self.behind[host] = behind
                case ev.SaveTagged(tagged):
                    self.tagged = tagged
                case ev.SetQueues(number, queues):
                    self.setting.append(number)
                    for port, held in queues.items():
                        self.rates[port] = sum(queue.minimum for queue in held)
                case ev.Wake(at):
                    assert at >= self.now
        for switch in sorted(self.gone):
            for order in self.queues.pop(switch, []):
                if isinstance(order, ev.Install):
                    self.event(ev.SwitchFailed(switch, order.ticket, "not connected"))

    def begin(self, hidden: int = 0) -> None:
        """All is there, but some links."""
        links = sorted(link.name for link in self.topology.links)
        self.links_down = set(self.random.sample(links, min(hidden, len(links))))
        self.change_topology()
        self.settle()

    def change_topology(self) -> None:
        """Links that work, of all that there are."""
        up = {
            link
            for link in self.topology.links
            if link.name not in self.links_down and link.back.name not in self.links_down
        }
        self.event(ev.TopologyChanged(replace(self.topology, links=up), tuple(terms(self.topology))))

    def ask(self, wanted: PathRequest) -> int:
        """A request. Returns the asker."""
        self.asked += 1
        self.event(ev.Requested(self.asked, wanted))
        return self.asked

    def release(self, name: str) -> int:
        """A release."""
        self.asked += 1
        self.event(ev.Released(self.asked, name))
        return self.asked

    def apply(self, switch: str) -> None:
        """A switch does its next order, and answers."""
        order = self.queues[switch].pop(0)
        self.take_in(switch, order)
        if isinstance(order, ev.Install):
            self.event(ev.SwitchDone(switch, order.ticket))

    def take_in(self, switch: str, order: ev.Install | ev.Sync) -> None:
        """A switch does an order."""
        if isinstance(order, ev.Sync):
            self.live[switch] = SwitchIntent(set(order.intent.rules), set(order.intent.groups))
            return
        held, update = self.live.setdefault(switch, SwitchIntent()), order.update
        held.groups |= update.groups
        changed = {key(rule) for rule in update.rules | update.gone}
        held.rules = {rule for rule in held.rules if key(rule) not in changed} | update.rules
        held.groups -= update.groups_gone

    def fault(self, switch: str) -> None:
        """A switch refuses its next order, or vanishes, perhaps with it done."""
        order = self.queues[switch][0]
        if isinstance(order, ev.Install) and self.random.random() < 0.5:
            self.queues[switch].pop(0)
            self.event(ev.SwitchFailed(switch, order.ticket, "table full"))
            return
        if self.random.random() < 0.5:
            self.apply(switch)
        lost = self.queues.pop(switch, [])
        self.gone.add(switch)
        for order in lost:
            if isinstance(order, ev.Install):
                self.event(ev.SwitchFailed(switch, order.ticket, "vanished"))

    def restart(self) -> None:
        """The process ends, and another one takes over; switches connect to it one after the other.

        Switches may have done orders that it has heard no answer of.
        """
        assert self.network is not None
        for switch, orders in sorted(self.queues.items()):
            for order in orders[: self.random.randint(0, len(orders))]:
                self.take_in(switch, order)
        self.core = Core(self.core.engine.settings)
        self.queues.clear()
        self.setting.clear()
        self.gone = set(self.topology.switches)
        lost = range(1, self.asked + 1)
        self.answers |= {asker: ev.Answer(asker, None) for asker in lost if asker not in self.answers}
        decided = self.decisions[-1].number if self.decisions else 0
        kept = list(self.saved.values()), list(self.changes.values())
        more = self.behind, self.tagged
        self.carry_out(self.core.restore(self.network, *kept, decided, self.now, *more))

    def answer_queues(self, fails: bool) -> None:
        """The database of a switch answers."""
        number = self.setting.pop(0)
        self.event(ev.QueuesFailed(number, "no such port") if fails else ev.QueuesDone(number))

    def back(self, switch: str) -> None:
        """It is connected again."""
        self.gone.discard(switch)
        self.event(ev.SwitchBack(switch))

    def settle(self) -> None:
        """All orders are done, all waits are over."""
        for _ in range(400):
            for switch in sorted(self.gone):
                self.back(switch)
            busy = [switch for switch, orders in self.queues.items() if orders]
            for switch in busy:
                self.apply(switch)
            while self.setting:
                self.answer_queues(False)
                busy = ["queues"]
            if not busy:
                engine = self.core.engine
                if not engine.timers and not engine.running and not self.core.stale:
                    return
                self.now += 1.0
                self.event(ev.Tick())
        raise AssertionError(f"it does not come to an end: {self.core.engine.running}")

    def check(self) -> None:
        """What holds after each event."""
        engine = self.core.engine
        assert [one.number for one in self.decisions] == list(range(1, len(self.decisions) + 1))
        reserved: set[str] = set()
        tags = list(self.core.basis.tags | self.core.tree_tags) + sorted(engine.plain_tags)
        for name, path in engine.paths.items():
            assert engine.keys[path.request.key, path.request.dscp] in (name,)
            if name not in engine.running and path.state != PathState.BROKEN:
                assert path.state == PathState.ACTIVE
                reserved |= set(path.reservations)
                tags.append(path.tag)
        for running in engine.running.values():
            old = set(running.old.reservations) - running.freed if running.old else set()
            reserved |= old | set(running.new.reservations if running.new else ())
            tags += {one.tag for one in (running.old, running.new) if one}
        assert set(engine.book.names()) == reserved
        assert len(tags) == len(set(tags))
        assert set(engine.tags.owners()) == set(tags)
        vlans = {key.vlan for key, _ in engine.keys if isinstance(key, EthernetKey)}
        assert vlans.isdisjoint(set(tags) - engine.plain_tags)
        self.not_overbooked()
        self.keeps_bounds()
        orders = [order for orders in self.queues.values() for order in orders]
        intents = self.core.intents()
        self.whole_ways(intents)
        assert all(self.core.intent(switch) == intent for switch, intent in intents.items())
        synced = not any(isinstance(order, ev.Sync) for order in orders)
        if synced and not self.gone and not self.core.stale:
            self.whole_ways(self.live)
        self.no_circles()

    def no_circles(self) -> None:
        """A frame of a plain NIC makes no storm, whatever switches hold; no host gets it twice."""
        for host, there in self.behind.items():
            for place in sorted(there.places)[:1]:
                port = self.topology.hosts[host].port
                for target in (BROADCAST, PLAIN_MACS[0]):
                    frame = Frame(target, tag=place.vlan, eth_src=place.mac)
                    arrived, _ = walk(self.live, Cables(self.topology), port, frame)
                    ports = [one.port for one in arrived]
                    assert len(ports) == len(set(ports))
                    assert all(one.frame == frame for one in arrived)

    def best_effort(self) -> None:
        """At rest: a frame between plain NICs without a path comes to all hosts of its VLAN, or to one."""
        for host, there in self.behind.items():
            for place in there.places:
                port = self.topology.hosts[host].port
                others = {name for name in self.behind if place.vlan in self.behind[name].vlans} - {host}
                frame = Frame(BROADCAST, 0x0806, None, None, tag=place.vlan, eth_src=place.mac)
                arrived, _ = walk(self.live, Cables(self.topology), port, frame)
                assert {one.port for one in arrived} == {self.topology.hosts[name].port for name in others}
                for other in others:
                    for mac in {one.mac for one in self.behind[other].places if one.vlan == place.vlan}:
                        arrived, _ = walk(self.live, Cables(self.topology), port, replace(frame, eth_dst=mac))
                        assert self.topology.hosts[other].port in {one.port for one in arrived}

    def announce(self) -> None:
        """A host has other vNICs behind its plain NIC; their frames are best effort, or have a path."""
        host = self.random.choice(sorted(self.topology.hosts))
        count = self.random.randint(0, 2)
        places = frozenset(
            Place(self.random.choice(PLAIN_VLANS), self.random.choice(PLAIN_MACS)) for _ in range(count)
        )
        vlans = frozenset(place.vlan for place in places)
        self.event(ev.PlainNics({host: Behind(vlans, places)}))

    def not_overbooked(self) -> None:
        """Sums of all reservations, computed anew."""
        engine = self.core.engine
        rates: dict[str, int] = {}
        for name in engine.book.names():
            held = engine.book.held(name)
            small = held.request.smallest_frame
            for link in held.routes[0].links:
                rates[link] = rates.get(link, 0) - (-held.request.rate * (small + 28) // small)
        assert all(rate <= engine.book.terms[link].reservable for link, rate in rates.items())

    def keeps_bounds(self) -> None:
        """What was told holds for the way and its backup, computed anew by the book's own reservations."""
        engine = self.core.engine
        for name, path in engine.paths.items():
            if name in engine.running or path.state == PathState.BROKEN:
                continue
            for route in (path.route, path.backup):
                links = [engine.book.terms[link] for link in (route.links if route else ())]
                delays = sum(link.levels[path.route.level].delay + link.propagation for link in links)
                assert delays <= path.bound
                waited = sum(link.levels[path.route.level].delay for link in links)
                assert path.request.burst + path.request.rate * waited // (8 * 10**9) <= path.far_burst

    def arrives(self, name: str) -> None:
        """A frame of a path arrives once, as it was sent, with its mark on the way."""
        request = self.saved[name].request
        source, target = (self.topology.hosts[host] for host in (request.source, request.target))
        frame = frame_of(request, target.mac)
        arrived, seen = walk(self.live, Cables(self.topology), source.port, frame)
        assert [(one.port, one.frame) for one in arrived] == [(target.port, frame)]
        assert all(one.frame.tag for one in seen[:-1])

    def whole_ways(self, held: dict[str, SwitchIntent]) -> None:
        """A frame of each path in force arrives once, by its links, also by those that seem to be down."""
        engine = self.core.engine
        for path in engine.paths.values():
            request = path.request
            if request.name in engine.running or path.state != PathState.ACTIVE:
                continue
            source, target = (self.topology.hosts[host] for host in (request.source, request.target))
            frame = frame_of(request, target.mac)
            arrived, seen = walk(held, Cables(self.topology), source.port, frame)
            assert [(one.port, one.frame) for one in arrived] == [(target.port, frame)]
            begins = [link.partition(">")[0] for link in path.route.links[1:]]
            assert [str(one.port) for one in seen] == begins
            assert all(one.frame.tag == path.tag for one in seen[:-1])

    def act(self) -> None:  # noqa: PLR0912
        """One thing happens."""
        random, engine = self.random, self.core.engine
        self.now += random.choice([0.0, 0.001, 0.01, 1.0])
        busy = sorted(switch for switch, orders in self.queues.items() if orders)
        choice = random.random()
        if busy and choice < self.faults:
            self.fault(random.choice(busy))
        elif busy and choice < 0.5:
            self.apply(random.choice(busy))
        elif self.setting and choice < 0.53:
            self.answer_queues(random.random() < self.faults)
        elif self.faults and choice > 0.99:
            self.restart()
        elif self.gone and choice < 0.55:
            self.back(random.choice(sorted(self.gone)))
        elif choice < 0.7:
            self.ask(self.wanted())
        elif choice < 0.75 and (engine.paths or engine.running):
            self.release(random.choice([*sorted({*engine.paths, *engine.running}), "none"]))
        elif choice < 0.85 and engine.paths:
            name = random.choice(sorted(engine.paths))
            self.event(ev.Missed(name, 3, 1000, self.now - random.choice([0.0, 2.0])))
        elif choice < 0.9 and engine.links:
            self.sample()
        elif choice < 0.91:
            self.announce()
        elif choice < 0.94:
            link = random.choice(sorted(self.topology.links)).name
            if link in self.links_down:
                self.links_down.discard(link)
            else:
                self.links_down.add(link)
            self.change_topology()
        else:
            self.event(ev.Tick())

    def wanted(self) -> PathRequest:
        """A request between two hosts; names come again, with other terms."""
        source, target = self.random.sample(range(len(self.topology.switches)), 2)
        number = self.random.randint(0, 3)
        rate = self.random.choice([1, 10, 60, 150, 600]) * MBIT
        budget = self.random.choice([1_500_000, 10**9])
        port = 40_000 + number + 10 * target
        one = request(f"v{number}", source, target, rate, budget, port)
        if number == 3:
            return replace(one, key=self.plain_key(target), dscp=0)
        return replace(one, dscp=self.random.choice([40, 40, 41]))

    def plain_key(self, target: int) -> EthernetKey:
        """The key of a path between plain NICs; its VLAN may be a tag that a path has."""
        return EthernetKey(
            self.random.choice(PLAIN_VLANS), 5, *(f"02:00:00:00:0a:{n:02x}" for n in (99, target))
        )

    def sample(self) -> None:
        """Statistics of a port."""
        port = self.random.choice(sorted(self.core.engine.links))
        drops = self.random.choice([0, 0, 5])
        self.event(ev.Sampled(tuple(ev.QueueSample(port, queue, drops) for queue in (0, 1, 2, 9))))
        if not self.random.randrange(3):
            self.event(ev.Dropped(port, 5))
