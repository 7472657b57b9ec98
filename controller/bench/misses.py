"""The original's experiment, completed: frames of a real-time path are late; what each remedy does about it.

```text
 h1 ─ s1 ─ s2 ══ s3 ─ h3     h1 ▶ h3: a real-time path, by s2; each frame is sent with its time
      └── s4 ──┘            h2 ▶ h4: a path that sends far more than it reserved, s2 ══ s3
                            h5 ▶ h6: the same, s4 ─ s3 (case `both-ways`)
 receiver of h3 ─ late frames, in batches ─▶ controller ─▶ level, way, both, or neither
```

A path keeps its bound as long as all senders keep to what they reserved, so a sender that does not is what
makes frames late. Missed: later than the deadline at the receiver, or lost. `repaired`: from the first missed
frame to the first one from which on no more than one in a hundred is missed. As root:
`python controller/bench/misses.py --rounds 3`.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.extend(str(ROOT / part) for part in ("controller/src", "tests"))

from lab.controlled import DSCP, Controller, configuration, run
from lab.fabric import Fabric, Plan
from lab.traffic import Flow, Report, Running
from rounds import machine, spread, table

from tidegate_controller import events as ev
from tidegate_controller.decide.react import Remedy
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.intent import queue_of
from tidegate_controller.model.paths import FlowKey
from tidegate_controller.runtime.kept import Kept

TERMS = """
[openflow]
listen = "127.0.0.1:0"
[discovery]
interval = "200ms"
[paths]
marks = [46, 34]
hold = "HOLD"
[terms]
capacity = "10Mbit"
reservable = "6Mbit"
levels = [{ delay = "5ms", frames = 5000 }, { delay = "6ms", frames = 5000 }]
"""
UPLINKS = 'capacity = "100Mbit"\nreservable = "90Mbit"'
LINK = 10_000_000
SHORT = {queue_of(0): 30, queue_of(1): 30}
"""Frames in a queue: 36 ms at the link's rate."""
PLAN = Plan(
    [("s1", "s2"), ("s2", "s3"), ("s1", "s4"), ("s4", "s3")],
    {"h1": "s1", "h2": "s2", "h3": "s3", "h4": "s3", "h5": "s4", "h6": "s3"},
)
WAYS = {
    "neither": frozenset[Remedy](),
    "level alone": frozenset({Remedy.LEVEL}),
    "way alone": frozenset({Remedy.ROUTE}),
    "both": frozenset({Remedy.LEVEL, Remedy.ROUTE}),
}
CASES = {
    "own-level": ((25_000_000, ("h2", "h4")),),
    "top-level": ((17_000_000, ("h2", "h4")),),
    "both-ways": ((25_000_000, ("h2", "h4")), (25_000_000, ("h5", "h6"))),
}
"""The paths that send too much: the budget (ns), which chooses the level, and their hosts."""
ABOUT = {
    "own-level": "at the real-time path's level, on its way",
    "top-level": "at the real-time path's level, the most urgent one, on its way",
    "both-ways": "at its level, on both ways",
}


HEAD = ("", "missed before", "missed after", "first miss to change, s", "to repaired, s", "decisions")


@dataclass(frozen=True)
class Options:
    """What is varied."""

    interval: int
    """us between two real-time frames."""
    deadline: int
    """us."""
    before: float
    """s without the competing flow."""
    after: float
    """s with it."""
    load: float
    """Of the link's rate."""
    hold: str


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    before: int
    """Missed before the first frame of the competing flow, of `count_before`."""
    count_before: int
    after: int
    count_after: int
    repaired: float | None
    """s; `None`: not before the end."""
    first: float | None
    """s from the first missed frame to the first change that was decided."""
    decisions: tuple[Verdict, ...]
    p99: int
    """us, of the last second."""


def judged(
    report: Report, options: Options, count: int, begun: int
) -> tuple[int, int, int | None, int | None]:
    """Missed before and after; since the competing flow: the first missed frame, the first repaired one."""
    missed = sorted({*report.late, *report.gone})
    before = sum(number < begun for number in missed)
    after = [number for number in missed if number >= begun]
    if not after:
        return before, 0, None, None
    # From there on, at most one in a hundred: single frames are late on a busy machine, too.
    second = 1_000_000 // options.interval
    for left, number in zip(range(len(after) - 1, -1, -1), after, strict=True):
        rest = count - number - 1
        if left * 100 <= rest and rest >= second:
            return before, len(after), after[0], number + 1
    return before, len(after), after[0], None


async def measured(controller: Controller, case: str, options: Options) -> Outcome:
    """One run: the path, its flow, then the competing ones; misses go to the controller as they are told."""
    fabric, runtime = controller.fabric, controller.runtime
    wanted = controller.request("rt", 600_000, 9001)
    budget = 21_000_000 if case == "top-level" else 25_000_000
    wanted = replace(wanted, burst=500, smallest_frame=200, largest_frame=400, budget=budget)
    answer = await controller.ask(wanted)
    path = answer.path
    assert path is not None, answer.reasons
    assert "s2:2>s3:1" in path.route.links, path.route
    assert path.route.level == (0 if case == "top-level" else 1)
    for number, (budget, ends) in enumerate(CASES[case]):
        other = controller.request(f"other{number}", 500_000, 9101 + number, ends)
        assert isinstance(other.key, FlowKey)
        key = replace(other.key, target_port=9100 + number)
        other = replace(other, key=key, burst=1500, smallest_frame=1428, largest_frame=1500, budget=budget)
        answer = await controller.ask(other)
        assert answer.path is not None, answer.reasons
        assert answer.path.route.level == (0 if case == "top-level" else 1)
    await asyncio.sleep(controller.config.settings.hold + 0.2)
    count = int((options.before + options.after) * 1e6 / options.interval)
    real = Flow(count, options.interval, 200, DSCP)
    running = await asyncio.to_thread(fabric.flow, "h1", "h3", real, 1.5, options.deadline)
    told = 0
    decided = controller.kept.decided

    async def report_misses() -> None:
        nonlocal told
        while True:
            for batch in running.misses()[told:]:
                told += 1
                event = ev.Missed(wanted.name, batch.count, batch.worst * 1000, batch.at)
                runtime.happened(event)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(report_misses())
    await asyncio.sleep(options.before)
    others: list[Running] = []
    for number, (_, ends) in enumerate(CASES[case]):
        flow = Flow.of_rate(int(LINK * options.load), options.after, dscp=DSCP, port=9100 + number)
        flow = replace(flow, source_port=9101 + number)
        others.append(await asyncio.to_thread(fabric.flow, *ends, flow))
    report = await asyncio.to_thread(running.report)
    task.cancel()
    starts = min([(await asyncio.to_thread(flows.report)).first for flows in others])
    began = report.first
    begun = min(count, int((starts - began) * 1e6 / options.interval))
    before, after, first, good = judged(report, options, count, begun)
    mine = [one for one in controller.kept.decisions if one.number > decided and one.path == wanted.name]
    changes = [one for one in mine if one.verdict in (Verdict.LEVEL_RAISED, Verdict.MOVED)]
    first_change = None
    if first is not None and changes:
        first_change = changes[0].time - began - first * options.interval / 1e6
    repaired = None if first is None or good is None else (good - first) * options.interval / 1e6
    verdicts = tuple(dict.fromkeys(one.verdict for one in mine))
    return Outcome(before, begun, after, count - begun, repaired, first_change, verdicts, report.delay(99))


def main() -> None:
    """All cases and ways, in turn, round after round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", default=",".join(CASES), help="some of " + ", ".join(CASES))
    parser.add_argument("--interval", type=int, default=4000, help="us between real-time frames")
    parser.add_argument("--deadline", type=int, default=27_000, help="us")
    parser.add_argument("--before", type=float, default=1.0, help="s without the competing flow")
    parser.add_argument("--after", type=float, default=4.0, help="s with it")
    parser.add_argument("--load", type=float, default=1.5, help="of the competing flow, of the link's rate")
    parser.add_argument("--hold", default="500ms", help="a path is changed at most once in that time")
    given = vars(parser.parse_args())
    rounds, cases = given.pop("rounds"), given.pop("cases").split(",")
    options = Options(**given)
    print(f"{machine()}; {options}", flush=True)
    found: dict[tuple[str, str], list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as name, Fabric(Path(name), PLAN) as fabric:
        config = configuration(fabric, TERMS.replace("HOLD", options.hold), UPLINKS)
        for number, case, way in product(range(1, rounds + 1), cases, WAYS):

            async def one(
                controller: Controller, number: int = number, case: str = case, way: str = way
            ) -> None:
                outcome = await measured(controller, case, options)
                found.setdefault((case, way), []).append(outcome)
                print(f"round {number}, {case}, {way}: {outcome}", flush=True)
                for path in list(controller.runtime.core.engine.paths):
                    await controller.runtime.release(path)
                await controller.until("the end of the paths", controller.still)

            settings = replace(config.settings, remedies=WAYS[way])
            run(fabric, Kept(), one, replace(config, settings=settings), short=SHORT)
    for case in cases:
        print(f"\n{case}: the competing flow is {ABOUT[case]}; median (worst) of {rounds} rounds\n")
        print(table([HEAD, *(row(way, found[case, way]) for way in WAYS)]))
    print(f"\n{machine()}")


def row(way: str, runs: list[Outcome]) -> list[str]:
    """A way in the table."""
    changed = [run.first for run in runs if run.first is not None]
    repaired = [run.repaired for run in runs if run.repaired is not None]
    never = f", {len(runs) - len(repaired)} of {len(runs)} never" if len(repaired) < len(runs) else ""
    verdicts = dict.fromkeys(str(verdict) for run in runs for verdict in run.decisions)
    return [
        way,
        f"{spread(run.before for run in runs)} of {median(run.count_before for run in runs):.0f}",
        f"{spread(run.after for run in runs)} of {median(run.count_after for run in runs):.0f}",
        spread(changed, 2),
        spread(repaired, 2) + never,
        ", ".join(verdicts),
    ]


if __name__ == "__main__":
    main()
