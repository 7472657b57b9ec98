"""The windows as tables: one for each rate, a row for each place, a column for each load. Pure.

```text
 windows ─▶ per place and load: p50 / p99 / worst (p99 as a multiple of cake's)
       └──▶ per place: least goodput, most pings lost, least Jain's index, and under which load
```
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.model import Sample, Target, Window
from scenes.queueing.load import Load, bits, three_digits
from scenes.queueing.ways import CAKE, WAYS

PROMPT_MS = 10.0
"""p99 of a ping at 20 Mbit/s: asked of every attachment."""
ASKED_RATE = 20e6
GOODPUT = 0.97
OF_CAKE = 1.5
MOST_SPARSE = 8
"""Connections in one direction beside which a ping every 10 ms is sparse at 20 Mbit/s."""


@dataclass(frozen=True)
class Cell:
    """One place under one load at one rate: its windows, one a round."""

    rate: str
    load: Load
    windows: Sequence[Window]
    cakes: Sequence[Window]
    """The yardstick's."""

    def all(self, name: str) -> list[float]:
        """The value of each window that has it."""
        return [window.values[name] for window in self.windows if name in window.values]

    def middle(self, name: str) -> float:
        """The median over the windows."""
        return statistics.median(self.all(name))

    @cached_property
    def of_cake(self) -> list[float]:
        """p99 as a multiple of cake's in the same round."""
        cakes = {window.values["round"]: window.values["p99"] for window in self.cakes}
        own = [(window.values["round"], window.values["p99"]) for window in self.windows]
        return [p99 / cakes[turn] for turn, p99 in own if cakes.get(turn)]

    @property
    def goodputs(self) -> list[float]:
        """Of each window, the smaller one where both directions are loaded."""
        ways = [found for way in ("up", "down") if (found := self.all(f"goodput {way}"))]
        return [min(both) for both in zip(*ways, strict=True)]

    @property
    def late(self) -> bool:
        """Whether pings take longer than is asked."""
        ratio = self.of_cake and statistics.median(self.of_cake) > OF_CAKE
        return bool(ratio) or (bits(self.rate) == ASKED_RATE and self.middle("p99") > PROMPT_MS)

    def text(self, *, asked: bool) -> str:
        """p50 / p99 / worst, and the multiple of cake's p99; bold where it is `asked` for less."""
        times = " / ".join(
            (
                three_digits(self.middle("p50")),
                three_digits(self.middle("p99")),
                three_digits(max(self.all("max"))),
            )
        )
        asked = asked and self.load.name != "idle"
        if asked and self.of_cake:
            times += f" ({three_digits(statistics.median(self.of_cake))}x)"
        return f"**{times}**" if asked and self.late else times


class Row:
    """One place at one rate."""

    def __init__(self, name: str, cells: Sequence[Cell]) -> None:
        self.name = name
        self.cells = {cell.load.name: cell for cell in cells}
        self.loaded = [cell for cell in cells if cell.load.name != "idle"]

    @property
    def asked(self) -> bool:
        """See `Way.asked`."""
        return WAYS[self.name].asked

    def goodput(self) -> Cell | None:
        """The load with the smallest goodput."""
        return min(self.loaded, key=lambda cell: statistics.median(cell.goodputs), default=None)

    def lost(self) -> Cell:
        """The load with the most lost pings."""
        return max(self.cells.values(), key=lambda cell: max(cell.all("lost")))

    def jain(self) -> Cell | None:
        """The load with the smallest index."""
        return min(self.loaded, key=lambda cell: min(cell.all("jain")), default=None)

    def text(self, loads: Sequence[str]) -> str:
        """In Markdown."""
        cells = [WAYS[self.name].about]
        cells += [self.cells[load].text(asked=self.asked) if load in self.cells else "" for load in loads]
        goodput, lost, jain = self.goodput(), self.lost(), self.jain()
        least = statistics.median(goodput.goodputs) if goodput else 0.0
        cells.append(self.short(f"{least:.3f}, {goodput.load.name}", least < GOODPUT) if goodput else "")
        most = max(lost.all("lost"))
        cells.append(self.short(f"{most:.1f} %, {lost.load.name}", short=True) if most else "0")
        cells.append(f"{min(jain.all('jain')):.2f}, {jain.load.name}" if jain else "")
        return f"| {' | '.join(cells)} |"

    def short(self, text: str, short: bool) -> str:
        """Bold where it falls short of what is asked."""
        return f"**{text}**" if short and self.asked else text


def rows(windows: Sequence[Window], rate: str) -> list[Row]:
    """Every place that was measured at that rate."""
    found = []
    for name in WAYS:
        cases: dict[str, list[Window]] = {}
        for window in windows:
            if window.contender == name and window.case.startswith(f"{rate}, "):
                cases.setdefault(window.case, []).append(window)
        cells = []
        for case, own in cases.items():
            cakes = [w for w in windows if w.contender == CAKE and w.case == case]
            cells.append(Cell(rate, Load.of(case.split(", ")[1]), own, cakes))
        if cells:
            found.append(Row(name, cells))
    return found


def table(windows: Sequence[Window], rate: str) -> str:
    """One rate, in Markdown."""
    found = rows(windows, rate)
    of_rate = [window.case.split(", ") for window in windows]
    loads = list(dict.fromkeys(load for at, load in of_rate if at == rate))
    counts = [len(cell.windows) for row in found for cell in row.cells.values()]
    least, most = min(counts), max(counts)
    turns = "one window" if most == 1 else f"{least} to {most} windows" if least < most else f"{most} windows"
    head = ["where frames wait", *loads, "goodput, least", "pings lost, most", "Jain, least"]
    return "\n".join(
        (
            f"`{rate}`, {turns} of each; ping p50 / p99 / worst in ms"
            + (" (p99 as a multiple of cake's)" if any(row.name == CAKE for row in found) else "")
            + ":\n",
            f"| {' | '.join(head)} |",
            "|" + "---|" * len(head),
            *(row.text(loads) for row in found),
        )
    )


def targets(windows: Sequence[Window], rate: str) -> list[Target]:
    """What is asked at 20 Mbit/s, of each place under the load that is hardest for it."""
    if bits(rate) != ASKED_RATE:
        return []
    return [target for row in rows(windows, rate) if row.asked and row.loaded for target in asked(rate, row)]


def asked(rate: str, row: Row) -> Sequence[Target]:
    """Of one place."""
    where = f"{rate}, {WAYS[row.name].about}"

    def hardest(
        cells: Sequence[Cell], of: Callable[[Cell], Sequence[float]]
    ) -> tuple[str, tuple[Sample, ...]]:
        cell = max(cells, key=lambda cell: statistics.median(of(cell)))
        return cell.load.name, tuple(Sample(value) for value in of(cell))

    def p99(cell: Cell) -> Sequence[float]:
        return cell.all("p99")

    found = []
    few = [cell for cell in row.loaded if max(cell.load.up, cell.load.down) <= MOST_SPARSE]
    for cells in (few, [cell for cell in row.loaded if cell not in few]):
        if cells:
            load, values = hardest(cells, p99)
            found.append(
                Target(f"{where}: ping p99 beside {load}", "at most 10 ms", "ms", PROMPT_MS, "less", values)
            )
    if cells := [cell for cell in row.loaded if cell.of_cake]:
        load, values = hardest(cells, lambda cell: cell.of_cake)
        found.append(
            Target(
                f"{where}: ping p99 against cake's beside {load}",
                "at most 1.5x",
                "x",
                OF_CAKE,
                "less",
                values,
            )
        )
    if least := row.goodput():
        values = tuple(Sample(value) for value in least.goodputs)
        found.append(
            Target(f"{where}: goodput of {least.load.name}", "at least 0.97", "", GOODPUT, "more", values)
        )
    most = max(row.loaded, key=lambda cell: max(cell.all("lost")))
    # A ping that is lost in one window of three is lost.
    worst = (Sample(max(most.all("lost"))),)
    found.append(Target(f"{where}: pings lost beside {most.load.name}", "none", "%", 0.0, "less", worst))
    return found
