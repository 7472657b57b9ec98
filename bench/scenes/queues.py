"""How long a ping takes beside a vNIC's own traffic at its limit, for each place where its frames can wait.

```text
 --attach, --rate, --flows  or  --part ─▶ cases: rate x load ─▶ places in turns, N rounds
                                └─▶ a table of each rate: p50 / p99 / worst, lost, goodput, Jain
```
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from harness.measure import turns
from harness.model import Choice, Context, Json, Missing, Result, Scene, Window
from peers.base import need
from scenes.queueing.load import FRAME, SEGMENT, WARM_UP, Load, bits, line
from scenes.queueing.parts import ALL, PARTS, Part, named
from scenes.queueing.parts import SECONDS as PART_SECONDS
from scenes.queueing.places import InGuest, Kernel, Place, Synthetic, Yardstick
from scenes.queueing.tables import table, targets
from scenes.queueing.ways import WAYS

ROUNDS = 3
SECONDS = 5
"""Of probes, in a window."""
RATES = ("5mbit", "20mbit", "50mbit", "200mbit", "500mbit", "5gbit")
FLOWS = ("idle", *(f"{count}{way}" for way in ("up", "down", "both") for count in (1, 8, 64)))
NORMALLY = ("tap", "kernel", "guest-pfifo_fast", "guest-fq_codel", "htb+fq_codel", "cake")


class Stage:
    """Places, each made when it is first wanted."""

    def __init__(self, context: Context, seconds: float) -> None:
        self.context = context
        self.cleanup: ExitStack = context.cleanup
        self.places: dict[type[Place], Place] = {}
        self.seconds = seconds

    def place(self, kind: type[Place]) -> Place:
        """The place of that kind."""
        if kind not in self.places:
            self.context.say(f"prepares {kind.__name__}")
            self.places[kind] = kind(self.context.folder / kind.__name__, self.cleanup)
        return self.places[kind]

    def window(self, name: str, case: str, warm_up: float) -> Json:
        """One window of a contender."""
        way, (rate, flows) = WAYS[name], case.split(", ")
        place, load = self.place(way.place), Load.of(flows)
        if isinstance(place, InGuest):
            place.queue_by(way.qdisc, way.ecn)
        elif isinstance(place, Kernel):
            place.ask_for_ecn(way.ecn)
        elif isinstance(place, Yardstick):
            place.shaper = way.shaper
        elif isinstance(place, Synthetic):
            place.spare = way.spare
        place.limit(load, rate, (way.queueing,) if way.queueing else ())
        found = place.window(load, bits(rate), self.seconds, way.congestion, warm_up)
        self.context.say(f"{case}, {name}: {line(found)}")
        return found


def result_of(windows: Sequence[Window], left_out: Sequence[str]) -> Result:
    """The result of the windows."""
    rates = [rate for rate in RATES if any(window.case.startswith(f"{rate}, ") for window in windows)]
    result = Result(windows=list(windows), notes=list(left_out))
    for rate in rates:
        result.tables.append(table(windows, rate))
        result.targets += targets(windows, rate)
    return result


def planned(context: Context, parts: Sequence[Part]) -> Iterator[tuple[Part, int, str, str]]:
    """Part, round, case and contender of each window, in order."""
    for part in parts:
        cases = [case for case in part.cases() if context.wants(case)]
        for turn, case, name in turns(part.attach, cases, part.rounds):
            yield part, turn, case, name


def measured(context: Context, stage: Stage, parts: Sequence[Part]) -> Result:
    """All windows, each kept as soon as it is measured."""
    windows: list[Window] = []
    left_out: list[str] = []
    rounds: dict[tuple[int, int], float] = {}
    for part, turn, case, name in planned(context, parts):
        if context.is_late():
            left_out.append(f"Time was up: nothing was begun from `{case}`, {name}, on.")
            break
        rate, flows = case.split(", ")
        try:
            if not stage.place(WAYS[name].place).able(Load.of(flows), bits(rate)):
                continue
            found = stage.window(name, case, part.warm_up)
        except Missing as missing:
            left_out.append(f"`{case}`, {name}: {missing}")
        except Exception as failure:  # one window that fails must not cost the others
            first = f"{type(failure).__name__}: {failure}".strip().splitlines()[0]
            context.say(f"{case}, {name}: {first}")
            left_out.append(f"`{case}`, {name}, failed: {first}")
        else:
            # Windows of two parts are far apart in time: no round of the one is one of the other.
            number = rounds.setdefault((parts.index(part), turn), float(len(rounds)))
            windows.append(Window(name, case, len(windows), found | {"round": number}))
            context.keep(result_of(windows, left_out))
    if not windows:
        raise Missing("; ".join(left_out) or f"no case's name contains '{context.only}'")
    return result_of(windows, left_out)


def run(context: Context) -> Result:
    """All chosen places, in turns."""
    for program in ("irtt", "iperf3"):
        need(program, program)
    if chosen := context.chosen("part"):
        return measured(context, Stage(context, PART_SECONDS), list(named(chosen)))
    usual = Part(
        context.chosen("attach"),
        context.chosen("rate"),
        context.chosen("flows"),
        context.rounds(ROUNDS),
        WARM_UP,
    )
    return measured(context, Stage(context, 2 if context.quick else SECONDS), [usual])


SCENE = Scene(
    name="queues",
    title="A ping beside a vNIC's own traffic",
    about=(
        "A vNIC has a limit, and TCP (iperf3, cubic unless said otherwise) fills it: `8up` are eight "
        "connections from the VM, `8down` to it, `8both` eight each way. Beside them irtt sends 100 probes "
        "of 60 bytes a second from the VM to the peer and back; a ping is the whole round trip, which passes "
        "the limited direction once, with `both` twice. Goodput is a share of what TCP can have of the "
        f"limit, {SEGMENT} of {FRAME} bytes, at the receivers. Jain's index is of the connections of one "
        "direction, the smaller one with `both`. p50, p99 and goodput are medians over the windows; lost, "
        "worst and Jain's index are of the worst one. A multiple of cake's p99 is of the same round. Bold is "
        "what falls short of what is asked. A round of 64 full frames takes 39 ms at 20 Mbit/s, so a ping "
        "every 10 ms is one of 65 flows there. This machine's kernel need not have fq_codel and cake: guests "
        "and yardsticks (HTB + fq_codel, and cake, on a veth) are emulated machines. `idle` says what a ping "
        "takes without any load, which is what the emulation itself takes there. Synthetic guests send 64 KB "
        "super-frames of flows that never react, and their probes are counted one way."
    ),
    order=64,
    run=run,
    has_cases=True,
    keeps=True,
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
        Choice(
            "part",
            "of the whole comparison, which takes about 34 minutes, in place of --attach, --rate and --flows",
            (ALL, *PARTS),
            (),
            quick=(),
        ),
    ),
)
