"""A killed or replaced switch costs no front end its connection: the agent keeps the descriptors."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from lab.host import BINARY, Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.testpmd import Testpmd, virtio_user

MAC = {"a": "52:54:00:00:06:0a", "b": "52:54:00:00:06:0b"}
BENCH = BINARY.with_name("tidegate-bench")


@pytest.mark.parametrize("how", ["--count=10", "--packed --count=5", "--replace --count=5"])
def test_rings_go_on(how: str) -> None:
    """Under full load both ways: no ring stands still, nothing arrives twice, no buffer is lost."""
    need(f"{BENCH}: cargo build --release -p tidegate-bench", BENCH.exists())
    done = subprocess.run(
        [BENCH, "kills", "--tidegate", BINARY, "--json", *how.split()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    print(report)
    assert report["received"] > 1000
    found = {key: report[key] for key in ("stuck_rings", "reconnections", "duplicated", "buffers_leaked")}
    assert found == dict.fromkeys(found, 0), done.stderr
    if "--replace" in how:
        assert report["lost_by_it"] == 0, report["dropped"]


@pytest.mark.abreast
def test_reload(tmp_path: Path) -> None:
    """As systemd calls and hears it: it knows the new main process before the old one ends."""
    control, manager = tmp_path / "switch.sock", tmp_path / "notify.sock"
    command: list[str | Path] = [BINARY, "switch", "--socket", control]
    replace: list[str | Path] = [*command, "--replace", "--detach"]
    processes = [old := subprocess.Popen(command)]
    new = 0
    try:
        wait_for("the switch", control.exists)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(manager))
            notify.settimeout(20)
            reload = subprocess.Popen(replace, env=os.environ | {"NOTIFY_SOCKET": str(manager)})
            processes.append(reload)
            text, barriers = "", list[int]()
            while not barriers:
                message, barriers, _, _ = socket.recv_fds(notify, 256, 4)
                text += message.decode()
            match = re.fullmatch(r"MAINPID=(\d+)\nBARRIER=1", text)
            assert match, text
            new = int(match[1])
            # It waits for us.
            time.sleep(0.05)
            assert old.poll() is None
            assert reload.poll() is None
            for barrier in barriers:
                os.close(barrier)
            assert (reload.wait(20), old.wait(20)) == (0, 0)
        assert new not in (old.pid, reload.pid)
        assert Path(f"/proc/{new}/comm").read_text() == "tidegate\n"
        # One that cannot take the place says so, and the other goes on.
        wrong = subprocess.run(
            [*replace, "--user=no-such-user"], capture_output=True, text=True, timeout=20, check=False
        )
        assert wrong.returncode != 0
        assert "no-such-user" in wrong.stderr
        assert "did not take over" in wrong.stderr
        assert Path(f"/proc/{new}").exists()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        if new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(new, signal.SIGKILL)


@pytest.mark.abreast
def test_taps_stay(host: Host, tmp_path: Path) -> None:
    """Taps keep their addresses over a kill, also where another agent made them, and counters go on."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping")
    with Stack(tmp_path / "a") as a, Stack(tmp_path / "b") as b:
        host.apply(tap_vnic("a", a.path, MAC["a"]) + tap_vnic("b", b.path, MAC["b"]))
        a.address("eth0", "10.6.0.1/24")
        b.address("eth0", "10.6.0.2/24")
        a.run("ping -c 1 -W 5 10.6.0.2")
        before = host.show("a").tx_frames
        for agent_too in (False, True):
            if agent_too:
                host.kill_agent()
                host.start_agent()
            host.switch.kill()
            host.start_switch()
            wait_for("both taps", lambda: _is_up(host, "a") and _is_up(host, "b"))
            assert " 0% packet loss" in a.run("ping -c 3 -i 0.1 -W 5 10.6.0.2")
        assert host.show("a").tx_frames > before


@pytest.mark.abreast
def test_testpmd_does_not_notice(host: Host, tmp_path: Path) -> None:
    """DPDK's front ends send on over kills and upgrades, on the connections they have."""
    need_commands("dpdk-testpmd")
    host.apply(
        vhost_user_vnic("a", host.folder / "a.sock", MAC["a"])
        + vhost_user_vnic("b", host.folder / "b.sock", MAC["b"])
    )
    sockets = {name: virtio_user(host.folder / f"{name}.sock", MAC[name]) for name in "ab"}
    with (
        Testpmd(tmp_path / "b", [sockets["b"]], forward="rxonly") as sink,
        Testpmd(tmp_path / "a", [sockets["a"]], forward="txonly", peers={0: MAC["b"]}) as source,
    ):
        host.wait_up("a", "b")
        sink.start()
        source.start()
        for replace in (False, True, False):
            inodes = _sockets(host)
            if replace:
                host.replace_switch()
            else:
                host.switch.kill()
                host.start_switch()
            host.wait_up("a", "b")
            wait_for("frames", partial(_has_more, sink, sink.stats()[0].rx_packets + 1000))
            assert _sockets(host) == inodes
        assert not re.search(r"disconnect|reconnect", source.process.output(), re.IGNORECASE)


def _has_more(sink: Testpmd, than: int) -> bool:
    return sink.stats()[0].rx_packets > than


def _is_up(host: Host, name: str) -> bool:
    return host.show(name).connection == "up"


def _sockets(host: Host) -> list[int]:
    return [os.stat(host.folder / f"{name}.sock").st_ino for name in "ab"]
