"""Segments of bridge ports, in a guest: the kernel that tests run on may have no VLANs on bridges."""

from pathlib import Path

import pytest

from lab.cargo import integration_test
from lab.guest import Guest
from lab.need import need_commands

pytestmark = [pytest.mark.lab, pytest.mark.abreast]

# Of the kernel place, and of guests behind bridge ports.
MODULES = ["bridge", "veth", "tun", "ifb", "sch_htb", "sch_ingress", "cls_u32", "cls_bpf", "act_mirred"]


def test_frames_pass_within_a_segment_only(tmp_path: Path) -> None:
    """As `cargo test` runs it on a kernel whose bridges filter VLANs: drift, restart, take-over, removal."""
    need_commands("cargo", "bridge", "ping")
    program = integration_test("tidegate", "netdev")
    with Guest(tmp_path / "guest", modules=MODULES) as guest:
        # eBPF programs that measure waits take an emulated machine long to load; without these types none is.
        guest.run("mount -t tmpfs none /sys/kernel/btf")
        done = guest.try_run(f"CI=true TIDEGATE_TEST_VLANS=1 {program} segment:: 2>&1", timeout=180)
    assert done.status == 0, done.stdout
    assert "test result: ok. 1 passed" in done.stdout
