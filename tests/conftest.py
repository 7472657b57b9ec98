"""Fixtures of the end-to-end tests."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import BINARY, Host
from lab.initramfs import ROOT
from lab.need import need, need_commands, need_guests
from lab.packages import build_controller_package


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `nightly` run where `-m` names them, as `make nightly` does."""
    if "nightly" in config.getoption("markexpr"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `lab` need guests."""
    if item.get_closest_marker("lab"):
        need_guests()


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A running switch and agent in a folder of their own."""
    # A short path: a Unix socket's is limited to 107 bytes.
    with Host(tmp_path_factory.mktemp("h")) as running:
        yield running
        running.check_alive()


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package, freshly built."""
    need_commands("dpkg-deb", "strip", "objdump")
    need("no release build: cargo build --release", BINARY.exists())
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run([ROOT / "scripts/deb", BINARY, out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def controller_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of the controller, freshly built."""
    return build_controller_package(tmp_path_factory.mktemp("dist"))
