"""TCP from tap to tap beside the kernel's bridge: the throughput of a core.

```text
 namespace a ─eth0─ tap ─ Tidegate ─ tap ─eth0─ namespace b     one or four TCP connections,
 namespace a ─eth0─ tap ─ copy loop ─ tap ─eth0─ namespace b    the least any switch of taps does
 namespace a ─eth0─ veth ─ bridge ─ veth ─eth0─ namespace b     bytes at b's interface / CPU time of all
```
"""

from functools import partial

from harness.measure import interleave, ratios
from harness.model import Contender, Context, Figure, Json, Result, Scene, Target, Window, samples
from scenes.stacks import bulk
from scenes.stacks.fabric import Bridge, CopyLoop, Fabric, Tidegate

NAMES = ("a", "b")
CASES = {"1 connection": 1, "4 connections": 4}
DISTURBED = 0.02
"""Above this share of a CPU taken away by the host, a window is marked."""


def window(fabric: Fabric, seconds: float, case: str) -> Json:
    """One window: Gbit/s, CPUs kept busy, and Gbit/s per busy CPU."""
    flow = bulk.measure(fabric, "a", "b", warm_up=min(1.0, seconds), seconds=seconds, connections=CASES[case])
    rate = flow.bits_per_second / 1e9
    values: Json = {"rate": rate, "cores": flow.busy_cpus, "per_core": rate / flow.busy_cpus}
    if flow.stolen > DISTURBED:
        values["disturbed"] = f"{flow.stolen:.1%} of a CPU taken away"
    return values


def run(context: Context) -> Result:
    """Measures both, in turns."""
    seconds = 1.0 if context.quick else 4.0
    tidegate = Tidegate(context.folder / "t", NAMES, context.cleanup)
    tidegate.start({})
    bridge = Bridge(context.folder / "k", NAMES, context.cleanup)
    loop = CopyLoop(context.folder / "c", NAMES, context.cleanup)
    contenders = [
        Contender("tidegate", partial(window, tidegate, seconds)),
        Contender("kernel bridge", partial(window, bridge, seconds)),
        Contender("bare copy loop", partial(window, loop, seconds)),
    ]
    cases = list(CASES)[:1] if context.quick else list(CASES)
    result = Result()
    for case in cases:
        windows = interleave(context.machine, contenders, [case], context.rounds(5))
        result.windows += windows
        result.figures += figures(windows, case, [c.name for c in contenders])
        result.targets.append(
            Target(
                f"TCP tap to tap against the kernel's bridge, per core used, {case}",
                "at least 0.8x",
                "x",
                0.8,
                "more",
                ratios(windows, "tidegate", "kernel bridge", case, "per_core"),
                filterable=True,
            )
        )
        result.figures.append(
            Figure(
                f"TCP, {case}: throughput per CPU used against a bare copy loop",
                "tidegate",
                "x",
                ratios(windows, "tidegate", "bare copy loop", case, "per_core"),
                filterable=True,
            )
        )
    result.notes.append(
        "Between taps each byte is copied four times: from the sender into the kernel, out of the tap, into "
        "the other tap, and to the receiver. A veth pair hands pages over: two copies. The bare copy loop "
        "reads a frame from one tap, writes it to the other, and does nothing else: what it loses to the "
        "bridge is the price of taps, not of the switch."
    )
    return result


def figures(windows: list[Window], case: str, contenders: list[str]) -> list[Figure]:
    """Throughput, CPUs used, and throughput per CPU."""
    return [
        Figure(f"TCP, {case}: {name}", contender, unit, samples(windows, contender, case, value), True)
        for name, unit, value in (
            ("throughput", "Gbit/s", "rate"),
            ("CPUs kept busy by everything", "CPUs", "cores"),
            ("throughput per CPU used", "Gbit/s", "per_core"),
        )
        for contender in contenders
    ]


SCENE = Scene(
    name="taps",
    title="Between namespaces: TCP through taps",
    about=(
        "Two namespaces, each with the kernel's TCP, connected by taps and Tidegate or by veth pairs "
        "and the kernel's bridge, with segmentation and checksum offloads on.  Bytes are counted at the "
        "receiver's interface; CPU time is that of the whole machine: sender, receiver and what is "
        "between."
    ),
    order=80,
    run=run,
)
