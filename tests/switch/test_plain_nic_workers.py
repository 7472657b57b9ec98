"""Frames of a NIC with two queues to vNICs of two workers: each by a socket of its worker."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.control import Control
from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.underlay import Underlay

VLAN = 42
FAR = "10.9.0.9"
IP = {"a": "10.9.0.1", "b": "10.9.0.2"}
MAC = {"a": "52:54:00:00:0a:0a", "b": "52:54:00:00:0a:0b", "far": "52:54:00:00:0a:0f"}
WORKERS = ("--workers", "2")
LOOKS = 1.2
"""Time in which the agent looks at least twice (s)."""


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    """A host with a NIC of two queues, and another one."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "ethtool")
    with Underlay(tmp_path) as made:
        made.one.run("ethtool -L eth0 rx 2 tx 2 && ip link set eth0 promisc on && ethtool -K eth0 rxvlan off")
        made.two.run("ethtool -L eth0 rx 2 tx 2")
        yield made


def uplink(kind: str) -> str:
    """The uplink of a host."""
    return (
        f'[uplink.net0]\nkind = "{kind}"\ndevice = "eth0"\nrate = "10gbit"\n\n'
        f"[uplink.net0.peer.lan]\nsegments = [{VLAN}]\n\n"
    )


class Scene:
    """The host, and the frames that its workers got by sockets of their own."""

    def __init__(self, host: Host, stacks: dict[str, Stack], far: Stack) -> None:
        self.host, self.stacks, self.far = host, stacks, far
        vnics = (tap_vnic(name, stacks[name].path, MAC[name], segment=VLAN) for name in IP)
        self.contract = uplink("xdp") + "".join(vnics)
        host.apply(self.contract)
        for name, stack in stacks.items():
            stack.address("eth0", f"{IP[name]}/24")

    def uplink(self) -> dict[str, Any]:
        """What the agent says of the uplink."""
        return dict(json.loads(self.host.get("/v1/uplinks"))[0])

    def workers(self) -> dict[str, int]:
        """The workers of the vNICs."""
        with Control(self.host.switch_socket) as control:
            return control.workers_of_vnics()

    def got(self) -> list[int]:
        """The frames that the NIC's program sent to each worker."""
        frames = [0, 0]
        for counts in self.uplink().get("sockets", []):
            frames[counts["worker"]] += counts["frames"]
        return frames

    def answers(self, name: str) -> None:
        """An echo of a vNIC comes back."""
        wait_for("an echo", lambda: self.far.try_run(f"ping -c 1 -W 1 {IP[name]}").returncode == 0)

    def echoes(self, name: str, count: int = 200, pace: str = "-i 0.002") -> list[int]:
        """Echoes from the network: all come back. The frames that each worker got for them."""
        before = self.got()
        assert " 0% packet loss" in self.far.run(f"ping -c {count} {pace} -W 5 {IP[name]}")
        time.sleep(LOOKS)
        return [now - then for now, then in zip(self.got(), before, strict=True)]

    def adds_up(self) -> bool:
        """Whether the switch received all frames that the NIC's program sent to workers, less those lost."""
        view = self.uplink()
        received = view["stats"]["received"]
        sent = sum(counts["frames"] - counts["ring_full"] - counts["no_chunk"] for counts in view["sockets"])
        return bool(sent == received["frames"] + sum(received["dropped"].values()))


@pytest.fixture
def scene(underlay: Underlay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two workers, each with a vNIC."""
    folder = tmp_path_factory.mktemp("h")
    with (
        underlay.host(1, folder / "1", switch_options=WORKERS) as host,
        Stack(folder / "a") as a,
        Stack(folder / "b") as b,
        underlay.host(2, folder / "2") as other,
        Stack(folder / "far") as far,
    ):
        other.apply(uplink("packet") + tap_vnic("far", far.path, MAC["far"], segment=VLAN))
        far.address("eth0", f"{FAR}/24")
        scene = Scene(host, {"a": a, "b": b}, far)
        assert set(scene.workers().values()) == {0, 1}, "ports are made in turn"
        yield scene


def follows(scene: Scene, name: str) -> None:
    """Frames of a vNIC come in at its worker, and at no other."""

    def is_direct() -> bool:
        here = scene.workers()[name]
        got = scene.echoes(name)
        return got[here] >= 200 and got[1 - here] < 20

    scene.answers(name)
    wait_for("the table of the NIC", is_direct, timeout=60)


@pytest.mark.abreast
def test_frames_come_in_at_the_workers_of_their_vnics(scene: Scene) -> None:
    """Each worker receives those of its own vNIC; a vNIC that moves is followed, and loses no frame."""
    for name in IP:
        follows(scene, name)
    # More than there is memory for: the uplink's worker gives the kernel what comes back.
    for name in IP:
        scene.echoes(name, 5000, "-f")
    before = scene.workers()
    target = 1 - before["b"]
    pings = scene.far.spawn("ping", "-c", "2000", "-i", "0.002", "-W", "10", IP["b"])
    with Control(scene.host.switch_socket) as control:

        def moved() -> bool:
            # The agent, whose plan directs nothing, ends directions of others.
            control.direct(vnics={"b": target})
            return control.workers_of_vnics()["b"] == target

        wait_for("the move", moved, timeout=60)
    wait_for("the end of the echoes", lambda: not pings.running, timeout=60)
    assert " 0% packet loss" in pings.output(), pings.output()
    follows(scene, "b")
    wait_for("counters of all frames", scene.adds_up)


@pytest.mark.abreast
def test_the_table_follows_after_restarts(scene: Scene) -> None:
    """Of the agent, which finds the table once it has its contract; of the switch, which gets new sockets."""
    follows(scene, "a")
    scene.host.kill_agent()
    scene.host.start_agent()
    scene.host.apply(scene.contract)
    for name in IP:
        follows(scene, name)
    scene.host.replace_switch()
    for name in IP:
        follows(scene, name)
    scene.host.check_alive()


def test_a_driver_that_runs_no_program_gives_frames_to_one_worker(
    underlay: Underlay, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Generic XDP may bring frames of a queue by two CPUs: a queue has one socket, and the agent says so."""
    underlay.one.run("ip link add gen0 type bridge && ip link set gen0 up promisc on")
    with underlay.host(1, tmp_path_factory.mktemp("h"), switch_options=WORKERS) as host:
        host.apply(uplink("xdp").replace("eth0", "gen0"))
        wait_for("the note", lambda: "generic XDP" in host.cli("uplink", "net0"))
        assert "xdpgeneric" in underlay.one.run("ip link show gen0")
        assert "xdpgeneric" not in underlay.one.run("ip link show eth0")
