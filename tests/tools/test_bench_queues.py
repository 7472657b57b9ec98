"""The scene `queues`: its options, its script, and what it makes of what programs print."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from harness import page, report
from harness.model import Choice, Context, Json, Machine, Missing, Misused, Result, Scene, Window
from lab.initramfs import ROOT
from lab.process import Process
from scenes import pages, queues
from scenes.queueing import load, parts, places, tables, ways, web
from scenes.queueing.load import Load


def test_loads_have_names() -> None:
    """There and back; what is none is refused."""
    for name in queues.FLOWS:
        assert Load.of(name).name == name
    assert (Load.of("8up"), Load.of("1down"), Load.of("64both")) == (Load(8, 0), Load(0, 1), Load(64, 64))
    for wrong in ("", "up", "0up", "8", "8sideways"):
        with pytest.raises(ValueError, match="load"):
            Load.of(wrong)


def test_rates_as_contracts_have_them() -> None:
    """All of the scene's, and what is none."""
    assert [load.bits(rate) for rate in queues.RATES] == [5e6, 20e6, 50e6, 200e6, 500e6, 5e9]
    with pytest.raises(ValueError, match="rate"):
        load.bits("20")


def test_the_limited_direction_is_the_loaded_one() -> None:
    """Both where both are; and of an idle vNIC, whose pings pass each once."""
    lines = {name: places.terms(Load.of(name), "5mbit") for name in ("8up", "8down", "8both", "idle")}
    up, down = 'tx = { max = "5mbit" }', 'rx = { max = "5mbit" }'
    assert lines == {"8up": [up], "8down": [down], "8both": [up, down], "idle": [up, down]}
    assert places.terms(Load(1), "5mbit", ["x = 1"]) == [up, "x = 1"]


PING = """ "packets_sent": 4,
      "packets_received": 3,
        "rtt": 1000000
        "rtt": 9000000
        "rtt": 2000000
"""


def test_irtt_output_is_read() -> None:
    """Milliseconds; a probe without an answer is lost."""
    found = load.ping(PING)
    assert found == {"p50": 2, "p99": 9, "p99.9": 9, "max": 9, "probes": 4, "lost": 25}
    none = load.ping('"packets_sent": 98,\n "packets_received": 0,')
    assert (none["p50"], none["max"], none["lost"]) == (math.inf, math.inf, 100)
    with pytest.raises(ValueError, match="no probe was sent"):
        load.ping("[Connecting] timeout")


def iperf3(*rates: float) -> str:
    """What it prints of connections with such rates, bit/s."""
    streams = [{"sender": {"bits_per_second": 1.0}, "receiver": {"bits_per_second": rate}} for rate in rates]
    return json.dumps({"end": {"streams": streams}}, indent=1)


def test_values_are_read_from_the_printed_window() -> None:
    """Goodput in each direction, as a share of what TCP can have; the less even direction's index."""
    most = 20e6 * load.SEGMENT / load.FRAME
    text = f"== ping\n{PING}== up\n{iperf3(most / 2, most / 2)}\n== down\n{iperf3(most * 0.75, 0)}\n"
    found = load.values(text, Load.of("2both"), 20e6)
    assert found["goodput up"] == pytest.approx(1)
    assert found["goodput down"] == pytest.approx(0.75)
    assert found["jain"] == pytest.approx(0.5)
    assert found["lost"] == 25
    idle = load.values(f"== ping\n{PING}", Load(), 20e6)
    assert "jain" not in idle


def test_a_synthetic_guests_window() -> None:
    """Nanoseconds one way; goodput is a share of the payload that the limit can carry, of what was loaded."""
    report: Json = {"p50_ns": 1e6, "p99_ns": 2e6, "p999_ns": 3e6, "worst_ns": 4e6, "probes": 200, "lost": 1}
    report |= {"ring_full": 0, "goodput_bits_per_second": 480e6, "payload_share": 0.96, "jain": 0.5}
    found = load.sparse(report, Load(up=8), 500e6)
    assert found == {
        **{"p50": 1, "p99": 2, "p99.9": 3, "max": 4, "probes": 200, "lost": 0.5},
        **{"goodput up": pytest.approx(1), "jain": 0.5},
    }
    assert "goodput down" in load.sparse(report, Load(down=8), 500e6)
    assert "jain" not in load.sparse(report, Load(), 500e6)


def test_a_program_that_failed_is_an_error() -> None:
    """With what it said."""
    refused = json.dumps({"error": "unable to connect to server"})
    with pytest.raises(ValueError, match="unable to connect"):
        load.received(refused)
    with pytest.raises(ValueError, match="bind failed"):
        load.received("bind failed")
    with pytest.raises(ValueError, match="no probes"):
        load.values("sh: irtt: not found", Load(), 1e6)
    with pytest.raises(ValueError, match="irtt is down"):
        load.values("irtt is down\n== ping\n", Load(), 1e6)


def test_jains_index() -> None:
    """Of equals 1, of one that has everything 1/n; of nothing 0."""
    assert load.jain([3, 3, 3]) == pytest.approx(1)
    assert load.jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert load.jain([0, 0]) == 0


def test_the_script_is_a_shells(tmp_path: Path) -> None:
    """Each load's; a folder that is not there ends it."""
    for name in queues.FLOWS:
        words = load.script(Load.of(name), "10.9.0.2", str(tmp_path), 2)
        checked = subprocess.run(["sh", "-n"], input=words, text=True, check=False, capture_output=True)
        assert checked.returncode == 0, checked.stderr
        assert words.count("iperf3 --client") == bool(Load.of(name).up) + bool(Load.of(name).down)
        assert ("--reverse" in words) == bool(Load.of(name).down)
    gone = load.script(Load(), "10.9.0.2", str(tmp_path / "gone"), 2)
    assert subprocess.run(["sh"], input=gone, text=True, check=False, capture_output=True).returncode == 1


def windows(name: str, case: str, *p99: float, **more: float) -> list[Window]:
    """Windows, one a round, with such pings, none lost, all goodput."""
    rest: Json = {"p50": 1.0, "max": 20.0, "lost": 0.0} | (
        {} if case.endswith("idle") else {"goodput up": 0.98, "jain": 1.0}
    )
    return [Window(name, case, n, rest | more | {"p99": ms, "round": n}) for n, ms in enumerate(p99)]


CASE = "20mbit, 8up"


def verdicts(seen: list[Window], rate: str = "20mbit") -> dict[str, str]:
    """Of what is asked."""
    return {target.measure: target.verdict for target in tables.targets(seen, rate)}


def test_targets_are_judged_for_the_compared_cases() -> None:
    """10 ms at 20 Mbit/s, 1.5 times cake's; nothing of yardsticks, FIFOs, idle vNICs and other rates."""
    cake = windows("cake", CASE, 8, 8, 8)
    assert verdicts([*windows("tap", CASE, 8, 9, 50), *cake]) == {
        "20mbit, tap of the switch: ping p99 beside 8up": "met",
        "20mbit, tap of the switch: ping p99 against cake's beside 8up": "met",
        "20mbit, tap of the switch: goodput of 8up": "met",
        "20mbit, tap of the switch: pings lost beside 8up": "met",
    }
    slow = verdicts([*windows("tap", CASE, 13, 13, 13), *cake])
    assert list(slow.values()) == ["not met", "not met", "met", "met"]
    assert not verdicts(cake)
    assert not verdicts(windows("tap-fifo", CASE, 800))
    assert not verdicts(windows("synthetic-full", CASE, 800))
    assert not verdicts(windows("tap", "20mbit, idle", 1))
    assert not verdicts(windows("tap", "5mbit, 8up", 11), "5mbit")


def test_the_hardest_load_decides() -> None:
    """Each verdict is of the load that it is worst under; p99 beside 64 connections has its own."""
    seen = [
        *windows("tap", "20mbit, 1up", 3, 4, 5, lost=1.0),
        *windows("tap", CASE, 11, 12, 2),
        *windows("tap", "20mbit, 8both", 1, 1, 1, **{"goodput down": 0.9}),
        *windows("tap", "20mbit, 64up", 30, 30, 30),
    ]
    assert verdicts(seen) == {
        "20mbit, tap of the switch: ping p99 beside 8up": "not met",
        "20mbit, tap of the switch: ping p99 beside 64up": "not met",
        "20mbit, tap of the switch: goodput of 8both": "not met",
        "20mbit, tap of the switch: pings lost beside 1up": "not met",
    }


def test_a_window_is_printed_with_three_digits() -> None:
    """Three digits of each time."""
    found = {"p50": 1.0, "p99": 6.25, "max": 800.4, "lost": 1.5, "goodput up": 0.9, "goodput down": 1.0}
    assert load.line(found | {"jain": 0.8}) == (
        "1.00 / 6.25 / 800 ms, 1.5 % lost, goodput 0.900, 1.000, Jain 0.80"
    )
    idle = {"p50": 1.0, "p99": 1.0, "max": 12.04, "lost": 0.0}
    assert load.line(idle) == "1.00 / 1.00 / 12.0 ms, 0.0 % lost, goodput -, Jain -"


def test_a_table_of_a_rate() -> None:
    """A row for each place, a column for each load; medians, worsts, under which load; bold is short."""
    seen = [
        *windows("tap", "20mbit, idle", 0.5),
        *windows("cake", CASE, 4, 8),
        *windows("tap", CASE, 2, 12, jain=0.5, lost=1.0),
        *windows("tap", "20mbit, 8both", 3, 4, **{"goodput down": 0.9}),
        *windows("tap", "5mbit, 8up", 11),
    ]
    assert tables.table(seen, "20mbit").splitlines() == [
        "`20mbit`, 1 to 2 windows of each; ping p50 / p99 / worst in ms (p99 as a multiple of cake's):",
        "",
        "| where frames wait | idle | 8up | 8both | goodput, least | pings lost, most | Jain, least |",
        "|---|---|---|---|---|---|---|",
        "| tap of the switch | 1.00 / 0.50 / 20.0 | 1.00 / 7.00 / 20.0 (1.00x) | 1.00 / 3.50 / 20.0 "
        "| **0.900, 8both** | **1.0 %, 8up** | 0.50, 8up |",
        "| yardstick: cake |  | 1.00 / 6.00 / 20.0 |  | 0.980, 8up | 0 | 1.00, 8up |",
    ]
    assert tables.table(windows("tap", "20mbit, idle", 12), "20mbit").splitlines()[-1] == (
        "| tap of the switch | 1.00 / 12.0 / 20.0 |  | 0 |  |"
    )
    late = tables.table([*windows("tap", CASE, 12), *windows("cake", CASE, 12)], "20mbit")
    assert "| **1.00 / 12.0 / 20.0 (1.00x)** |" in late
    assert "| **1.00 / 16.0 / 20.0 (2.00x)** |" in tables.table(
        [*windows("tap", "5mbit, 8up", 16), *windows("cake", "5mbit, 8up", 8)], "5mbit"
    )


def test_a_multiple_of_cakes_is_of_the_same_round() -> None:
    """Also where a window of one of them failed."""
    tap, cake = windows("tap", CASE, 2, 3, 4), windows("cake", CASE, 1, 1, 2)
    (row,) = [row for row in tables.rows([*tap[1:], *cake[::2]], "20mbit") if row.name == "tap"]
    assert row.cells["8up"].of_cake == [2]


def test_the_parts_are_the_whole_comparison() -> None:
    """What each names is known; every place is in one; `all` is all, in the order of the parts."""
    for part in parts.PARTS.values():
        assert set(part.attach) <= set(ways.WAYS)
        assert set(part.rates) <= set(queues.RATES)
        assert set(part.flows) <= set(queues.FLOWS)
    assert {name for part in parts.PARTS.values() for name in part.attach} == set(ways.WAYS)
    assert list(parts.named(["all"])) == list(parts.PARTS.values())
    assert list(parts.named(["rates", "limit"])) == [parts.PARTS["limit"], parts.PARTS["rates"]]
    assert parts.PARTS["slow"].cases()[0] == "5mbit, 1up"
    assert parts.SECONDS * load.PROBES >= 200


def context(folder: Path, keep: Callable[[Result], None] = lambda _: None, end: float = math.inf) -> Context:
    """A context in which nothing is to be started."""
    nothing = cast(Machine, None)
    return Context(False, folder, folder, folder, nothing, ExitStack(), lambda _: None, keep=keep, end=end)


class Pretended(queues.Stage):
    """Windows without a place: the second one fails."""

    def place(self, kind: type[places.Place]) -> places.Place:
        """Able to do everything."""
        del kind
        return cast(places.Place, SimpleNamespace(able=lambda *_: True))

    def window(self, name: str, case: str, warm_up: float) -> Json:
        """As if measured."""
        del warm_up
        if name == "cake":
            raise RuntimeError("no cake here\nat all")
        return dict(windows(name, case, 1)[0].values)


def test_a_window_that_fails_does_not_cost_the_others(tmp_path: Path) -> None:
    """It is named; each of the others is kept at once."""
    kept: list[Result] = []
    here = context(tmp_path, keep=kept.append)
    part = parts.Part(("tap", "cake", "kernel"), ("20mbit",), ("8up",))
    result = queues.measured(here, Pretended(here, 1), [part])
    assert [len(found.windows) for found in kept] == [1, 2]
    assert [window.contender for window in result.windows] == ["tap", "kernel"]
    assert [window.values["round"] for window in result.windows] == [0, 0]
    again = queues.measured(here, Pretended(here, 1), [part, parts.Part(("tap",), ("20mbit",), ("8up",))])
    assert [window.values["round"] for window in again.windows] == [0, 0, 1], "of another part"
    assert result.notes == ["`20mbit, 8up`, cake, failed: RuntimeError: no cake here"]
    late = context(tmp_path, end=0.0)
    with pytest.raises(Missing, match="nothing was begun from `20mbit, 8up`, tap, on"):
        queues.measured(late, Pretended(late, 1), [part])


def load_bench_run() -> ModuleType:
    """The program `bench/run`, as a module."""
    loader = SourceFileLoader("bench_run", str(ROOT / "bench/run"))
    bench_run = module_from_spec(cast(ModuleSpec, spec_from_loader("bench_run", loader)))
    loader.exec_module(bench_run)
    return bench_run


def test_an_interrupted_run_keeps_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    """The document of an interrupted scene has what the scene kept, and was written meanwhile."""
    bench_run = load_bench_run()

    def run(here: Context) -> Result:
        here.keep(Result(tables=["| kept |"]))
        raise KeyboardInterrupt

    scene = Scene("x", "X", "", 0, run, keeps=True)
    wanted = SimpleNamespace(quick=False, times=1, only="", minutes=None, scene=["x"])
    written: list[Json] = []
    document, stopped = bench_run.measure(scene, cast(Machine, None), wanted, written.append)
    assert stopped
    assert (document["tables"], document["error"]) == (["| kept |"], "interrupted")
    assert [(part["tables"], part["error"]) for part in written] == [(["| kept |"], "not at its end yet")]
    assert bench_run.misused(wanted, [scene]) == "", capsys.readouterr()
    wanted.minutes = 0
    assert bench_run.misused(wanted, [scene]) == "--minutes 0: at least 1"
    wanted.minutes = 5
    whole = Scene("y", "Y", "", 0, run)
    wanted.scene = ["y"]
    assert bench_run.misused(wanted, [whole]) == "--minutes: scene y is measured as a whole"


def test_a_scene_with_options_of_its_own_runs_alone() -> None:
    """Neither beside others nor with options of the default set; a run that names no scene leaves it out."""
    bench_run = load_bench_run()
    default = Scene("x", "X", "", 0, lambda _: Result())
    alone = Scene("y", "Y", "", 1, lambda _: Result(), default=False)
    scenes = [default, alone]
    wanted = SimpleNamespace(quick=False, times=1, only="", minutes=None, scene=None, page=False)
    assert bench_run.chosen(scenes, wanted) == [default]
    wanted.scene = ["y"]
    assert bench_run.chosen(scenes, wanted) == [alone]
    assert bench_run.misused(wanted, scenes) == ""
    wanted.page = True
    assert bench_run.misused(wanted, scenes) == "--page: scene y has no page"
    wanted.quick = True
    assert "own options" in bench_run.misused(wanted, scenes)
    wanted.scene = ["x", "y"]
    assert bench_run.misused(wanted, scenes) == "scene y runs alone: it has options of its own"


def test_missed_targets_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error and in the document; a wrong option is no failure of the scene."""
    bench_run = load_bench_run()
    wanted = SimpleNamespace(quick=False, times=1, only="", minutes=None, scene=["y"])

    def fall_short(_: Context) -> Result:
        return Result(failures=["too slow"], data={"rows": [1]})

    def refuse(_: Context) -> Result:
        raise Misused("no")

    short = Scene("y", "Y", "", 1, fall_short, default=False)
    document, _ = bench_run.measure(short, cast(Machine, None), wanted, lambda _: None)
    assert (document["failures"], document["data"], document["error"]) == (["too slow"], {"rows": [1]}, "")
    assert "bench/run: y: too slow" in capsys.readouterr().err
    with pytest.raises(Misused):
        bench_run.measure(
            Scene("y", "Y", "", 1, refuse, default=False), cast(Machine, None), wanted, lambda _: None
        )


def test_a_page_is_loaded_over_loopback(tmp_path: Path) -> None:
    """Its server and its client, as the scene `pages` runs them: a page a second."""
    address, program = "127.53.0.1", [sys.executable, "-E", "-S", web.__file__]
    server = Process([*program, "serve", address], tmp_path / "log")
    with server:
        server.wait_for("the server of pages", lambda: "ready" in server.output())
        words = [*program, "load", address, "1.5"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    took = json.loads(done.stdout)
    assert len(took) == 2
    assert all(0 < seconds < 20 for seconds in took)


def test_the_plot_of_pages_has_a_line_for_each_contender() -> None:
    """A cumulative distribution, from the fastest page to the slowest."""
    drawn = pages.drawn({"no uploads": [0.2, 0.1], "before": [3.0]})
    assert [series.name for series in drawn.series] == ["no uploads", "before"]
    assert drawn.series[0].points == ((0.1, 0.5), (0.2, 1.0))


def test_a_scenes_choices() -> None:
    """What was asked for, otherwise the usual; a value that is none is named."""
    choice = Choice("rate", "of the limit", ("1mbit", "2mbit", "3mbit"), ("1mbit", "2mbit"), ("1mbit",))
    scene = Scene("x", "X", "", 0, lambda _: Result(), choices=(choice,))
    assert scene.chosen({"rate": "3mbit,1mbit"}, quick=True) == {"rate": ("3mbit", "1mbit")}
    assert scene.chosen({"rate": ""}, quick=False) == {"rate": ("1mbit", "2mbit")}
    assert scene.chosen({}, quick=True) == {"rate": ("1mbit",)}
    assert choice.wrong(["3mbit"]) == ""
    assert "no '4mbit'" in choice.wrong(["3mbit", "4mbit"])


def test_the_script_takes_parts_of_a_second() -> None:
    """iperf3 knows whole ones: it loads until after the last probe."""
    words = load.script(Load(8), "10.9.0.2", "/tmp", 2.1, warm_up=2.5)
    assert "--omit 2 --time 3 " in words
    assert "sleep 2.5\n" in words
    assert "-d 2.1s" in words
    assert "--omit 3 --time 6 " in load.script(Load(8), "10.9.0.2", "/tmp", 5)


def test_tables_are_pasted_where_a_page_has_room_for_them() -> None:
    """Those of that scene, by their first word; the rest of the page, and other places, stay."""
    text = (
        "a\n<!-- table x `1mbit` -->\nold\n<!-- end of table -->\nb\n"
        "<!-- table y `1mbit` -->\nkept\n<!-- end of table -->\n"
        "<!-- table x `9mbit` -->\nkept\n<!-- end of table -->\n"
    )
    scenes: list[Json] = [
        {"scene": "x", "tables": ["`1mbit`, new\\1", "`2mbit`, other"]},
        {"scene": "y", "tables": []},
        {"scene": "z"},
    ]
    new = text.replace("\nold\n", "\n`1mbit`, new\\1\n\n", 1)
    assert page.pasted(text, scenes) == new
    assert page.pasted(new, scenes) == new


def test_a_scenes_own_tables_stand_in_place_of_its_figures() -> None:
    """Also results that were stored without any are shown."""
    document: Json = {"figures": [], "tables": ["| a |"]}
    assert report.figures(document) == "| a |"
    assert report.figures({"figures": []}).startswith("| measure")
    assert report.has_figures(document)
    assert not report.has_figures({"figures": []})
