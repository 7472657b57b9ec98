"""Set rates under TCP, both directions, and the rates of other shapers for the same flow.

```text
 a ─eth0─ Tidegate (tx.max of a │ rx.max of b) ─eth0─ b
 a ─eth0─ veth (HTB │ TBF on a's end) ─ bridge ─ veth (HTB │ TBF towards b) ─eth0─ b
 a ─tap─ OVS-DPDK (policer at a's port │ at b's port) ─tap─ b
                                    wire bytes at b's interface, from one frame to a later one
```
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

from harness.model import (
    Context,
    Figure,
    Missing,
    Plot,
    Result,
    Sample,
    Scene,
    Series,
    Target,
)
from scenes.stacks import bulk, counters
from scenes.stacks.fabric import Bridge, Fabric, Tidegate
from scenes.stacks.ovs import OvsDpdk

NAMES = ("a", "b")
RATES = (37_000_000, 313_000_000, 733_000_000, 2_700_000_000, 7_300_000_000)
"""bit/s, as asked."""
REACH = 1 / 1.5
"""Rates above this share of the unshaped run are not set: they could not be reached."""
DIRECTIONS = ("tx", "rx")
ALLOWED = 1.0
"""Error that is allowed with TCP, percent."""
CONNECTIONS = (1, 8)
SECONDS = 5.0
"""Of a window, after the burst."""
ROUNDS = 5
"""Windows of Tidegate; of the others one each."""


def name(rate: int) -> str:
    """A rate as people write it."""
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1_000_000_000 else f"{rate / 1e6:g} Mbit/s"


def burst(rate: int) -> int:
    """The default of `tx.burst`: 64 KiB, or 10 ms at the rate; bytes."""
    return max(65_536, rate // 800)


class Shaper:
    """One contender: the way its limit is set, its fabric, and its results."""

    def __init__(self, name: str, fabric: Fabric, limit: Callable[[str, int], None]) -> None:
        self.name = name
        self.fabric = fabric
        self.limit = limit
        """Direction (`tx` of a or `rx` of b) and bit/s, 0 for none."""
        self.unshaped = 0.0

    def measure(self, direction: str, rate: int, seconds: float, connections: int) -> bulk.Flow:
        """Some connections under a limit; the limit is lifted afterwards."""
        with self.awake():
            self.limit(direction, rate)
            return bulk.measure(
                self.fabric,
                *("a", "b"),
                warm_up=min(2.0, seconds),
                seconds=seconds,
                connections=connections,
            )

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Runs, unlimited afterwards; OVS-DPDK rests when it is not its turn."""
        if isinstance(self.fabric, OvsDpdk):
            self.fabric.wake()
        try:
            yield
        finally:
            for direction in DIRECTIONS:
                self.limit(direction, 0)
            if isinstance(self.fabric, OvsDpdk):
                self.fabric.rest()


def tidegate_limit(fabric: Tidegate, direction: str, rate: int) -> None:
    """`tx.max` of a or `rx.max` of b."""
    terms = (f'{direction} = {{ max = "{rate}bit" }}',) if rate else ()
    fabric.apply({"a" if direction == "tx" else "b": terms})


def qdisc_limit(fabric: Bridge, kind: str, direction: str, rate: int) -> None:
    """A classless or one-class limit at a's own interface, or at the bridge's towards b."""
    depth = f"burst {burst(rate)}"
    commands = {
        "htb": (
            "qdisc add dev DEV root handle 1: htb default 10",
            f"class add dev DEV parent 1: classid 1:10 htb rate {rate}bit ceil {rate}bit {depth} c{depth}",
        ),
        "tbf": (f"qdisc add dev DEV root tbf rate {rate}bit {depth} latency 50ms",),
    }
    fabric.qdisc("a" if direction == "tx" else "to-b", *(commands[kind] if rate else ()))


def ovs_limit(fabric: OvsDpdk, direction: str, rate: int) -> None:
    """OVS-DPDK's policers, with the burst its manual advises for TCP: a tenth of the rate, at least 1 MB."""
    depth = max(1_000_000, rate // 80) if rate else 0
    if direction == "tx":
        fabric.ingress("a", rate, depth)
    else:
        fabric.egress("b", rate, depth)


class Checked:
    """Two counts of the same frames: Tidegate's, and those of the receiver's interface."""

    def __init__(self, fabric: Tidegate) -> None:
        self.fabric = fabric
        self.differences: list[float] = []
        """Percent."""
        self._before = self._now()

    def _now(self) -> tuple[int, counters.Interface]:
        time.sleep(0.2)  # frames under way arrive
        return self.fabric.host.show("b").rx_bytes, counters.interface(self.fabric.stacks["b"])

    def compare(self) -> None:
        """The bytes that both counted since the last call."""
        now = self._now()
        counted = counters.tcp_wire_bytes(self._before[1], now[1])
        self.differences.append(100 * ((now[0] - self._before[0]) / counted - 1))
        self._before = now


def run(context: Context) -> Result:
    """Sets every rate in both directions; others beside it, unless they are missing."""
    result = Result()
    seconds = 3.0 if context.quick else SECONDS
    tidegate = Tidegate(context.folder / "t", NAMES, context.cleanup)
    tidegate.start({})
    bridge = Bridge(context.folder / "k", NAMES, context.cleanup)
    shapers = [
        Shaper("tidegate", tidegate, partial(tidegate_limit, tidegate)),
        Shaper("kernel HTB", bridge, partial(qdisc_limit, bridge, "htb")),
        Shaper("kernel TBF", bridge, partial(qdisc_limit, bridge, "tbf")),
    ]
    try:
        ovs = OvsDpdk(context.folder / "o", NAMES, context.cleanup, cpu=context.machine.switch_cpu)
        shapers.append(Shaper("OVS-DPDK policer", ovs, partial(ovs_limit, ovs)))
    except Missing as missing:
        result.notes.append(f"OVS-DPDK's policer was not measured: {missing}")
    for shaper in shapers:
        shaper.unshaped = shaper.measure("tx", 0, min(seconds, 3.0), 1).bits_per_second
        context.say(f"unshaped, {shaper.name}: {shaper.unshaped / 1e9:.2f} Gbit/s")
        result.figures.append(
            Figure("TCP, unshaped", shaper.name, "Gbit/s", (Sample(shaper.unshaped / 1e9),), True)
        )
    check = Checked(tidegate)
    rates = (733_000_000,) if context.quick else RATES
    lines: dict[str, list[tuple[float, float]]] = {}
    for direction, rate, connections in product(DIRECTIONS, rates, CONNECTIONS):
        for shaper in shapers if direction == "tx" or not context.quick else shapers[:1]:
            row = f"TCP x {connections}, {direction}, set to {name(rate)}: error"
            if rate > REACH * shaper.unshaped:
                why = f"above {REACH:.0%} of the unshaped run"
                result.figures.append(Figure(row, shaper.name, "%", (), note=why))
                continue
            errors = []
            for _ in range(context.rounds(ROUNDS) if shaper.fabric is tidegate else 1):
                flow = shaper.measure(direction, rate, seconds, connections)
                errors.append(100 * (flow.bits_per_second / rate - 1))
                if shaper.fabric is tidegate:
                    check.compare()
            context.say(f"{row} {', '.join(f'{error:+.3f}' for error in errors)} %, {shaper.name}")
            result.figures.append(Figure(row, shaper.name, "%", tuple(map(Sample, errors))))
            middle = statistics.median(map(abs, errors))
            lines.setdefault(f"{shaper.name}, {direction}, {connections}", []).append((rate / 1e6, middle))
            if shaper.fabric is tidegate:
                result.targets.append(
                    Target(
                        f"{row}, without sign",
                        f"at most {ALLOWED:g} %",
                        "%",
                        ALLOWED,
                        "less",
                        tuple(Sample(abs(error)) for error in errors),
                    )
                )
    result.figures.append(
        Figure(
            "wire bytes by Tidegate against those by the receiver's interface",
            "tidegate",
            "%",
            tuple(map(Sample, check.differences)),
        )
    )
    result.plots.append(
        Plot(
            "rates-tcp",
            "TCP under a set rate: how far off",
            "set rate [Mbit/s]",
            "error without sign [%]",
            tuple(Series(who, tuple(points)) for who, points in lines.items()),
            log_x=True,
            log_y=True,
        )
    )
    return result


SCENE = Scene(
    name="rates_tcp",
    title="Set rates under TCP",
    about=(
        "One and eight TCP connections with segmentation offload from namespace a to b. The limit is "
        "`tx.max` of a or `rx.max` of b; for others the same place: a's own interface, or the port "
        "towards b. Counted are Ethernet frames at b's interface, a super-frame as its segments, from "
        "one frame to one 5 s later (quick: 3 s), after 2 s. OVS-DPDK's ports are DPDK's `net_tap`, "
        "which has no segmentation offload there; its policers get the burst that its manual advises."
    ),
    order=50,
    run=run,
)
