"""Instructions of the hot path for each frame, beside those stored in bench/instructions.json.

Counts, not times: the same on a busy machine, and nearly the same on another CPU.
"""

import json
import shutil

from harness import instructions
from harness.model import Context, Json, Missing, Misused, OptionGroup, Result, Scene
from harness.report import table

STORED = "bench/instructions.json"
MARGIN = 0.10
"""What another version of the compiler may change; what one adds to a frame by mistake is more."""
ADVICE = (
    "If the growth is intended, run `bench/run --scene instructions --update`, commit the file that it "
    "writes, and say why in the commit. If not, find its place: `valgrind --tool=callgrind "
    "--toggle-collect='*worker*Worker*turn*' {program} --frames {frames} --case CASE; "
    "callgrind_annotate callgrind.out.*`"
)


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--update", action="store_true", help="store the new counts")
    group.add_argument(
        "--stages", metavar="CASE", help="only show the instructions of each stage of this case"
    )
    group.add_argument("--case", metavar="CASE", action="append", help="compare only this case; repeatable")


def run(context: Context) -> Result:
    """Count and compare; with `--update`, store."""
    wanted = context.options
    if wanted.case and wanted.update:
        raise Misused("--update stores all cases; --case is for comparing a few")
    if not shutil.which("valgrind"):
        raise Missing("valgrind is missing: scripts/setup test")
    try:
        return counted(context)
    except instructions.Failed as failed:
        raise Missing(str(failed)) from failed


def counted(context: Context) -> Result:
    """Raises `instructions.Failed` if nothing can be counted."""
    wanted, file = context.options, context.root / STORED
    document: Json = json.loads(file.read_text()) if file.exists() else {}
    stored: dict[str, float] = document.get("per frame", {})
    program = instructions.build(context.root)
    names = instructions.cases(program)
    if unknown := {*(wanted.case or ()), *([wanted.stages] if wanted.stages else [])} - set(names):
        raise Misused(f"no case {', '.join(sorted(unknown))}; there are: {' '.join(names)}")
    if wanted.stages:
        stages = instructions.stages_per_frame(program, wanted.stages)
        rows = [(stage, f"{count:.1f}") for stage, count in stages.items()]
        return Result(tables=[table((wanted.stages, "instructions"), rows)], data={"stages": stages})
    seen = instructions.per_frame(program, wanted.case or names)
    if wanted.case:
        stored = {case: count for case, count in stored.items() if case in wanted.case}
    compiler = instructions.compiler()
    result = Result(
        tables=[instructions.table(stored, seen)],
        notes=instructions.by_port(seen),
        data={"compiler": compiler, "per frame": seen},
    )
    if wanted.update:
        file.write_text(json.dumps(result.data, indent=1) + "\n")
        return result
    result.failures = instructions.judge(stored, seen, MARGIN)
    if result.failures:
        if compiler != document.get("compiler"):
            result.notes.append(f"Stored with {document.get('compiler')}, counted with {compiler}.")
        result.notes.append(ADVICE.format(program=program, frames=instructions.MANY))
    return result


SCENE = Scene(
    name="instructions",
    title="Instructions of the hot path",
    about=(
        "Instructions of the data plane for each frame, beside those in bench/instructions.json. "
        "Needs valgrind."
    ),
    order=900,
    run=run,
    default=False,
    add_options=add_options,
    programs=(),
)
