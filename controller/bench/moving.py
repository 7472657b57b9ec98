"""A path that moves under traffic, beside the naive ways to change rules.

```text
 h1 ─ s1 ─ s4 ═ s3 ─ h3     ours: the controller moves the path whenever late frames are reported
       └── s2 ═══┘          naive: the same sessions, rules without a tag, one switch after the other
```

All three in each round, with the same flow: numbered frames at even intervals. `flip first`: the edge is
changed before the new way is there; `delete first`: the old way goes before the new one comes. As root:
`python controller/bench/moving.py --rounds 2`.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "tests"))

from lab.controlled import DSCP, Controller, configuration, run
from lab.fabric import Fabric, ring
from lab.traffic import Flow, Report
from rounds import machine, spread, table

from tidegate_controller import events as ev
from tidegate_controller.decide.react import Remedy
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.intent import IPV4, OURS, UDP, Match, Output, Rule, Table
from tidegate_controller.openflow import codec
from tidegate_controller.openflow.change import Change
from tidegate_controller.runtime.kept import Kept

NAIVE = OURS | 0xBAD
"""The cookie of rules of no path that the controller knows: it deletes them when a switch connects."""
PRIORITY = 850
PORT = 9000
WAYS = (
    (("s1", 3, 2), ("s4", 2, 1), ("s3", 2, 3)),
    (("s1", 3, 1), ("s2", 1, 2), ("s3", 1, 3)),
)
"""Switches with the ports by which frames come and go."""


MATCH = Match(eth_type=IPV4, protocol=UDP, target_port=PORT)
DROPS = [(switch, Rule(Table.EDGE, PRIORITY - 1, MATCH, (), NAIVE)) for switch in ("s1", "s2", "s3", "s4")]
"""Without them, a frame that meets no rule of the flow would go on as best effort."""


@dataclass(frozen=True)
class Outcome:
    """Of one flow."""

    moves: int
    report: Report


def rules(way: tuple[tuple[str, int, int], ...]) -> list[tuple[str, Rule]]:
    """Rules of a way, in its order, without a tag."""
    found = []
    for switch, arrive, leave in way:
        match = replace(MATCH, in_port=arrive)
        found.append((switch, Rule(Table.EDGE, PRIORITY, match, (Output(leave),), NAIVE)))
    return found


async def change(controller: Controller, switch: str, before: Rule | None, after: Rule | None) -> None:
    """Changes one rule, and waits for the barrier."""
    session = controller.runtime.server.sessions[switch]
    assert await session.apply([codec.encode(Change(before, after))]) == []


async def naive(controller: Controller, old: int, *, delete_first: bool) -> None:
    """Moves the flow from a way to the other one."""
    gone, come = rules(WAYS[old]), rules(WAYS[1 - old])
    # The rule of the first switch has the same match on both ways: it is replaced.
    (edge, before), (_, after) = gone[0], come[0]
    if delete_first:
        for switch, rule in gone:
            await change(controller, switch, rule, None)
        for switch, rule in come:
            await change(controller, switch, None, rule)
        return
    await change(controller, edge, before, after)
    for switch, rule in come[1:]:
        await change(controller, switch, None, rule)
    for switch, rule in gone[1:]:
        await change(controller, switch, rule, None)


async def measured(controller: Controller, way: str, flow: Flow, every: float) -> Outcome:
    """One flow, and moves as long as it goes on."""
    path = None
    if way == "ours":
        path = (await controller.path()).path
        assert path is not None
    else:
        for switch, rule in [*DROPS, *rules(WAYS[0])]:
            await change(controller, switch, None, rule)
    running = await asyncio.to_thread(controller.fabric.flow, "h1", "h3", flow)
    waiting = asyncio.create_task(asyncio.to_thread(running.report))
    moves, at = 0, controller.runtime.now + every
    while not waiting.done():
        await asyncio.sleep(max(0.0, at - controller.runtime.now))
        at += every
        if path is not None:
            missed = ev.Missed(path.request.name, 1, 1, controller.runtime.now)
            controller.runtime.happened(missed)
        else:
            await naive(controller, moves % 2, delete_first=way == "delete first")
            moves += 1
    report = await waiting
    if path is not None:
        moves = sum(one.verdict == Verdict.MOVED for one in controller.kept.decisions)
        await controller.until("the end of the change", controller.still)
        await controller.as_intended()
        await controller.runtime.release(path.request.name)
        await controller.until("the end of the path", controller.still)
    else:
        for switch, rule in [*DROPS, *rules(WAYS[moves % 2])]:
            await change(controller, switch, rule, None)
    return Outcome(moves, report)


def main() -> int:
    """All ways in turn, round after round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--interval", type=int, default=1000, help="us between two frames")
    parser.add_argument("--size", type=int, default=200, help="bytes of UDP payload")
    parser.add_argument("--every", type=float, default=0.3, help="s between two moves")
    options = parser.parse_args()
    print(f"{machine()}; {options}", flush=True)
    flow = Flow(options.frames, options.interval, options.size, DSCP, PORT)
    found: dict[str, list[Outcome]] = {"ours": [], "flip first": [], "delete first": []}
    limit = options.frames * options.interval / 1e6 * 3 + 60
    with tempfile.TemporaryDirectory() as name, Fabric(Path(name), ring(4)) as fabric:
        config = configuration(fabric)
        settings = replace(config.settings, hold=options.every / 3, remedies=frozenset({Remedy.ROUTE}))
        for number in range(1, options.rounds + 1):
            for way, outcomes in found.items():

                async def one(
                    controller: Controller, way: str = way, outcomes: list[Outcome] = outcomes
                ) -> None:
                    outcomes.append(await measured(controller, way, flow, options.every))

                run(fabric, Kept(), one, replace(config, settings=settings), seconds=limit)
                print(f"round {number}, {way}: {outcomes[-1].moves} moves; {outcomes[-1].report}", flush=True)
    rows = [["", "moves", "frames lost", "reordered", "twice", "longest silence, ms"]]
    for way, runs in found.items():
        reports = [run.report for run in runs]
        rows.append(
            [
                way,
                spread((one.moves for one in runs), least_is_worst=True),
                spread(one.lost for one in reports),
                spread(one.reordered for one in reports),
                spread(one.duplicates for one in reports),
                spread((one.silence / 1000 for one in reports), 1),
            ]
        )
    print(f"\n{options.frames} frames a flow; median (worst) of {options.rounds} rounds\n\n{table(rows)}")
    print(f"\n{machine()}")
    return int(any(run.report.lost or run.report.duplicates for run in found["ours"]))


if __name__ == "__main__":
    sys.exit(main())
