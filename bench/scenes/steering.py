"""A priority VXLAN flow beside colliding flows: the network stack's CPU by default, RPS, collided, placed.

```text
 priority ───┐                                        ┌─ default: the CPU that sent
 background ─┼─ vxlan ─ veth, several queues ─ stack ─┼─ RPS: a CPU by the hash of the outer ports
 background ─┘   closed loop: no queue overflows      ├─ collided: all flows on one CPU
                                                      └─ placed: a CPU of its own (XDP, cpumap)
```
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.measure import turns
from harness.model import (
    Context,
    Figure,
    Json,
    Missing,
    OptionGroup,
    Result,
    Sample,
    Scene,
    Target,
)
from harness.report import table
from scenes.placing import page
from scenes.steers import counts
from scenes.steers.network import PORT, VNI, Network, cpus

DEFAULT, RPS, COLLIDED, PLACED = "default", "RPS", "collided", "placed"
CONTENDERS = (DEFAULT, RPS, COLLIDED, PLACED)
CLOSED, OPEN = "closed loop", "open loop"
RING = 256
"""Frames that a veth's ring holds; the windows of all flows together are smaller."""
CPUS = 4
"""Fewest on which the effect can be seen: senders, background, and the priority flow."""
PRIORITY = "priority"


@dataclass(frozen=True)
class Seats:
    """CPUs of the senders, which stand for another host, and of the receiving host."""

    sender: int
    other_senders: int
    background: int
    own: int

    @classmethod
    def of(cls, usable: Sequence[int]) -> "Seats":
        """The first and last CPUs: with fewer than four some have two tasks."""
        if len(usable) < 2:
            raise Missing("two CPUs are needed: one for the senders, one for the receivers")
        if len(usable) == 2:
            return cls(usable[0], usable[0], usable[1], usable[0])
        if len(usable) == 3:
            return cls(usable[0], usable[0], usable[1], usable[2])
        return cls(usable[0], usable[1], usable[-2], usable[-1])


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument(
        "--rounds",
        type=int,
        default=10,
        metavar="N",
        help="windows of each contender; 10",
    )
    group.add_argument("--seconds", type=float, default=2.0, metavar="N", help="of a window; 2")
    group.add_argument("--background", type=int, default=6, metavar="N", help="background flows; 6")


class Steered:
    """The XDP program at the receiving host's device, as the cores place attaches it."""

    def __init__(self, network: Network, seats: Seats) -> None:
        program = network.context.root / "target/release/examples/steer"
        if not program.exists():
            raise Missing("no program: cargo build --release -p tidegate-steering --example steer")
        flow = f"{PRIORITY},{VNI},{PORT},{seats.own}"
        words = [f"--net={network.receiver.path}", str(program), "up0", str(seats.background), flow]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "nsenter", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        network.context.cleanup.callback(self.process.kill)
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "attached":
            raise RuntimeError("the program could not be attached; see above")

    def stop(self) -> str:
        """Detaches; the counters, as they are printed."""
        output, _ = self.process.communicate(timeout=30)
        return output


def flows(seats: Seats, contender: str, background: int, case: str) -> list[tuple[str, int, int, int]]:
    """Name, CPUs and window of each flow; receivers run anywhere unless a contender places them."""
    window = 0 if case == OPEN else RING // (background + 2)
    placed = contender in (COLLIDED, PLACED)
    own, others = (seats.own, seats.background) if placed else (-1, -1)
    first = (PRIORITY, seats.sender, own, window)
    return [
        first,
        *((f"background{n}", seats.other_senders, others, window) for n in range(background)),
    ]


def cpumap_drops(log: str) -> int:
    """Frames for which a CPU's queue had no room, from the last line of the program's counters."""
    lines = [line for line in log.splitlines() if line.startswith("{")]
    if not lines:
        return 0
    dropped = json.loads(lines[-1]).get("dropped") or {}
    return sum(dropped.values())


def window(
    network: Network,
    seats: Seats,
    contender: str,
    case: str,
    seconds: float,
    background: int,
) -> Json:
    """One window: rates, and frames by stage."""
    spread = {RPS: {seats.background, seats.own}, COLLIDED: {seats.background}}.get(contender, set())
    network.spread(frozenset(spread))
    steered = Steered(network, seats) if contender == PLACED else None
    before = network.counts(0)
    found = network.send(seconds, flows(seats, contender, background, case))
    log = steered.stop() if steered else ""
    after = network.counts(cpumap_drops(log))
    dropped = counts.gained(before, after)
    rates = {flow["name"]: flow["measured"] / found["seconds"] / 1e3 for flow in found["flows"]}
    return {
        "priority": rates[PRIORITY],
        "background": sum(rates.values()) - rates[PRIORITY],
        "frames": counts.account(found["flows"], dropped),
        "limit": counts.first_limit(dropped),
    }


def range_of(values: Sequence[float]) -> float:
    """The range of the values, of their median."""
    return (max(values) - min(values)) / (statistics.median(values) or 1.0)


def result(windows: Sequence[Json], usable: int) -> Result:
    """Figures, targets, and the frames of each stage."""
    found = Result()
    closed = [one for one in windows if one["case"] == CLOSED]
    samples = {name: [one["priority"] for one in closed if one["contender"] == name] for name in CONTENDERS}
    few = (
        f"cannot be shown on {usable} CPUs: senders, background and the priority flow take {CPUS}"
        if usable < CPUS
        else ""
    )
    rows = []
    for name in CONTENDERS:
        own = [one for one in closed if one["contender"] == name]
        if not own:
            continue
        for what in ("priority", "background"):
            taken = tuple(Sample(one[what]) for one in own)
            found.figures.append(Figure(what, name, "kframes/s", taken))
        values = samples[name]
        rows.append(
            [
                name,
                f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})",
                f"{100 * range_of(values):.0f} %",
                f"{statistics.median(one['background'] for one in own):.1f}",
            ]
        )
    found.tables.append(
        table(
            (
                "stack",
                "priority [kframes/s]",
                "range / median",
                "background [kframes/s]",
            ),
            rows,
        )
    )
    if samples[PLACED] and samples[DEFAULT]:
        ratios = tuple(Sample(a / b) for a, b in zip(samples[PLACED], samples[DEFAULT], strict=False) if b)
        found.targets.append(
            Target(
                "priority flow, placed against default",
                "at least 1x",
                "x",
                1,
                "more",
                ratios,
                invalid=few,
            )
        )
        spread = range_of(samples[PLACED]) / (range_of(samples[DEFAULT]) or 1e-9)
        found.targets.append(
            Target(
                "its range, placed against default",
                "at most 0.5x",
                "x",
                0.5,
                "less",
                (Sample(spread),),
                invalid=few,
            )
        )
    found.tables.append(
        table(
            ("case", "stack", "sent", "received", *counts.STAGES, "unexplained"),
            losses(windows),
        )
    )
    for case in (CLOSED, OPEN):
        limits = {one["limit"] for one in windows if one["case"] == case} - {""}
        if limits:
            found.notes.append(f"{case}: frames were lost first at {', '.join(sorted(limits))}.")
        elif any(one["case"] == case for one in windows):
            found.notes.append(f"{case}: no stage lost a frame; the slowest stage held the senders back.")
    if few:
        found.notes.append(f"The effect {few}.")
    for one in windows:
        if left := one["frames"]["unexplained"]:
            found.failures.append(f"{one['contender']}, {one['case']}: no counter explains {left} frames")
    found.data = {"windows": list(windows)}
    return found


def losses(windows: Sequence[Json]) -> list[list[str]]:
    """Frames by stage, of all windows of each contender and case."""
    rows = []
    for case in (CLOSED, OPEN):
        for name in CONTENDERS:
            own = [one["frames"] for one in windows if (one["contender"], one["case"]) == (name, case)]
            if own:
                columns = ("sent", "received", *counts.STAGES, "unexplained")
                rows.append(
                    [
                        case,
                        name,
                        *(str(sum(one[key] for one in own)) for key in columns),
                    ]
                )
    return rows


def rivals(network: Network) -> str:
    """What the device cannot do, and is not measured therefore."""
    features = network.receiver.run("ethtool -k up0")
    fixed = [name for name in ("ntuple-filters", "receive-hashing") if f"{name}: off [fixed]" in features]
    return (
        f"Not measurable: aRFS and ntuple filters (`ethtool -k`: {', '.join(fixed)} off [fixed]), RSS: the "
        "device has no such hardware. RPS takes the same hash of the outer ports, which differ by inner flow."
        if fixed
        else "aRFS and ntuple filters are not measured."
    )


def run(context: Context) -> Result:
    """All contenders in turns."""
    if os.geteuid() != 0:
        raise Missing("needs root, for network namespaces and XDP")
    began = time.monotonic()
    usable = cpus()
    seats = Seats.of(usable)
    network = Network(context, len(usable))
    wanted = context.options
    windows = []
    # Without back-pressure only for the account: where the first frames are lost.
    plan = [(CLOSED, name) for _, _, name in turns(CONTENDERS, ("",), wanted.rounds)] + [
        (OPEN, name) for name in CONTENDERS
    ]
    missing = ""
    for case, name in plan:
        try:
            found = window(network, seats, name, case, wanted.seconds, wanted.background)
        except Missing as reason:
            missing = str(reason)
            continue
        windows.append({"contender": name, "case": case, **found})
        context.say(f"{case}, {name}: {found['priority']:.1f} and {found['background']:.1f} kframes/s")
    found_all = result(windows, len(usable))
    found_all.notes.append(rivals(network))
    if missing:
        found_all.notes.append(f"{PLACED} is not measured: {missing}")
    page.write(context, SCENE, found_all, time.monotonic() - began)
    return found_all


SCENE = Scene(
    name="steering",
    title="A priority flow in a tunnel beside colliding flows",
    about=(
        "A priority flow and background flows of 1,000 byte datagrams through the kernel's vxlan over a veth "
        "pair with a queue for each CPU. A sender has at most so many datagrams on their way that no queue "
        "overflows, and sleeps until its receiver has taken some; the flow's rate says how long its stages "
        "take. `default`: the kernel runs the stack on the CPU that sent; `RPS`: on a CPU by the hash of the "
        "outer ports; both leave the receivers to the scheduler. `collided`: all flows' stack on one CPU, as "
        "of a NIC with one queue. `placed`: the XDP program sends the priority flow to a CPU of its own, and "
        "all others to another. Counters of each stage account for each frame; *open loop* has no "
        "back-pressure, to see which stage loses frames first."
    ),
    order=970,
    run=run,
    default=False,
    add_options=add_options,
    writes_page=True,
    programs=(),
)
