"""The tail with more threads than cores: the plan of CPUs off and on, in turns.

```text
 the demo:     voice ─ 1,000 frames/s ─┐
               bulk1, bulk2 ─ TCP ─────┴─ Tidegate ── 1 Gbit/s ─ sink
 several VMs:  the same, and call1, call2 with deadlines, bulk3 ─ TCP ─▶ bulk4, bulk5 ─ TCP ─▶ bulk6
                     tidegate cores apply --off │ tidegate cores apply
```
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from harness.measure import interleave, ratios
from harness.model import (
    Contender,
    Context,
    Figure,
    Json,
    Missing,
    OptionGroup,
    Result,
    Scene,
    Target,
    Window,
    samples,
)
from harness.report import table
from lab.process import wait_for
from scenes.delay import BULK_PORT, CONNECTIONS, gained, hear, inner, values
from scenes.delay import CONTRACT as DEMO
from scenes.placing import page
from scenes.stacks.fabric import Tidegate

OFF, PLAN = "off", "plan"
CALLS = ("call1", "call2")
PAIRS = (("bulk3", "bulk4"), ("bulk5", "bulk6"))
NAMES = ("voice", "bulk1", "bulk2", "sink", *CALLS, *(name for pair in PAIRS for name in pair))
CALL = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "2ms"', 'to = ["sink"]')
CONTRACT = {**DEMO, **dict.fromkeys(CALLS, CALL)}
SETTLE_S = 5.0
"""The plan looks twice a second, and moves nothing before it has seen a load for a while."""
CALL_PORT = 5010


@dataclass(frozen=True)
class Case:
    """The traffic beside voice."""

    pairs: Sequence[tuple[str, str]]
    calls: Sequence[str]


CASES = {
    "the demo": Case((("bulk1", "sink"), ("bulk2", "sink")), ()),
    "several VMs": Case((("bulk1", "sink"), ("bulk2", "sink"), *PAIRS), CALLS),
}
ROWS = {
    "inside p99.9": "us",
    "inside max": "us",
    "p99.9": "us",
    "max": "us",
    "misses": "",
    "late": "",
    "lost": "",
    "bulk": "Mbit/s",
    "timer p99.9": "us",
}
NAMED = {
    "p99.9": "application to application p99.9",
    "max": "application to application, worst",
    "inside max": "inside, worst",
    "misses": "deadline misses inside",
    "late": "frames later than 1 ms",
    "lost": "frames lost",
    "bulk": "everything the sink received",
    "timer p99.9": "a bare timer p99.9",
}


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--rounds", type=int, default=10, metavar="N", help="windows of each case; 10")
    group.add_argument("--seconds", type=float, default=4.0, metavar="N", help="of a window; 4")
    group.add_argument("--workers", type=int, default=2, metavar="N", help="of the switch; 2")


class Load:
    """One switch and one agent, with all namespaces."""

    def __init__(self, context: Context, workers: int) -> None:
        self.context = context
        options = ("--workers", str(workers))
        self.fabric = Tidegate(context.folder / "t", NAMES, context.cleanup, switch_options=options)
        self.fabric.start(CONTRACT)
        wait_for("the first look", lambda: bool(self.fabric.stats("voice")))
        self.threads = 0
        self.plans: list[Json] = []

    def place(self, contender: str) -> None:
        """The plan off or on, and time for its first steps."""
        self.fabric.host.cli("cores", "apply", *(("--off",) if contender == OFF else ()))
        wait_for("the plan", lambda: self.cores()["kept"] == (contender == PLAN))

    def cores(self) -> Json:
        """`/v1/cores`."""
        found: Json = json.loads(self.fabric.host.get("/v1/cores"))
        return found

    def play(self, case: Case, cleanup: ExitStack) -> None:
        """Bulk traffic and calls, anywhere."""
        for receiver in dict.fromkeys(to for _, to in case.pairs):
            drain = self.fabric.act(receiver, "drain", self.fabric.address(receiver), str(BULK_PORT))
            cleanup.callback(drain.kill)
        for sender, receiver in case.pairs:
            words = (self.fabric.address(receiver), str(BULK_PORT), str(CONNECTIONS))
            cleanup.callback(self.fabric.act(sender, "bulk", *words).kill)
        for number, call in enumerate(case.calls):
            to, port = self.fabric.address("sink"), str(CALL_PORT + number)
            seconds = str(SETTLE_S + self.context.options.seconds + 30)
            files = self.fabric.file(), self.fabric.file()
            cleanup.callback(self.fabric.act("sink", "listen", to, port, seconds, str(files[0])).kill)
            cleanup.callback(self.fabric.act(call, "voice", to, port, seconds, str(files[1])).kill)

    def measure(self, contender: str, name: str) -> Json:
        """One window."""
        case = CASES[name]
        self.place(contender)
        with ExitStack() as cleanup:
            self.play(case, cleanup)
            time.sleep(SETTLE_S)
            sources = ("voice", *case.calls)
            before = {source: self.fabric.stats(source) for source in sources}
            found = values(hear(self.fabric, self.context.options.seconds))
            after = {source: self.fabric.stats(source) for source in sources}
            report = self.cores()
        found |= inner(gained(before["voice"], after["voice"]))
        found["misses"] = float(sum(missed(after[one]) - missed(before[one]) for one in sources))
        self.plans.append({"contender": contender, "case": name, **summary(report)})
        return found


def missed(stats: Json) -> int:
    """Deadline misses of a vNIC, of all reasons."""
    return sum(stats["misses"].values())


def summary(report: Json) -> Json:
    """Of `/v1/cores`: stages, those that the plan places, those that are not where they should be."""
    stages = report["stages"]
    plan = report.get("plan") or {}
    return {
        "stages": len(stages),
        "placed": sum(bool(stage["planned"]) for stage in stages),
        "not there": [f"{stage['stage']}: {stage['missing']}" for stage in stages if stage.get("missing")],
        "cost": plan.get("cost_ns", 0),
        "present": plan.get("present_cost_ns", 0),
        "cannot": report.get("impossible") or "",
        "unmet": [one["vnic"] for one in plan.get("impossible", [])],
    }


def notes(plans: Sequence[Json]) -> list[str]:
    """What the plan did, and could not do."""
    found = []
    for case in CASES:
        own = [plan for plan in plans if (plan["contender"], plan["case"]) == (PLAN, case)]
        if not own:
            continue
        last = own[-1]
        placed = statistics.median(plan["placed"] for plan in own)
        found.append(f"{case}: the plan placed {placed:.0f} of {last['stages']} stages.")
        found += [f"{case}: not where the plan says: {stage}" for stage in last["not there"]]
        if last["cannot"]:
            found.append(f"{case}: {last['cannot']}")
        if last["unmet"]:
            found.append(f"{case}: no CPU of their own for {', '.join(last['unmet'])}.")
    return found


def result(windows: Sequence[Window], plans: Sequence[Json]) -> Result:
    """Figures of each case, off beside on."""
    found = Result(windows=list(windows))
    rows = []
    for case in dict.fromkeys(window.case for window in windows):
        for row, unit in ROWS.items():
            name = f"{NAMED.get(row, row)}, {case}"
            cells = []
            for contender in (OFF, PLAN):
                taken = samples(windows, contender, case, row)
                found.figures.append(Figure(name, contender, unit, taken))
                every = [sample.value for sample in taken]
                cells.append(f"{statistics.median(every):.0f} ({min(every):.0f} to {max(every):.0f})")
            rows.append([f"{name} {f'[{unit}]' if unit else ''}".strip(), *cells])
        against = ratios(windows, PLAN, OFF, case, "inside p99.9")
        found.targets.append(
            Target(f"inside p99.9, plan / off, {case}", "at most 1x", "x", 1, "less", against)
        )
    found.tables.append(table(("quantity", "plan off", "plan on"), rows))
    found.notes += notes(plans)
    found.data = {"plans": list(plans)}
    return found


def run(context: Context) -> Result:
    """Off and on, in turns."""
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        raise Missing("on one CPU there is nothing to plan")
    began = time.monotonic()
    load = Load(context, context.options.workers)
    contenders = [Contender(name, partial(load.measure, name)) for name in (OFF, PLAN)]
    cases = [case for case in CASES if context.wants(case)]
    windows = interleave(None, contenders, cases, context.options.rounds)
    found = result(windows, load.plans)
    found.notes.append(
        f"{usable} CPUs for {len(NAMES)} tenants, each with a sender or receiver of up to {CONNECTIONS} "
        f"connections, and {context.options.workers} workers."
    )
    page.write(context, SCENE, found, time.monotonic() - began)
    return found


SCENE = Scene(
    name="cores_tail",
    title="The plan of CPUs: the tail with more threads than cores",
    about=(
        "Voice sends 1,000 frames of 200 bytes a second to a sink of 1 Gbit/s that two bulk "
        "senders fill over TCP, as in the demo; *several VMs* has two more calls with deadlines "
        "to the sink, and two pairs of bulk between other taps. Every tenant is a network "
        "namespace behind a tap; nothing is pinned by the scene. `[host.cores] placement` is off "
        "and on in turns. `inside` is Tr - Ts as the switch counts it."
    ),
    order=980,
    run=run,
    has_cases=True,
    default=False,
    add_options=add_options,
    writes_page=True,
)
