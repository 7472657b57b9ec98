"""The real switch process has no right that it does not need, and serves every kind of port without."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for

MAC = {"a": "52:54:00:00:09:0a", "b": "52:54:00:00:09:0b"}


def statuses(pid: int) -> Iterator[dict[str, str]]:
    """/proc/PID/status of each thread, by key."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (line.split(":", 1) for line in (task / "status").read_text().splitlines())
        yield {key: " ".join(value.split()) for key, value in lines}


def check_confined(pid: int) -> list[str]:
    """Fail unless no thread has a right; their names."""
    names = []
    for status in statuses(pid):
        for capabilities in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[capabilities], 16) == 0, status
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), status
        names.append(status["Name"])
    return names


def ping_over_taps(host: Host, folder: Path) -> None:
    """Two kernel stacks on taps of this switch reach each other."""
    with Stack(folder / "a") as a, Stack(folder / "b") as b:
        host.apply(tap_vnic("a", a.path, MAC["a"]) + tap_vnic("b", b.path, MAC["b"]))
        a.address("eth0", "10.9.0.1/24")
        b.address("eth0", "10.9.0.2/24")
        a.run("ping -c 3 -i 0.2 -W 5 10.9.0.2")


def test_no_rights(host: Host, tmp_path: Path) -> None:
    """No thread of a switch with ports has a capability; each is under seccomp."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    ping_over_taps(host, tmp_path)
    host.apply(vhost_user_vnic("v", host.folder / "v.sock", "52:54:00:00:09:0c"))
    names = check_confined(host.switch.pid)
    assert {"worker-0", "warden", "ager", "control", "port v"} <= set(names)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_user_of_its_own(tmp_path: Path) -> None:
    """Started as root with --user, it is that user and no group's member, and taps work."""
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        pytest.skip("root of a user namespace has no other user to become")
    need("network namespaces and /dev/net/tun", can_make_namespaces())
    with Host(tmp_path / "host", switch_options=["--user", "nobody"]) as host:
        ping_over_taps(host, tmp_path)
        check_confined(host.switch.pid)
        for status in statuses(host.switch.pid):
            uids, gids = status["Uid"].split(), status["Gid"].split()
            assert set(uids) == {"65534"}
            assert len(set(gids)) == 1
            assert status["Groups"] == ""


def test_unknown_user(tmp_path: Path) -> None:
    """A user that does not exist is an error, not a switch with root's rights."""
    with pytest.raises(RuntimeError, match="cannot become user no-such-user: there is no such user"):
        Host(tmp_path, switch_options=["--user", "no-such-user"])


def test_without(tmp_path: Path) -> None:
    """--no-confinement leaves everything as it is, and says so."""
    with Host(tmp_path, switch_options=["--no-confinement"]) as host:
        assert {status["Seccomp"] for status in statuses(host.switch.pid)} == {
            next(statuses(os.getpid()))["Seccomp"]
        }
        assert "not confined (--no-confinement)" in host.switch.output()


FLOOD = """
import array, os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
os.setgid(65534)
os.setuid(65534)
null = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 200)
pairs = [socket.socketpair() for _ in range(10)]
for sender, _ in pairs:
    sender.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, null)])
print("2,000 descriptors are in flight", flush=True)
sys.stdin.read()
"""
"""As the user nobody, until its standard input ends."""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_too_many_descriptors_in_flight(tmp_path: Path) -> None:
    """Others of the switch's user let it pass none: the agent is told why, and all is well when they end."""
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        pytest.skip("root of a user namespace has no other user to become")
    need_commands("prlimit")
    contract = vhost_user_vnic("a", tmp_path / "host/a.sock", MAC["a"])
    with Process([sys.executable, "-c", FLOOD], tmp_path / "flood.log", stdin=True) as flood:
        flood.wait_for("descriptors in flight", lambda: "in flight" in flood.output())
        with Host(
            tmp_path / "host",
            switch_options=["--user", "nobody"],
            switch_wrapper=["prlimit", "--nofile=1024:1024"],
        ) as host:
            done = host.try_cli("apply", "-f", host.file(contract))
            assert done.returncode != 0
            assert "more descriptors over Unix sockets than the switch's RLIMIT_NOFILE" in done.stderr
            flood.stop()
            wait_for(
                "the switch to have the vNIC",
                lambda: host.try_cli("apply", "-f", host.file(contract)).returncode == 0,
            )
            assert host.show("a").connection == "waiting"


def test_descriptors_run_out(tmp_path: Path) -> None:
    """The port for which there are none left is refused with the reason, and the first one stays."""
    need_commands("prlimit")
    with Host(tmp_path, switch_wrapper=["prlimit", "--nofile=690:690"]) as host:
        assert re.search(r"enough for 1 ports of one queue pair.*limit.*690", host.switch.output())
        host.apply(vhost_user_vnic("a", host.folder / "a.sock", MAC["a"]))
        second = host.file(vhost_user_vnic("b", host.folder / "b.sock", MAC["b"]))
        done = host.try_cli("apply", "-f", second)
        assert done.returncode != 0
        assert "b: no file descriptors are left" in done.stderr
        assert "LimitNOFILE" in done.stderr
        assert host.names() == {"a"}
