"""The lab itself, without Tidegate: what the other tests stand on."""

from pathlib import Path

import pytest

from lab.guest import Guest, transfer, unix_link, vhost_user
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.testpmd import Testpmd, vhost, virtio_user


@pytest.mark.lab
@pytest.mark.abreast
def test_guest_runs_commands(tmp_path: Path) -> None:
    """A guest reports output, error output and exit status, and sees the host's programs."""
    with Guest(tmp_path / "g") as guest:
        result = guest.try_run("echo out; echo err >&2; exit 7")
        assert (result.status, result.stdout, result.stderr) == (7, "out\n", "err\n")
        assert "iperf 3" in guest.run("iperf3 --version")
        assert guest.try_run("sleep 30", timeout=1).status != 0
        assert guest.run("printf '%s' \"it's\"; seq 20000 | wc -c").startswith("it's")


@pytest.mark.lab
@pytest.mark.abreast
def test_guest_runs_commands_while_tmp_is_mounted_over(tmp_path: Path) -> None:
    """A command does not depend on a folder over which systemd, or a test, mounts something meanwhile."""
    with Guest(tmp_path / "g") as guest:
        guest.run("(while true; do mount -t tmpfs none /tmp; umount /tmp; done) >/dev/null 2>&1 &")
        for number in range(50):
            assert guest.run(f"echo {number}") == f"{number}\n"


@pytest.mark.lab
@pytest.mark.abreast
def test_two_guests_on_a_link(tmp_path: Path) -> None:
    """Two guests joined by a Unix socket ping each other."""
    link = tmp_path / "link.sock"
    with Guest(tmp_path / "a", [unix_link(link, "52:54:00:00:00:01", server=True)]) as a:
        wait_for("the link", link.exists)
        with Guest(tmp_path / "b", [unix_link(link, "52:54:00:00:00:02", server=False)]) as b:
            a.address("10.0.0.1/24")
            b.address("10.0.0.2/24")
            assert " 0% packet loss" in a.run("ping -c 3 -i 0.2 -W 2 10.0.0.2")
            transfer(a, b, "10.0.0.1")


def test_testpmd_through_a_vhost_back_end(tmp_path: Path) -> None:
    """testpmd's virtio front end reaches another one through a vhost-user back end that copies."""
    need_commands("dpdk-testpmd")
    a, b = tmp_path / "a.sock", tmp_path / "b.sock"
    with (
        Testpmd(tmp_path / "switch", [vhost(a), vhost(b)], cpu=1) as switch,
        Testpmd(tmp_path / "sink", [virtio_user(b, "52:54:00:00:00:02")], forward="rxonly") as sink,
        Testpmd(
            tmp_path / "source",
            [virtio_user(a, "52:54:00:00:00:01")],
            forward="txonly",
            peers={0: "52:54:00:00:00:02"},
        ) as source,
    ):
        switch.start()
        sink.start()
        source.start()
        wait_for("frames", lambda: sink.stats()[0].rx_packets > 1000)
        source.stop()
        assert source.stats()[0].tx_packets >= 1000


def test_two_stacks_on_a_veth(tmp_path: Path) -> None:
    """Two namespaces joined by a veth ping each other."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "a") as a, Stack(tmp_path / "b") as b:
        pid = b.path.parts[2]
        a.run(f"ip link add eth0 type veth peer name eth0 netns {pid}")
        a.address("eth0", "10.0.0.1/24")
        b.address("eth0", "10.0.0.2/24")
        assert " 0% packet loss" in a.run("ping -c 3 -i 0.2 10.0.0.2")


@pytest.mark.lab
@pytest.mark.abreast
def test_guests_on_a_vhost_user_back_end(tmp_path: Path) -> None:
    """Two guests exchange data through another program's vhost-user back end, from shared memory."""
    need_commands("dpdk-testpmd")
    a_sock, b_sock = tmp_path / "a.sock", tmp_path / "b.sock"
    with (
        Testpmd(tmp_path / "switch", [vhost(a_sock), vhost(b_sock)], cpu=1) as switch,
        Guest(tmp_path / "a", [vhost_user(a_sock, "52:54:00:00:00:01")]) as a,
        Guest(tmp_path / "b", [vhost_user(b_sock, "52:54:00:00:00:02")]) as b,
    ):
        switch.start()
        a.address("10.0.0.1/24")
        b.address("10.0.0.2/24")
        assert " 0% packet loss" in a.run("ping -c 3 -i 0.2 -W 5 10.0.0.2")
        transfer(a, b, "10.0.0.1", size=1_000_000)
