"""What super-frames are charged, in a guest.

Its kernel cuts them otherwise than that of the test machine may, and knows more tunnels.
"""

from pathlib import Path

import pytest

from lab.cargo import integration_test
from lab.guest import Guest
from lab.need import need_commands

# Emulated, on a machine that has other work, it takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(600)]

MODULES = [
    *("bridge", "veth", "tun", "ifb", "sch_htb", "sch_ingress", "cls_u32", "cls_bpf", "act_mirred"),
    *("vxlan", "geneve", "ip_gre"),
]


def test_the_charged_bytes_are_the_sent_bytes(tmp_path: Path) -> None:
    """As `cargo test` runs it, with fewer frames: policed, marked, waiting, and in three tunnels."""
    need_commands("cargo")
    program = integration_test("tidegate-place-kernel", "wire")
    with Guest(tmp_path / "guest", cpus=2, memory_mb=1024, modules=MODULES) as guest:
        for tunnel in "vxlan id 7 dstport 4789", "geneve id 7 remote 10.0.0.1", "gretap remote 10.0.0.1":
            guest.run(f"ip link add tun0 type {tunnel}; ip link del tun0")
        done = guest.try_run(f"CI=true PROPTEST_CASES=10 {program} --skip switch 2>&1", timeout=500)
    assert done.status == 0, done.stdout
    assert "test result: ok. 6 passed" in done.stdout
