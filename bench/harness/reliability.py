"""docs/reliability.md and its data, from one JSON file per part. Pure, but for reading the files.

target/reliability/NAME.json ─▶ check ─▶ docs/reliability/results.json ─▶ page

A part that was not measured again stays in results.json as it was.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Part = dict[str, Any]
Row = dict[str, str]

TITLES = {
    "kills": "The switch is killed under load",
    "upgrade": "The switch is replaced by another one",
    "migration": "A guest moves to another host",
    "hostile": "Front ends that lie",
    "confinement": "A switch that was taken over",
    "fuzz": "Fuzzing",
    "neighbours": "Noisy neighbours",
    "beside": "Neighbours of front ends that do harm",
    "control-plane": "Faults of the control plane",
    "soak": "Hours of churn",
}
"""The parts, in the order of the page."""
PARTS = "target/reliability"
"""Where each part leaves its JSON, from the root of the project."""


def _test(name: str, test: str, *options: str) -> str:
    report = f"TIDEGATE_REPORT=$PWD/{PARTS}/{name}.json"
    return " ".join([report, "cargo test", *options, f"-p tidegate-switch --test {test}"])


_KILLS = "target/release/tidegate-bench kills"
COMMANDS: dict[str, tuple[str, ...]] = {
    "kills": tuple(f"{_KILLS} --count 100{rings} --report {PARTS}/kills.json" for rings in ("", " --packed")),
    "upgrade": tuple(
        f"{_KILLS} --replace --count 20{rings} --report {PARTS}/upgrade.json" for rings in ("", " --packed")
    ),
    "migration": (
        f"TIDEGATE_REPORT=$PWD/{PARTS}/migration.json .venv/bin/python -m pytest -c tests/pyproject.toml"
        " --rootdir tests tests/switch/test_migration.py",
    ),
    "hostile": (_test("hostile", "hostile_table"),),
    "confinement": (_test("confinement", "confine"),),
    "fuzz": ("make fuzz SECONDS=1800",),
    "neighbours": (_test("neighbours", "neighbours", "--release"),),
    "beside": (f"target/release/tidegate-bench hostile --report {PARTS}/beside.json",),
    "control-plane": ("bench/run --scene control_plane",),
    "soak": ("make soak HOURS=1",),
}
"""The shell commands that measure a part."""
VERDICTS = {"kept": "kept", "missed": "**missed**", "info": ""}
KEYS: dict[str, type] = {"name": str, "command": str, "date": str, "commit": str, "rows": list, "notes": list}
ROW = ("measure", "asked", "seen", "verdict")
COSTS = "costs "
"""The result of a lie begins so; the rest is its cost for the lying front end."""
WORDS = 20
"""A result of more words than this stands below its table."""


class Wrong(Exception):
    """A file is wrong; the message names the file, its content, and the expected content."""


def check(document: object, where: str) -> Part:
    """`document` as a valid part; raises `Wrong` if it is not valid."""
    if not isinstance(document, dict) or set(document) != set(KEYS):
        got = sorted(document) if isinstance(document, dict) else type(document).__name__
        raise Wrong(f"{where}: expected an object with {', '.join(KEYS)}, got {got}")
    for key, kind in KEYS.items():
        if not isinstance(document[key], kind):
            raise Wrong(f"{where}: {key}: expected {kind.__name__}, got {document[key]!r}")
    if document["name"] not in TITLES:
        raise Wrong(f"{where}: name {document['name']!r}: expected one of {', '.join(TITLES)}")
    if not document["rows"]:
        raise Wrong(f"{where}: rows: expected at least one")
    for number, row in enumerate(document["rows"]):
        strings = isinstance(row, dict) and all(isinstance(v, str) for v in row.values())
        if not strings or set(row) != set(ROW):
            raise Wrong(f"{where}: rows[{number}]: expected strings {', '.join(ROW)}, got {row!r}")
        if row["verdict"] not in VERDICTS:
            raise Wrong(
                f"{where}: rows[{number}]: verdict {row['verdict']!r}: expected {', '.join(VERDICTS)}"
            )
    if not all(isinstance(note, str) for note in document["notes"]):
        raise Wrong(f"{where}: notes: expected strings")
    return document


def collect(folder: Path, stored: Path) -> dict[str, Part]:
    """The parts by name: from `folder`; parts that are not there, from `stored`."""
    parts: dict[str, Part] = {}
    if stored.exists():
        for document in json.loads(stored.read_text())["parts"]:
            part = check(document, str(stored))
            parts[part["name"]] = part
    for name in TITLES:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        try:
            document = json.loads(path.read_text())
        except ValueError as error:
            raise Wrong(f"{path}: not JSON: {error}") from error
        part = check(document, str(path))
        if part["name"] != name:
            raise Wrong(f"{path}: name {part['name']!r}: expected {name!r}, as the file's")
        parts[name] = part
    return parts


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _halves(measure: str) -> tuple[str, str]:
    """Subject and column of a row: `frames sent` and `split rings` of `frames sent, split rings`."""
    if found := re.fullmatch(r"(.+), ((?:split|packed)(?: rings)?)", measure):
        return found[1], found[2]
    if found := re.fullmatch(r"(.+?) beside (.+)", measure):
        return f"beside {found[2]}", found[1]
    return measure, ""


def _verdict(verdicts: Sequence[str]) -> str:
    """Of several rows: missed if one was missed, kept if one had a demand."""
    return next((VERDICTS[one] for one in ("missed", "kept") if one in verdicts), "")


def _table(rows: Sequence[Row]) -> list[str]:
    """A Markdown table. Rows of one subject are one row with several columns; empty columns are left out."""
    columns = list(dict.fromkeys(_halves(row["measure"])[1] for row in rows))
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(_halves(row["measure"])[0], []).append(row)
    has_asked, has_verdict = any(r["asked"] for r in rows), any(VERDICTS[r["verdict"]] for r in rows)
    heads = ["", *(["asked"] if has_asked else [])]
    heads += [column or "seen" for column in columns] + ([""] if has_verdict else [])
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, found in of.items():
        seen = {_halves(row["measure"])[1]: row["seen"] for row in found}
        asked = dict.fromkeys(row["asked"] for row in found if row["asked"])
        cells = [name, *(["; ".join(asked)] if has_asked else [])]
        cells += [seen.get(column, "") for column in columns]
        cells += [_verdict([row["verdict"] for row in found])] if has_verdict else []
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return lines


def _costs(rows: Sequence[Row]) -> list[str]:
    """Lists of lies by what they cost, each with the kind of ring if it was told on one kind only."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        name, kind = _halves(row["measure"])
        kinds.setdefault(row["seen"].removeprefix(COSTS), {}).setdefault(name, []).append(kind)
    lines = (
        ["A lie was told on split and on packed rings, unless one kind stands behind it.", ""] if rows else []
    )
    for cost, names in kinds.items():
        lies = [name if len(on) > 1 else f"{name} ({on[0]})" for name, on in names.items()]
        lines += [f"**Costs {cost}**: {_cell('; '.join(lies))}.", ""]
    return lines


def _section(title: str, part: Part) -> list[str]:
    lines = [f"## {title}", "", f"`{part['command']}`, {part['date'][:10]}, commit {part['commit']}.", ""]
    rows: list[Row] = part["rows"]
    costs = [row for row in rows if row["seen"].startswith(COSTS)]
    long = [row for row in rows if row not in costs and len(row["seen"].split()) > WORDS]
    tabled = [row for row in rows if row not in costs and row not in long]
    plain = [row for row in tabled if not _halves(row["measure"])[1]]
    paired = [row for row in tabled if _halves(row["measure"])[1]]
    for table in (plain, paired):
        lines += [*_table(table), ""] if table else []
    lines += _costs(costs)
    lines += [f"- {_cell(row['measure'])}: {_cell(row['seen'])}" + _after(row) for row in long]
    lines += [f"- {_cell(note)}" for note in part["notes"]]
    if part["notes"] or long:
        lines.append("")
    return lines


def _after(row: Row) -> str:
    """Demand and verdict of a row that is too long for a table."""
    asked = f" (asked: {_cell(row['asked'])})" if row["asked"] else ""
    verdict = VERDICTS[row["verdict"]]
    return asked + (f": {verdict}" if verdict else "")


def page(parts: Mapping[str, Part]) -> str:
    """docs/reliability.md."""
    lines = [
        "# Reliability",
        "",
        "Faults that tests caused in the switch, the agent and their guests, and the results. The command",
        "above a table printed its figures; a figure that falls short says **missed**.",
        "",
        "`bench/run --scene reliability --measure` measures all parts in about four hours, or the parts that",
        "it names. It writes this page and [its data](reliability/results.json). A part that is not measured",
        "again keeps its figures and their date.",
        "",
        "| part | measured | as asked | missed |",
        "|---|---|---|---|",
    ]
    for name, title in TITLES.items():
        part = parts.get(name)
        if part is None:
            lines.append(f"| {title} | not measured | | |")
            continue
        verdicts = [row["verdict"] for row in part["rows"]]
        date = part["date"][:10]
        lines.append(f"| {title} | {date} | {verdicts.count('kept')} | {verdicts.count('missed') or ''} |")
    lines.append("")
    for name, title in TITLES.items():
        part = parts.get(name)
        if part:
            lines += _section(title, part)
        else:
            command = f"bench/run --scene reliability --measure {name}"
            lines += [f"## {title}", "", f"Not measured. `{command}` measures it.", ""]
    return "\n".join(lines).rstrip() + "\n"
