"""Skipping by hand, with a reason, and never silently in CI."""

import os
import shutil
from pathlib import Path

import pytest

from .initramfs import BUSYBOX, have_kernel, have_netdevsim
from .qemu import have_igb

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def need(reason: str, condition: object) -> None:
    """Skip the test for `reason` unless `condition` holds; in CI (CI=true) fail instead."""
    if condition:
        return
    if IN_CI:
        pytest.fail(f"cannot run here, and CI may not skip: {reason}", pytrace=False)
    pytest.skip(reason)


def need_commands(*commands: str) -> None:
    """`need` that every command can be found."""
    missing = [c for c in commands if shutil.which(c) is None]
    need(f"{', '.join(missing)} missing: run scripts/setup test", not missing)


def need_guests() -> None:
    """`need` of what it takes to boot guests."""
    need_commands("qemu-system-x86_64")
    need(f"{BUSYBOX} missing: run scripts/setup test", BUSYBOX.exists())
    need("no guest kernel: run scripts/setup test", have_kernel())


def need_sriov() -> None:
    """`need` of a QEMU with the SR-IOV NIC igb."""
    need("no QEMU with igb: run scripts/setup test", have_igb())


def need_systemd() -> None:
    """`need` of a systemd that can boot guests and containers."""
    need("systemd missing: run scripts/setup test", Path("/lib/systemd/systemd").exists())


def need_netdevsim() -> None:
    """`need` of the module netdevsim."""
    need("no module netdevsim: run scripts/setup test", have_netdevsim())
