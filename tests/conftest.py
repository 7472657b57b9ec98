"""Fixtures of the end-to-end tests."""

from collections.abc import Iterator

import pytest

from lab.host import Host
from lab.need import need_guests


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
