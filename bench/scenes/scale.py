"""Work proportional to what is active: more ports, more contracts, more addresses."""

import resource
from functools import partial

from harness.machine import hugepages
from harness.measure import against_first, interleave
from harness.model import Contender, Context, Figure, Json, Missing, Result, Scene, Target, Window, samples
from peers.synthetic import Synthetic, disturbed, vnics

ANY = 'allowed = { macs = "any" }'
FEW, MANY = "2 ports", "256 ports"
SHORT = "256 ports, rings of 16"
TEN = "10 contracts"
MACS, MANY_MACS = "10 addresses", "4,100 addresses"
DESCRIPTORS, OTHERS = 39, 634
"""Descriptors that the switch reserves for a vhost-user port of one queue pair, and for the rest."""
Case = tuple[int, str, tuple[str, ...]]
"""Cases: number of contracts, further lines of each, and the generator's options."""
Claim = tuple[str, str, str, float, str]
"""Measure, the two compared cases, the limit, and the demand in words."""


def most_contracts() -> int:
    """1,000; fewer only if this machine allows the switch too few descriptors."""
    return min(1000, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - OTHERS) // DESCRIPTORS)


def cases_and_claims(most: int) -> tuple[dict[str, Case], list[Claim]]:
    """The cases with `most` contracts, and their comparisons."""
    defined, connected = f"{most:,} contracts", f"{most:,} contracts, all connected"
    cases: dict[str, Case] = {
        FEW: (2, "", ()),
        MANY: (256, "", ()),
        SHORT: (256, "", ("--ring", "16")),
        TEN: (10, "", ("--ports", "10")),
        defined: (most, "", ("--ports", "10")),
        connected: (most, "", ("--ports", "10", "--idle", str(most - 10))),
        MACS: (10, ANY, ("--macs", "10", "--ring", "512")),
        MANY_MACS: (10, ANY, ("--macs", "4100", "--ring", "512")),
    }
    frame = "at most +25 % per frame"
    claims: list[Claim] = [
        ("2 → 256 ports", FEW, MANY, 1.25, frame),
        (f"10 → {defined}", TEN, defined, 1.25, frame),
        (f"10 → {defined}, the others connected and silent", TEN, connected, 1.25, frame),
        ("10 → 4,100 addresses behind 10 ports", MACS, MANY_MACS, 1 / 0.85, "throughput at most -15 %"),
    ]
    return cases, claims


NS, RATE = "ns a frame", "Mpps"
PAGES = 1100
"""Hugepages (2 MB): the guests' memory, of 256 busy ones or of 1,000 that are mostly silent."""


def _measure(load: Synthetic, seconds: float, known: dict[str, Case], case: str) -> Json:
    count, lines, arguments = known[case]
    load.apply(vnics(load.folder, count, *filter(None, [lines])))
    report = load.run("forward", "--windows", "1", "--window", seconds, "--warm-up", "0.3", *arguments)
    if not report["huge_pages"]:
        raise Missing("the guests found no hugepages free, though they were reserved")
    window = report["windows"][0]
    rate = window["frames"] / window["seconds"]
    return {
        RATE: rate / 1e6,
        NS: 1e9 / rate,
        "starved": window["starved"],
        "disturbed": disturbed(window),
    }


def _limited(windows: list[Window], case: str) -> str:
    """Why the generator may have been the limit in `case`."""
    idle = max(window.values["starved"] for window in windows if window.case == case)
    return f"the switch may have waited for frames in {idle:.0%} of the looks" if idle > 0.1 else ""


def run(context: Context) -> Result:
    """Each case by turns; the cost of a frame against the smallest case of its kind."""
    context.cleanup.enter_context(hugepages(PAGES))
    load = Synthetic(context)
    known, claims = cases_and_claims(most_contracts())
    contender = Contender("tidegate", partial(_measure, load, context.seconds(1.0), known))
    cases = [case for case in known if not context.quick or case != SHORT]
    windows = interleave(context.machine, [contender], cases, context.rounds(5))
    figures = [
        Figure(f"64 B, {case}", "tidegate", unit, samples(windows, "tidegate", case, unit), filterable=True)
        for case in cases
        for unit in (RATE, NS)
    ]
    targets = [
        Target(
            *(measure, asked, "x", limit, "less"),
            against_first(windows, "tidegate", few, many, NS),
            filterable=True,
            invalid=_limited(windows, few) or _limited(windows, many),
        )
        for measure, few, many, limit, asked in claims
    ]
    return Result(figures, targets, windows=windows)


SCENE = Scene(
    name="scale",
    title="More ports, more contracts, more addresses",
    about=(
        "Synthetic guests in pairs, each with a ring of 256 frames of 64 bytes of its own that go round, "
        "all on one generator core: the same load from 2 ports or from 256. Then 10 busy ports where 10 "
        "or 1,000 contracts are in force (as many as the machine has descriptors for), the others not "
        "connected, or connected and silent. Then 10 busy ports with 10 or 4,100 addresses behind them, "
        "learned; every frame has another source and receiver. More ports also mean more memory that is "
        "walked: every guest has its own buffers, in hugepages as VMs of such hosts have. Rings of 16 "
        "show what of the cost that is."
    ),
    order=30,
    run=run,
)
