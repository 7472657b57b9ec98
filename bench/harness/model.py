"""What a benchmark consists of. Everything here is data; nothing measures.

```text
 Scene.run(Context) ─▶ Result ─┬─ figures   what was measured: samples, one per window
                               ├─ targets   what was asked of it: samples, a limit, a verdict
                               ├─ plots     lines to draw
                               └─ notes     what the reader has to know
 Result ─▶ results.json ─▶ Markdown table, docs/performance.md, SVG
```

A figure keeps every sample. A sample taken while the machine took a core away
carries the reason in `disturbed`; what is `filterable` (throughput) is told twice,
with and without such samples. Delays and worst cases are never filtered.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

Json = dict[str, Any]
OptionGroup = argparse._ArgumentGroup
"""What `ArgumentParser.add_argument_group` returns."""

NEAR_BELOW_NS = 100.0
"""A cache line that takes less from one core to the other and back came by a shared cache."""


@dataclass(frozen=True)
class Sample:
    """One value, of one window."""

    value: float
    disturbed: str = ""
    """What the machine did to this window, such as `core taken away 3.1 ms`; empty where nothing was seen."""
    distance: str = ""
    """`near`, `far`, `mixed`: whether the two cores shared a cache; empty where it was not measured."""
    kept: float | None = None
    """The value over those parts of the window that nothing disturbed, where the window has parts."""


@dataclass(frozen=True)
class Spread:
    """Median and range of some samples."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """The spread of `values`; `None` where there are none."""
        all_values = list(values)
        if not all_values:
            return None
        return cls(statistics.median(all_values), min(all_values), max(all_values), len(all_values))


def undisturbed(samples: Iterable[Sample], distance: str | None = None) -> list[float]:
    """Values of what nothing disturbed: windows, and parts of windows; of one distance, or of all."""
    return [
        sample.value if sample.kept is None else sample.kept
        for sample in samples
        if not sample.disturbed and distance in (None, sample.distance)
    ]


@dataclass(frozen=True)
class Figure:
    """One measured quantity of one contender."""

    name: str
    """What, such as `64 B, split rings`. Figures of one name stand in one row of a table."""
    contender: str
    """Of whom: `tidegate`, `testpmd io`, `OVS-DPDK learning`, `kernel HTB`, ..."""
    unit: str
    """Such as `Mpps`, `Gbit/s`, `us`, `ns`, `%`, `x`; empty for a count."""
    samples: tuple[Sample, ...]
    """One per window; empty where it could not be measured (then `note` says why)."""
    filterable: bool = False
    """Throughput only: may be told without its disturbed windows as well."""
    note: str = ""

    @property
    def raw(self) -> Spread | None:
        """Of all samples."""
        return Spread.of(sample.value for sample in self.samples)

    @property
    def filtered(self) -> Spread | None:
        """Of what nothing disturbed; of all where it is not filterable."""
        return Spread.of(undisturbed(self.samples)) if self.filterable else self.raw

    def at(self, distance: str) -> Spread | None:
        """Of the filtered samples taken while the cores were `near` or `far`."""
        if self.filterable:
            return Spread.of(undisturbed(self.samples, distance))
        return Spread.of(s.value for s in self.samples if s.distance == distance)


@dataclass(frozen=True)
class Target:
    """A figure that was asked for: the median of the (filtered) samples against a limit."""

    measure: str
    """Such as `64 B against testpmd io, split rings`."""
    asked: str
    """As a reader reads it, such as `at least 1.0x (aim 1.3x)`."""
    unit: str
    limit: float
    better: Literal["more", "less"]
    """`more`: at least the limit. `less`: at most."""
    samples: tuple[Sample, ...]
    """Of a ratio: one per pair of neighbouring windows. Empty where it could not be measured."""
    filterable: bool = False
    invalid: str = ""
    """Why the comparison decides nothing, such as `the generator is the limit`; empty where it is valid."""
    note: str = ""

    @property
    def raw(self) -> Spread | None:
        """Of all samples."""
        return Spread.of(sample.value for sample in self.samples)

    @property
    def filtered(self) -> Spread | None:
        """Of what nothing disturbed; of all where it is not filterable."""
        return Spread.of(undisturbed(self.samples)) if self.filterable else self.raw

    @property
    def verdict(self) -> str:
        """`met`, `not met`, `not decided` (invalid, or every window disturbed) or `not measured`."""
        seen = self.filtered
        if self.raw is None:
            return "not measured"
        if self.invalid or seen is None:
            return "not decided"
        kept = seen.median >= self.limit if self.better == "more" else seen.median <= self.limit
        return "met" if kept else "not met"


@dataclass(frozen=True)
class Series:
    """One line of a plot; a point without a y (NaN) breaks it."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plot:
    """Lines over x and y. A CDF is one too: `harness.plot.cdf` makes its series."""

    name: str
    """File name without `.svg`, unique over all scenes, such as `delay-cdf`."""
    title: str
    x: str
    """Axis with its unit, such as `set rate [Mbit/s]`."""
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Window:
    """One measurement of one contender: a second or two."""

    contender: str
    case: str
    """What was measured, such as `64 B, split rings`."""
    number: int
    """Position in the order in which the windows were taken; neighbours are compared."""
    values: dict[str, float]
    """What was measured, by name. `NAME kept` beside `NAME`: see `Sample.kept`."""
    disturbed: str = ""
    ping_pong_ns: tuple[float, float] = (0.0, 0.0)
    """Cache line from one core to the other and back, before and after; 0 where it was not measured."""

    @property
    def distance(self) -> str:
        """See `Sample.distance`."""
        if not all(self.ping_pong_ns):
            return ""
        near = [ns < NEAR_BELOW_NS for ns in self.ping_pong_ns]
        return "near" if all(near) else "mixed" if any(near) else "far"

    def sample(self, value: str) -> Sample:
        """One of its values, as a sample."""
        return Sample(self.values[value], self.disturbed, self.distance, self.values.get(f"{value} kept"))


@dataclass
class Result:
    """What a scene found."""

    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences for the reader (Markdown): what was left out, what limits, what explains a shortfall."""
    windows: list[Window] = field(default_factory=list)
    """The raw material, for results.json; may stay empty where the samples say all."""
    tables: list[str] = field(default_factory=list)
    """Markdown, in place of the list of figures: where several of them make one row."""
    failures: list[str] = field(default_factory=list)
    """Sentences: which demands of the scene did not hold. They go to stderr, and `bench/run` exits with 1."""
    data: Json = field(default_factory=dict)
    """The raw results of a scene that has no figures, for results.json."""


class Machine(Protocol):
    """The machine, as a scene uses it (`harness.machine.Machine`)."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """All that may be used."""

    @property
    def generator_cpu(self) -> int:
        """Generators and sinks run here."""

    @property
    def switch_cpu(self) -> int:
        """The switch under test runs here, alone."""

    def ping_pong_ns(self) -> float:
        """A cache line from one of the two CPUs to the other and back; about 10 ms."""


@dataclass(frozen=True)
class Choice:
    """Something that a scene can be asked for part of, as in `bench/run --scene NAME --rate 5mbit,20mbit`."""

    name: str
    """Of the option."""
    about: str
    values: tuple[str, ...]
    """All that there are."""
    normally: tuple[str, ...]
    """Without the option."""
    quick: tuple[str, ...]
    """Without the option, in a quick run."""

    def wrong(self, asked: Sequence[str]) -> str:
        """What is wrong with values that were asked for; empty where nothing is."""
        unknown = [value for value in asked if value not in self.values]
        return f"--{self.name}: no '{unknown[0]}'; there are: {' '.join(self.values)}" if unknown else ""


@dataclass(frozen=True)
class Context:
    """What a scene is given."""

    quick: bool
    """All scenes together within two minutes: one round, short windows, the ends of each range."""
    folder: Path
    """The scene's own, empty, short enough for socket paths; removed afterwards."""
    root: Path
    """The repository."""
    tidegate: Path
    """The release binary."""
    machine: Machine
    cleanup: ExitStack
    """Closed after the scene, however it ends (also by ctrl-C). Whatever is started is entered here."""
    say: Callable[[str], None]
    """One line of progress, on standard error."""
    times: int = 1
    """How many times as often as usual to repeat: for a longer run."""
    only: str = ""
    """Only cases whose names contain this; scenes of many cases ask `wants`."""

    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values by the name of each of the scene's `choices`."""

    keep: Callable[[Result], None] = lambda _: None
    """Takes what was measured until now: what DIR has meanwhile, and what a run that is cut short has."""
    end: float = math.inf
    """When no further window is to be begun, by the monotonic clock; for scenes that ask `is_late`."""
    options: argparse.Namespace = field(default_factory=argparse.Namespace)
    """The command line, with the scene's own options (`Scene.add_options`)."""

    def is_late(self) -> bool:
        """Whether no further window is to be begun."""
        return time.monotonic() >= self.end

    def chosen(self, name: str) -> tuple[str, ...]:
        """The values of the choice `name` that are to be measured."""
        return self.choices[name]

    def wants(self, case: str) -> bool:
        """Whether `case` is to be measured."""
        return self.only in case

    def rounds(self, full: int) -> int:
        """How often to repeat: `full`, or as many times as often as asked for; in a quick run 1."""
        return 1 if self.quick else full * self.times

    def seconds(self, full: float) -> float:
        """How long a window is: `full`, in a quick run at most 0.5."""
        return min(full, 0.5) if self.quick else full


@dataclass(frozen=True)
class Scene:
    """One question, asked of all contenders in one run. A module `scenes/NAME.py` holds one as `SCENE`."""

    name: str
    """As in `bench/run --scene NAME`; the module's name."""
    title: str
    """Heading on the page."""
    about: str
    """What flows from where to where and what is counted; Markdown, a paragraph."""
    order: int
    """Position on the page."""
    run: Callable[[Context], Result]
    has_cases: bool = False
    """It asks `Context.wants` for each of its cases."""
    keeps: bool = False
    """It calls `Context.keep` after each window, and asks `Context.is_late` before."""
    choices: tuple[Choice, ...] = ()
    """What `Context.chosen` can be asked for."""
    default: bool = True
    """A run that names no scene includes it, and so does docs/performance.md. Other scenes run alone."""
    add_options: Callable[[OptionGroup], None] | None = None
    """Declares the scene's own options, which `Context.options` then has; only where `default` is false."""
    writes_page: bool = False
    """With `--page` the scene itself writes a page of docs/; only where `default` is false."""
    programs: tuple[str, ...] = ("tidegate",)
    """The programs of target/release that have to exist."""

    def chosen(self, asked: Mapping[str, str], *, quick: bool) -> dict[str, tuple[str, ...]]:
        """Each choice's values: of `asked`, comma-separated, by name; the usual ones where it has none."""
        return {
            choice.name: tuple(asked[choice.name].split(","))
            if asked.get(choice.name)
            else choice.quick
            if quick
            else choice.normally
            for choice in self.choices
        }


class Misused(Exception):
    """Raised by a scene before it measures: what is wrong with its options. `bench/run` exits with 2."""


class Missing(Exception):
    """Raised by a scene or contender whose program is not installed: a row that says so, not a failure."""


@dataclass(frozen=True)
class Contender:
    """One of those measured side by side (`harness.measure.interleave`)."""

    name: str
    measure: Callable[[str], Json]
    """Takes one window of a case. Returns its values by name; `disturbed` (str) among them where it was."""
    wake: Callable[[], None] = lambda: None
    """Called before its window; others rest meanwhile."""
    rest: Callable[[], None] = lambda: None


def samples(windows: Sequence[Window], contender: str, case: str, value: str) -> tuple[Sample, ...]:
    """The samples of one contender and case, in the order they were taken."""
    return tuple(w.sample(value) for w in windows if w.contender == contender and w.case == case)
