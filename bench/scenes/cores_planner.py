"""The planner: its time, and the gap to the lower bound, by size of the host, over seeds.

`crates/cores/examples/plan` makes up hosts and plans them. That small hosts are planned as an exhaustive
search plans them is a test: `cargo test -p tidegate-cores planner`.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence

from harness.model import Context, Figure, Json, Misused, OptionGroup, Result, Sample, Scene
from harness.report import table
from scenes.placing import page

COMMAND = ("cargo", "run", "--quiet", "--release", "-p", "tidegate-cores", "--example", "plan", "--")
SIZES = "2x2,4x4,8x16,32x100,128x500"
HEAD = (
    "CPUs",
    "vNICs",
    "stages",
    "time [ms]",
    "again [ms]",
    "moved again",
    "gap [%]",
    "of the spread [%]",
    "exact",
)


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--seeds", type=int, default=10, metavar="N", help="hosts of each size; 10")
    group.add_argument("--sizes", default=SIZES, metavar="CPUSxVNICS,...", help=SIZES)


def parsed(lines: Iterable[str]) -> list[Json]:
    """The planned hosts, of the example's output."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median, and worst."""
    return f"{statistics.median(values):,.{digits}f} ({max(values):,.{digits}f})"


def line(hosts: Sequence[Json]) -> list[str]:
    """The hosts of one size: medians, and the worst."""
    costs = [100 * host["cost_ns"] / host["present_ns"] for host in hosts if host["present_ns"]]
    return [
        str(hosts[0]["cpus"]),
        str(hosts[0]["vnics"]),
        spread([host["stages"] for host in hosts]),
        spread([host["time_ms"] for host in hosts], 1),
        spread([host["again_ms"] for host in hosts], 1),
        spread([host["moved_again"] for host in hosts]),
        spread([host["gap_percent"] for host in hosts], 1),
        spread(costs) if costs else "-",
        f"{sum(host['exact'] for host in hosts)} of {len(hosts)}",
    ]


def sizes(text: str) -> list[tuple[int, int]]:
    """CPUs and vNICs of each size."""
    try:
        return [(int(cpus), int(vnics)) for cpus, vnics in (part.split("x") for part in text.split(","))]
    except ValueError:
        raise Misused(f"--sizes {text}: CPUSxVNICS,... as in {SIZES}") from None


def run(context: Context) -> Result:
    """All sizes."""
    began, result, rows = time.monotonic(), Result(), []
    for cpus, vnics in sizes(context.options.sizes):
        words = [*COMMAND, "--json", "--cpus", str(cpus), "--vnics", str(vnics)]
        words += ["--seeds", str(context.options.seeds)]
        context.say(" ".join(words))
        with subprocess.Popen(words, cwd=context.root, stdout=subprocess.PIPE, text=True) as program:
            context.cleanup.callback(program.kill)
            output, _ = program.communicate()
        if program.returncode != 0:
            raise RuntimeError(f"the example ended with {program.returncode}")
        hosts = parsed(output.splitlines())
        rows.append(line(hosts))
        name = f"{cpus} CPUs, {vnics} vNICs"
        for what, unit in (("time_ms", "ms"), ("gap_percent", "%")):
            taken = tuple(Sample(host[what]) for host in hosts)
            result.figures.append(Figure(f"{name}, {what.split('_')[0]}", "planner", unit, taken))
        result.data[name] = hosts
    result.tables.append(table(HEAD, rows))
    page.write(context, SCENE, result, time.monotonic() - began)
    return result


SCENE = Scene(
    name="cores_planner",
    title="The planner: time, and the gap to a lower bound",
    about=(
        "Generated hosts with two nodes and SMT siblings, a seed each. `time` of the first plan; "
        "`again` with loads that differ by up to 2 % from those of the plan in force, and the "
        "stages that it moves then. `gap`: cost less the lower bound, of the cost. `of the "
        "spread`: the plan's cost, of that of a scheduler that spreads the stages. `exact`: the "
        "plan is proven to be a best one. Medians, and the worst."
    ),
    order=974,
    run=run,
    default=False,
    add_options=add_options,
    writes_page=True,
    programs=(),
)
