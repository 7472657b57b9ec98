"""What the look-up of a steered flow costs, by entries and masks, with random keys.

`crates/steering/examples/lookup` runs the program in the kernel (BPF_PROG_TEST_RUN), and writes a line of
JSON for each case.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterable

from harness.model import Context, Json, Missing, OptionGroup, Result, Scene
from harness.options import numbers
from harness.report import table
from scenes.placing import page

COMMAND = ("cargo", "run", "--quiet", "--release", "-p", "tidegate-steering", "--example", "lookup")
PARTS = ("parse", "look_up", "whole")


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--rounds", type=int, default=9, metavar="N", help="of each case; 9")
    group.add_argument(
        "--entries",
        type=numbers,
        default=[10, 1_000, 100_000, 1_000_000],
        metavar="N,N,...",
        help="10,1000,100000,1000000",
    )


def cases(lines: Iterable[str]) -> list[Json]:
    """The cases that were measured, of the example's output."""
    found: list[Json] = []
    for line in lines:
        if not line.startswith("{"):
            continue
        case: Json = json.loads(line)
        if not {"entries", "masks", *PARTS} <= case.keys():
            raise ValueError(f"no case of the look-up: {line}")
        found.append(case)
    return found


def rows(measured: Iterable[Json]) -> list[list[str]]:
    """A line for each case: medians, and the worst round."""
    return [
        [
            f"{case['entries']:,}",
            "exact" if case["masks"] == 0 else str(case["masks"]),
            *(f"{case[part]['median']:.0f} ({case[part]['worst']:.0f})" for part in PARTS),
        ]
        for case in measured
    ]


def run(context: Context) -> Result:
    """All cases."""
    if os.geteuid() != 0:
        raise Missing("needs root, to load programs")
    began = time.monotonic()
    words = [*COMMAND, "--", str(context.options.rounds), *map(str, context.options.entries)]
    context.say(" ".join(words))
    with subprocess.Popen(words, cwd=context.root, stdout=subprocess.PIPE, text=True) as program:
        context.cleanup.callback(program.kill)
        assert program.stdout is not None
        lines = []
        for line in program.stdout:
            lines.append(line)
            context.say(line.strip())
    if program.returncode != 0:
        raise RuntimeError(f"the example ended with {program.returncode}")
    measured = cases(lines)
    head = ("entries", "masks", "headers [ns]", "look-up [ns]", "both [ns]")
    result = Result(tables=[table(head, rows(measured))], data={"cases": measured})
    page.write(context, SCENE, result, time.monotonic() - began)
    return result


SCENE = Scene(
    name="cores_lookup",
    title="Steering: what the look-up costs",
    about=(
        "ns for a frame: VXLAN on IPv4, with UDP on IPv4 inside. Each run of the program takes one of all "
        "flows by chance, so that caches help no more than they would. `headers` is parsing, `look-up` finds "
        "the entry, counts, and chooses the CPU. With masks, the frame meets the last of them. Medians, and "
        "the worst round."
    ),
    order=972,
    run=run,
    default=False,
    add_options=add_options,
    writes_page=True,
    programs=(),
)
