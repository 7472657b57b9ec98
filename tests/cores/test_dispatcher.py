"""Steering beside others' XDP programs, in libxdp's dispatcher: on Debian's kernel, in a guest.

Test machines' kernels may refuse extensions of programs, which a dispatcher is made of.
"""

from collections.abc import Iterator

import pytest

from lab.cargo import unit_tests
from lab.guest import Guest
from lab.need import need_commands

# Emulated, on a machine that has other work, it takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with what it needs."""
    need_commands("xdp-loader")
    with Guest(tmp_path_factory.mktemp("g"), modules=["veth", "vxlan"], memory_mb=1024, cpus=2) as guest:
        yield guest


def test_the_program_is_one_of_several(guest: Guest) -> None:
    """It joins and leaves, others come and go, the next process takes over; refused without room or library."""
    need_commands("cargo", "ip", "ethtool", "ping")
    command = f"{unit_tests('tidegate-steering')} tests::chained:: --test-threads=1 --nocapture"
    done = guest.try_run(f"CI=true TIDEGATE_TEST_STOCK_KERNEL=1 {command} 2>&1", timeout=300)
    assert done.status == 0, done.stdout
    assert "test result: ok. 3 passed" in done.stdout
    print(done.stdout)
