"""Pairs on one worker and on several: their throughput, its cost, and the losses after a stall.

```text
 guests p0000, p0001, ... ─▶ the switch gives their ports to its workers in turn: port n to worker n mod W
   different workers: n sends to n + 1      same worker: n sends to n + W
 one round: before │ the first receiver takes nothing for 5 ms │ 100 ms │ after
```
"""

import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from harness.machine import hugepages
from harness.model import Context, Figure, Json, Machine, Missing, Result, Sample, Scene, Target
from peers.synthetic import Synthetic, vnics

MTU = "mtu = 9000"
SIZES = (64, 1518, 4096, 9014)
PAIRS = (1, 2, 4, 8)
WORKERS = (1, 2, 4)
PAGES = 300
"""Hugepages (2 MB): 16 guests with two rings of 256 jumbo frames."""
ROUNDS = 3
"""Rounds of each load. All loads have one before any has its next."""
ROUND_S = 0.5
KEPT = 0.95
"""Throughput from 100 ms after a stall on, of what it was before: at least."""
LOST = 0.1
"""Frames lost then, while all receivers have buffers, %: at most."""
GENERATOR = 0.25
"""Above this share of turns in which most of a ring waited for it, the generator may be the limit."""
CROSSING = 0.7
"""Throughput between workers, of what the same pairs have on one worker each: at least."""


@dataclass(frozen=True)
class Case:
    """One load."""

    workers: int
    crossing: bool
    """Sender and receiver of each pair on different workers."""
    pairs: int
    size: int
    packed: bool

    @property
    def name(self) -> str:
        """As in the tables."""
        rings = "packed" if self.packed else "split"
        placed = "1 worker" if self.workers == 1 else f"{self.workers} workers, "
        if self.workers > 1:
            placed += "between them" if self.crossing else "on the same"
        return f"{placed}, {self.pairs} x {self.size} B, {rings}"

    @property
    def stride(self) -> int:
        """How many ports after its sender a receiver comes."""
        return 1 if self.crossing else self.workers

    @property
    def ports(self) -> int:
        """Ports up to that of the last receiver."""
        blocks = -(-self.pairs // self.stride)
        return 2 * self.stride * blocks


def cases(machine: Machine, *, quick: bool) -> Iterator[Case]:
    """Every load that this machine has the cores for."""
    for workers in WORKERS:
        if workers > 2 and len(machine.cpus) < workers + 1:
            continue
        for crossing in (False, True) if workers > 1 else (False,):
            for packed in (False, True):
                for pairs in PAIRS if not quick else (2,):
                    for size in SIZES if not quick else (1518,):
                        yield Case(workers, crossing, pairs, size, packed)


@dataclass(frozen=True)
class Cpus:
    """The CPUs of workers and generator."""

    workers: str
    """As in `--cpus` of the switch."""
    sink: int | None
    """The receivers' thread; `None` if it shares the CPU of the senders."""


def placed(machine: Machine, workers: int) -> Cpus:
    """The CPUs of so many workers: the switch's own, then others that the generator leaves.

    On a machine of two the second worker shares the generator's.
    """
    free = [cpu for cpu in reversed(machine.cpus) if cpu not in (machine.switch_cpu, machine.generator_cpu)]
    own = [machine.switch_cpu, *free][:workers]
    if len(own) < workers:
        own.append(machine.generator_cpu)
    left = [cpu for cpu in free if cpu not in own]
    return Cpus(",".join(map(str, own)), left[0] if left else None)


class Switch:
    """One switch for all loads of as many workers."""

    def __init__(self, context: Context, workers: int) -> None:
        folder = Path(context.cleanup.enter_context(tempfile.TemporaryDirectory(prefix="stalls-")))
        self.cpus = placed(context.machine, workers)
        self.load = Synthetic(replace(context, folder=folder), cpus=self.cpus.workers)
        ports = max(case.ports for case in cases(context.machine, quick=False) if case.workers == workers)
        self.load.apply(vnics(folder, ports, MTU))
        if (has := len(self.load.workers())) != workers:
            raise RuntimeError(f"the switch has {has} workers, {workers} are to be measured")

    def dropped(self) -> dict[str, dict[str, int]]:
        """Frames that the switch dropped so far, by sender and reason."""
        vnics_now: list[Json] = json.loads(self.load.host.get("/v1/vnics"))
        return {vnic["name"]: vnic["stats"]["tx"]["dropped"] for vnic in vnics_now if vnic.get("stats")}

    def measure(self, case: Case) -> Json:
        """One round of one load; the figures of the generator and of the switch."""
        before = self.dropped()
        sink = ("--sink-cpu", self.cpus.sink) if self.cpus.sink is not None else ()
        packed = ("--packed",) if case.packed else ()
        options = ("--pairs", case.pairs, "--stride", case.stride, "--frame", case.size)
        times = ("--rounds", 1, "--round", ROUND_S)
        report = self.load.run("stall", *options, *times, *packed, *sink, timeout=30)
        now: Json = report["rounds"][0]
        return now | {"dropped": more(before, self.dropped())}


def more(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """How many more were dropped, by reason, of all senders together."""
    total: dict[str, int] = {}
    for name, reasons in after.items():
        for reason, count in reasons.items():
            if increase := count - before.get(name, {}).get(reason, 0):
                total[reason] = total.get(reason, 0) + increase
    return total


def mpps(part: Json) -> float:
    """Million frames received a second."""
    return float(part["received"]) / float(part["seconds"]) / 1e6 if part["seconds"] else 0.0


def lost(parts: list[Json]) -> float:
    """Frames that did not arrive, as a share of the sent ones, %."""
    sent = sum(int(part["sent"]) for part in parts)
    return 100.0 * (sent - sum(int(part["received"]) for part in parts)) / max(sent, 1)


def median(rounds: list[Json], part: str) -> float:
    """The median throughput in one part of the rounds, Mpps."""
    return float(statistics.median(mpps(seen[part]) for seen in rounds))


def note_of(rounds: list[Json]) -> str:
    """Further facts of a load, as a sentence."""
    reasons = sorted({reason for seen in rounds for reason in seen["dropped"]})
    dropped = ", ".join(
        f"{reason} {sum(seen['dropped'].get(reason, 0) for seen in rounds):,}" for reason in reasons
    )
    losses = {part: lost([seen[part] for seen in rounds]) for part in ("before", "after")}
    at_stalled = statistics.median(seen["lost_at_stalled"] for seen in rounds)
    at_others = statistics.median(seen["lost_at_others"] for seen in rounds)
    limit = {
        who: statistics.median(seen[f"{who}_late"] for seen in rounds) for who in ("senders", "receivers")
    }
    late = [f"{who} were late in {share:.0%} of turns" for who, share in limit.items() if share > GENERATOR]
    return (
        f"during the stall {median(rounds, 'during'):.2f}, in the 100 ms after it "
        f"{median(rounds, 'soon'):.2f}, later {median(rounds, 'after'):.2f} Mpps; "
        f"lost: before {losses['before']:.2f} %, later {losses['after']:.2f} %; in the stall and 100 ms "
        f"{at_stalled:,.0f} frames to the stalled receiver, {at_others:,.0f} to others; "
        f"the switch dropped {dropped or 'nothing'}"
        + (f"; {' and '.join(late)}: **the generator may be the limit**" if late else "")
    )


def figures(case: Case, rounds: list[Json]) -> list[Figure]:
    """Throughput before a stall, and its cost in CPU time."""
    taken = {"taken_ns": "generator's core taken away", "switch_taken_ns": "switch's core taken away"}

    def disturbed(seen: Json) -> str:
        enough = 0.005 * ROUND_S * 1e9
        return "; ".join(
            f"{what} {seen[key] / 1e6:.1f} ms" for key, what in taken.items() if seen[key] > enough
        )

    speeds = tuple(Sample(mpps(seen["before"]), disturbed(seen)) for seen in rounds)
    cost = tuple(Sample(seen["frames_per_cpu_second"] / 1e6, disturbed(seen)) for seen in rounds)
    return [
        Figure(case.name, "tidegate", "Mpps", speeds, filterable=True, note=note_of(rounds)),
        Figure(f"{case.name}: a CPU-second", "tidegate", "million frames", cost, filterable=True),
    ]


def targets(seen: dict[Case, list[Json]]) -> list[Target]:
    """Losses after stalls, and the cost of sender and receiver on different workers."""
    kept = min(((median(r, "after") / max(median(r, "before"), 1e-9)), case.name) for case, r in seen.items())
    most = max((lost([one["after"] for one in rounds]), case.name) for case, rounds in seen.items())
    found = [
        Target(
            "throughput from 100 ms after a stall on, of what it was: the least",
            f"at least {KEPT:g}x",
            *("x", KEPT, "more"),
            (Sample(kept[0]),),
            note=kept[1],
        ),
        Target(
            "frames lost from 100 ms after a stall on: the most",
            f"at most {LOST:g} %",
            *("%", LOST, "less"),
            (Sample(most[0]),),
            note=most[1],
        ),
    ]
    for size in SIZES:
        ratios = [
            mpps(over["before"]) / max(mpps(under["before"]), 1e-9)
            for case, rounds in seen.items()
            if case.crossing and case.size == size
            for over, under in zip(rounds, seen.get(replace(case, crossing=False), []), strict=False)
        ]
        found.append(
            Target(
                f"{size} B between two workers, of what the same pairs have on one worker each",
                f"at least {CROSSING:g}x",
                *("x", CROSSING, "more"),
                tuple(map(Sample, ratios)),
            )
        )
    return found


def run(context: Context) -> Result:
    """Every load once, then every load again."""
    context.cleanup.enter_context(hugepages(PAGES))
    wanted = [case for case in cases(context.machine, quick=context.quick) if context.wants(case.name)]
    if not wanted:
        raise Missing(f"no load's name contains '{context.only}'")
    switches = {workers: Switch(context, workers) for workers in sorted({case.workers for case in wanted})}
    seen: dict[Case, list[Json]] = {case: [] for case in wanted}
    rounds = context.rounds(ROUNDS)
    for number in range(rounds):
        for case in wanted:
            seen[case].append(switches[case.workers].measure(case))
            now = seen[case][-1]
            context.say(
                f"{number + 1} of {rounds}: {case.name}: {mpps(now['before']):.3f} Mpps, "
                f"{mpps(now['during']):.3f} in a stall, {mpps(now['soon']):.3f} soon after, "
                f"{mpps(now['after']):.3f} later"
            )
    result = Result(targets=targets(seen))
    for case, found in seen.items():
        result.figures += figures(case, found)
    if 4 in WORKERS and not any(case.workers == 4 for case in cases(context.machine, quick=False)):
        result.notes.append(
            f"Four workers were not measured: they take five cores, here are {len(context.machine.cpus)}."
        )
    for workers, switch in switches.items():
        sink = "share one core" if switch.cpus.sink is None else "have a core each"
        result.notes.append(f"{workers} workers on CPUs {switch.cpus.workers}: senders and receivers {sink}.")
    return result


SCENE = Scene(
    name="stalls",
    title="Pairs on one worker and on several, and a receiver that stalls",
    about=(
        "Pairs of synthetic guests, rings of 256, one sends to the other as fast as it may. The switch gives "
        "ports to its workers in turn, so the order of ports decides whether sender and receiver of each "
        "pair are on the same worker or on different ones. One core drives the senders and another the "
        "receivers where the machine has them; of two cores the second worker shares the generator's. In "
        "each round of half a second the first receiver takes nothing and gives no buffers for 5 ms. Figures "
        "are of before the stall; the notes say what was received during it, in the 100 ms after it and "
        "later, and what was lost. A round of all loads comes before the next one: rounds of one load are "
        "minutes apart."
    ),
    order=25,
    run=run,
    has_cases=True,
)
