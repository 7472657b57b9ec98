"""Shares of one egress that all senders fill: equal ones, weights, minima."""

from pathlib import Path

from harness.model import Context, Figure, Plot, Result, Sample, Scene, Series, Target
from peers.synthetic import Synthetic, disturbed, vnic

SENDERS = 64
RX_MAX = 1_000_000_000
MINIMA_MBIT = (10, 20, 30, 40, 50, 60, 70, 80)
"""Of the first eight; the other 56 have a hundred times their weight."""
EQUAL, MIXED, WEIGHTS, MINIMA = "equal", "equal, 64 and 1518 B by turns", "weights 1:2:4:8", "minima"


def _contracts(folder: Path, case: str) -> str:
    lines: list[tuple[str, ...]] = [()] * SENDERS
    if case == WEIGHTS:
        lines = [(f"weight = {1 << number % 4}",) for number in range(SENDERS)]
    if case == MINIMA:
        promised = [(f'tx = {{ min = "{mbit}mbit" }}', 'to = ["to"]') for mbit in MINIMA_MBIT]
        lines = [*promised, *[("weight = 100",)] * (SENDERS - len(promised))]
    senders = (vnic(folder, f"s{number:02}", number, *more) for number, more in enumerate(lines))
    return "".join(senders) + vnic(folder, "to", 1000, f'rx = {{ max = "{RX_MAX}bit" }}')


def run(context: Context) -> Result:
    """64 senders that always have a frame, to one receiver of 1 Gbit/s."""
    load = Synthetic(context)
    result = Result()
    found: dict[str, tuple[Sample, ...]] = {}
    values = {EQUAL: "jain", MIXED: "jain", WEIGHTS: "weight_error_percent", MINIMA: "least_of_minimum"}
    for case, value in values.items():
        if context.quick and case == MIXED:
            continue
        context.say(case)
        load.apply(_contracts(load.folder, case))
        frames = ("--frame", "64,1518") if case == MIXED else ()
        # A second, also in a quick run: shorter ones count too few frames to tell 1 %.
        report = load.run("fairness", "--to", "to", "--windows", context.rounds(10), "--window", 1, *frames)
        windows = report["windows"]
        # The promise is of the long run: all windows together, with their range beside it.
        found[case] = (Sample(float(report[value])),)
        units = {"jain": "", "weight_error_percent": "%", "least_of_minimum": ""}
        by_second = tuple(Sample(float(window[value]), disturbed(window)) for window in windows)
        shortfall = tuple(
            Sample((window["bytes"] * 8 / window["seconds"] / RX_MAX - 1) * 100, disturbed(window))
            for window in windows
        )
        result.figures += [
            Figure(f"{case}, {value.replace('_', ' ')} by second", "tidegate", units[value], by_second),
            Figure(f"{case}, all together against rx.max", "tidegate", "%", shortfall, filterable=True),
        ]
        by_weight = sorted(sender["bits_per_second"] / sender["weight"] / 1e6 for sender in report["senders"])
        if case == WEIGHTS:
            points = tuple((float(rank), rate) for rank, rate in enumerate(by_weight, start=1))
            series = (Series("rate / weight", points),)
            title = "Rate by weight, senders in order"
            result.plots.append(Plot("fairness-weights", title, "sender", "Mbit/s per weight", series))
    result.targets += [
        Target("64 equal senders, Jain's index", "at least 0.999", "", 0.999, "more", found[EQUAL]),
        Target("64 senders, weights 1:2:4:8, largest error", "at most 1 %", "%", 1.0, "less", found[WEIGHTS]),
        Target(
            *("minima under overload, the least of rate / minimum", "at least 0.99", "", 0.99, "more"),
            found[MINIMA],
        ),
    ]
    return result


SCENE = Scene(
    name="fairness",
    title="Shares, weights and minima under overload",
    about=(
        "64 synthetic guests whose rings are always full, 1518 bytes a frame, all to one receiver with "
        "`rx.max = 1 Gbit/s`; the receiver counts each sender's frames by a number in the frame. Equal "
        "contracts; weights 1, 2, 4, 8; eight minima of 10 to 80 Mbit/s against 56 senders of a hundred "
        "times the weight."
    ),
    order=45,
    run=run,
)
