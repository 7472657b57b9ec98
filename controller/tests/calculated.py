"""Random cases of admission beside an independent calculation.

```text
 random links, requests, releases ─▶ Book ─▶ grants, refusals
                                        └──▶ the definition in fractions, of all flows anew: overbooked?
```

The calculation shares no code with the one that decides (crates/contract): it has the formulas of
docs/decisions/path-admission.md, without rounding.
"""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

from networks import network, terms

from tidegate_controller.decide.admission import Level, LinkTerms, Refused, Wanted
from tidegate_controller.decide.book import Book
from tidegate_controller.decide.routes import Routes, candidates
from tidegate_controller.model.paths import FlowKey, PathRequest, Route
from tidegate_controller.model.topology import Topology

MBIT = 1_000_000
NANO = 10**9
TAG = 4
PER_NETWORK = 200
SAMPLED = 10
"""One refusal in so many is judged, too."""


@dataclass
class Flow:
    """What a flow counts at one link: bits, bit/s, frames."""

    level: int
    rate: Fraction
    burst: Fraction
    frames: Fraction


@dataclass
class Judge:
    """The definition: what is reserved at each link."""

    links: dict[str, LinkTerms]
    flows: dict[str, dict[str, Flow]] = field(default_factory=dict)

    def place(self, name: str, request: PathRequest, route: Route) -> Fraction:
        """Adds a flow. Returns the bound of its way, ns."""
        waited, cables = Fraction(0), Fraction(0)
        for hop in route.links:
            link = self.links[hop]
            delay = link.levels[route.level].delay
            small = request.smallest_frame
            wire = Fraction(small + TAG + link.overhead, small)
            burst = request.burst * 8 + Fraction(request.rate) * waited / NANO
            in_delay = request.burst * 8 + Fraction(request.rate) * (waited + delay) / NANO
            flow = Flow(route.level, request.rate * wire, burst * wire, in_delay / (small * 8))
            self.flows.setdefault(hop, {})[name] = flow
            waited += delay
            cables += link.propagation
        return waited + cables

    def remove(self, name: str, links: tuple[str, ...]) -> None:
        """Takes a flow out."""
        for hop in links:
            del self.flows[hop][name]

    def broken(self, name: str) -> str:
        """Which promise of a link is not kept; empty: none."""
        link = self.links[name]
        flows = self.flows.get(name, {}).values()
        if sum(flow.rate for flow in flows) > link.reservable:
            return "rate"
        fixed = (link.largest_frame + link.overhead) * 8 + Fraction(link.capacity * link.latency, NANO)
        higher_rate, higher_burst = Fraction(0), Fraction(0)
        for number, level in enumerate(link.levels):
            here = [flow for flow in flows if flow.level == number]
            rate, burst = (
                sum((one.rate for one in here), Fraction(0)),
                sum((one.burst for one in here), Fraction(0)),
            )
            left = link.capacity - higher_rate
            waits = (higher_burst + fixed) / left
            if here:
                if waits + burst / left > Fraction(level.delay, NANO):
                    return "delay"
                if level.in_frames:
                    # Whole frames of each flow.
                    if sum(int(one.frames) for one in here) > level.buffer:
                        return "frames"
                elif burst + rate * waits > level.buffer * 8:
                    return "buffer"
            higher_rate += rate
            higher_burst += burst
        return ""


def any_network(random: Random) -> Topology:
    """A connected graph of 2 to 8 switches."""
    count = random.randint(2, 8)
    cables = [(random.randrange(n), n) for n in range(1, count)]
    more = [(random.randrange(count), random.randrange(count)) for _ in range(random.randint(0, count))]
    return network(count, cables + [pair for pair in more if pair[0] != pair[1]])


def any_terms(random: Random, topology: Topology) -> list[LinkTerms]:
    """Of 10 Mbit/s to 100 Gbit/s, 1 to 3 levels, buffers in bytes or frames."""
    levels = random.randint(1, 3)
    found = []
    for plain in terms(topology):
        capacity = random.choice([10, 100, 1000, 10_000, 100_000]) * MBIT
        least = 12_000 * NANO // capacity
        delays = sorted(random.randint(1, 60) * least + random.randint(1000, 200_000) for _ in range(levels))
        found.append(
            LinkTerms(
                *(plain.name, plain.source, plain.target, capacity, int(capacity * random.uniform(0.05, 1))),
                tuple(
                    Level(delay, random.randint(5, 300), True)
                    if random.random() < 0.4
                    else Level(delay, random.randint(3000, 300_000), False)
                    for delay in delays
                ),
                overhead=random.choice([0, 20, 24]),
                latency=random.choice([0, 1000, 50_000]),
                propagation=random.choice([0, 500, 5_000_000]),
                largest_frame=random.choice([1518, 1522, 9018]),
            )
        )
    return found


def any_request(random: Random, name: str, count: int, capacity: int) -> PathRequest:
    """Between two hosts; its rate fits into the slowest links some times."""
    source, target = random.sample(range(count), 2)
    small = random.choice([64, 110, 500, 1400])
    large = random.randint(small, 1500)
    return PathRequest(
        *(name, f"h{source}", f"h{target}", FlowKey(f"10.0.0.{source}", f"10.0.0.{target}", 1), 40),
        rate=max(1, int(capacity * random.choice([0.0001, 0.003, 0.02, 0.1, 0.5]) * random.random())),
        burst=large + random.choice([0, 0, 1500, 20_000]),
        smallest_frame=small,
        largest_frame=large,
        budget=random.choice([2_000_000, 20_000_000, 200_000_000, NANO]),
    )


@dataclass
class Compared:
    """What came of random cases."""

    cases: int = 0
    granted: int = 0
    refused: int = 0
    most: int = 0
    """Flows at once."""
    limits: Counter[str] = field(default_factory=Counter)
    """Refusals of routes, by kind."""
    overbooked: int = 0
    """Grants after which a promise of a link is not kept, by the calculation."""
    beyond: int = 0
    """Bounds below those of the calculation, or beyond the budget."""
    looked: int = 0
    careful: int = 0
    """Of the refusals that were `looked` at: those with a route that fits by the calculation."""


def compared(cases: int, seed: int) -> Compared:
    """Random cases, over networks of their own."""
    random, found = Random(seed), Compared()
    while found.cases < cases:
        _one_network(random, min(PER_NETWORK, cases - found.cases), found)
    return found


def _one_network(random: Random, cases: int, found: Compared) -> None:
    topology = any_network(random)
    links = any_terms(random, topology)
    book, judge = Book(), Judge({link.name: link for link in links})
    book.learn(links)
    routes, levels = Routes(topology), len(links[0].levels)
    slowest = min(link.capacity for link in links)
    held: dict[str, tuple[PathRequest, Route]] = {}
    for number in range(cases):
        found.cases += 1
        choice = random.random()
        gone = [random.choice(list(held))] if held and choice < 0.1 else []
        name = f"p{number}"
        scale = random.choice([slowest, 1000 * MBIT])
        request = any_request(random, name, len(topology.switches), scale)
        if gone and choice < 0.05:
            # A change: the old one goes only if the new one fits.
            request = held[gone[0]][0]
        ways = candidates(routes.ways(request.source, request.target), levels)
        random.shuffle(ways)
        try:
            granted = book.change(gone, [Wanted(name, request, ways)])[0]
        except Refused as refused:
            found.refused += 1
            found.limits.update(limit_of(reason) for reason in refused.reasons)
            if found.refused % SAMPLED == 0:
                found.looked += 1
                found.careful += over_careful(judge, held, gone, name, request, ways)
            continue
        for one in gone:
            judge.remove(one, held.pop(one)[1].links)
        bound = judge.place(name, request, granted.route)
        held[name] = (request, granted.route)
        found.granted += 1
        found.beyond += bound > request.budget or granted.bound < bound
        found.most = max(found.most, len(held))
        found.overbooked += any(judge.broken(link) for link in granted.route.links)
    # No flow has broken a promise anywhere else either.
    found.overbooked += sum(bool(judge.broken(link.name)) for link in links)


def limit_of(reason: str) -> str:
    """The kind of a refusal."""
    kinds = {
        "would be reserved": "rate",
        "frames of level": "frames",
        "would wait": "buffer",
        "left of the deadline": "budget",
    }
    found = next((kind for text, kind in kinds.items() if text in reason), "")
    return found or ("delay" if "fixed delay" in reason else "largest frame")


def over_careful(
    judge: Judge,
    held: dict[str, tuple[PathRequest, Route]],
    gone: list[str],
    name: str,
    request: PathRequest,
    ways: list[Route],
) -> bool:
    """Whether a route of a refused request fits by the calculation."""
    for one in gone:
        judge.remove(one, held[one][1].links)
    fits = False
    for route in ways:
        links = [judge.links[link] for link in route.links]
        if any(request.largest_frame + TAG > link.largest_frame for link in links):
            continue
        bound = judge.place(name, request, route)
        fits = bound <= request.budget and not any(judge.broken(link) for link in route.links)
        judge.remove(name, route.links)
        if fits:
            break
    for one in gone:
        judge.place(one, *held[one])
    return fits
