"""The cost of a frame on one core, by case and by stage: examples/hot_path, without a second core.

```text
 examples/hot_path ─▶ ns a frame, each case ─▶ differences: what a contract, what a deadline adds
        └─ callgrind ─▶ instructions a frame of the 64 B case, by stage
```
"""

import shutil
import subprocess

from harness import instructions
from harness.model import Context, Figure, Missing, Result, Sample, Scene, Target

LIMIT_NS = 12
OPEN, CONTRACT, DEADLINE = "64B-open", "64B", "64B-deadline"


def run(context: Context) -> Result:
    """All cases in turn, several times over; then the stages of one."""
    if not shutil.which("cargo"):
        raise Missing("cargo is missing, and the benchmark is built by it: scripts/setup build")
    program = instructions.build(context.root)
    names = instructions.cases(program)
    pinned = ["taskset", "-c", str(context.machine.switch_cpu), str(program)]
    rounds: list[dict[str, float]] = []
    for _ in range(context.rounds(7)):
        said = subprocess.run(pinned, capture_output=True, text=True, check=True).stdout
        rounds.append({line.split()[0]: float(line.split()[1]) for line in said.splitlines()})

    def difference(case: str) -> tuple[Sample, ...]:
        return tuple(Sample(seen[case] - seen[OPEN]) for seen in rounds)

    result = Result()
    for name in names:
        result.figures.append(
            Figure(f"a frame, {name}", "tidegate", "ns", tuple(Sample(seen[name]) for seen in rounds))
        )
    result.figures += [
        Figure("what limits of sender and receiver add", "tidegate", "ns", difference(CONTRACT)),
        Figure("what they and a deadline add", "tidegate", "ns", difference(DEADLINE)),
    ]
    result.targets.append(
        Target(
            "the contract's own cost, on one core",
            f"at most {LIMIT_NS} ns a frame",
            *("ns", LIMIT_NS, "less"),
            difference(CONTRACT),
        )
    )
    if not shutil.which("valgrind"):
        result.notes.append("Instructions by stage were not counted: valgrind is missing.")
        return result
    for stage, count in instructions.stages_per_frame(program, CONTRACT).items():
        result.figures.append(
            Figure(f"instructions a frame, {CONTRACT}: {stage}", "tidegate", "", (Sample(count),))
        )
    result.notes.append(
        f"`{OPEN}` has no limits; checks, counters and delay histograms are on in every case, so their "
        "cost is in both sides of the differences. Stages are told in instructions: the processor works "
        "on several at once, and no time belongs to one alone."
    )
    return result


SCENE = Scene(
    name="budget",
    title="The budget of a frame",
    about=(
        "The worker's loop on one thread with fixed input: rings are filled and emptied by the same "
        "thread, outside of what is timed, so no cache line comes from another core. A figure is the "
        "median of 4,000 rounds of 256 frames. Instructions are counted by callgrind and belong to "
        "a stage by the functions they were inlined from."
    ),
    order=36,
    run=run,
)
