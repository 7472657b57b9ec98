"""The cost of the kernel place by the number of its vNICs: to apply, to look, and for each frame.

Each count has a network namespace of its own with an agent, a switch and so many veths. Frames
come in by one of them: the last with a contract (limited); one that is limited without an agent by the last
of as many u32 filters (u32); one without a limit (bare).
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import TypedDict

from harness.model import Context, Missing, Misused, OptionGroup, Result, Scene
from harness.options import add_binary, binary, numbers
from harness.report import table

HEAD = (
    *("vNICs", "apply [s]", "change [ms]", "look [ms]"),
    *("limited [ns/frame]", "u32 [ns/frame]", "bare [ns/frame]", "limited / bare", "u32 / bare", "binary"),
)


class Row(TypedDict):
    """The figures of one binary at one count; ns per frame of each window."""

    binary: str
    vnics: int
    apply_s: float
    change_ms: float
    tick_ms: float
    limited_ns: list[float]
    u32_ns: list[float]
    bare_ns: list[float]


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    add_binary(group)
    group.add_argument(
        "--counts", type=numbers, default=[10, 100, 1000], metavar="N,N,...", help="vNICs; 10,100,1000"
    )
    group.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="windows of each kind, at least 2; 10"
    )
    group.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="FILE",
        help="another tidegate, window by window; repeatable",
    )


def measure(context: Context, binaries: Sequence[str], count: int, rounds: int) -> list[Row]:
    """Measures one count; windows of all binaries and ways take turns, and every other round is reversed."""
    hosts, rows = [], []
    try:
        for binary in binaries:
            words = [sys.executable, "-m", "scenes.kernel_place.many", binary, str(count)]
            host = subprocess.Popen(
                ["unshare", "--net", *words],
                cwd=context.root / "bench",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            hosts.append(host)
            assert host.stdout is not None
            begun = json.loads(host.stdout.readline() or '"no figures, see above"')
            if not isinstance(begun, dict):
                raise RuntimeError(f"{binary}, {count} vNICs: {begun}")
            row: Row = {
                "binary": binary,
                "vnics": count,
                "apply_s": begun["apply_s"],
                "change_ms": begun["change_ms"],
                "tick_ms": begun["tick_ms"],
                "limited_ns": [],
                "u32_ns": [],
                "bare_ns": [],
            }
            rows.append(row)
        for turn in range(rounds):
            pairs = list(zip(hosts, rows, strict=True))
            for host, row in pairs if turn % 2 == 0 else reversed(pairs):
                assert host.stdin is not None
                assert host.stdout is not None
                ways = [("limited", row["limited_ns"]), ("u32", row["u32_ns"]), ("bare", row["bare_ns"])]
                for way, figures in ways if turn % 2 == 0 else reversed(ways):
                    print(way, file=host.stdin, flush=True)
                    figures.append(float(host.stdout.readline()))
    finally:
        for host in hosts:
            assert host.stdin is not None
            host.stdin.close()
            host.wait()
    return rows


def spread(values: Sequence[float], digits: int) -> str:
    """Median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def cells(row: Row) -> list[str]:
    """One line of the table."""

    def beside(ways: list[float]) -> str:
        return spread([way / bare for way, bare in zip(ways, row["bare_ns"], strict=True)], 2)

    return [
        *(str(row["vnics"]), f"{row['apply_s']:.2f}", f"{row['change_ms']:.1f}", f"{row['tick_ms']:.1f}"),
        *(spread(ways, 0) for ways in (row["limited_ns"], row["u32_ns"], row["bare_ns"])),
        *(beside(row["limited_ns"]), beside(row["u32_ns"]), row["binary"]),
    ]


def run(context: Context) -> Result:
    """Each count, all binaries."""
    if context.options.rounds < 2:
        raise Misused(f"--rounds {context.options.rounds}: at least 2")
    binaries = [str(binary(context)), *context.options.beside]
    if os.geteuid() != 0:
        raise Missing("needs root, for network namespaces")
    rows: list[Row] = []
    for count in context.options.counts:
        measured = measure(context, binaries, count, context.options.rounds)
        rows += measured
        for row in measured:
            context.say(", ".join(f"{name} {cell}" for name, cell in zip(HEAD, cells(row), strict=True)))
    return Result(tables=[table(HEAD, map(cells, rows))], data={"rows": rows})


SCENE = Scene(
    name="kernel_scale",
    title="The kernel place by the number of vNICs",
    about=(
        "What the kernel place costs by the number of its vNICs: to apply, to look, for each frame. Median "
        "and quartiles. As root."
    ),
    order=942,
    run=run,
    default=False,
    add_options=add_options,
)
