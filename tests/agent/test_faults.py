"""A full disk, a damaged state, a stopped switch, a clock that is set: what was promised is kept."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for

HOURS = 3600


class SmallDisk(Host):
    """A host whose state folder is a file system of 256 KiB, in a mount namespace of its own."""

    def __init__(self, folder: Path) -> None:
        state = folder / "state"
        state.mkdir(parents=True)
        command = f"mount -t tmpfs -o size=256k,mode=700 tmpfs {state} && exec sleep infinity"
        self.holder = Process(["unshare", "--mount", "sh", "-c", command], folder / "holder.log")
        self.disk = Path(f"/proc/{self.holder.pid}/root{state}")
        mounts = Path(f"/proc/{self.holder.pid}/mounts")
        self.holder.wait_for("the small disk", lambda: f" {state} tmpfs" in mounts.read_text())
        super().__init__(folder)

    def agent_command(self) -> list[str | Path]:
        """The agent sees the small disk."""
        return ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--", *super().agent_command()]

    def fill(self) -> Path:
        """Leave no byte free."""
        filler = self.disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        return filler

    def stop(self) -> None:
        """Stop both processes, then the disk."""
        super().stop()
        self.holder.stop()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    """A host on a small disk."""
    may = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    need("mount namespaces: root, or user namespaces", may)
    with SmallDisk(tmp_path / "host") as host:
        yield host


def _refused(host: Host, *arguments: str | Path) -> str:
    done = host.try_cli(*arguments)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.abreast
def test_full_disk(small: SmallDisk) -> None:
    """Changes are refused with what to do; what is in force stays, over new agents and switches."""
    one = vhost_user_vnic("a", small.folder / "a.sock", "52:54:00:00:07:01", 'tx = { max = "20mbit" }')
    two = small.file(vhost_user_vnic("b", small.folder / "b.sock", "52:54:00:00:07:02"), "two.toml")
    small.apply(one)
    filler = small.fill()
    for change in (["apply", "-f", two], ["vnic", "set", "a", "tx.max=5mbit"], ["vnic", "rm", "a"]):
        message = _refused(small, *change)
        assert "nothing was changed" in message
        assert "No space left on device" in message
        assert f"make room there (df -h {small.state}" in message
    assert not (small.folder / "b.sock").exists()

    def is_in_force() -> bool:
        view = small.show("a")
        rate = int(view.document["limits"]["tx_bps"])
        return view.connection != "" and view.document["state"] == "in force" and rate == 20_000_000

    assert is_in_force()
    small.kill_agent()
    small.start_agent()
    assert is_in_force()
    small.switch.kill()
    small.start_switch()
    wait_for("the contract to be in force again", is_in_force)
    assert small.names() == {"a"}
    filler.unlink()
    small.cli("apply", "-f", two)
    assert small.names() == {"a", "b"}


@pytest.mark.abreast
def test_damaged_state(host: Host) -> None:
    """It is kept aside and said, where people look; the copy before it is in force."""
    socket = host.folder / "a.sock"
    for rate in (10, 20):
        host.apply(vhost_user_vnic("a", socket, "52:54:00:00:07:01", f'tx = {{ max = "{rate}mbit" }}'))
    host.kill_agent()
    contracts = host.state / "contracts.json"
    whole = contracts.read_bytes()
    damaged = whole.replace(b"20mbit", b"90mbit")
    assert damaged != whole
    contracts.write_bytes(damaged)
    host.start_agent()
    (aside,) = host.state.glob("contracts.json.damaged-*Z")
    assert aside.read_bytes() == damaged
    listed = host.cli("vnic", "ls")
    assert f"kept as {aside}; the copy saved before it is used" in listed
    assert "its checksum does not fit" in host.agent.output()
    assert host.show("a").document["limits"]["tx_bps"] == 10_000_000
    host.cli("vnic", "set", "a", "tx.max=30mbit")
    assert "Note:" not in host.cli("vnic", "ls")


@pytest.mark.abreast
def test_stopped_switch(host: Host) -> None:
    """A switch that is stopped hangs no other program, is reported, and goes on as if nothing had been."""
    host.apply(vhost_user_vnic("a", host.folder / "a.sock", "52:54:00:00:07:01"))
    os.kill(host.switch.pid, signal.SIGSTOP)
    try:
        wait_for("the reason", lambda: "no answer for 3 s" in host.cli("why", "a"))
        assert "is its process stopped (SIGSTOP)" in host.cli("why", "a")
        assert "pending" in host.cli("vnic", "ls")
        began = time.monotonic()
        more = host.file(vhost_user_vnic("b", host.folder / "b.sock", "52:54:00:00:07:02"), "more.toml")
        assert "no answer for 3 s" in _refused(host, "apply", "-f", more)
        assert time.monotonic() - began < 20
    finally:
        os.kill(host.switch.pid, signal.SIGCONT)
    wait_for("the switch to be back", lambda: host.show("a").document["state"] == "in force")
    host.cli("apply", "-f", more)
    assert host.names() == {"a", "b"}


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <sys/stat.h>
/* The wall clock, set forward or back by as many seconds as OFFSET_FILE has bytes, less 100000. */
int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, time);
    struct stat file;
    if (clock == CLOCK_REALTIME && !stat(getenv("OFFSET_FILE"), &file)) time->tv_sec += file.st_size - 100000;
    return done;
}
"""


def test_clock_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock jumps by hours and back while both run: rates hold, and no contract is lost."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("cc", "iperf3")
    source, library, offset = tmp_path / "clock.c", tmp_path / "clock.so", tmp_path / "offset"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)

    def jump(hours: float) -> None:
        with offset.open("wb") as file:
            file.truncate(100_000 + int(hours * HOURS))

    jump(0)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("OFFSET_FILE", str(offset))
    host = Host(tmp_path / "host")
    monkeypatch.delenv("LD_PRELOAD")
    with host, Stack(tmp_path / "a") as a, Stack(tmp_path / "b") as b:
        host.apply(
            tap_vnic("a", a.path, "52:54:00:00:07:0a", 'tx = { max = "50mbit" }')
            + tap_vnic("b", b.path, "52:54:00:00:07:0b")
        )
        a.address("eth0", "10.7.0.1/24")
        b.address("eth0", "10.7.0.2/24")
        b.iperf_server()
        a.spawn("iperf3", "--client", "10.7.0.2", "--time", "60")
        time.sleep(1)
        for hours in (5, -20, 0):
            jump(hours)
            host.keeps_rate("a", 50e6)
            host.cli("vnic", "set", "b", f"weight={abs(hours) + 1}")
            assert host.show("a").document["state"] == "in force"
        assert host.names() == {"a", "b"}
        # That the clock was set at all.
        jump(48)
        host.kill_agent()
        (host.state / "contracts.json").write_text("{")
        monkeypatch.setenv("LD_PRELOAD", str(library))
        host.start_agent()
        monkeypatch.delenv("LD_PRELOAD")
        (aside,) = host.state.glob("contracts.json.damaged-*Z")
        assert aside.name > time.strftime(
            "contracts.json.damaged-%Y%m%dT", time.gmtime(time.time() + 24 * HOURS)
        )
        assert host.names() == {"a", "b"}
    shutil.rmtree(tmp_path / "host")
