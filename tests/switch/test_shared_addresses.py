"""keepalived (VRRP) and ucarp (CARP) on two taps: what they share goes from one vNIC to the other alone."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process, wait_for

IP = {"fw1": "10.9.0.1", "fw2": "10.9.0.2", "client": "10.9.0.9"}
MAC = {name: f"52:54:00:00:09:0{number}" for number, name in enumerate(IP, 1)}
VRRP = {"10.9.0.10", "fd09::10"}
CARP = {"10.9.0.10", "00:00:5e:00:00:33"}
"""ucarp advertises from the virtual MAC; the address stays at the interface's own."""


def configuration(priority: int) -> str:
    """A router's, which takes over after 0.6 s."""
    return f"""
global_defs {{
    vrrp_version 3
}}
vrrp_instance one {{
    state BACKUP
    interface eth0
    virtual_router_id 51
    priority {priority}
    advert_int 0.2
    virtual_ipaddress {{ 10.9.0.10/24 }}
    virtual_ipaddress_excluded {{ fd09::10/64 }}
}}
"""


def keepalived(folder: Path, name: str, *, first: bool) -> list[str]:
    """Its command."""
    path = folder / f"{name}.conf"
    path.write_text(configuration(150 if first else 100))
    own = ["--pid", f"{folder}/{name}.pid", "--vrrp_pid", f"{folder}/{name}-vrrp.pid"]
    return ["keepalived", "--dont-fork", "--log-console", "--vrrp", "--use-file", str(path), *own]


def ucarp(folder: Path, name: str, *, first: bool) -> list[str]:
    """Its command. It takes over after 2.4 s."""
    scripts = {}
    for way, command in (("up", "add"), ("down", "del")):
        scripts[way] = folder / f"{name}-{way}"
        scripts[way].write_text(f"#!/bin/sh\nip addr {command} 10.9.0.10/24 dev $1 || true\n")
        scripts[way].chmod(0o700)
    words = (
        f"ucarp --interface=eth0 --srcip={IP[name]} --addr=10.9.0.10 --vhid=51 --pass=secret --deadratio=2"
    )
    ends = [f"--upscript={scripts['up']}", f"--downscript={scripts['down']}", "--neutral"]
    return [*words.split(), *ends, *(["--preempt"] if first else ["--advskew=50"])]


@contextmanager
def stopped(router: Process) -> Iterator[None]:
    """A router's processes stand still, and leave the addresses where they are."""
    children = Path(f"/proc/{router.pid}/task/{router.pid}/children").read_text().split()
    everyone = [router.pid, *map(int, children)]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in everyone:
            os.kill(pid, signal.SIGCONT)


class Scene:
    """Two routers and a client, each a network stack on a tap."""

    def __init__(
        self,
        host: Host,
        folder: Path,
        stacks: dict[str, Stack],
        program: Callable[..., list[str]],
        shared: set[str],
    ) -> None:
        """`program` is the command of a router, which has `shared`."""
        self.host, self.stacks, self.shared = host, stacks, shared
        names = ", ".join(f'"{address}"' for address in sorted(shared))
        contracts = tap_vnic("client", stacks["client"].path, MAC["client"])
        for name in ("fw1", "fw2"):
            allowed = f'allowed = {{ prefixes = ["{IP[name]}/32", "fd09::/64"], shared = [{names}] }}'
            contracts += tap_vnic(name, stacks[name].path, MAC[name], allowed)
        host.apply(contracts)
        for name, stack in stacks.items():
            stack.address("eth0", f"{IP[name]}/24")
        self.routers: dict[str, Process] = {}
        # The second one finds a master.
        for name in ("fw1", "fw2"):
            self.routers[name] = stacks[name].spawn(*program(folder, name, first=name == "fw1"))
            wait_for("fw1 has the addresses", lambda: self.holders() == {"fw1"})

    def holders(self) -> set[str]:
        """The vNICs that have the shared addresses; `""` where none has one."""
        shared = self.host.show("fw1").document["shared"]
        assert {one["address"] for one in shared} == self.shared
        return {one.get("holder", "") for one in shared}

    def wait_for(self, router: str) -> None:
        """Until a router has all of them, and the client reaches it and no other."""
        wait_for(f"{router} has the addresses", lambda: self.holders() == {router})
        client = self.stacks["client"]
        # The neighbours are asked anew, and each that still has the address would answer.
        client.run("ip neigh flush dev eth0")
        before = {name: self.host.show(name).rx_frames for name in self.routers}
        assert " 0% packet loss" in client.run("ping -c 20 -i 0.02 -W 5 10.9.0.10")
        got = {name: self.host.show(name).rx_frames - before[name] for name in self.routers}
        assert got[router] >= 20, got
        assert MAC[router] in client.run("ip neigh show 10.9.0.10")


@pytest.mark.parametrize(("program", "shared"), [(keepalived, VRRP), (ucarp, CARP)])
def test_failover(host: Host, tmp_path: Path, program: Callable[..., list[str]], shared: set[str]) -> None:
    """A router that stands still, with its address, loses it to the other until it announces it again."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", program.__name__)
    with ExitStack() as ends:
        stacks = {name: ends.enter_context(Stack(tmp_path / name)) for name in IP}
        scene = Scene(host, tmp_path, stacks, program, shared)
        scene.wait_for("fw1")
        with stopped(scene.routers["fw1"]):
            scene.wait_for("fw2")
            # Its own stack still says that it has the address.
            assert "10.9.0.10" in stacks["fw1"].run("ip -4 addr")
            assert host.show("fw1").dropped("tx").get("shared", 0) > 0
        scene.wait_for("fw1")
        moves = [one["moves"] for one in host.show("fw1").document["shared"]]
        assert all(2 <= each <= 8 for each in moves), moves
