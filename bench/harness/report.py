"""Results as JSON and as Markdown tables.

```text
 Results by scene ─▶ document (dict) ─▶ results.json
                                   └──▶ table(document) ─▶ Markdown
```
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .model import Figure, Json, Result, Scene, Spread, Target


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Dataclasses as dicts; NaN, which JSON lacks, as null; values rounded to six digits."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _measured(value: Figure | Target) -> Json:
    document: Json = _plain(value)
    document["raw"] = _plain(value.raw)
    document["filtered"] = _plain(value.filtered)
    if isinstance(value, Target):
        document["verdict"] = value.verdict
    else:
        document["near"], document["far"] = _plain(value.at("near")), _plain(value.at("far"))
    return document


def scene_document(scene: Scene, command: str, result: Result, error: str, seconds: float) -> Json:
    """One scene as it stands in results.json; `error` says why it could not be measured, or is empty."""
    return {
        "scene": scene.name,
        "title": scene.title,
        "about": scene.about,
        "command": command,
        "seconds": round(seconds, 1),
        "error": error,
        "figures": [_measured(figure) for figure in result.figures],
        "targets": [_measured(target) for target in result.targets],
        "plots": [_plain(plot) for plot in result.plots],
        "tables": result.tables,
        "notes": result.notes,
        "failures": result.failures,
        "data": result.data,
        "windows": [_plain(window) for window in result.windows],
    }


def number(value: float) -> str:
    """Four significant digits, without exponents."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def spread(document: Json | None, unit: str) -> str:
    """`median unit (least to most)`."""
    if document is None:
        return "-"
    seen = Spread(**document)
    text = f"{number(seen.median)} {unit}".rstrip()
    return text if seen.count == 1 else f"{text} ({number(seen.least)} to {number(seen.most)})"


def row(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its columns padded so that it is readable in a terminal, too."""
    lines = [list(head), *(list(cells) for cells in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        row([cell.ljust(width) for cell, width in zip(line, widths, strict=True)]) for line in lines
    )


def figures_table(figures: list[Json]) -> str:
    """The figures of one scene: raw; if filterable, filtered too; near and far if known."""
    filterable = any(f["filterable"] for f in figures)
    distances = [d for d in ("near", "far") if any(f[d] for f in figures)]
    distances = distances if len(distances) > 1 else []
    noted = any(f["note"] for f in figures)
    head = ["measure", "of", "median (least to most)"]
    head += ["undisturbed windows"] if filterable else []
    head += [f"cores {d}" for d in distances] + (["note"] if noted else [])
    rows = [row(head), row(["---"] * len(head))]
    for f in figures:
        cells = [f["name"], f["contender"], spread(f["raw"], f["unit"])]
        if filterable:
            kept, all_of_them = (f[key]["count"] if f[key] else 0 for key in ("filtered", "raw"))
            cells.append(
                f"{spread(f['filtered'], f['unit'])}, {kept} of {all_of_them}"
                if f["filterable"] and all_of_them
                else "not filtered"
                if not f["filterable"]
                else "-"
            )
        cells += [spread(f[d], f["unit"]) for d in distances]
        cells += [f["note"]] if noted else []
        rows.append(row(cells))
    return "\n".join(rows)


def figures(scene: Json) -> str:
    """The tables of one scene: its own ones, or the list of its figures."""
    # Results that were stored by an earlier harness have no `tables`.
    return "\n\n".join(scene.get("tables") or [figures_table(scene["figures"])])


def targets_table(scenes: list[Json]) -> str:
    """Every target of every scene, with its verdict."""
    rows = [row(["measure", "asked", "seen", "all windows", "verdict"]), row(["---"] * 5)]
    for scene in scenes:
        for t in scene["targets"]:
            verdict = t["verdict"] if t["verdict"] == "met" else f"**{t['verdict']}**"
            every = "every window was disturbed" if t["raw"] and not t["filtered"] else ""
            why = "; ".join(reason for reason in (t["invalid"], every, t["note"]) if reason)
            rows.append(
                row(
                    [
                        t["measure"],
                        t["asked"],
                        spread(t["filtered"], t["unit"]),
                        "" if t["raw"] == t["filtered"] else spread(t["raw"], t["unit"]),
                        verdict + (f": {why}" if why else ""),
                    ]
                )
            )
    return "\n".join(rows)


def has_figures(scene: Json) -> bool:
    """Whether anything was measured."""
    return bool(scene["figures"] or scene.get("tables"))


def unended(scene: Json) -> str:
    """The words before the reason why a scene did not end."""
    return "Cut short" if has_figures(scene) else "Not measured"


def markdown(document: Json) -> str:
    """The whole run as tables."""
    parts = []
    if any(scene["targets"] for scene in document["scenes"]):
        parts += ["## Targets\n", targets_table(document["scenes"]), ""]
    for scene in document["scenes"]:
        parts += [f"## {scene['title']}\n"]
        if scene["error"]:
            parts += [f"{unended(scene)}: {scene['error']}\n"]
        if has_figures(scene):
            parts += [figures(scene), ""]
        parts += [*(f"- {note}" for note in scene["notes"]), ""] if scene["notes"] else []
    return "\n".join(parts).rstrip() + "\n"
