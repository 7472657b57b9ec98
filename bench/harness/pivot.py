"""Figures as a table with a row for each measure, and a column for each contender.

```text
 figures ─▶ (row, column) of each ─▶ Markdown
            "delay p50, threads anywhere", "kernel HTB" ─▶ ("delay p50 [us]", "kernel HTB, threads anywhere")
```
"""

import math
import re

from .model import Json
from .report import row

FEW = 4
"""A part of a name that at least this many measures share becomes a column."""
MOST_COLUMNS = 6
SEPARATOR = ", "


def short(value: float) -> str:
    """Three significant digits, and at most four decimals: `12.3`, `0.0012`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = min(4, max(0, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if decimals else text
    return "0" if text == "-0" else text


def _spread(spread: Json) -> str:
    median, least, most = (short(spread[key]) for key in ("median", "least", "most"))
    return median if median == least == most else f"{median} ({least} to {most})"


def _bold(note: str) -> str:
    """The part of a note that a reader must see beside the figure."""
    return "; ".join(re.findall(r"\*\*(.+?)\*\*", note))


def _cell(figure: Json) -> str:
    raw, kept = figure["raw"], figure["filtered"]
    if raw is None:
        return figure["note"] or "-"
    text = _spread(kept or raw)
    if figure["filterable"] and kept is None:
        text += ", all disturbed"
    elif figure["filterable"] and kept["count"] < raw["count"]:
        text += f", {kept['count']} of {raw['count']}"
    bold = _bold(figure["note"])
    # A note without a bold part is shown where all of it is short: it is a condition of the figure.
    note = bold or ("" if len(figure["note"].split()) > FEW + 2 else figure["note"])
    return f"{text}; {note}" if note else text


def _shared_parts(figures: list[Json]) -> set[str]:
    """The last parts of names that become columns: `threads anywhere` of `delay p50, threads anywhere`."""
    names = {figure["name"] for figure in figures}
    firsts: dict[str, set[str]] = {}
    for name in names:
        first, separator, last = name.rpartition(SEPARATOR)
        if separator:
            firsts.setdefault(last, set()).add(first)
    contenders = len({figure["contender"] for figure in figures})
    shared = {last for last, measures in firsts.items() if len(measures) >= FEW}
    covered = sum(len(firsts[last]) for last in shared)
    return shared if covered >= len(names) * 0.8 and contenders * len(shared) <= MOST_COLUMNS else set()


def _place(figure: Json, shared: set[str], *, one_contender: bool) -> tuple[str, str, str]:
    """Measure, unit and column of a figure."""
    name, separator, last = figure["name"].rpartition(SEPARATOR)
    column = "" if one_contender else figure["contender"]
    if not separator or last not in shared:
        return figure["name"], figure["unit"], column or figure["contender"]
    return name, figure["unit"], SEPARATOR.join(part for part in (column, last) if part)


def figures_by_row(figures: list[Json]) -> str:
    """The figures of one scene; a unit stands with the measure, or with the column if rows mix units."""
    shared = _shared_parts(figures)
    one_contender = len({figure["contender"] for figure in figures}) == 1
    cells: dict[tuple[str, str], str] = {}
    for figure in figures:
        measure, unit, column = _place(figure, shared, one_contender=one_contender and bool(shared))
        name = measure if shared and one_contender else _with_unit(measure, unit)
        head = _with_unit(column, unit) if shared and one_contender else column
        cells[name, head] = _cell(figure)
    rows = list(dict.fromkeys(name for name, _ in cells))
    columns = list(dict.fromkeys(head for _, head in cells))
    lines = [row(["measure", *columns]), row(["---"] * (len(columns) + 1))]
    lines += [row([name, *(cells.get((name, head), "") for head in columns)]) for name in rows]
    return "\n".join(lines)


def _with_unit(name: str, unit: str) -> str:
    return f"{name} [{unit}]" if unit else name
