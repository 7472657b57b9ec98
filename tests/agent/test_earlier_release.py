"""State on disk of the release before is taken over by this one.

    recorded/state-0.1.0/*.json ─▶ a state folder ─▶ this agent: contracts in force, foreign objects restored

The nightly test needs the earlier release's program, TIDEGATE_EARLIER_BIN=PROGRAM (`make nightly` builds it):
that program's agent and switch write the state, and this release's agent takes over while the earlier switch
runs on. `test_earlier_release.py --record` writes the recorded state again, with that program.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import BINARY, Host, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need
from lab.process import wait_for

EARLIER = os.environ.get("TIDEGATE_EARLIER_BIN")
RECORDED = Path(__file__).parent / "recorded/state-0.1.0"
FOLDER = "@FOLDER@"
"""Stands for the folder of the sockets in a recorded file."""
INDEX = 4217
"""The interface index of the netdev: foreign objects are restored on this device only."""
FOREIGN = "rate 10Mbit burst 10Kb lat 50ms"


def contracts(folder: Path) -> str:
    """Contracts of each kind that leaves something on disk."""
    return (
        vhost_user_vnic("a", folder / "a.sock", "52:54:00:00:00:01", 'tx = { max = "100mbit" }')
        + vhost_user_vnic("b", folder / "b.sock", "52:54:00:00:00:02", "weight = 3")
        + '[vnic.c]\nattach = { tap = "tg-c" }\nmac = "52:54:00:00:00:03"\nsegment = 1\n'
        + '[vnic.web]\nattach = { netdev = "vm0" }\nmac = "52:54:00:00:00:04"\nsegment = 0\n'
        + 'rx = { max = "50mbit" }\n'
    )


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A namespace with a netdev that has a foreign root qdisc."""
    need("network namespaces are needed", can_make_namespaces())
    stack = Stack(tmp_path / "stack")
    try:
        stack.run(f"ip link add vm0 index {INDEX} type veth peer name vm1 && ip link set vm0 up")
        stack.run("tc qdisc add dev vm0 root handle 1: tbf rate 10mbit burst 10kb latency 50ms")
        yield stack
    finally:
        stack.stop()


def host(folder: Path, stack: Stack, binary: Path) -> Host:
    """A switch and an agent in that namespace."""
    enter = ("nsenter", f"--net={stack.path}")
    return Host(folder, agent_wrapper=enter, switch_wrapper=enter, binary=binary)


def qdisc(stack: Stack) -> str:
    """The root qdisc of the netdev."""
    return stack.run("tc qdisc show dev vm0 root").strip()


def check_in_force(running: Host, stack: Stack) -> None:
    """Every contract is in force, with its terms."""
    for name in ("a", "b", "c", "web"):
        wait_for(f"{name} in force", lambda name=name: bool(running.show(name).in_force))  # type: ignore[misc]
    assert running.show("a").in_force["limits"]["tx_bps"] == 100_000_000
    assert running.show("b").in_force["weight"] == 3
    assert "htb 7464:" in qdisc(stack)
    problems = json.loads(running.get("/v1/host"))["problems"]
    assert problems == []


def check_restored(running: Host, stack: Stack) -> None:
    """The foreign qdisc comes back when its contract goes, by the record of the release before."""
    running.cli("vnic", "rm", "web")
    assert FOREIGN in qdisc(stack)
    running.cli("vnic", "rm", "a")
    assert not (running.folder / "a.sock").exists()


def test_recorded_state_is_taken_over(tmp_path: Path, stack: Stack) -> None:
    """The state that the release before wrote, and nothing else: switch and sockets are new."""
    state = tmp_path / "h/state"
    state.mkdir(parents=True)
    for file in RECORDED.glob("*.json"):
        document = json.loads(file.read_text().replace(FOLDER, str(tmp_path / "h")))
        # The checksum covers the paths: files of version 1 had none.
        (state / file.name).write_text(json.dumps({"version": 1, "value": document["value"]}))
    with host(tmp_path / "h", stack, BINARY) as running:
        check_in_force(running, stack)
        check_restored(running, stack)


@pytest.mark.nightly
def test_a_running_release_is_taken_over(tmp_path: Path, stack: Stack) -> None:
    """The earlier agent is killed and this one takes over its switch, which this release's then replaces."""
    assert EARLIER, "TIDEGATE_EARLIER_BIN names no program; `make nightly` builds it and runs this test"
    with host(tmp_path / "h", stack, Path(EARLIER)) as running:
        running.cli("apply", "--adopt", "-f", running.file(contracts(running.folder)))
        sockets = {name: (running.folder / f"{name}.sock").stat().st_ino for name in ("a", "b")}
        running.kill_agent()
        running.binary = BINARY
        running.start_agent()
        check_in_force(running, stack)
        running.replace_switch()
        check_in_force(running, stack)
        for name, inode in sockets.items():
            assert (running.folder / f"{name}.sock").stat().st_ino == inode, "its socket was made anew"
        check_restored(running, stack)


def record() -> None:
    """Write the recorded state with the earlier program."""
    assert EARLIER is not None, "TIDEGATE_EARLIER_BIN names the earlier program"
    folder = Path("/tmp/tidegate-record")
    shutil.rmtree(folder, ignore_errors=True)
    stack = Stack(folder / "stack")
    try:
        stack.run(f"ip link add vm0 index {INDEX} type veth peer name vm1 && ip link set vm0 up")
        stack.run("tc qdisc add dev vm0 root handle 1: tbf rate 10mbit burst 10kb latency 50ms")
        with host(folder / "h", stack, Path(EARLIER)) as running:
            running.cli("apply", "--adopt", "-f", running.file(contracts(running.folder)))
            running.kill_agent()
        RECORDED.mkdir(parents=True, exist_ok=True)
        for file in (folder / "h/state").glob("*.json"):
            (RECORDED / file.name).write_text(file.read_text().replace(str(folder / "h"), FOLDER))
    finally:
        stack.stop()


if __name__ == "__main__" and sys.argv[1:] == ["--record"]:
    record()
