"""A frame that is late for the switch's worker: who kept the worker from its CPU is named."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for

SEND = """
import socket, time
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    # Not connected: whether it is taken is of no interest.
    to.sendto(bytes(64), ("10.9.0.2", 9))
    time.sleep(0.002)
"""
# Under SCHED_FIFO: 20 ms of each 60, so that everybody else has two thirds of the CPU.
HOG = """
import time
while True:
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        pass
    time.sleep(0.04)
"""


def last_cpu() -> int:
    """The last of the CPUs that this process may use."""
    return max(os.sched_getaffinity(0))


@pytest.fixture
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A switch whose worker is pinned, and a stream with a deadline of 5 ms through it."""
    need("eBPF programs: root", os.geteuid() == 0 and can_make_namespaces())
    need("a kernel with BTF", Path("/sys/kernel/btf/vmlinux").exists())
    need("a CPU besides the worker's", len(os.sched_getaffinity(0)) > 1)
    need_commands("chrt", "taskset", "ip")
    folder = tmp_path_factory.mktemp("c")
    with (
        Host(folder, switch_options=("--cpus", str(last_cpu()))) as host,
        Stack(folder / "voice") as voice,
        Stack(folder / "sink") as sink,
    ):
        envelope = 'tx = { max = "5mbit", burst = "4kB" }'
        host.apply(
            tap_vnic("voice", voice.path, "52:54:00:00:09:01", envelope, 'deadline = "5ms"', 'to = ["sink"]')
            + tap_vnic("sink", sink.path, "52:54:00:00:09:02", 'rx = { max = "1gbit" }')
        )
        voice.address("eth0", "10.9.0.1/24")
        sink.address("eth0", "10.9.0.2/24")
        voice.run("ip neigh replace 10.9.0.2 lladdr 52:54:00:00:09:02 dev eth0")
        sender = voice.spawn(sys.executable, "-c", SEND)
        sender.wait_for("frames", lambda: host.show("sink").rx_frames > 100)
        yield host
        host.check_alive()


def culprits(host: Host) -> dict[str, int]:
    """How many misses each kind is to blame for."""
    return dict(json.loads(host.cli("why", "voice", "--json")).get("culprits", {}))


def test_a_busy_task_is_named(late: Host, tmp_path: Path) -> None:
    """It has the worker's CPU: the task is the culprit by name, in `why`, metrics and the log."""
    time.sleep(1)
    assert culprits(late).get("task", 0) == 0, late.cli("why", "voice")
    pinned = ("chrt", "-f", "50", "taskset", "-c", str(last_cpu()))
    with Process([*pinned, sys.executable, "-c", HOG], tmp_path / "hog.log") as hog:
        wait_for("a culprit", lambda: culprits(late).get("task", 0) > 5)
        said = late.cli("why", "voice")
        assert f"({hog.pid}) on CPU {last_cpu()}" in said, said
    counts = culprits(late)
    # Other programs of this machine may have their part, but this one has most.
    assert counts["task"] > sum(counts.values()) / 2, counts
    assert 'tidegate_vnic_worker_culprits_total{vnic="voice",culprit="task"}' in late.get("/metrics")
    assert f"({hog.pid}) on CPU {last_cpu()}" in late.agent.output()


def test_without_observation_why_reports_no_culprit(late: Host, tmp_path: Path) -> None:
    """With `--observe-cpu off` a late frame's culprit is not known, and `why` says what is lost."""
    late.agent.stop()
    late.agent = Process([*late.agent_command(), "--observe-cpu", "off"], late.folder / "agent.log")
    late.agent.wait_for("an answer of the API", lambda: late.try_cli("vnic", "ls").returncode == 0)
    pinned = ("chrt", "-f", "50", "taskset", "-c", str(last_cpu()))
    with Process([*pinned, sys.executable, "-c", HOG], tmp_path / "hog.log"):
        wait_for("a late frame", lambda: culprits(late))
    assert "task" not in culprits(late)
    assert "does not observe what keeps the worker from its CPU" in late.cli("why", "voice")
