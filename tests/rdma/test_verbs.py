"""libibverbs and a real device, as the switch uses them: soft-RoCE of the kernel, in a guest.

guest: crates/verbs/tests/device ── libibverbs ── rxe0: 10.0.0.1, 10.0.0.2, fd00::1, fd00::2
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cargo import integration_test
from lab.guest import Guest
from lab.need import need_commands
from lab.rxe import ADDRESSES, ADDRESSES_V6, DEVICE, need_rxe, rxe_guest

pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(420)]

USER = 65534
HOLE = (
    "of a hole the device sends what the page had, of a page written anew what the page had; "
    "what arrives is not in the mapping"
)
"""The kernel pins the pages at the registration: the device goes on with those."""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with the device."""
    need_rxe()
    with rxe_guest(tmp_path_factory.mktemp("g")) as guest:
        yield guest


@pytest.fixture(scope="module")
def program(guest: Guest) -> Path:
    """The program, built while the guest boots."""
    need_commands("cargo")
    return integration_test("tidegate-verbs", "device")


def checks(guest: Guest, program: Path, what: str, ends: tuple[str, str], user: int = USER) -> str:
    """What the program prints; fails where a check does."""
    return guest.run(f"{program} {what} {DEVICE} {user} {' '.join(ends)} 2>&1", timeout=120)


def test_a_device_behaves_as_relied_upon(guest: Guest, program: Path) -> None:
    """Datagrams, GRHs, Q_Keys, the MTU, overruns, flushes: without rights, in an empty network namespace."""
    done = guest.try_run(
        f"unshare -n {program} conform {DEVICE} {USER} {' '.join(ADDRESSES)} 2>&1", timeout=120
    )
    assert done.status == 0, done.stdout
    assert HOLE in done.stdout


def test_huge_pages_are_memory_too(guest: Guest, program: Path) -> None:
    """As a guest's may be: the same of pages of 2 MiB, and of holes of this size."""
    guest.run("echo 16 > /proc/sys/vm/nr_hugepages")
    limit = "ulimit -l unlimited"
    done = guest.run(f"{limit} && {program} huge {DEVICE} {USER} {' '.join(ADDRESSES)} 2>&1", timeout=120)
    assert HOLE in done


def test_bad_requests_are_refused(guest: Guest, program: Path) -> None:
    """Each with its words, and all goes on: over IPv6, with a small limit on locked memory."""
    checks(guest, program, "refuse", ADDRESSES_V6)


def test_who_opens_has_to_be_who_sends(guest: Guest, program: Path) -> None:
    """Opened as root and used by another user, the kernel takes no send."""
    checks(guest, program, "foreign", ADDRESSES)


def test_facts_follow_the_network_device(guest: Guest, program: Path) -> None:
    """What a guest may have for an MTU depends on them; an unknown name is told with those that are there."""

    def facts() -> list[str]:
        return guest.run(f"{program} facts {DEVICE}").splitlines()

    devices, port, *gids = facts()
    assert (devices, port) == (f"devices {DEVICE}", "active true mtu 4096 link Ethernet")
    assert {f"gid {address} v2 true" for address in ADDRESSES + ADDRESSES_V6} <= set(gids)
    guest.run(f"ip addr del {ADDRESSES[1]}/24 dev eth0; ip link set eth0 mtu 1500")
    _, port, *gids = facts()
    assert port == "active true mtu 1024 link Ethernet"
    assert f"gid {ADDRESSES[1]} v2 true" not in gids
    guest.run("ip link set eth0 down")
    assert facts()[1] == "active false mtu 1024 link Ethernet"
    unknown = guest.try_run(f"{program} facts nonesuch0")
    assert unknown.status == 1
    assert unknown.stderr == f"device: there is no RDMA device nonesuch0; there are: {DEVICE}\n"


def test_without_devices_the_library_says_so(guest: Guest, program: Path) -> None:
    """Also where the kernel has no RDMA at all, as in a guest without the modules."""
    guest.run(f"rdma link delete {DEVICE}")
    gone = guest.try_run(f"{program} facts {DEVICE}")
    assert gone.status == 1
    assert gone.stderr == f"device: there is no RDMA device {DEVICE}; there are: none\n"
