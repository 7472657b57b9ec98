"""What a benchmark consists of. Everything here is data; nothing measures.

```text
 Scene.run(Context) ─▶ Result ─┬─ figures   what was measured: samples, one per window
                               ├─ targets   what was asked of it: samples, a limit, a verdict
                               ├─ plots     lines to draw
                               └─ notes     what the reader has to know
 Result ─▶ results.json ─▶ Markdown table, docs/performance.md, SVG
```

A figure keeps every sample. A sample taken while the machine took a core away
carries the reason in `disturbed`; what is `filterable` (throughput) is reported twice,
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
    """How the machine disturbed this window, such as `core taken away 3.1 ms`; empty if it did not."""
    distance: str = ""
    """`near`, `far`, `mixed`: whether the two cores shared a cache; empty if it was not measured."""
    kept: float | None = None
    """The value over the undisturbed parts of the window, if the window has parts."""


@dataclass(frozen=True)
class Spread:
    """Median and range of some samples."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """The spread of `values`; `None` if there are none."""
        all_values = list(values)
        if not all_values:
            return None
        return cls(statistics.median(all_values), min(all_values), max(all_values), len(all_values))


def undisturbed(samples: Iterable[Sample], distance: str | None = None) -> list[float]:
    """Values of undisturbed windows and parts of windows, at one distance of the cores or at all."""
    return [
        sample.value if sample.kept is None else sample.kept
        for sample in samples
        if not sample.disturbed and distance in (None, sample.distance)
    ]


@dataclass(frozen=True)
class Figure:
    """One measured quantity of one contender."""

    name: str
    """The quantity, such as `64 B, split rings`. Figures of one name stand in one row of a table."""
    contender: str
    """The measured program: `tidegate`, `testpmd io`, `OVS-DPDK learning`, `kernel HTB`, ..."""
    unit: str
    """Such as `Mpps`, `Gbit/s`, `us`, `ns`, `%`, `x`; empty for a count."""
    samples: tuple[Sample, ...]
    """One per window; empty if it could not be measured (then `note` says why)."""
    filterable: bool = False
    """Throughput only: it is also reported without its disturbed windows."""
    note: str = ""

    @property
    def raw(self) -> Spread | None:
        """Of all samples."""
        return Spread.of(sample.value for sample in self.samples)

    @property
    def filtered(self) -> Spread | None:
        """Of undisturbed samples; of all samples if it is not filterable."""
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
    """The text in the table, such as `at least 1.0x (aim 1.3x)`."""
    unit: str
    limit: float
    better: Literal["more", "less"]
    """`more`: at least the limit. `less`: at most."""
    samples: tuple[Sample, ...]
    """Of a ratio: one per pair of neighbouring windows. Empty if it could not be measured."""
    filterable: bool = False
    invalid: str = ""
    """Why the comparison decides nothing, such as `the generator is the limit`; empty if it is valid."""
    note: str = ""

    @property
    def raw(self) -> Spread | None:
        """Of all samples."""
        return Spread.of(sample.value for sample in self.samples)

    @property
    def filtered(self) -> Spread | None:
        """Of undisturbed samples; of all samples if it is not filterable."""
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
    """The case, such as `64 B, split rings`."""
    number: int
    """Position in the order in which the windows were taken; neighbours are compared."""
    values: dict[str, float]
    """Measured values by name. `NAME kept` beside `NAME`: see `Sample.kept`."""
    disturbed: str = ""
    ping_pong_ns: tuple[float, float] = (0.0, 0.0)
    """Cache line from one core to the other and back, before and after; 0 if it was not measured."""

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
    """The result of a scene."""

    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences for the reader (Markdown): cases left out, limits, reasons of a shortfall."""
    windows: list[Window] = field(default_factory=list)
    """The raw material, for results.json; may stay empty if the samples have everything."""
    tables: list[str] = field(default_factory=list)
    """Markdown, in place of the list of figures: for rows of several figures."""
    failures: list[str] = field(default_factory=list)
    """Sentences: which demands of the scene did not hold. They go to stderr, and `bench/run` exits with 1."""
    data: Json = field(default_factory=dict)
    """The raw results of a scene that has no figures, for results.json."""


class Machine(Protocol):
    """The machine, as a scene uses it (`harness.machine.Machine`)."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """All CPUs that this process may use."""

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
    """An option that selects a part of a scene, as in `bench/run --scene NAME --rate 5mbit,20mbit`."""

    name: str
    """The option, without `--`."""
    about: str
    values: tuple[str, ...]
    """All allowed values."""
    normally: tuple[str, ...]
    """The values without the option."""
    quick: tuple[str, ...]
    """The values without the option, in a quick run."""

    def wrong(self, asked: Sequence[str]) -> str:
        """What is wrong with the values `asked`; empty if they are valid."""
        unknown = [value for value in asked if value not in self.values]
        return f"--{self.name}: no '{unknown[0]}'; there are: {' '.join(self.values)}" if unknown else ""


@dataclass(frozen=True)
class Context:
    """The input of a scene."""

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
    """Closed after the scene, also after ctrl-C. A scene enters every process that it starts."""
    say: Callable[[str], None]
    """One line of progress, on standard error."""
    times: int = 1
    """Factor of the number of rounds, for a longer run."""
    only: str = ""
    """Only cases whose names contain this; scenes of many cases ask `wants`."""

    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values by the name of each of the scene's `choices`."""

    keep: Callable[[Result], None] = lambda _: None
    """Takes the result so far: results.json has it meanwhile, and after an interrupted run."""
    end: float = math.inf
    """No window begins after this moment of the monotonic clock; for scenes that ask `is_late`."""
    options: argparse.Namespace = field(default_factory=argparse.Namespace)
    """The command line, with the scene's own options (`Scene.add_options`)."""
    when: Mapping[str, str] = field(default_factory=dict)
    """The day and the commit measured, as results have them."""

    def is_late(self) -> bool:
        """Whether it is too late to begin another window."""
        return time.monotonic() >= self.end

    def chosen(self, name: str) -> tuple[str, ...]:
        """The values of the choice `name` that are to be measured."""
        return self.choices[name]

    def wants(self, case: str) -> bool:
        """Whether `case` is to be measured."""
        return self.only in case

    def rounds(self, full: int) -> int:
        """Number of rounds: `full` times `--times`; in a quick run 1."""
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
    """The traffic, its path and the counted quantity; Markdown, a paragraph."""
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
        """Each choice's values: of `asked`, comma-separated, by name; the usual values if it has none."""
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
    """One program or setting of those measured side by side (`harness.measure.interleave`)."""

    name: str
    measure: Callable[[str], Json]
    """Takes one window of a case. Returns its values by name, with `disturbed` (str) if it was disturbed."""
    wake: Callable[[], None] = lambda: None
    """Called before its window; others rest meanwhile."""
    rest: Callable[[], None] = lambda: None


def samples(windows: Sequence[Window], contender: str, case: str, value: str) -> tuple[Sample, ...]:
    """The samples of one contender and case, in the order they were taken."""
    return tuple(w.sample(value) for w in windows if w.contender == contender and w.case == case)
