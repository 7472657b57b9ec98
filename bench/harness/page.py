"""docs/performance.md, written from results.json: every figure with the command that measures it.

```text
 document (results.json) ─▶ docs/performance.md
                       ├──▶ docs/performance/PLOT.svg
                       └──▶ other pages: between <!-- table SCENE `FIRST WORD` --> and <!-- end of table -->
```
"""

import re
from pathlib import Path

from . import plot, report
from .model import Json, Plot, Series

HEAD = """# Performance

<!-- Written by `make bench` from performance/results.json: do not edit. -->

Tidegate and its peers, measured side by side in one run with the same generator. Everything of a
contract is on: limits, anti-spoofing, EDF, counters, delay histograms.

How to read it:

- Every cell is a median over windows, with the least and the most. Windows of the contenders take
  turns (A B C, C B A).
- A ratio is taken between neighbouring windows of one round, and only windows in which the two cores
  were equally far apart compare (a cache line there and back under {near:g} ns is *near*).
- A throughput window in which a core was taken away (the thread waited although runnable, or its clock
  jumped) is left out of *undisturbed windows* and counted; *all windows* has it. Delays and worst cases
  are never filtered.
- *Not decided*: the measurement says nothing about the target, and why stands beside it.

{machine}

{command}
"""


def _machine(document: Json) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items() if "below" not in key)
    return f"Measured on: {facts}."


def _scene(scene: Json) -> list[str]:
    measured = f"`{scene['command']}`, {scene['measured']} at commit `{scene['commit']}`\n"
    parts = [f"## {scene['title']}\n", scene["about"] + "\n", measured]
    if scene["error"]:
        parts.append(f"**{report.unended(scene)}**: {scene['error']}\n")
    if report.has_figures(scene):
        parts.append(report.figures(scene) + "\n")
    parts += [f"![{drawn['title']}](performance/{drawn['name']}.svg)\n" for drawn in scene["plots"]]
    if scene["notes"]:
        parts.append("\n".join(f"- {note}" for note in scene["notes"]) + "\n")
    return parts


def markdown(document: Json) -> str:
    """The page's text."""
    command = "`make bench-quick`: rough figures." if document["quick"] else "`make bench`"
    parts = [
        HEAD.format(machine=_machine(document), command=command, near=document["machine"]["near below [ns]"])
    ]
    if any(scene["targets"] for scene in document["scenes"]):
        parts += ["## What was asked\n", report.targets_table(document["scenes"]) + "\n"]
    for scene in document["scenes"]:
        parts += _scene(scene)
    return "\n".join(parts).rstrip() + "\n"


def drawn(document: Json) -> Plot:
    """A plot as results.json holds it."""
    gap = float("nan")  # null in JSON: the line breaks there
    series = tuple(
        Series(
            one["name"],
            tuple((gap if x is None else x, gap if y is None else y) for x, y in one["points"]),
        )
        for one in document["series"]
    )
    return Plot(**{**document, "series": series})


PASTED = re.compile(r"(<!-- table (\S+) (`\S+`) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def pasted(text: str, scenes: list[Json]) -> str:
    """A page with the tables of `scenes` in its places for them; a place for another table stays as it is."""

    def table(place: re.Match[str]) -> str:
        of_scene = (scene.get("tables", []) for scene in scenes if scene["scene"] == place[2])
        for found in (table for tables in of_scene for table in tables if table.startswith(place[3])):
            return f"{place[1]}{found}\n\n{place[4]}"
        return place[0]

    return PASTED.sub(table, text)


def write(document: Json, docs: Path) -> None:
    """Write the page and its plots into the folder `docs`, and the tables that its other pages have."""
    plots = docs / "performance"
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    (docs / "performance.md").write_text(markdown(document))
    for page in docs.rglob("*.md"):
        before = page.read_text()
        if (after := pasted(before, document["scenes"])) != before:
            page.write_text(after)
    for scene in document["scenes"]:
        for one in scene["plots"]:
            (plots / f"{one['name']}.svg").write_text(plot.svg(drawn(one)))
