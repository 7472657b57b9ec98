"""Steering on Debian's kernel, in a guest: its own Geneve, GRE and ESP, and a CPU that goes off.

Test machines' kernels have none of these tunnels, and their CPUs are others', too.
"""

from collections.abc import Iterator

import pytest

from lab.cargo import unit_tests
from lab.guest import Guest
from lab.need import need_commands

# Emulated, on a machine that has other work, it takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(420)]

_TUNNELS = ["veth", "vxlan", "geneve", "gre", "ip_gre", "ip6_gre"]
_ESP = ["esp4", "xfrm_user", "authenc", "crypto_null"]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with all of it."""
    with Guest(tmp_path_factory.mktemp("g"), modules=[*_TUNNELS, *_ESP], memory_mb=1024, cpus=3) as guest:
        yield guest


def test_flows_in_the_kernels_tunnels_run_on_their_cpu(guest: Guest) -> None:
    """Geneve, GRE with Ethernet, ESP; a CPU goes off and comes back."""
    names = ["in_geneve", "in_gre_with_ethernet", "in_esp"]
    _run(guest, [*names, "a_cpu_goes_off_and_comes_back_without_losing_a_frame"])


@pytest.mark.nightly
def test_flows_in_further_tunnels_run_on_their_cpu(guest: Guest) -> None:
    """GRE with IP; tunnels over IPv6."""
    _run(guest, ["in_gre_with_ip", "in_gre_over_ipv6", "in_geneve_over_ipv6"])


def _run(guest: Guest, names: list[str]) -> None:
    """Run these of the crate's tests in the guest."""
    need_commands("cargo", "ip", "ethtool", "ping")
    tests = " ".join(f"tests::tunnels::{name}" for name in names)
    command = f"{unit_tests('tidegate-steering')} {tests} --exact --test-threads=1"
    done = guest.try_run(f"CI=true TIDEGATE_TEST_STOCK_KERNEL=1 {command} 2>&1", timeout=300)
    assert done.status == 0, done.stdout
    assert f"test result: ok. {len(names)} passed" in done.stdout
