"""The lab itself, without Tidegate: what the other tests stand on."""

from pathlib import Path

import pytest
from lab.guest import Guest, unix_link
from lab.initramfs import have_kernel
from lab.need import need, need_commands

pytestmark = pytest.mark.lab


@pytest.fixture(autouse=True)
def _parts() -> None:
    need_commands("qemu-system-x86_64", "busybox")
    need("no guest kernel: run scripts/setup test", have_kernel())


def test_guest_runs_commands(tmp_path: Path) -> None:
    """A guest reports output, error output and exit status, and sees the host's programs."""
    with Guest(tmp_path / "g") as guest:
        result = guest.try_run("echo out; echo err >&2; exit 7")
        assert (result.status, result.stdout, result.stderr) == (7, "out\n", "err\n")
        assert "iperf 3" in guest.run("iperf3 --version")
        assert guest.try_run("sleep 30", timeout=1).status != 0
        assert guest.run("printf '%s' \"it's\"; seq 20000 | wc -c").startswith("it's")


def test_two_guests_on_a_link(tmp_path: Path) -> None:
    """Two guests joined by a Unix socket ping each other."""
    link = tmp_path / "link.sock"
    with (
        Guest(tmp_path / "a", [unix_link(link, "52:54:00:00:00:01", server=True)]) as a,
        Guest(tmp_path / "b", [unix_link(link, "52:54:00:00:00:02", server=False)]) as b,
    ):
        a.address("10.0.0.1/24")
        b.address("10.0.0.2/24")
        assert " 0% packet loss" in a.run("ping -c 3 -i 0.2 -W 2 10.0.0.2")
