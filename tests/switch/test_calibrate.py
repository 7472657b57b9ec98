"""`tidegate calibrate`: what host-latency has to be here, and what stands in the way of less, by name."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from lab.host import BINARY, Host, vhost_user_vnic
from lab.need import need_commands
from lab.process import wait_for

MAC = {"plc": "52:54:00:00:11:01", "sink": "52:54:00:00:11:02"}


def calibrate(host: Host) -> dict[str, Any]:
    """A second of it."""
    return dict(json.loads(host.cli("calibrate", "--seconds", "1", "--json")))


@contextmanager
def busy(cpu: int) -> Iterator[int]:
    """A loop on this CPU that never ends; its process."""
    need_commands("taskset")
    command = ["taskset", "--cpu-list", str(cpu), "sh", "-c", "while :; do :; done"]
    with subprocess.Popen(command) as loop:
        try:
            yield loop.pid
        finally:
            loop.kill()


def named(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """What of this kind stands in the way."""
    return [obstacle for obstacle in report["obstacles"] if obstacle["kind"] == kind]


def test_a_busy_loop_on_the_workers_cpu_is_named(tmp_path: Path) -> None:
    """With its CPU, by its process; and not once it is gone. Wake-ups are measured on that CPU alone."""
    cpu = max(os.sched_getaffinity(0))
    with Host(tmp_path, switch_options=("--workers", "1", "--cpus", str(cpu))) as host:
        with busy(cpu) as process:
            report = calibrate(host)
            (threads,) = named(report, "busy-threads")
            assert threads["cpus"] == [cpu]
            assert f"sh ({process}) " in threads["what"][0]
            assert named(report, "ordinary-priority")
            text = host.cli("calibrate", "--seconds", "1")
            assert f"CPU {cpu}: " in text
            assert f"sh ({process}) " in text
        assert [wakeups["cpu"] for wakeups in report["wakeups"]] == [cpu]
        assert report["wakeups"][0]["count"] > 100
        assert report["copies"]["count"] > 10
        assert len(report["loops"]) == 1
        assert not named(report, "not-pinned")
        assert not any(f"({process})" in str(obstacle["what"]) for obstacle in calibrate(host)["obstacles"])


def test_the_largest_reported_host_latency_is_admitted(host: Host) -> None:
    """The largest host-latency that is said to fit is admitted; a microsecond more is refused."""

    def contracts(host_latency: str) -> Path:
        """A deadline of 1 ms, and this host-latency."""
        plc = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "1ms"', 'to = ["sink"]')
        text = f'[host]\nhost-latency = "{host_latency}"\n'
        text += vhost_user_vnic("plc", host.folder / "plc.sock", MAC["plc"], *plc)
        text += vhost_user_vnic("sink", host.folder / "sink.sock", MAC["sink"], 'rx = { max = "1gbit" }')
        return host.file(text)

    host.cli("apply", "-f", contracts("10us"))
    report = calibrate(host)
    in_force = report["in_force"]
    assert (in_force["host_latency_ns"], in_force["deadlines"]) == (10_000, 1)
    largest = in_force["largest_that_fits_ns"]
    assert host.try_cli("plan", "-f", contracts(f"{largest}ns")).returncode == 0
    assert host.try_cli("plan", "-f", contracts(f"{largest + 1000}ns")).returncode == 3
    for choice in report["choices"]:
        fits = host.try_cli("plan", "-f", contracts(choice["text"])).returncode == 0
        assert fits == (choice["refusals"] == []), choice
        assert choice["sum_ns"] <= choice["host_latency_ns"], choice
    # These vNICs send nothing: a worker may make no loop in that second, and then nothing is proposed.
    counted = sum(loops["count"] for loops in report["loops"])
    assert report["host_latency"] == (report["choices"][-1]["text"] if counted else None)


def test_calibrate_without_an_agent_measures_the_host(tmp_path: Path) -> None:
    """Wake-ups and copies; what is missing is said."""
    command: list[str | Path] = [
        BINARY,
        "--api",
        tmp_path / "none.sock",
        "calibrate",
        "--seconds",
        "1",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    report = json.loads(done.stdout)
    assert {wakeups["cpu"] for wakeups in report["wakeups"]} <= os.sched_getaffinity(0)
    assert report["wakeups"][0]["count"] > 100
    assert (report["loops"], report["in_force"], report["host_latency"]) == ([], None, None)
    assert any("cannot reach the agent" in what for what in report["unseen"])


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """With what was measured until then; where that is not a second, with 1."""
    command: list[str | Path] = [
        BINARY,
        "--api",
        tmp_path / "none.sock",
        "calibrate",
        "--seconds",
        "600",
        "--json",
    ]
    for pause, code in ((1.5, 0), (0.0, 1)):
        with (tmp_path / "said").open("w+") as said:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
            wait_for("it to begin", lambda: "measuring for 600 s" in (tmp_path / "said").read_text())
            sleep(pause)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=20)
            assert process.returncode == code
            if code == 0:
                assert 1e9 <= json.loads(out)["measured_ns"] < 60e9
            else:
                assert "interrupted before a second" in (tmp_path / "said").read_text()
