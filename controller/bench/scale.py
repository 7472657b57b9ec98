"""50 switches, 1,000 paths: the core alone, and with as many bridges of Open vSwitch.

```text
 core_cost.py ─▶ core, switches that answer at once ─▶ CPU time of each part
 WAN of N bridges in P processes ─▶ controller: discover, admit, stand still, links silent, by BFD each X ms
                                    its successor, which takes over: links silent, by LLDP alone
```

With one process, all bridges stall while queues of one are set; with more, each has a database of its own.

A link is silent in both directions, with its carrier. Admitted: from the first request to the last answer,
which comes when the path's frames take it. Converged: from the cut until each path that crossed the link has
another way, and its old rules are gone. *Lost*: ports at which BFD did not hear the other end any more,
without a cut. As root: `python controller/bench/scale.py`.
"""

import argparse
import asyncio
import logging
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "controller/tests", "tests"))

import core_cost
from graphs import wan
from lab.controlled import MBIT, Controller, configuration, run
from lab.fabric import Fabric, Plan
from rounds import machine, spread

from tidegate_controller.config import Config
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import PathState
from tidegate_controller.runtime.kept import Kept

TERMS = """
[openflow]
listen = "0.0.0.0:0"
[discovery]
interval = "1s"
{watch}
[paths]
marks = [46, 34]
hold = "1s"
[terms]
capacity = "10Gbit"
reservable = "9Gbit"
levels = [{{ delay = "500us", frames = 50_000 }}, {{ delay = "10ms", frames = 50_000 }}]
"""
AT_ONCE = 50
"""Requests without an answer."""


def used(fabric: Fabric) -> tuple[float, float]:
    """CPU time (s) and memory (MiB) of all ovs-vswitchd."""
    cpu = memory = 0.0
    for ovs in fabric.all_ovs:
        fields = Path(f"/proc/{ovs.pid}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / 100
        memory += int(fields[21]) * 4096 / (1 << 20)
    return cpu, memory


async def admit(controller: Controller, paths: int, random: Random) -> tuple[list[float], Counter[str]]:
    """Asks for all paths; returns the times of answers (s), and why some were refused."""
    hosts = list(controller.fabric.hosts)
    free, times, refused = asyncio.Semaphore(AT_ONCE), list[float](), Counter[str]()

    async def one(number: int) -> None:
        ends = random.sample(hosts, 2)
        rate = random.choice([1, 2]) * MBIT
        wanted = controller.request(f"v{number}", rate, 1000 + number, (ends[0], ends[1]))
        async with free:
            began = time.perf_counter()
            answer = await controller.runtime.ask(wanted)
            refused.update(reason.partition(": ")[2][:80] for reason in answer.reasons[:1])
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(one(number) for number in range(paths)))
    return times, refused


async def failed(controller: Controller) -> str:
    """Silences the most used link; what came of it."""
    engine, fabric = controller.runtime.core.engine, controller.fabric
    count = Counter(link for path in engine.paths.values() for link in path.route.links[1:-1])
    name, _ = max(count.items(), key=lambda item: (item[1], item[0]))
    ends = [end.replace(":", ".") for end in name.split(">")]
    before, cpu = controller.kept.decided, time.process_time()
    down = len(controller.config.links) - len(engine.newest.links)
    silent = len(controller.runtime.silent)
    both = {name, ">".join(reversed(name.split(">")))}
    crossing = [path for path in engine.paths.values() if both & set(path.route.links)]
    began = controller.runtime.now
    for end in ends:
        await asyncio.to_thread(fabric.cut, end)

    names = [path.request.name for path in crossing]

    def left() -> list[str]:
        there = ((name, engine.paths[name]) for name in names)
        return [
            name
            for name, path in there
            if name in engine.running
            or (path.state != PathState.BROKEN and not both.isdisjoint(path.route.links))
        ]

    try:
        await controller.until("all paths on other ways", lambda: not left(), 60)
    except AssertionError:
        # On a machine that is too busy, links that work seem silent, too.
        print(f"  after 60 s, {len(left())} paths are not moved yet", flush=True)
    took, cpu = controller.runtime.now - began, time.process_time() - cpu
    decisions = [one for one in controller.kept.decisions if one.number > before and one.path in names]
    changes = [one for one in decisions if one.verdict in (Verdict.MOVED, Verdict.VIOLATED)]
    moves = [one.time - began for one in changes if one.verdict == Verdict.MOVED]
    first, last = min(moves, default=0.0), max(moves, default=0.0)
    missing = len(controller.config.links) - len(engine.newest.links)
    broken = sum(one.verdict == Verdict.VIOLATED for one in changes)
    # A move is decided, for the record, when its frames have begun to take the other way.
    lost = controller.runtime.silent[silent:]
    told = f"BFD lost {len(lost)} ports, the first after {lost[0] - began:.2f} s" if lost else "BFD lost none"
    text = f"{name} of {len(crossing)} paths silent: first on another way after {first:.2f} s, last"
    for end in ends:
        await asyncio.to_thread(fabric.mend, end)
    await controller.until("the link", controller.quiet, 120)
    others = f"{down} directions seemed silent before, {missing} afterwards (2 are)"
    text = f"{told}; {text} {last:.2f} s"
    return f"{text}, converged {took:.2f} s; {broken} without another way; {others}; CPU {cpu:.2f} s"


async def admitted(controller: Controller, paths: int, seed: int) -> None:
    """Admits paths, and tells what that took."""
    runtime, fabric = controller.runtime, controller.fabric
    silent, writes = len(runtime.silent), written(controller)
    (cpu, _), own, start = used(fabric), time.process_time(), time.perf_counter()
    times, refused = await admit(controller, paths, Random(seed))
    wall = time.perf_counter() - start
    own = time.process_time() - own
    await controller.until("all rules", controller.quiet, 60)
    there = len(runtime.core.engine.paths)
    rules = sum(len(intent.rules) for intent in runtime.core.intents().values())
    changed = sum(switch.changed for switch in runtime.switches.values())
    await controller.as_intended()
    spent, memory = used(fabric)
    own_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"  {paths} requests, {AT_ONCE} at once: {there} admitted and installed in {wall:.2f} s"
        f" ({paths / wall:.0f} a second); an answer takes {spread((one * 1000 for one in times), 0)} ms;"
        f" CPU: controller {own:.2f} s, ovs-vswitchd {spent - cpu:.2f} s"
    )
    for reason, count in refused.most_common(3):
        print(f"  {count} refused: {reason}")
    writes, lost = written(controller) - writes, len(runtime.silent) - silent
    print(
        f"  {rules} rules as intended, {changed} changes, {writes} transactions;"
        f" ovs-vswitchd {memory:.0f} MiB, controller {own_memory:.0f} MiB; lost {lost}",
        flush=True,
    )


def written(controller: Controller) -> int:
    """Transactions of all databases."""
    return sum(database._writes for database in controller.runtime.databases.values())


def main() -> None:
    """The core, then all rounds with Open vSwitch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--switches", type=int, default=50)
    parser.add_argument("--paths", type=int, default=1000)
    parser.add_argument("--processes", default="5", help="of ovs-vswitchd, each with its part of the bridges")
    parser.add_argument("--bfd", default="50,300", help="ms between frames of BFD")
    parser.add_argument("--still", type=float, default=20, help="s for which nothing changes")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    # A busy machine makes thousands of lines about switches that are late.
    logging.disable(logging.WARNING)
    print(f"{machine()}; {options}\nthe core alone, CPU time:", flush=True)
    core_cost.main(options.switches, options.paths)
    for number in range(1, options.rounds + 1):
        for processes in map(int, options.processes.split(",")):
            for interval in map(int, options.bfd.split(",")):
                try:
                    measure(options, number, processes, interval)
                except (AssertionError, TimeoutError) as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    print(f"  given up: {error!r} at {where.name}: {where.line}")
                print(machine(), flush=True)


def measure(options: argparse.Namespace, number: int, processes: int, interval: int) -> None:
    """One round on a network of its own."""
    switches = options.switches
    names = [f"s{n + 1}" for n in range(switches)]
    cables = wan(Random(number), switches)
    plan = Plan([(names[a], names[b]) for a, b in cables], {f"h{n + 1}": s for n, s in enumerate(names)})
    print(f"round {number}: {switches} bridges, {len(cables)} links, {processes} ovs-vswitchd", flush=True)
    kept = Kept()
    uplinks = 'capacity = "10Gbit"\nreservable = "9Gbit"'
    with (
        tempfile.TemporaryDirectory() as name,
        Fabric(Path(name), plan, processes=processes) as fabric,
    ):
        for what, watch in (
            (f"BFD each {interval} ms", f'bfd-interval = "{interval}ms"'),
            ("LLDP alone", "bfd = false"),
        ):
            print(f" {what}:", flush=True)
            config = configuration(fabric, TERMS.format(watch=watch), uplinks)
            once(fabric, kept, config, options, number)


def once(fabric: Fabric, kept: Kept, config: Config, options: argparse.Namespace, seed: int) -> None:
    """One run with a controller of its own; the second one takes over the paths of the first one."""
    began = time.perf_counter()

    async def test(controller: Controller) -> None:
        runtime = controller.runtime
        took = time.perf_counter() - began
        print(f"  connected, all links seen: {took:.2f} s; lost {len(runtime.silent)}", flush=True)
        if not kept.paths:
            await admitted(controller, options.paths, seed)
        changed = sum(switch.changed for switch in runtime.switches.values())
        before, (cpu, _) = (len(runtime.silent), len(kept.decisions), time.process_time()), used(fabric)
        await asyncio.sleep(options.still)
        own, (spent, _) = time.process_time() - before[2], used(fabric)
        lost, decided = len(runtime.silent) - before[0], len(kept.decisions) - before[1]
        print(
            f"  {len(kept.paths)} paths; {changed} changes of rules by this controller;"
            f" {options.still:g} s still: lost {lost}, {decided} decisions;"
            f" CPU: controller {own:.2f} s, ovs-vswitchd {spent - cpu:.2f} s",
            flush=True,
        )
        for _ in range(2):
            print(f"  {await failed(controller)}", flush=True)
        await controller.until("all rules", controller.still, 120)
        await controller.as_intended()

    run(fabric, kept, test, config, seconds=900, steer=False)


if __name__ == "__main__":
    main()
