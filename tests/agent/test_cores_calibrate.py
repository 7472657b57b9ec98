"""`tidegate cores calibrate`: measured costs in a file, or the file as it was and the reason."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from time import sleep

import pytest

from lab.host import BINARY, Host, vhost_user_vnic
from lab.need import need_commands
from lab.process import wait_for

REFUSED = 3
NO_AGENT = "/nonexistent/api.sock"
OLD = "as it was"
TOO_BUSY = 0.5

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has nothing to compare")


def command(output: Path, *words: str, api: str | Path = NO_AGENT) -> list[str]:
    """A calibration that writes to a file of its own."""
    return [str(BINARY), "--api", str(api), "calibrate", "--cores", "--output", str(output), *words]


def run(output: Path, *words: str, api: str | Path = NO_AGENT) -> "subprocess.CompletedProcess[str]":
    """To its end."""
    return subprocess.run(
        command(output, *words, api=api), capture_output=True, text=True, check=False, timeout=120
    )


def test_costs_are_measured_and_written(tmp_path: Path) -> None:
    """Each pairing has rounds, and the file names machine and kernel. What takes root says so without."""
    output = tmp_path / "costs.json"
    done = run(output, "--seconds", "3", "--json")
    report = json.loads(done.stdout)
    rows = {row["pair"]: row for row in report["rows"]}
    assert all(row["judged"]["rounds"] > 0 for row in rows.values()), rows
    assert rows["two polling workers"]["judged"]["apart"] > 0
    missing = {one["pair"]: one["reason"] for one in report["not_measured"]}
    assert ("softirq and vCPU of a flow" in rows) != ("softirq and vCPU of a flow" in missing)
    assert any("vhost-net" in pair for pair in missing)
    if report["busy"] > TOO_BUSY:
        assert done.returncode == 1
        assert "stays as it was" in done.stderr
        assert not output.exists()
        pytest.skip("other programs use the CPUs")
    assert done.returncode == 0, done.stderr
    written = json.loads(output.read_text())["value"]
    assert written == report["costs"]
    measured = written["source"]["measured"]
    assert measured["kernel"] == os.uname().release
    assert measured["machine"].endswith(f"{os.cpu_count()} CPUs")
    text = run(output, "--seconds", "1")
    assert "two polling workers" in text.stdout
    assert str(output) in text.stdout


def test_refused_while_deadlines_are_in_force(host: Host, tmp_path: Path) -> None:
    """With the vNIC's name; the file stays."""
    output = tmp_path / "costs.json"
    output.write_text(OLD)
    plc = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "10ms"', 'to = ["sink"]')
    text = vhost_user_vnic("plc", host.folder / "plc.sock", "52:54:00:00:11:01", *plc)
    text += vhost_user_vnic("sink", host.folder / "sink.sock", "52:54:00:00:11:02", 'rx = { max = "1gbit" }')
    host.apply(text)
    done = run(output, "--seconds", "1", api=host.folder / "api.sock")
    assert done.returncode == REFUSED
    assert "deadlines are in force (plc)" in done.stderr
    assert output.read_text() == OLD


def networks(processes: str) -> set[str]:
    """The network namespaces of the threads of these processes, a pattern below /proc."""
    found = set()
    for link in Path("/proc").glob(f"{processes}/task/[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return found


def settings() -> dict[str, str]:
    """The CPUs of queues and interrupts of this network namespace's host, and its mounts."""
    files = [Path("/proc/self/mountinfo"), *Path("/proc/irq").glob("[0-9]*/smp_affinity_list")]
    files += Path("/sys/class/net").glob("*/queues/*/[rx]ps_cpus")
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            found[str(file)] = file.read_text()
    return found


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_calibration_leaves_nothing(ending: signal.Signals, tmp_path: Path) -> None:
    """No file, interface, namespace or setting; the old file stays."""
    output = tmp_path / "costs.json"
    output.write_text(OLD)
    before = Path("/proc/self/net/dev").read_text().count(":")
    others = settings()
    with subprocess.Popen(
        command(output, "--seconds", "100"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        threads = Path(f"/proc/{process.pid}/task")
        wait_for("threads that measure", lambda: len(list(threads.iterdir())) > 3)
        sleep(0.3)
        own = networks(str(process.pid)) - networks("self")
        process.send_signal(ending)
        _, errors = process.communicate(timeout=30)
    if ending == signal.SIGKILL:
        assert process.returncode == -ending
    else:
        assert process.returncode == 1
        assert "interrupted: the costs stay as they were" in errors
    assert output.read_text() == OLD
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    assert Path("/proc/self/net/dev").read_text().count(":") == before
    assert not own & networks("[0-9]*")
    assert settings() == others


def test_one_cpu_tells_nothing(tmp_path: Path) -> None:
    """It says so, and writes nothing."""
    need_commands("taskset")
    output = tmp_path / "costs.json"
    words = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), *command(output, "--seconds", "1")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "nothing can be compared" in done.stderr
    assert not output.exists()


def test_a_folder_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    """Not after the measurement."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run(blocked / "costs.json", "--seconds", "100")
    assert done.returncode == 1
    assert "--output" in done.stderr
