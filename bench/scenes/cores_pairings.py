"""Pairs of stages on one CPU and on two (`tidegate cores calibrate`), beside the original's findings."""

import json
import subprocess
import time
from collections.abc import Sequence

from harness.model import Context, Json, OptionGroup, Result, Scene
from harness.options import add_binary, binary
from harness.report import table
from scenes.placing import page

DISTANCES = {"sibling": "SMT siblings", "cache": "cores", "node": "caches", "remote": "nodes"}
HEAD = ("pair", "apart", "run", "together [ns]", "apart [ns]", "spread [ns]", "here", "the original found")


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    add_binary(group)
    group.add_argument("--rounds", type=int, default=3, metavar="N", help="calibrations; 3")
    group.add_argument("--seconds", type=int, default=20, metavar="N", help="of each; 20")


def verdict(row: Json) -> str:
    """What a calibration says of a pair."""
    measured = row.get("measured")
    if measured:
        ((kind, value),) = measured.items()
        if kind == "handover":
            same, apart = value
            return f"{apart} ns to hand over" if apart >= same else f"{same} ns more on one CPU"
        return f"{value / 10:.1f} % lost"
    if not row["judged"]["told_apart"]:
        return "cannot tell apart"
    return "apart is better" if row["judged"]["difference"] > 0 else "together is better"


def rows(reports: Sequence[Json]) -> list[list[str]]:
    """A line for each pair and run."""
    names = list(dict.fromkeys((row["pair"], row["distance"]) for one in reports for row in one["rows"]))
    found = []
    for pair, distance in names:
        for number, one in enumerate(reports, 1):
            for row in one["rows"]:
                if (row["pair"], row["distance"]) == (pair, distance):
                    judged = row["judged"]
                    values = (judged["together"], judged["apart"], judged["spread"])
                    cells = (f"{value:.0f}" for value in values)
                    found.append(
                        [pair, DISTANCES[distance], str(number), *cells, verdict(row), row["finding"]]
                    )
    return found


def notes(reports: Sequence[Json]) -> list[str]:
    """What was not measured, and pairs of which calibrations say different things."""
    missing = {one["pair"]: one["reason"] for report in reports for one in report["not_measured"]}
    found = [f"Not measured: {pair}: {reason}." for pair, reason in missing.items()]
    told: dict[str, set[bool]] = {}
    for report in reports:
        for row in report["rows"]:
            told.setdefault(row["pair"], set()).add(row["judged"]["told_apart"])
    found += [
        f"{pair}: told apart in some calibrations only." for pair, seen in told.items() if len(seen) > 1
    ]
    lost = sum(row["lost"] for report in reports for row in report["rows"])
    busy = max((report["busy"] for report in reports), default=0.0)
    found.append(f"Other programs used up to {100 * busy:.0f} % of the CPUs.")
    return [*found, f"Frames lost in all windows: {lost:.0f}."]


def run(context: Context) -> Result:
    """Calibrates several times, into a file of its own."""
    began, program, reports = time.monotonic(), binary(context), []
    words: list[str] = [str(program), "--api", str(context.folder / "none"), "--json", "cores", "calibrate"]
    for number in range(context.options.rounds):
        output = [
            "--output",
            str(context.folder / f"{number}.json"),
            "--seconds",
            str(context.options.seconds),
        ]
        context.say(f"calibration {number + 1} of {context.options.rounds}")
        done = subprocess.run([*words, *output], stdout=subprocess.PIPE, check=False, text=True)
        # On a busy machine it prints what it measured, and writes nothing.
        if not done.stdout:
            raise RuntimeError(f"the calibration ended with {done.returncode}")
        reports.append(json.loads(done.stdout))
    result = Result(tables=[table(HEAD, rows(reports))], notes=notes(reports), data={"reports": reports})
    page.write(context, SCENE, result, time.monotonic() - began)
    return result


SCENE = Scene(
    name="cores_pairings",
    title="Pairs of stages on one CPU and apart, beside the original's findings",
    about=(
        "`tidegate cores calibrate`, several times. Of flows (sender, the kernel's stack behind "
        "a veth pair, a receiver that stands for a vCPU; 256 bytes, at most 128 on their way) "
        "the CPU time of a frame at all stages; of a polling worker and its receiver the time "
        "from frame to frame; of two workers a cache line to and fro. Both placements take "
        "turns, nine rounds or more. Told apart are differences beyond the spread in seven of "
        "eight rounds. The findings are those of VSE's CPU allocation model."
    ),
    order=971,
    run=run,
    default=False,
    add_options=add_options,
    writes_page=True,
)
