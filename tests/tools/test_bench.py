"""The benchmark harness: what its tables say, on windows that are made up."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from harness import machine, measure, page, plot, report, traffic
from harness.model import (
    Contender,
    Figure,
    Json,
    Machine,
    Plot,
    Result,
    Sample,
    Scene,
    Series,
    Target,
    Window,
)
from scenes import stalls

NEAR, FAR = (45.0, 46.0), (180.0, 190.0)


def window(
    who: str, value: float, number: int = 0, *, pings: tuple[float, float] = NEAR, disturbed: str = ""
) -> Window:
    """One window of case `c`, with the value `Mpps`."""
    return Window(who, "c", number, {"Mpps": value}, disturbed, pings)


def target(*samples: Sample, filterable: bool = True, invalid: str = "") -> Target:
    """At least 1."""
    return Target("m", "at least 1x", "x", 1.0, "more", samples, filterable=filterable, invalid=invalid)


class Clock:
    """Stands in for the machine: every ping-pong takes the next of the given values."""

    cpus = (0, 1)
    generator_cpu, switch_cpu = cpus

    def __init__(self, *values: float) -> None:
        self.values: Iterator[float] = iter(values)

    def ping_pong_ns(self) -> float:
        """The next value."""
        return next(self.values)


def test_contenders_take_turns() -> None:
    """A B, then B A; others rest; the ping-pong after a window is the one before the next."""
    log: list[str] = []

    def contender(name: str) -> Contender:
        def take(case: str) -> Json:
            log.append(name + case)
            return {"Mpps": 1.0, "disturbed": "x" if name == "b" else ""}

        return Contender(name, take, lambda: log.append(f"+{name}"), lambda: log.append(f"-{name}"))

    clock = Clock(40, 50, 180, 41, 42, 43)
    windows = measure.interleave(clock, [contender("a"), contender("b")], ["1"], 2)
    assert log == ["+a", "a1", "-a", "+b", "b1", "-b", "+b", "b1", "-b", "+a", "a1", "-a"]
    assert [w.distance for w in windows] == ["near", "mixed", "near", "near"]
    assert [w.disturbed for w in windows] == ["", "x", "x", ""]
    assert [w.number for w in windows] == [0, 1, 2, 3]


def test_ratio_compares_like_with_like() -> None:
    """A ratio of windows at different distances, or of a disturbed one, is told but not kept."""
    windows = [
        window("a", 3),
        window("b", 2),
        window("b", 2, pings=FAR),
        window("a", 8),
        window("a", 9, disturbed="core taken"),
        window("b", 3),
    ]
    found = measure.ratios(windows, "a", "b", "c", "Mpps")
    assert [s.value for s in found] == [1.5, 4.0, 3.0]
    assert [bool(s.disturbed) for s in found] == [False, True, True]
    seen = target(*found)
    assert seen.raw
    assert seen.raw.median == 3.0
    assert seen.filtered
    assert (seen.filtered.median, seen.filtered.count) == (1.5, 1)


def test_undisturbed_parts_count_as_filtered() -> None:
    """A window of which parts were disturbed counts with the others when filtered, and whole when not."""
    figure = Figure("f", "a", "Mpps", (Sample(5.0, kept=6.0), Sample(1.0, "gone")), filterable=True)
    assert figure.raw
    assert figure.raw.median == 3.0
    assert figure.filtered
    assert figure.filtered.median == 6.0
    delay = Figure("f", "a", "us", figure.samples)
    assert delay.filtered == delay.raw


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (target(Sample(1.0)), "met"),
        (target(Sample(0.999)), "not met"),
        (target(Sample(2.0), Sample(0.1, "core taken"), Sample(0.1, "core taken")), "met"),
        (target(Sample(2.0), Sample(0.1, "x"), Sample(0.1, "x"), filterable=False), "not met"),
        (target(Sample(2.0), invalid="the generator is the limit"), "not decided"),
        (target(Sample(2.0, "core taken")), "not decided"),
        (target(), "not measured"),
    ],
)
def test_verdict(seen: Target, verdict: str) -> None:
    """Filtered only where that is allowed, and nothing is decided by what says nothing."""
    assert seen.verdict == verdict


def part(received: int, gap: float = 5.0, switch_wait: float = 0.0) -> Json:
    """10 ms of the generator."""
    return {
        "us": 10_000.0,
        "sent": received,
        "received": received,
        "bytes": received * 64,
        "gap_us": gap,
        "own_wait_us": 0.0,
        "switch_ran_us": 9_000.0,
        "switch_wait_us": switch_wait,
    }


def test_parts_without_a_core_are_left_out() -> None:
    """The mean of all parts, and beside it that of the undisturbed ones."""
    run = traffic.Traffic(
        [part(100_000), part(20_000, gap=5_000.0), part(100_000), part(0, switch_wait=9e3)], 0, 0
    )
    values = run.values()
    assert values["Mpps"] == pytest.approx(5.5)
    assert values["Mpps kept"] == pytest.approx(10.0)
    assert (values["parts"], values["parts kept"]) == (4, 2)
    assert "disturbed" not in values
    assert run.values(braked=True)["Mpps kept"] == pytest.approx(20 / 3)
    assert "4 of 4" in traffic.Traffic([part(1, gap=500.0)] * 4, 0, 0).values()["disturbed"]


def test_page_has_every_figure(tmp_path: Path) -> None:
    """From results to page and plots; what could not be measured says why."""
    result = Result(
        figures=[Figure("64 B", "tidegate", "Mpps", (Sample(12.5), Sample(13.5)), filterable=True)],
        targets=[target(Sample(0.5))],
        plots=[
            Plot("p", "A < B", "x", "y", (Series("s", ((1, 1), (10, float("nan")), (100, 3))),), log_x=True)
        ],
        notes=["a note"],
    )
    scene = Scene("s", "The scene", "About it.", 1, lambda _: result)
    when = {"measured": "2026-01-31", "commit": "abc1234"}
    document = {
        "measured": "2026-01-01",
        "commit": "abc",
        "quick": False,
        "machine": {"cpu": "one", "near below [ns]": 100.0},
        "scenes": [
            report.scene_document(scene, "bench/run --scene s", result, "", 1.0) | when,
            report.scene_document(scene, "bench/run --scene t", Result(), "testpmd is not installed", 1.0)
            | when
            | {"scene": "t"},
        ],
    }
    page.write(document, tmp_path)
    listed = (tmp_path / "performance.md").read_text()
    assert "| [The scene](performance/s.md) | 2026-01-31 |  | 1 |  |" in listed
    assert "testpmd is not installed" in listed
    text = (tmp_path / "performance/s.md").read_text()
    for words in (
        "| 64 B [Mpps] | 13 (12.5 to 13.5) |",
        "2026-01-31 at commit `abc1234`",
        "**not met**",
        "a note",
        "p.svg",
    ):
        assert words in text
    drawn = ET.parse(tmp_path / "performance/p.svg").getroot()
    # One line of the frame, one of the series, which is broken where a point is missing.
    paths = [element.get("d") or "" for element in drawn.iter("{http://www.w3.org/2000/svg}path")]
    assert any(path.count("M") == 2 and "L" not in path for path in paths)


def test_ticks_enclose() -> None:
    """The axis covers the values in round steps."""
    for low, high in ((0, 24.1), (-0.3, 0.7), (3, 3), (1e-6, 5e-6)):
        ticks = plot.linear_ticks(low, high)
        assert ticks[0] <= low + 1e-12
        assert ticks[-1] >= high - 1e-12
        assert 2 <= len(ticks) <= 9
    assert plot.log_ticks(10, 1e6) == [10, 100, 1e3, 1e4, 1e5, 1e6]


def test_cdf_keeps_the_tail() -> None:
    """However many values: the last hundred one by one, ending at 1."""
    points = plot.cdf("x", [float(v) for v in range(100_000)]).points
    assert len(points) <= 510
    assert points[-1] == (99_999.0, 1.0)
    assert [x for x, _ in points[-100:]] == [float(v) for v in range(99_900, 100_000)]


def test_hugepages_are_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as before, also after an error; and those that are there already are left alone."""
    pages = tmp_path / "nr_hugepages"
    pages.write_text("8\n")
    monkeypatch.setattr(machine, "HUGEPAGES", pages)

    def interrupted() -> None:
        with machine.hugepages(64) as count:
            assert count == 64
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert int(pages.read_text()) == 8
    with machine.hugepages(4) as count:
        assert count == 8


def test_ports_go_to_workers_in_turn() -> None:
    """A pair is on one worker or on two by the place of its ports; no load takes more ports than it has."""
    assert stalls.Case(2, False, 1, 64, False).ports == 4, "a receiver two after its sender"
    assert stalls.Case(2, True, 1, 64, False).ports == 2
    assert stalls.Case(4, False, 5, 64, False).ports == 16
    assert stalls.Case(1, False, 8, 64, False).ports == 16


def test_receivers_have_a_core_of_their_own_where_there_is_one() -> None:
    """Of two cores the second worker has the generator's."""
    four = SimpleNamespace(cpus=(0, 1, 2, 3), generator_cpu=2, switch_cpu=3)
    assert stalls.placed(cast(Machine, four), 2) == stalls.Cpus("3,1", 0)
    assert stalls.placed(cast(Machine, four), 1) == stalls.Cpus("3", 1)
    two = SimpleNamespace(cpus=(0, 1), generator_cpu=0, switch_cpu=1)
    assert stalls.placed(cast(Machine, two), 2) == stalls.Cpus("1,0", None)
    assert {case.workers for case in stalls.cases(cast(Machine, four), quick=False)} == {1, 2}


def test_drops_are_counted_since_the_round_began() -> None:
    """By reason, of all senders together."""
    before = {"a": {"ring_share": 3}}
    assert stalls.more(before, {"a": {"ring_share": 5, "vlan": 1}, "b": {"ring_share": 4}}) == {
        "ring_share": 6,
        "vlan": 1,
    }
