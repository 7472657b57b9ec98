"""The cost of limits, guarantees and deadlines for a frame that they never delay."""

from functools import partial
from pathlib import Path

from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Result, Sample, Scene, Target, Window, samples
from peers.synthetic import Synthetic, disturbed, vnic

NS = "ns a frame"
RATE = "400gbit"
BARE, LIMITS, GUARANTEE = "no limits", "tx.max and rx.max", "tx.max, rx.max, tx.min and weight"
DEADLINE = "tx.max, rx.max and a deadline"
CONTRACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    BARE: ((), ()),
    LIMITS: ((f'tx = {{ max = "{RATE}" }}',), (f'rx = {{ max = "{RATE}" }}',)),
    GUARANTEE: (
        (f'tx = {{ max = "{RATE}", min = "1gbit" }}', 'to = ["b"]', "weight = 7"),
        (f'rx = {{ max = "{RATE}" }}',),
    ),
    DEADLINE: (
        ('tx = { max = "200gbit", burst = "64KiB" }', 'to = ["b"]', 'deadline = "10ms"'),
        (f'rx = {{ max = "{RATE}" }}',),
    ),
}
"""Of the sender, and of the receiver: none of these limits is ever reached."""


def _contracts(folder: Path, case: str) -> str:
    sender, receiver = CONTRACTS[case]
    return vnic(folder, "a", 1, *sender) + vnic(folder, "b", 2, *receiver)


def _measure(load: Synthetic, seconds: float, case: str) -> Json:
    load.apply(_contracts(load.folder, case))
    report = load.run("forward", "--windows", "1", "--window", seconds, "--warm-up", "0.2")
    window = report["windows"][0]
    return {NS: 1e9 * window["seconds"] / window["frames"], "disturbed": disturbed(window)}


def _added(windows: list[Window], case: str) -> tuple[Sample, ...]:
    """The cost of `case` beyond none, one per round."""
    pairs = zip(samples(windows, "tidegate", BARE, NS), samples(windows, "tidegate", case, NS), strict=True)
    return tuple(
        Sample(
            with_it.value - without.value,
            without.disturbed
            or with_it.disturbed
            or ("cores near and far" if without.distance != with_it.distance else ""),
        )
        for without, with_it in pairs
    )


def run(context: Context) -> Result:
    """The same traffic under four contracts by turns."""
    load = Synthetic(context)
    contender = Contender("tidegate", partial(_measure, load, context.seconds(1.0)))
    # One round says nothing about a few nanoseconds.
    rounds = 3 if context.quick else 9
    windows = interleave(context.machine, [contender], list(CONTRACTS), rounds)
    figures = [
        Figure(f"64 B, {case}", "tidegate", NS, samples(windows, "tidegate", case, NS), filterable=True)
        for case in CONTRACTS
    ]
    targets = [
        Target(
            f"cost of {case}",
            "at most 12 ns a frame",
            "ns",
            12,
            "less",
            _added(windows, case),
            filterable=True,
        )
        for case in (LIMITS, GUARANTEE, DEADLINE)
    ]
    return Result(
        figures,
        targets,
        notes=[
            "A vNIC without limits is counted, checked and scheduled as well: the difference is that of the "
            "token buckets and of the tiers, not of the whole contract."
        ],
        windows=windows,
    )


SCENE = Scene(
    name="cost",
    title="What a contract costs a frame",
    about=(
        "One synthetic guest to another, 64 bytes, the same traffic under four contracts by turns. No "
        "limit is ever reached, so a difference is the cost of checking the contract."
    ),
    order=35,
    run=run,
)
