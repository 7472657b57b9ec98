"""Measures the parts of docs/reliability.md, and writes the page from their results."""

import json
import subprocess
from pathlib import Path

from harness import reliability
from harness.model import Context, OptionGroup, Result, Scene
from harness.report import table


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument(
        "--from",
        type=Path,
        dest="folder",
        metavar="DIR",
        help=f"DIR/NAME.json has the results of part NAME; {reliability.PARTS}",
    )
    group.add_argument("--docs", type=Path, metavar="DIR", help="where the page goes; docs")
    group.add_argument(
        "--measure",
        nargs="*",
        metavar="PART",
        choices=list(reliability.TITLES),
        help=f"first measure these parts, or all: {', '.join(reliability.TITLES)}",
    )
    group.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page differs from its data"
    )


def measure(context: Context, names: list[str]) -> list[str]:
    """Run the commands that measure these parts; the commands that failed."""
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=context.root, check=True)
    (context.root / reliability.PARTS).mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        for command in reliability.COMMANDS[name]:
            context.say(f"{name}: {command}")
            if status := subprocess.run(command, shell=True, cwd=context.root, check=False).returncode:
                failed.append(f"{command}: ended with {status}")
    return failed


def run(context: Context) -> Result:
    """Collect and write, or check."""
    wanted = context.options
    docs = wanted.docs or context.root / "docs"
    folder = wanted.folder or context.root / reliability.PARTS
    result = Result()
    if wanted.measure is not None:
        result.failures = measure(context, wanted.measure or list(reliability.TITLES))
    page, stored = docs / "reliability.md", docs / "reliability/results.json"
    try:
        parts = reliability.collect(Path("/nonexistent") if wanted.check else folder, stored)
    except (reliability.Wrong, OSError, ValueError) as error:
        result.failures.append(str(error))
        return result
    text = reliability.page(parts)
    if wanted.check:
        if not page.exists() or page.read_text() != text:
            result.failures.append(f"{page} is not what {stored} says: make reliability")
        return result
    stored.parent.mkdir(parents=True, exist_ok=True)
    ordered = [parts[name] for name in reliability.TITLES if name in parts]
    stored.write_text(json.dumps({"parts": ordered}, indent=1) + "\n")
    page.write_text(text)
    rows = [(name, parts[name]["date"] if name in parts else "not measured") for name in reliability.TITLES]
    result.tables = [table(("part", "measured"), rows)]
    return result


SCENE = Scene(
    name="reliability",
    title="Reliability",
    about=(
        "Writes docs/reliability.md and docs/reliability/results.json from the results of the parts; with "
        "--measure, measures the parts first. Fails if a result is not what it should be, or a command "
        "fails; the page says which figures fall short."
    ),
    order=980,
    run=run,
    default=False,
    add_options=add_options,
    programs=(),
)
