"""Plots as SVG, written by hand: no dependency, and a text file that diffs.

```text
 Plot (title, axes, series of (x, y)) ─▶ scale, linear or log ─▶ svg(plot): str
```
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise

from .model import Plot, Series

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 20, 40, 56
COLOURS = ("#0b6e99", "#d9480f", "#2b8a3e", "#862e9c", "#5f3dc4", "#868e96", "#c2255c", "#f08c00")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MARKED_BELOW = 40
"""Series of fewer points show each of them."""


def cdf(name: str, values: Iterable[float]) -> Series:
    """A cumulative distribution: x is the value, y the share of values that are at most x.

    At most 500 points: the tail is kept value by value, the rest by quantile.
    """
    ordered = sorted(values)
    count = len(ordered)
    tail = max(0, count - 100)
    step = max(1, tail // 400)
    chosen = [*range(0, tail, step), *range(tail, count)]
    return Series(name, tuple((ordered[index], (index + 1) / count) for index in chosen))


def label(value: float) -> str:
    """A tick's text, short."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.6g}"


def linear_ticks(low: float, high: float) -> list[float]:
    """Five or so round values from `low` to `high`, the ends included in the steps."""
    span = high - low or 1.0
    rough = span / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [step * i for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose `low` to `high`; both above 0."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    return [10.0**i for i in range(first, last + 1)]


def _scale(
    values: Sequence[float], *, log: bool, zero: bool, begin: float, end: float
) -> tuple[list[float], Callable[[float], float]]:
    if log:
        ticks = log_ticks(min(values), max(values))
        place: Callable[[float], float] = math.log10
    else:
        low = min(values)
        ticks = linear_ticks(min(0.0, low) if zero else low, max(values))
        place = float
    low, high = place(ticks[0]), place(ticks[-1])
    return ticks, lambda value: begin + (place(value) - low) / (high - low) * (end - begin)


def svg(plot: Plot) -> str:
    """The plot, as a file's text. Points that are NaN, or not above 0 on a log axis, are left out."""

    def shown(x: float, y: float) -> bool:
        return (
            math.isfinite(x) and math.isfinite(y) and (x > 0 or not plot.log_x) and (y > 0 or not plot.log_y)
        )

    points = [p for series in plot.series for p in series.points if shown(*p)]
    if not points:
        raise ValueError(f"plot {plot.name} has no points")
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x_ticks, at_x = _scale([x for x, _ in points], log=plot.log_x, zero=False, begin=LEFT, end=right)
    y_ticks, at_y = _scale([y for _, y in points], log=plot.log_y, zero=True, begin=bottom, end=TOP)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(plot.title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold">{escape(plot.title)}</text>',
    ]
    for tick in x_ticks:
        x = at_x(tick)
        out.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{label(tick)}</text>')
    for tick in y_ticks:
        y = at_y(tick)
        out.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{label(tick)}</text>')
    out.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444"/>')
    out.append(
        f'<text x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(plot.x)}</text>'
    )
    out.append(
        f'<text transform="translate(18 {(TOP + bottom) / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{escape(plot.y)}</text>'
    )
    for index, series in enumerate(plot.series):
        colour = COLOURS[index % len(COLOURS)]
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        style = f'fill="none" stroke="{colour}" stroke-width="2"' + (
            f' stroke-dasharray="{dash}"' if dash else ""
        )
        places = [(at_x(x), at_y(y)) if shown(x, y) else None for x, y in series.points]
        path = "".join(
            f"{'L' if before else 'M'}{here[0]:.1f} {here[1]:.1f}"
            for before, here in pairwise([None, *places])
            if here
        )
        out.append(f'<path d="{path}" {style}/>')
        if len(places) < MARKED_BELOW:
            out += [f'<circle cx="{p[0]:.1f}" cy="{p[1]:.1f}" r="3" fill="{colour}"/>' for p in places if p]
    # The legend comes last: it lies over the lines, on ground of its own.
    names = [series.name for series in plot.series]
    wide = 40 + 7 * max(map(len, names))
    left, top = right - wide - 6, TOP + 6
    out.append(
        f'<rect x="{left}" y="{top}" width="{wide}" height="{18 * len(names) + 6}" fill="#fff" '
        'fill-opacity="0.85" stroke="#ccc"/>'
    )
    for index, name in enumerate(names):
        y = top + 16 + 18 * index
        colour = COLOURS[index % len(COLOURS)]
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        out.append(
            f'<path d="M{left + 6} {y - 4}h22" stroke="{colour}" stroke-width="2"'
            + (f' stroke-dasharray="{dash}"' if dash else "")
            + "/>"
        )
        out.append(f'<text x="{left + 33}" y="{y}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
