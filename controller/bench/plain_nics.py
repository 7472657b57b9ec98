"""Rules of best effort between plain NICs, and what the core takes for them.

```text
 WAN of 50 switches, a host at each, 1,000 vNICs in 20 VLANs ─▶ Core, switches that answer at once
   ─▶ rules by table, rules that change and CPU time: all hosts, one vNIC, one link
```

Beside it, computed: a rule in each switch for each vNIC, without tags of hosts. Needs no root:
`python controller/bench/plain_nics.py`.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "controller/tests"))

from graphs import wan
from networks import network, terms

from tidegate_controller import events as ev
from tidegate_controller.core import BASIS, PLAIN, Core
from tidegate_controller.model.plain import Behind, Place


class Bench:
    """A core, and switches that answer at once."""

    def __init__(self) -> None:
        self.core, self.now = Core(), 1000.0

    def do(self, what: str, event: ev.Event) -> Counter[str]:
        """Handles an event and all that follows. Prints and returns how many rules changed, by table."""
        core, found = self.core, Counter[str]()
        start = time.process_time()
        longest = 0.0
        waiting: list[ev.Effect] = []

        def handle(one: ev.Event) -> None:
            nonlocal longest
            began = time.process_time()
            waiting.extend(core.handle(one, self.now))
            longest = max(longest, time.process_time() - began)

        handle(event)
        while waiting or not core.is_still:
            if not waiting:
                self.now += 1.0
                handle(ev.Tick())
                continue
            match waiting.pop(0):
                case ev.Install(ticket, update):
                    if (ticket.owner, ticket.change) == (BASIS, PLAIN):
                        found.update(rule.table.name for rule in (*update.rules, *update.gone))
                    handle(ev.SwitchDone(update.switch, ticket))
                case ev.SetQueues(number):
                    handle(ev.QueuesDone(number))
                case _:
                    pass
        spent = time.process_time() - start
        tables = ", ".join(f"{table} {count:,}" for table, count in sorted(found.items()))
        total = f"{found.total():,} orders of rules"
        print(f"{what}: {total} ({tables}); {spent:.2f} s of CPU, at most {longest:.3f} s in one go")
        return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--vnics", type=int, default=1000)
    parser.add_argument("--vlans", type=int, default=20)
    parser.add_argument("--vlans-of-host", type=int, default=20)
    options = parser.parse_args()
    random = Random(3)
    topology = network(options.switches, wan(random, options.switches))
    hosts = sorted(topology.hosts)
    own = {host: random.sample(range(100, 100 + options.vlans), options.vlans_of_host) for host in hosts}
    places: dict[str, set[Place]] = {host: set() for host in hosts}
    for number in range(options.vnics):
        host = hosts[number % len(hosts)]
        mac = f"02:00:00:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
        places[host].add(Place(random.choice(own[host]), mac))
    behind = {host: Behind(frozenset(own[host]), frozenset(places[host])) for host in hosts}
    bench = Bench()
    core = bench.core
    print(f"{options.switches} switches, {len(topology.links)} directions, {options.vnics} vNICs")
    bench.do("without plain NICs", ev.TopologyChanged(topology, tuple(terms(topology))))
    bench.do("all hosts", ev.PlainNics(behind))
    plain = core.best_effort.plain
    held = {switch: Counter(rule.table.name for rule in plain.held(switch)) for switch in topology.switches}
    total = sum(held.values(), Counter[str]())
    for table in sorted(total):
        most = max(one[table] for one in held.values())
        print(f"  {table}: {total[table]:,} rules, at most {most:,} in a switch")
    print(f"  together {total.total():,}, {len(core.engine.plain_tags)} tags")
    for number in range(3):
        one = Place(own["h0"][0], f"02:00:00:ff:ff:0{number}")
        behind["h0"] = replace(behind["h0"], places=behind["h0"].places | {one})
        bench.do("one vNIC more", ev.PlainNics({"h0": behind["h0"]}))
    before = {host: way.ports for host, way in plain.layout.ways.items()}
    link = sorted(topology.links)[0]
    up = topology.links - {link, link.back}
    bench.do("a link is down", ev.TopologyChanged(replace(topology, links=up), ()))
    changed = sum(
        len(places[host])
        for host, way in plain.layout.ways.items()
        for switch, port in way.ports.items()
        if before[host].get(switch) != port
    )
    each = options.vnics * options.switches
    print(f"with a rule for each vNIC in each switch: {each:,} rules; this link changes {changed:,} of them")


if __name__ == "__main__":
    main()
