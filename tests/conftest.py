"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host
from lab.initramfs import BUSYBOX, have_kernel
from lab.need import need, need_commands


@pytest.fixture(autouse=True)
def _guests_can_boot(request: pytest.FixtureRequest) -> None:
    """What every test marked `lab` needs of the machine."""
    if request.node.get_closest_marker("lab"):
        need_commands("qemu-system-x86_64")
        need("no static busybox: run scripts/setup test", BUSYBOX.exists())
        need("no guest kernel: run scripts/setup test", have_kernel())


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running switch and agent in a folder of their own."""
    # A short path: a Unix socket's is limited to 107 bytes.
    with Host(tmp_path_factory.mktemp("h")) as running:
        yield running
        running.check_alive()


@pytest.fixture
def sockets(host: Host) -> Path:
    """Where the test's vhost-user sockets lie."""
    return host.folder
