"""The kernel place on Debian's kernel, in a guest: libvirt's `<bandwidth>`, others' rules, short queues.

Test machines' kernels lack what these take (sfq, fw, police; fq_codel, cake), and their nftables is another.
"""

import re
from collections.abc import Iterator

import pytest

from lab.cargo import integration_test
from lab.guest import Guest
from lab.host import BINARY
from lab.initramfs import ROOT
from lab.need import need_commands

# Emulated, on a machine that has other work, each takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(420)]

_KERNEL_PLACE = ["bridge", "veth", "tun", "ifb", "sch_htb", "sch_ingress", "cls_u32", "cls_bpf", "act_mirred"]
_OTHERS = [
    *("sch_sfq", "sch_fq_codel", "sch_codel", "sch_fq", "sch_prio", "sch_tbf", "sch_cake"),
    *("cls_fw", "cls_basic", "cls_matchall", "cls_flower", "act_police", "act_gact"),
    # nf_tables asks for a checksum by name.
    *("crc32c_generic", "nf_tables"),
]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with all of it."""
    folder = tmp_path_factory.mktemp("g")
    with Guest(folder, modules=[*_KERNEL_PLACE, *_OTHERS], memory_mb=1536, cpus=2) as guest:
        # eBPF programs that measure waits take an emulated machine long to load; without these types none is.
        guest.run("mount -t tmpfs none /sys/kernel/btf")
        yield guest


def test_objects_made_by_libvirt_are_restored(guest: Guest) -> None:
    """Taken over and given back: what every libvirt makes, and others' policers and queues."""
    need_commands("cargo", "tc")
    program = integration_test("tidegate-place-kernel", "foreign")
    done = guest.try_run(f"CI=true TIDEGATE_TEST_STOCK_KERNEL=1 {program} stock_kernel 2>&1", timeout=300)
    assert done.status == 0, done.stdout
    assert "test result: ok. 2 passed" in done.stdout


def test_flows_wait_for_themselves(guest: Guest) -> None:
    """Each qdisc for short queues, kept as it is told, put right, and under traffic."""
    need_commands("cargo", "tc", "ping")
    program = integration_test("tidegate-place-kernel", "queueing")
    done = guest.try_run(f"CI=true TIDEGATE_TEST_STOCK_KERNEL=1 {program} 2>&1", timeout=300)
    assert done.status == 0, done.stdout
    assert "test result: ok. 3 passed" in done.stdout


def test_filters_chains_and_rules_of_others(guest: Guest) -> None:
    """As `cargo test` runs it here: rules that would be gone past, and filters in other chains."""
    need_commands("cargo", "nft")
    program = integration_test("tidegate", "netdev")
    # A policer's program is made with them.
    guest.run("umount /sys/kernel/btf")
    done = guest.try_run(f"CI=true {program} rules:: another_chain 2>&1", timeout=300)
    guest.run("mount -t tmpfs none /sys/kernel/btf")
    assert done.status == 0, done.stdout
    assert "test result: ok. 2 passed" in done.stdout


def test_a_domain_with_a_bandwidth_starts(guest: Guest) -> None:
    """The tests of libvirt that have a `<bandwidth>`, with a libvirtd and a VM in the guest."""
    need_commands("libvirtd", "virsh")
    guest.run("mount -t tmpfs none /tmp")
    pytest_command = (
        f"{ROOT}/.venv/bin/python -m pytest -p no:cacheprovider {ROOT}/tests/libvirt/test_domains.py"
    )
    command = f"cd /tmp && CI=true TIDEGATE_BIN={BINARY} {pytest_command} -k bandwidth 2>&1"
    done = guest.try_run(command, timeout=300)
    assert done.status == 0, done.stdout[-8000:]
    assert re.search(r"\b2 passed\b", done.stdout), done.stdout
    assert guest.run("ls /tmp/pytest-of-root/pytest-0/l0/libvirt/stock"), "all that libvirt ran was done"
