"""Frames per second from guest to guest through one switch core.

```text
 guest A ─▶ virtio-user ─▶ tidegate | testpmd io | OVS-DPDK learning, explicit ─▶ virtio-user ─▶ guest B
            └─────────── generator, one core ──────────── the switch, the other ───────────────┘
```
"""

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from harness.machine import hugepages
from harness.measure import against_first, interleave, ratios, samples
from harness.model import (
    Contender,
    Context,
    Figure,
    Json,
    Missing,
    Plot,
    Result,
    Sample,
    Scene,
    Series,
    Spread,
    Target,
    Window,
    undisturbed,
)
from harness.traffic import Generator, brake
from peers.base import GUEST_A, GUEST_B, Peer
from peers.ovs import Ovs
from peers.testpmd import Testpmd
from peers.tidegate import Tidegate

OURS, BARE, LEARNING, EXPLICIT = "tidegate", "testpmd io", "OVS-DPDK learning", "OVS-DPDK explicit flow"
EVERYONE = (OURS, BARE, EXPLICIT, LEARNING)
LAYOUTS = {"split": False, "packed": True}
DRIVER = "vectorized=1,mrg_rxbuf=0,in_order=1"
"""The same for all: the driver's fastest ways, of those whose needs the switch accepts."""
PAGES = 900
"""Hugepages (2 MB): OVS 384 MB and its mbufs, testpmd 256 MB, four generators of 96 MB."""
LIMITED_BELOW = 0.75
"""The switch has to lose at least this part of the brake's share; otherwise the generator is the limit."""
ENOUGH_TO_TELL = 3
"""Fewer windows than this, and what was lost is noise: then A's ring has to have been OFTEN_FULL."""
OFTEN_FULL = 0.5


@dataclass(frozen=True)
class Case:
    """The generator's options for a case."""

    name: str
    options: dict[str, int]
    many_macs: bool = False


SIZES = [Case(f"{size} B", {"size": size}) for size in (64, 512, 1518)]
FLOWS = [Case(f"{n:,} 5-tuples", {"flows": n, "rewrite": 1}) for n in (10, 1_000, 100_000, 1_000_000)]
MACS = [Case(f"{n:,} MACs", {"macs": n, "rewrite": 1}, True) for n in (10, 256, 1024, 4096)]


class Side:
    """One switch with the generator that is connected to it, as one or more contenders."""

    def __init__(self, context: Context, peer: Peer) -> None:
        self.context = context
        self.peer = peer
        self.generator: Generator | None = None
        self.tid = 0

    def connect(self, *, packed: bool, cleanup: ExitStack) -> bool:
        """Connect a generator; whether the switch accepted the layout of rings."""
        self.peer.resume()
        self.generator = Generator(
            self.peer.sockets,
            (GUEST_A, GUEST_B),
            self.context.machine.generator_cpu,
            self.context.folder / f"g-{self.peer.name.partition(' ')[0]}-{packed:d}",
            packed=packed,
            listens=self.peer.front_end_listens,
            options=DRIVER,
        )
        cleanup.callback(self.generator.stop)
        self.generator.wait_ready()
        self.peer.connected()
        self.tid = self.peer.forwarding_thread()
        self.peer.pause()
        return self.generator.packed == packed

    def measure(self, cases: dict[str, Case], name: str) -> Json:
        """One window: as fast as it goes, and again with a tenth of the switch's core taken away."""
        assert self.generator is not None
        options = {
            **cases[name].options,
            "ms": 250 if self.context.quick else 500,
            "pid": self.peer.process.pid,
            "tid": self.tid,
        }
        free = self.generator.run(**options).values()
        with brake(self.context.machine.switch_cpu) as share:
            slowed = self.generator.run(**options).values(braked=True)
            taken = share()
        speeds = [run.get("Mpps kept", run["Mpps"]) for run in (free, slowed)]
        return free | {"lost per share taken": (1 - speeds[1] / speeds[0]) / taken if speeds[0] else 0.0}

    def verify(self, name: str) -> str:
        """What is wrong with the received frames; empty if all arrive unchanged and in order."""
        assert self.generator is not None
        self.peer.resume()
        for size in (64, 1518):
            traffic = self.generator.run(size=size, ms=100, verify=1, flows=1000)
            received = sum(part["received"] for part in traffic.parts)
            if traffic.wrong or traffic.out_of_order or not received:
                return (
                    f"{name}, {size} B: of {received} frames {traffic.wrong} were altered, "
                    f"{traffic.out_of_order} out of order"
                )
        self.peer.pause()
        return ""


def start(context: Context, result: Result) -> dict[str, tuple[Side, Callable[[], None]]]:
    """Every contender's switch and how it is woken, by name. A missing program becomes a note."""
    machine, folder = context.machine, context.folder
    found: dict[str, tuple[Side, Callable[[], None]]] = {}

    def ovs_wakes(side: Side, flows: Callable[[], None]) -> None:
        side.peer.resume()
        flows()

    makers: list[Callable[[], Peer]] = [
        lambda: Tidegate(folder / "t", machine.switch_cpu),
        lambda: Testpmd(folder / "p", machine.switch_cpu),
        lambda: Ovs(folder / "o", machine.switch_cpu, machine.generator_cpu),
    ]
    for make in makers:
        try:
            peer = make()
        except Missing as missing:
            result.notes.append(f"Not measured: {missing}.")
            continue
        context.cleanup.callback(peer.stop)
        side = Side(context, peer)
        if isinstance(peer, Ovs):
            found[EXPLICIT] = side, partial(ovs_wakes, side, peer.explicit)
            found[LEARNING] = side, partial(ovs_wakes, side, peer.learn)
        else:
            found[peer.name] = side, peer.resume
        # Its core is for the one that is measured.
        peer.pause()
    return {name: found[name] for name in EVERYONE if name in found}


def limited(windows: list[Window], contender: str, case: str) -> tuple[float | None, float]:
    """Figures that show whether the switch or the generator was the limit.

    What was lost for each share of its core that was taken (1 where the switch is the limit; `None` where
    there are too few windows to tell), and how often guest A's ring was full.
    """
    own = [w for w in windows if (w.contender, w.case) == (contender, case)]
    lost = [w.values["lost per share taken"] for w in own if not w.disturbed]
    full = Spread.of(w.values["ring full"] for w in own)
    return statistics.median(lost) if len(lost) >= ENOUGH_TO_TELL else None, full.median if full else 0.0


def generator_limits(windows: list[Window], contender: str, case: str) -> bool:
    """Whether the generator, and not the switch, is the limit."""
    if not any((w.contender, w.case) == (contender, case) for w in windows):
        return False
    lost, full = limited(windows, contender, case)
    return full < OFTEN_FULL if lost is None else lost < LIMITED_BELOW


def figures(windows: list[Window], case: str, title: str, unit: str) -> list[Figure]:
    """Throughput of all contenders in one case."""
    made = []
    for name in dict.fromkeys(w.contender for w in windows if w.case == case):
        lost, full = limited(windows, name, case)
        note = f"A's ring full in {full:.0%} of turns"
        note += "" if lost is None else f"; loses {lost:.2f} of each share of its core that is taken"
        if generator_limits(windows, name, case):
            note += "; **the generator is the limit**"
        made.append(Figure(title, name, unit, samples(windows, name, case, unit), filterable=True, note=note))
    return made


def against(
    windows: list[Window], case: str, theirs: str, measure: str, limit: float, aim: str = ""
) -> Target:
    """Ours against theirs, at least `limit`."""
    found = ratios(windows, OURS, theirs, case, "Mpps")
    target = partial(Target, measure, f"at least {limit:g}x{aim}", "x", limit, "more", found, filterable=True)
    if generator_limits(windows, theirs, case):
        return target(invalid=f"the generator is the limit of {theirs}")
    # A ratio that our own limit holds down is a lower bound: enough where the target is met.
    if generator_limits(windows, OURS, case):
        plain: Target = target(note="at least: the generator is our limit")
        if plain.verdict != "met":
            return target(invalid="the generator is our limit")
        return plain
    return target()


def keeps(windows: list[Window], cases: list[Case], measure: str, limit: float) -> Target:
    """Ours in the last case against ours in the first: the cost of growing, in per cent."""
    first, last = cases[0].name, cases[-1].name

    def per_cent(ratio: float) -> float:
        return 100 * (ratio - 1)

    found = tuple(
        Sample(per_cent(s.value), s.disturbed, s.distance, None if s.kept is None else per_cent(s.kept))
        for s in against_first(windows, OURS, first, last, "Mpps")
    )
    target = partial(
        Target, measure, f"no worse than {limit:g} %", "%", limit, "more", found, filterable=True
    )
    # A generator that limits the first case hides what growing costs; one that limits the last adds to it.
    if generator_limits(windows, OURS, first):
        return target(invalid=f"the generator is our limit with {first}")
    plain: Target = target()
    if plain.verdict == "not met" and generator_limits(windows, OURS, last):
        return target(invalid=f"the generator is our limit with {last}")
    return plain


def growth(windows: list[Window], cases: list[Case], kind: str, name: str, title: str) -> Plot:
    """Throughput against the number of flows or MACs, a line for each contender."""
    lines = []
    for contender in dict.fromkeys(w.contender for w in windows):
        points = []
        for case in cases:
            seen = samples(windows, contender, case.name, "Mpps")
            spread = Spread.of(undisturbed(seen)) or Spread.of(s.value for s in seen)
            if spread:
                points.append((float(case.options[kind]), spread.median))
        lines.append(Series(contender, tuple(points)))
    return Plot(name, title, title.partition(" against ")[2], "Mpps", tuple(lines), log_x=True)


def take(
    context: Context,
    contenders: dict[str, tuple[Side, Callable[[], None]]],
    cases: list[Case],
    rounds: int,
) -> list[Window]:
    """Windows of all contenders in all cases, interleaved."""
    by_name = {case.name: case for case in cases}
    return interleave(
        context.machine,
        [
            Contender(name, partial(side.measure, by_name), wake, side.peer.pause)
            for name, (side, wake) in contenders.items()
        ],
        [case.name for case in cases],
        rounds,
    )


def layout_windows(
    context: Context,
    result: Result,
    everyone: dict[str, tuple[Side, Callable[[], None]]],
    layout: str,
    parts: list[tuple[list[Case], int]],
) -> list[list[Window]]:
    """The windows of one layout of rings, by part."""
    with ExitStack() as cleanup:
        able: dict[str, tuple[Side, Callable[[], None]]] = {}
        for name, (side, wake) in everyone.items():
            first = not any(side is other for other, _ in able.values())
            if first and not side.connect(packed=LAYOUTS[layout], cleanup=cleanup):
                result.notes.append(f"{name}, {layout} rings: the switch does not accept them.")
                continue
            able[name] = side, wake
            assert side.generator is not None
            if first:
                used = ", ".join(side.generator.functions())
                result.notes.append(f"{side.peer.name}, {layout} rings, the driver's functions: {used}.")
            wake()
            if wrong := side.verify(name):
                raise RuntimeError(wrong)
        everything = []
        for cases, rounds in parts:
            context.say(f"{layout} rings: {', '.join(case.name for case in cases)}; {rounds} rounds")
            for side, _ in able.values():
                side.peer.bridge_behind_b(any(case.many_macs for case in cases))
            everything.append(take(context, able, cases, rounds))
        for side, _ in able.values():
            side.peer.resume()
        return everything


def run(context: Context) -> Result:
    """Sizes with split and with packed rings; numbers of flows and of MACs with split ones."""
    result = Result()
    context.cleanup.enter_context(hugepages(PAGES))
    everyone = start(context, result)

    sizes = [SIZES[0], SIZES[-1]] if context.quick else SIZES
    flows, macs = ([c[0], c[-1]] if context.quick else c for c in (FLOWS, MACS))
    few, many = context.rounds(4), context.rounds(7)
    for layout in LAYOUTS:
        parts = [(sizes, many)]
        if layout == "split":
            parts += [(flows, few), (macs, few)]
        by_part = layout_windows(context, result, everyone, layout, parts)
        for windows in by_part:
            result.windows += windows
        by_size = by_part[0]
        for case in sizes:
            result.figures += figures(by_size, case.name, f"{case.name}, {layout} rings", "Mpps")
        result.figures += figures(by_size, sizes[-1].name, f"{sizes[-1].name}, {layout} rings", "Gbit/s")
        result.targets += [
            against(by_size, "64 B", BARE, f"64 B against testpmd io, {layout} rings", 1.0, " (aim 1.3x)"),
            against(by_size, "64 B", EXPLICIT, f"64 B against OVS-DPDK explicit flow, {layout} rings", 1.4),
            against(by_size, "64 B", LEARNING, f"64 B against OVS-DPDK learning, {layout} rings", 1.6),
            against(by_size, "1518 B", BARE, f"1518 B against testpmd io, {layout} rings", 1.5),
        ]
        if layout == "split":
            by_flows, by_macs = by_part[1:]
            for windows, cases in ((by_flows, flows), (by_macs, macs)):
                for case in cases:
                    result.figures += figures(windows, case.name, f"64 B, {case.name}", "Mpps")
            result.targets += [
                keeps(by_flows, flows, "10 to 1,000,000 5-tuples", -5),
                keeps(by_macs, macs, "10 to 4,096 MACs behind a port", -15),
            ]
            result.plots += [
                growth(by_flows, flows, "flows", "throughput-flows", "64 B against number of 5-tuples"),
                growth(by_macs, macs, "macs", "throughput-macs", "64 B against number of MACs"),
            ]
    return result


SCENE = Scene(
    name="throughput",
    title="Throughput: guest to guest through one core",
    about=(
        "Guest A sends UDP frames as fast as its ring takes them, guest B receives; both are DPDK "
        "virtio-user ports (rings of 1024) of one generator on one core, the switch has the other. "
        "Counted is what B receives; sizes are without FCS. Tidegate: limits on both guests, "
        "anti-spoofing on, and a vNIC with a deadline at the same egress. Frames are built once and sent "
        "again and again; where 5-tuples or MACs vary they are written just before sending, in the first "
        "case as in the last. Every window is taken twice: as fast as it goes, and with 20 us of every "
        "200 us of the switch's core taken by a thread of higher priority. A switch that is the limit "
        "loses at least the share that was taken; one that loses clearly less was waiting for the "
        "generator, and says nothing about itself."
    ),
    order=10,
    run=run,
)
