"""`tidegate demo`, left running and ended, as the user who runs the tests."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need
from lab.process import Process

DELAYS = {"switch_delay_us", "voice_delay_us", "timer_us", "host_wakeup_us"}
FIGURES = DELAYS | {"voice_misses", "voice_late", "voice_lost", "worker_cpu", "bulk_mbps"}


def test_demo_served(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One JSON object; removing a vNIC ends neither agent nor scene; after Ctrl-C nothing is left."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    folder = tmp_path_factory.mktemp("d")
    log = tmp_path_factory.mktemp("log") / "demo.log"
    command = [str(BINARY), "demo", "--serve", "--json", "--seconds", "1"]
    with Process(command, log, env={"TMPDIR": str(folder)}) as demo:
        demo.wait_for("the end of the measurements", lambda: "until Ctrl-C" in demo.output(), 40)
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        assert len(children) == 6
        text = demo.output()
        report, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
        for phase in ("fifo", "edf"):
            assert report[phase].keys() >= FIGURES
            for delay in DELAYS:
                assert report[phase][delay].keys() == {"p50", "p99", "p999", "max"}
            assert 0 < report[phase]["worker_cpu"] <= 1.1
            assert report[phase]["bulk_mbps"] > 0
        for judged, number in (("misses_blame", "voice_misses"), ("late_blame", "voice_late")):
            assert judged not in report["fifo"], "without a deadline there is no culprit"
            blame = report["edf"][judged]
            assert blame["late"] == report["edf"][number]
            assert blame["steal"] + blame["stalled"] + blame["unexplained"] == blame["late"]
        # 1,000 full-size frames at 1 Gbit/s take 12 ms.
        assert report["edf"]["voice_delay_us"]["p50"] < report["fifo"]["voice_delay_us"]["p50"]

        (api,) = folder.glob("*/api.sock")
        # The hint can be run as it stands: the program need not be on PATH.
        assert f"{BINARY} --api {api} top" in demo.output()
        subprocess.run([BINARY, "--api", api, "vnic", "rm", "voice"], check=True, timeout=10)
        demo.wait_for("voice to end", lambda: "continue without voice" in demo.output())
        done = subprocess.run(
            [BINARY, "--api", api, "top", "--once"], capture_output=True, text=True, check=True, timeout=10
        )
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["vnic", "bulk1", "bulk2", "sink"]

        demo.popen.send_signal(signal.SIGINT)
        assert demo.popen.wait(10) == 0, demo.output()
    assert not list(folder.iterdir())
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


@pytest.mark.abreast
def test_complete_runs_are_reported_after_an_interrupt(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One run of several, then Ctrl-C: its figures as JSON, exit code 1, and nothing is left."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    folder = tmp_path_factory.mktemp("d")
    log = tmp_path_factory.mktemp("log") / "demo.log"
    command = [str(BINARY), "demo", "--runs", "3", "--json", "--seconds", "1"]
    with Process(command, log, env={"TMPDIR": str(folder)}) as demo:
        demo.wait_for("the second run", lambda: "run 2 of 3: phase one" in demo.output(), 60)
        demo.popen.send_signal(signal.SIGINT)
        assert demo.popen.wait(10) == 1, demo.output()
        text = demo.output()
    (run,) = json.JSONDecoder().raw_decode(text[text.index('{\n  "runs"') :])[0]["runs"]
    assert run["edf"].keys() >= FIGURES
    assert "interrupted: 1 of 3 runs are complete" in text
    assert not list(folder.iterdir())
