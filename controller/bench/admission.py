"""Admission beside an independent calculation, and beside plain shortest paths.

```text
 random links, requests, releases ─▶ Book ─▶ grants, refusals
                                        └──▶ the definition in fractions, of all flows anew: overbooked?
 1,000 requests ─▶ k shortest ways / the shortest way alone ─▶ accepted, on a ring, a fat tree, a WAN
```

The independent calculation shares no code with the one that decides (crates/contract): it has the formulas of
docs/decisions/path-admission.md, without rounding. `python controller/bench/admission.py --cases 100000`.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "controller/tests", "tests"))

from graphs import fat_tree, wan
from networks import network, ring, terms
from rounds import machine, table

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


def compared(cases: int, seed: int) -> bool:
    """Random cases; returns whether none is overbooked."""
    random = Random(seed)
    done, kinds, limits = 0, Counter[str](), Counter[str]()
    overbooked, careful, late, reserved = 0, 0, 0, 0
    begin = time.perf_counter()
    while done < cases:
        topology = any_network(random)
        links = any_terms(random, topology)
        book, judge = Book(), Judge({link.name: link for link in links})
        book.learn(links)
        routes, levels = Routes(topology), len(links[0].levels)
        slowest = min(link.capacity for link in links)
        held: dict[str, tuple[PathRequest, Route]] = {}
        for number in range(min(PER_NETWORK, cases - done)):
            done += 1
            gone: list[str] = []
            choice = random.random()
            if held and choice < 0.1:
                gone = [random.choice(list(held))]
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
                kinds["refused"] += 1
                for reason in refused.reasons:
                    limits[limit_of(reason)] += 1
                if kinds["refused"] % SAMPLED == 0:
                    careful += over_careful(judge, held, gone, name, request, ways)
                continue
            for one in gone:
                judge.remove(one, held.pop(one)[1].links)
            bound = judge.place(name, request, granted.route)
            held[name] = (request, granted.route)
            kinds["granted"] += 1
            late += bound > request.budget or granted.bound < bound
            reserved = max(reserved, len(held))
            overbooked += any(judge.broken(link) for link in granted.route.links)
        # No flow has broken a promise anywhere else either.
        overbooked += sum(bool(judge.broken(link.name)) for link in links)
    print(
        f"{done} cases in {time.perf_counter() - begin:.0f} s: {kinds['granted']} granted, {kinds['refused']}"
        f" refused, at most {reserved} flows at once; routes refused by {dict(limits)}"
    )
    print(f"overbooked {overbooked}; bounds below the calculation, or beyond the budget {late}")
    looked = kinds["refused"] // SAMPLED
    print(f"of {looked} refusals, the calculation without rounding has a route that fits in {careful}")
    return not overbooked and not late


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


def reached(name: str, topology: Topology, offered: int, seed: int) -> list[str]:
    """What all ways reach, and the shortest alone."""
    random = Random(seed)
    hosts = sorted(topology.hosts)
    routes = Routes(topology)
    requests = []
    for number in range(offered):
        source, target = random.sample(hosts, 2)
        key = FlowKey(topology.hosts[source].address, topology.hosts[target].address, number + 1)
        rate = random.choice([1, 5, 20]) * MBIT
        requests.append(PathRequest(f"p{number}", source, target, key, 40, rate, 4000, 200, 1400, 20_000_000))
    row = [name, f"{offered}, {sum(one.rate for one in requests) / 1e6:,.0f} Mbit/s"]
    for most, longer in ((1, 0), (8, 0), (8, 1), (8, 99)):
        book = Book()
        book.learn(terms(topology))
        accepted = rate = 0
        for request in requests:
            ways = list(routes.ways(request.source, request.target))[:most]
            ways = [way for way in ways if len(way) <= len(ways[0]) + longer]
            try:
                book.change([], [Wanted(request.name, request, candidates(ways, 2))])
            except Refused:
                continue
            accepted += 1
            rate += request.rate
        row.append(f"{accepted}, {rate / 1e6:,.0f} Mbit/s")
    return row


def main() -> int:
    """Both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="sequences of requests for each topology")
    parser.add_argument("--offered", default="200,1000", help="requests of a sequence")
    options = parser.parse_args()
    print(f"{machine()}; {options}", flush=True)
    kept = compared(options.cases, options.seed)
    rows = [["topology", "offered", "the shortest way", "all as short", "at most one longer", "8 shortest"]]
    for seed in range(options.seed, options.seed + options.rounds):
        for offered in map(int, options.offered.split(",")):
            rows.append(reached("ring of 8", ring(8), offered, seed))
            rows.append(reached("fat tree of 20", fat_tree(), offered, seed))
            rows.append(reached("WAN of 50", network(50, wan(Random(seed))), offered, seed))
    lines = sorted(rows[1:], key=lambda row: (row[0], len(row[1]), row[1]))
    print(f"\naccepted requests and their rate\n\n{table([rows[0], *lines])}\n\n{machine()}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
