"""Queues as the kernel's datapath serves them: `set_queue` and linux-htb, in a guest with Debian's kernel."""

import json
from pathlib import Path
from typing import Any

import pytest
from tidegate_controller.model.intent import BEST_EFFORT, queue_of

from lab.guest import Guest
from lab.initramfs import ROOT
from lab.need import need_commands
from lab.ovs import COMMANDS

pytestmark = [pytest.mark.lab, pytest.mark.nightly, pytest.mark.timeout(600)]

# libcrc32c, which conntrack needs, wants the algorithm without saying so.
MODULES = ["crc32c_generic", "openvswitch", "veth", "sch_htb", "pktgen"]


def test_real_time_and_bfd_beside_best_effort(tmp_path: Path) -> None:
    """Best effort at three times the link's rate: BFD loses its frames if it shares a queue, else none."""
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    path = f"PYTHONPATH={ROOT}/tests:{ROOT}/controller/src"
    found: dict[str, dict[str, Any]] = {}
    with Guest(tmp_path / "guest", cpus=2, memory_mb=1024, modules=MODULES) as guest:
        for name, word in (("together", "best-effort-in-queue-0"), ("separate", "")):
            run = f"{path} python3 -m lab.kernel_queues /tmp/{name} {word}"
            found[name] = json.loads(guest.run(run, timeout=200))
            print(f"{name}: {found[name]}")
    together, separate = found["together"], found["separate"]
    assert together["down"] > 0
    assert separate["down"] == 0
    assert separate["lost"] == 0
    assert separate["sent"][str(queue_of(0))] >= separate["received"]
    assert separate["sent"][str(BEST_EFFORT)] > separate["sent"]["0"] > 0


def test_rates_and_loads(tmp_path: Path) -> None:
    """At slow and fast links, idle and overloaded: the real-time queue drops no frame."""
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    path = f"PYTHONPATH={ROOT}/tests:{ROOT}/controller/src"
    with Guest(tmp_path / "guest", cpus=2, memory_mb=1024, modules=MODULES) as guest:
        told = guest.run(f"{path} python3 -m lab.kernel_sweep /tmp/f 10,50,200 0,0.5,1.5 2", timeout=400)
    found = [json.loads(line) for line in told.splitlines()]
    assert len(found) == 9
    for one in found:
        print(one)
        assert one["dropped"] == 0
        # A busy machine may lose some on its way to and from the queue.
        assert one["lost"] <= one["count"] // 100
        if one["load"] > 1:
            # The link is full, but for times in which a busy machine does not let the guest run.
            assert one["offered"] > one["rate"]
            assert one["carried"] > one["rate"] / 4
