"""Admission beside an independent calculation, and beside plain shortest paths.

```text
 tests/calculated.py: random links, requests, releases ─▶ how many are overbooked
 granted paths ─▶ tests/simulated.py: packets ─▶ how many are beyond a bound
 requests one after the other ─▶ k shortest ways / the shortest way alone ─▶ accepted: ring, fat tree, WAN
```

`python controller/bench/admission.py --cases 100000`.
"""

import argparse
import sys
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "controller/tests", "tests"))

from calculated import MBIT, compared
from graphs import fat_tree, wan
from networks import network, ring, terms
from rounds import machine, table
from simulated import Flow, simulated

from tidegate_controller.decide.admission import Refused, Wanted
from tidegate_controller.decide.book import Book
from tidegate_controller.decide.routes import Routes, candidates
from tidegate_controller.model.paths import FlowKey, PathRequest
from tidegate_controller.model.topology import Topology


def cases(count: int, seed: int) -> bool:
    """Random cases; returns whether none is overbooked."""
    begin = time.perf_counter()
    found = compared(count, seed)
    took = time.perf_counter() - begin
    print(
        f"{found.cases} cases in {took:.0f} s: {found.granted} granted, {found.refused}"
        f" refused, at most {found.most} flows at once; routes refused by {dict(found.limits)}"
    )
    print(f"overbooked {found.overbooked}; bounds too short, or beyond the budget {found.beyond}")
    print(f"of {found.looked} refusals, the calculation has a route that fits in {found.careful}", flush=True)
    return not found.overbooked and not found.beyond


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


def packets(name: str, topology: Topology, seed: int) -> list[str]:
    """Packets on a network that is filled until most requests are refused."""
    random = Random(seed)
    hosts, routes, links = sorted(topology.hosts), Routes(topology), terms(topology)
    book, flows = Book(), []
    book.learn(links)
    for number in range(400):
        source, target = random.sample(hosts, 2)
        key = FlowKey(topology.hosts[source].address, topology.hosts[target].address, number + 1)
        rate = random.choice([1, 5, 20, 60]) * MBIT
        burst = random.choice([1500, 4000, 12_000])
        small = random.choice([64, 200, 1400])
        request = PathRequest(f"p{number}", source, target, key, 40, rate, burst, small, 1500, 20_000_000)
        ways = candidates(routes.ways(source, target), 2)
        random.shuffle(ways)
        try:
            granted = book.change([], [Wanted(request.name, request, ways)])[0]
        except Refused:
            continue
        flows.append(Flow(request, granted.route, granted.bound))
    worst = simulated({link.name: link for link in links}, flows, 40, random)
    shares = [f"{worst.nearest:.2f}", f"{worst.nearest_hop:.2f}"]
    return [name, f"{len(flows)} of 400", str(worst.frames), str(worst.beyond), *shares]


def main() -> int:
    """All parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="sequences of requests for each topology")
    parser.add_argument("--offered", default="200,1000", help="requests of a sequence")
    options = parser.parse_args()
    print(f"{machine()}; {options}", flush=True)
    kept = cases(options.cases, options.seed)
    rows = [["topology", "offered", "the shortest way", "all as short", "at most one longer", "8 shortest"]]
    for seed in range(options.seed, options.seed + options.rounds):
        for offered in map(int, options.offered.split(",")):
            rows.append(reached("ring of 8", ring(8), offered, seed))
            rows.append(reached("fat tree of 20", fat_tree(), offered, seed))
            rows.append(reached("WAN of 50", network(50, wan(Random(seed))), offered, seed))
    lines = sorted(rows[1:], key=lambda row: (row[0], len(row[1]), row[1]))
    print(f"\naccepted requests and their rate\n\n{table([rows[0], *lines])}\n\n{machine()}")
    rows = [["topology", "paths", "frames", "beyond a bound", "nearest to a bound", "to a link's delay"]]
    for seed in range(options.seed, options.seed + options.rounds):
        rows.append(packets("ring of 8", ring(8), seed))
        rows.append(packets("fat tree of 20", fat_tree(), seed))
        rows.append(packets("WAN of 50", network(50, wan(Random(seed))), seed))
    print(f"\npackets on filled networks\n\n{table([rows[0], *sorted(rows[1:])])}\n\n{machine()}")
    kept = kept and not any(int(row[3]) for row in rows[1:])
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
