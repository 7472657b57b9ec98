"""The scene `queues`: its options, its script, and what it makes of what programs print."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from harness import report
from harness.model import Choice, Json, Result, Scene, Window
from lab.process import Process
from scenes import pages, queues
from scenes.queueing import load, places, web
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


def test_what_irtt_prints() -> None:
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


def test_a_window_as_it_is_printed() -> None:
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


def windows(name: str, case: str, *p99: float) -> list[Window]:
    """Windows with such pings, none lost, all goodput."""
    rest: Json = {"p50": 1.0, "max": 20.0, "lost": 0.0, "goodput up": 0.98, "jain": 1.0}
    return [Window(name, case, n, rest | {"p99": ms}) for n, ms in enumerate(p99)]


def test_what_is_asked() -> None:
    """10 ms at 20 Mbit/s, 1.5 times cake's anywhere; of yardsticks, FIFOs and idle vNICs nothing."""
    case = "20mbit, 8up"
    seen = [*windows("tap", case, 8, 9, 50), *windows("cake", case, 8, 8, 8)]
    verdicts = [target.verdict for target in queues.targets(seen, case, "tap")]
    assert verdicts == ["met", "met", "met", "met"]
    slow = queues.targets([*windows("tap", case, 13, 13, 13), *windows("cake", case, 8, 8, 8)], case, "tap")
    assert [target.verdict for target in slow] == ["not met", "not met", "met", "met"]
    assert not queues.targets(seen, case, "cake")
    assert not queues.targets(windows("tap-fifo", case, 800), case, "tap-fifo")
    assert not queues.targets(windows("tap", "20mbit, idle", 1), "20mbit, idle", "tap")
    other = queues.targets(windows("tap", "5mbit, 8up", 11), "5mbit, 8up", "tap")
    assert "ping p99" not in " ".join(target.measure for target in other)


def test_a_row_of_the_table() -> None:
    """Medians of p50 and p99, the worst of all, what the worst window lost."""
    found: dict[str, list[float]] = {
        "p50": [1, 2, 9],
        "p99": [5, 6, 90],
        "max": [7, 800, 9],
        "lost": [0, 0, 1.5],
        "goodput up": [0.9, 1, 1],
    }
    assert load.cells(found | {"jain": [1, 0.8, 1]}) == ["2.00 / 6.00 / 800", "1.5 %", "1.000", "0.80"]
    assert load.cells({"p50": [1], "p99": [1], "max": [12], "lost": [0]}) == [
        "1.00 / 1.00 / 12.0",
        "0",
        "-",
        "-",
    ]
    text = queues.table(windows("tap", "5mbit, 8up", 11, 12), "5mbit, 8up")
    assert text.splitlines()[-1] == "| tap of the switch | 1.00 / 11.5 / 20.0 | 0 | 0.980 | 1.00 |"


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


def test_a_scenes_own_tables_stand_in_place_of_its_figures() -> None:
    """Also results that were stored without any are shown."""
    document: Json = {"figures": [], "tables": ["| a |"]}
    assert report.figures(document) == "| a |"
    assert report.figures({"figures": []}).startswith("| measure")
