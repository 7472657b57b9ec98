"""What the core costs; `scale.py` calls it.

Prints the CPU time (s) of a topology, of requests with all answers of switches, of all intents, and of a link
that goes down. Switches answer at once.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from networks import MBIT, network, request, terms

from tidegate_controller import events as ev
from tidegate_controller.core import Core


def drive(core: Core, now: float, effects: Sequence[ev.Effect]) -> int:
    """Answers all orders. Returns how many updates of switches there were."""
    waiting, updates = list(effects), 0
    for effect in waiting:
        if isinstance(effect, ev.Install):
            updates += 1
            waiting += core.handle(ev.SwitchDone(effect.update.switch, effect.ticket), now)
        elif isinstance(effect, ev.SetQueues):
            waiting += core.handle(ev.QueuesDone(effect.number), now)
    return updates


def main(switches: int = 50, paths: int = 1000) -> None:
    """Prints the figures."""
    random = Random(3)
    cables = [(random.randrange(n), n) for n in range(1, switches)]
    more = ((random.randrange(switches), random.randrange(switches)) for _ in range(switches))
    topology = network(switches, cables + [pair for pair in more if pair[0] != pair[1]])
    core, now, start = Core(), 1000.0, time.process_time()

    def figure(what: str) -> None:
        nonlocal start
        print(f"{time.process_time() - start:8.3f} s  {what}")
        start = time.process_time()

    drive(core, now, core.handle(ev.TopologyChanged(topology, tuple(terms(topology))), now))
    drive(core, now + 10, core.handle(ev.Tick(), now + 10))
    figure(f"topology of {switches} switches and {len(topology.links)} directions")
    updates = 0
    for number in range(paths):
        now = 1020.0 + number / 1000
        source, target = random.sample(range(switches), 2)
        asked = request(f"v{number}", source, target, random.choice([1, 2]) * MBIT, port=1000 + number)
        updates += drive(core, now, core.handle(ev.Requested(number, asked), now))
    figure(f"{paths} requests, {len(core.engine.paths)} admitted, {updates} updates of switches")
    core.intents()
    figure("all intents")
    routes = [path.route.links for path in core.engine.paths.values()]
    used = max(topology.links, key=lambda link: sum(link.name in route for route in routes))
    up = {link for link in topology.links if link not in (used, used.back)}
    effects = core.handle(ev.TopologyChanged(replace(topology, links=up), ()), now)
    figure(f"the most used link is down: {len(core.engine.running)} paths begin to move")
    drive(core, now, effects)
    figure("their rules")
