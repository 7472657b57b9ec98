"""How long a ping takes beside a vNIC's own traffic at its limit, wherever its frames wait.

```text
 --attach, --rate, --flows ─▶ cases: rate x load ─▶ places in turns, N rounds
                                      └─▶ p50 / p99 / worst of the ping, lost, goodput, Jain's index
```
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from harness.measure import interleave, ratios
from harness.model import (
    Choice,
    Contender,
    Context,
    Figure,
    Json,
    Missing,
    Result,
    Scene,
    Target,
    Window,
    samples,
)
from peers.base import need
from scenes.queueing.load import FRAME, SEGMENT, Load, bits, cells
from scenes.queueing.places import KERNEL_PLACE, InGuest, Kernel, Place, Synthetic, Tap, Yardstick

ROUNDS = 3
SECONDS = 5
"""Of probes, in a window."""
RATES = ("5mbit", "20mbit", "50mbit", "200mbit", "500mbit", "5gbit")
FLOWS = ("idle", *(f"{count}{way}" for way in ("up", "down", "both") for count in (1, 8, 64)))
UNITS = {
    "p50": "ms",
    "p99": "ms",
    "p99.9": "ms",
    "max": "ms",
    "lost": "%",
    "probes": "",
    "goodput up": "",
    "goodput down": "",
    "jain": "",
}
PROMPT_MS = 10.0
"""p99 of a ping at 20 Mbit/s: asked of every attachment."""
ASKED_RATE = 20e6
GOODPUT = 0.97
OF_CAKE = 1.5


@dataclass(frozen=True)
class Way:
    """One contender: a place, and what is special there."""

    place: type[Place]
    """Contenders of one place share it."""
    about: str
    queueing: str = ""
    """A further line of the contract."""
    qdisc: str = ""
    """Of the guest."""
    shaper: str = ""
    """Of the yardstick."""
    spare: int = 0
    """Descriptors that the flows of a synthetic guest leave free in its ring."""
    congestion: str = "cubic"
    ecn: bool = False

    @property
    def asked(self) -> bool:
        """Whether it is one of which short queues are asked."""
        return not self.queueing and self.shaper in ("", KERNEL_PLACE)


FIFO_LINE = 'queueing = "fifo"'
WAYS = {
    "tap": Way(Tap, "tap of the switch"),
    "tap-fifo": Way(Tap, 'tap, queueing = "fifo"', queueing=FIFO_LINE),
    "kernel": Way(Kernel, "kernel place, veth"),
    "guest-pfifo_fast": Way(InGuest, "guest, pfifo_fast", qdisc="pfifo_fast"),
    "guest-fq": Way(InGuest, "guest, fq", qdisc="fq"),
    "guest-fq_codel": Way(InGuest, "guest, fq_codel", qdisc="fq_codel"),
    "guest-ecn": Way(InGuest, "guest, pfifo_fast, ECN", qdisc="pfifo_fast", ecn=True),
    "guest-bbr": Way(InGuest, "guest, fq, BBR", qdisc="fq", congestion="bbr"),
    "guest-fifo": Way(
        InGuest, 'guest, pfifo_fast, queueing = "fifo"', queueing=FIFO_LINE, qdisc="pfifo_fast"
    ),
    "synthetic": Way(Synthetic, "synthetic guest, its ring not full", spare=8),
    "synthetic-full": Way(Synthetic, "synthetic guest, its ring full"),
    "kernel-cake": Way(Yardstick, "kernel place where the kernel has cake", shaper=KERNEL_PLACE),
    "htb+fq_codel": Way(Yardstick, "yardstick: HTB + fq_codel", shaper="htb"),
    "cake": Way(Yardstick, "yardstick: cake", shaper="cake"),
}
NORMALLY = ("tap", "kernel", "guest-pfifo_fast", "guest-fq_codel", "htb+fq_codel", "cake")


class Stage:
    """Places, each made when it is first wanted."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.cleanup: ExitStack = context.cleanup
        self.places: dict[type[Place], Place] = {}
        self.seconds = 2 if context.quick else SECONDS

    def place(self, kind: type[Place]) -> Place:
        """The place of that kind."""
        if kind not in self.places:
            self.context.say(f"prepares {kind.__name__}")
            self.places[kind] = kind(self.context.folder / kind.__name__, self.cleanup)
        return self.places[kind]

    def window(self, name: str, case: str) -> Json:
        """One window of a contender."""
        way, (rate, flows) = WAYS[name], case.split(", ")
        place, load = self.place(way.place), Load.of(flows)
        if isinstance(place, InGuest):
            place.queue_by(way.qdisc, way.ecn)
        elif isinstance(place, Yardstick):
            place.shaper = way.shaper
        elif isinstance(place, Synthetic):
            place.spare = way.spare
        place.limit(load, rate, (way.queueing,) if way.queueing else ())
        found = place.window(load, bits(rate), self.seconds, way.congestion)
        self.context.say(f"{case}, {name}: {' | '.join(cells({k: [v] for k, v in found.items()}))}")
        return found


def table(windows: Sequence[Window], case: str) -> str:
    """One case, a row for each place; in Markdown."""
    rows = [
        "| where frames wait | ping p50 / p99 / worst [ms] | lost | goodput of the limit | Jain |",
        "|---|---|---|---|---|",
    ]
    of: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for window in windows:
        if window.case == case:
            for name, value in window.values.items():
                of[window.contender][name].append(value)
    rows += [f"| {' | '.join((WAYS[name].about, *cells(found)))} |" for name, found in of.items()]
    rate, flows = case.split(", ")
    return f"`{rate}`, `{flows}`:\n\n" + "\n".join(rows)


def targets(windows: Sequence[Window], case: str, name: str) -> list[Target]:
    """What is asked of one contender of ours in one case."""
    rate, flows = case.split(", ")
    if flows == "idle" or not WAYS[name].asked:
        return []
    of = samples(windows, name, case, "p99")
    where = f"{case}, {WAYS[name].about}"
    found = []
    if bits(rate) == ASKED_RATE:
        found.append(Target(f"{where}: ping p99", "at most 10 ms", "ms", PROMPT_MS, "less", of))
    if pairs := ratios(windows, name, "cake", case, "p99"):
        found.append(Target(f"{where}: ping p99 against cake's", "at most 1.5x", "x", OF_CAKE, "less", pairs))
    for way in ("up", "down"):
        if getattr(Load.of(flows), way):
            of = samples(windows, name, case, f"goodput {way}")
            found.append(Target(f"{where}: goodput {way}", "at least 0.97", "", GOODPUT, "more", of))
    lost = samples(windows, name, case, "lost")
    found.append(Target(f"{where}: pings lost", "none", "%", 0.0, "less", lost))
    return found


def run(context: Context) -> Result:
    """All chosen places, in turns."""
    for program in ("irtt", "iperf3"):
        need(program, program)
    stage = Stage(context)
    names = context.chosen("attach")
    cases = [f"{rate}, {flows}" for rate in context.chosen("rate") for flows in context.chosen("flows")]
    if not (cases := [case for case in cases if context.wants(case)]):
        raise Missing(f"no case's name contains '{context.only}'")
    windows: list[Window] = []
    for case in cases:
        rate, flows = case.split(", ")
        able = [name for name in names if stage.place(WAYS[name].place).able(Load.of(flows), bits(rate))]
        contenders = [Contender(name, partial(stage.window, name)) for name in able]
        windows += interleave(None, contenders, (case,), context.rounds(ROUNDS))
    result = Result(windows=windows)
    for case in cases:
        result.tables.append(table(windows, case))
        for name in names:
            of = [window for window in windows if window.case == case and window.contender == name]
            if not of:
                continue
            result.targets += targets(windows, case, name)
            result.figures += [
                Figure(f"{case}: {value}", name, unit, samples(windows, name, case, value))
                for value, unit in UNITS.items()
                if value in of[0].values
            ]
    return result


SCENE = Scene(
    name="queues",
    title="A ping beside a vNIC's own traffic",
    about=(
        "A vNIC has a limit, and TCP (iperf3, cubic unless said otherwise) fills it: `8up` are eight "
        "connections from the VM, `8down` to it, `8both` eight each way. Beside them irtt sends 100 probes "
        "of 60 bytes a second from the VM to the peer and back; a ping is the whole round trip, which passes "
        "the limited direction once, with `both` twice. Goodput is a share of what TCP can have of the "
        f"limit, {SEGMENT} of {FRAME} bytes, at the receivers. Jain's index is of the connections of one "
        "direction, the smaller one with `both`. p50 and p99 are medians over the windows, lost and worst "
        "are of the worst one. Guests and yardsticks (HTB + fq_codel, and cake, on a veth) are emulated "
        "machines: `idle` says what a ping takes there without any load. Synthetic guests send 64 KB "
        "super-frames of flows that never react, and their probes are counted one way."
    ),
    order=64,
    run=run,
    has_cases=True,
    choices=(
        Choice("attach", "where frames wait", tuple(WAYS), NORMALLY, quick=("tap", "kernel", "cake")),
        Choice("rate", "of the limit", RATES, ("20mbit",), quick=("20mbit",)),
        Choice(
            "flows",
            "TCP connections",
            FLOWS,
            ("idle", "1up", "8up", "1down", "8down", "8both"),
            quick=("8up",),
        ),
    ),
)
