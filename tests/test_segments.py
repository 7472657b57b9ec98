"""Segments of bridge ports, in a guest: the kernel that tests run on may have no VLANs on bridges."""

import json
import subprocess
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.initramfs import ROOT
from lab.need import need_commands

pytestmark = [pytest.mark.lab, pytest.mark.abreast]

# Of the kernel place, and of guests behind bridge ports.
MODULES = ["bridge", "veth", "tun", "ifb", "sch_htb", "sch_ingress", "cls_u32", "cls_bpf", "act_mirred"]


def netdev_tests() -> Path:
    """The program with the agent's tests of netdevs; `cargo test` has built it before."""
    command = "cargo test --locked --no-run --message-format=json -p tidegate-agent --test netdev"
    built = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=True, timeout=900)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    (program,) = [m["executable"] for m in messages if m.get("executable")]
    return Path(program)


def test_frames_pass_within_a_segment_only(tmp_path: Path) -> None:
    """As `cargo test` runs it on a kernel whose bridges filter VLANs: drift, restart, take-over, removal."""
    need_commands("cargo", "bridge", "ping")
    program = netdev_tests()
    with Guest(tmp_path / "guest", modules=MODULES) as guest:
        # eBPF programs that measure waits take an emulated machine long to load; without these types none is.
        guest.run("mount -t tmpfs none /sys/kernel/btf")
        done = guest.try_run(f"CI=true TIDEGATE_TEST_VLANS=1 {program} segment:: 2>&1", timeout=180)
    assert done.status == 0, done.stdout
    assert "test result: ok. 1 passed" in done.stdout
