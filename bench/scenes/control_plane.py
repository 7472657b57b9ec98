"""Runs the tests of the control plane's faults, and writes target/reliability/control-plane.json."""

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from harness import soaked
from harness.model import Context, Missing, OptionGroup, Result, Scene

REPORT = "target/reliability/control-plane.json"


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--report", type=Path, metavar="FILE", help=f"where the result goes; {REPORT}")


def output(context: Context, command: Sequence[str]) -> str:
    """What a command prints, whatever its status."""
    context.say(" ".join(command))
    done = subprocess.run(command, cwd=context.root, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def row(name: str, passed: bool, seen: str = "") -> soaked.Row:
    """A test's row: its name says what was asked."""
    text = seen or ("as asked" if passed else "failed")
    measure = name.removeprefix("test_").replace("_", " ")
    return {"measure": measure, "asked": "passes", "seen": text, "verdict": "kept" if passed else "missed"}


def rust(text: str) -> list[soaked.Row]:
    """The rows of what `cargo test` printed."""
    outcomes = re.findall(r"^test (?:\S*::)?(\w+) \.\.\. .*?(?:^|\b)(ok|FAILED)$", text, re.M | re.S)
    cuts = re.search(r"cut points: (\d+ deaths in \d+ applies)", text)
    seen = cuts[1] if cuts else ""
    return [row(name, end == "ok", seen if "dies_anywhere" in name else "") for name, end in outcomes]


def python(text: str) -> list[soaked.Row]:
    """The rows of what pytest printed."""
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", text, re.M)
    return [row(name, end == "PASSED") for end, name in outcomes]


def run(context: Context) -> Result:
    """Run the tests and write their results."""
    cargo = ["cargo", "test", "-p"]
    one = ["--", "--nocapture", "--test-threads", "1"]
    rows = rust(output(context, [*cargo, "tidegate-place-switch", "--test", "deaths", *one]))
    rows += rust(output(context, [*cargo, "tidegate-durable", "--lib", *one]))
    rows += rust(output(context, [*cargo, "tidegate", "--test", "faults"]))
    rows += python(
        output(context, [str(context.root / ".venv/bin/pytest"), "-q", "-rA", "tests/agent/test_faults.py"])
    )
    if not rows:
        raise Missing("no test ran")
    document = {
        "name": "control-plane",
        "command": "bench/run --scene control_plane",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": soaked.commit(context.root),
        "rows": rows,
        "notes": [
            "Each row is a test of that name, of crates/places/switch, crates/durable, crates/tidegate, or "
            "tests/agent/test_faults.py."
        ],
    }
    soaked.write(context.options.report or context.root / REPORT, document)
    return Result(
        tables=[soaked.markdown(rows)],
        failures=[f"{row['measure']}: {row['seen']}" for row in rows if row["verdict"] == "missed"],
    )


SCENE = Scene(
    name="control_plane",
    title="Faults of the control plane",
    about=f"Runs the tests of the control plane's faults, and writes {REPORT} for scene reliability.",
    order=960,
    run=run,
    default=False,
    add_options=add_options,
    programs=(),
)
