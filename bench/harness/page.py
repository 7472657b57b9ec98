"""The pages of docs/performance, one a scene, and their list docs/performance.md, from results.json.

```text
 document (results.json) ─▶ docs/performance.md           the list: how many targets are met
                       ├──▶ docs/performance/SCENE.md     targets, figures, plots, the command
                       ├──▶ docs/performance/PLOT.svg
                       └──▶ other pages: between <!-- table SCENE `FIRST WORD` --> and <!-- end of table -->
```
"""

import re
from pathlib import Path

from . import plot, report
from .model import Json, Plot, Series
from .pivot import figures_by_row

WRITTEN = "<!-- Written by `bench/run --page` from performance/results.json: do not edit. -->"
HEAD = """# Performance

{written}

Tidegate and its peers, measured side by side in one run with the same generator. All parts of a
contract are on: limits, anti-spoofing, EDF, counters, delay histograms. Each page has the targets of
one scene, its figures and its command.

How to read the pages:

- A figure is the median over windows, in brackets the least and the most. The windows of the contenders
  take turns (A B C, C B A).
- A ratio compares neighbouring windows of one round in which the two cores were equally far apart (*near*:
  a cache line goes to the other core and back in less than {near:g} ns).
- A throughput window is *disturbed* if the machine took a core away: the thread was runnable and did not
  run, or its clock jumped. Medians leave disturbed windows out; `4 of 7` says that 4 windows remain.
  `all disturbed` marks a median of disturbed windows. Delays and worst cases are never filtered.
- *Not decided*: the measurement cannot answer the question; the reason follows.

{machine}

{command} measures all scenes; [results.json](performance/results.json) has every window.
[Real time beside bulk](performance/real-time.md) has further runs of `delay`, `applications`, `guests` and
`wakeups`. [Between hosts](performance/uplink.md)
and [which CPU does which part of the work](performance/cores.md) are of scenes that run alone;
[the network's controller](performance/network.md) has programs of its own.
"""


def _machine(document: Json) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items() if "below" not in key)
    return f"Measured on: {facts}."


def _figures(scene: Json) -> str:
    return "\n\n".join(scene.get("tables") or [figures_by_row(scene["figures"])])


def scene_page(scene: Json) -> str:
    """The page of one scene."""
    measured = f"`{scene['command']}`, {scene['measured']} at commit `{scene['commit']}`."
    read = "[How to read these figures](../performance.md)."
    parts = [f"# {scene['title']}\n", WRITTEN + "\n", scene["about"] + "\n", f"{measured} {read}\n"]
    if scene["error"]:
        parts.append(f"**{report.unended(scene)}**: {scene['error']}\n")
    if scene["targets"]:
        parts += ["## Targets\n", report.targets_table([scene]) + "\n"]
    if report.has_figures(scene):
        parts += ["## Figures\n", _figures(scene) + "\n"]
    parts += [f"![{drawn['title']}]({drawn['name']}.svg)\n" for drawn in scene["plots"]]
    if scene["notes"]:
        parts.append("\n".join(f"- {note}" for note in scene["notes"]) + "\n")
    return "\n".join(parts).rstrip() + "\n"


def _row(scene: Json) -> str:
    verdicts = [target["verdict"] for target in scene["targets"]]
    counts = [str(verdicts.count(one) or "") for one in ("met", "not met")]
    undecided = len(verdicts) - verdicts.count("met") - verdicts.count("not met")
    missing = f"{report.unended(scene)}: {scene['error']}" if scene["error"] else ""
    link = f"[{scene['title']}](performance/{scene['scene']}.md)"
    return report.row([link, scene["measured"], *counts, str(undecided or ""), missing])


def markdown(document: Json) -> str:
    """The text of docs/performance.md."""
    command = "`make bench-quick` (rough figures)" if document["quick"] else "`make bench`"
    head = HEAD.format(
        written=WRITTEN,
        machine=_machine(document),
        command=command,
        near=document["machine"]["near below [ns]"],
    )
    names = ["scene", "measured", "targets met", "not met", "not decided", ""]
    rows = [report.row(names), report.row(["---"] * len(names)), *map(_row, document["scenes"])]
    return head + "\n" + "\n".join(rows) + "\n"


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
    """The page with the tables of `scenes` in their places; a place for another table stays as it is."""

    def table(place: re.Match[str]) -> str:
        of_scene = (scene.get("tables", []) for scene in scenes if scene["scene"] == place[2])
        for found in (table for tables in of_scene for table in tables if table.startswith(place[3])):
            return f"{place[1]}{found}\n\n{place[4]}"
        return place[0]

    return PASTED.sub(table, text)


def write(document: Json, docs: Path) -> None:
    """Write the pages and their plots into the folder `docs`, and the tables that its other pages have."""
    plots = docs / "performance"
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    (docs / "performance.md").write_text(markdown(document))
    for scene in document["scenes"]:
        (plots / f"{scene['scene']}.md").write_text(scene_page(scene))
    for page in docs.rglob("*.md"):
        before = page.read_text()
        if (after := pasted(before, document["scenes"])) != before:
            page.write_text(after)
    for scene in document["scenes"]:
        for one in scene["plots"]:
            (plots / f"{one['name']}.svg").write_text(plot.svg(drawn(one)))
