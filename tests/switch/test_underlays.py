"""Networks between two and three hosts: a bridge, a router, a link that fails, and wrong neighbours."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from lab.underlay import Underlay, Via, uplink

VNI = 42
MTU = 1450


@dataclass
class Scene:
    """Hosts 1, 2, 3 with a vNIC each: a, b, c, in one segment."""

    underlay: Underlay
    hosts: list[Host]
    stacks: list[Stack]

    def __post_init__(self) -> None:
        self.a, self.b = self.stacks[:2]


def vnic(number: int, stack: Stack) -> str:
    """The contract of vNIC a, b or c."""
    name = "abc"[number - 1]
    return tap_vnic(name, stack.path, f"52:54:00:00:09:0{name}", f"mtu = {MTU}", segment=VNI)


@contextmanager
def scene(tmp_path: Path, folder: Path, count: int, via: Via) -> Iterator[Scene]:
    """So many hosts on such a network, with a vNIC each."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("ping", "ethtool", "nstat")
    with ExitStack() as stack:
        underlay = stack.enter_context(Underlay(tmp_path, count, via))
        hosts, stacks = [], []
        for number in range(1, count + 1):
            hosts.append(stack.enter_context(underlay.host(number, folder / str(number))))
            stacks.append(stack.enter_context(Stack(folder / "abc"[number - 1])))
            hosts[-1].apply(uplink(number, hosts=count) + vnic(number, stacks[-1]))
            stacks[-1].address("eth0", f"10.9.0.{number}/24")
        yield Scene(underlay, hosts, stacks)
        for host in hosts:
            host.check_alive()


def answers(stack: Stack, number: int, *, size: int = 56) -> bool:
    """Whether vNIC `number` answers an echo of this size."""
    return stack.try_run(f"ping -c 1 -W 1 -M do -s {size} 10.9.0.{number}").returncode == 0


def broadcasts(stack: Stack) -> int:
    """Echo requests that a stack has received."""
    text = stack.run("nstat -asz IcmpMsgInType8")
    return int(float(text.split("IcmpMsgInType8")[1].split()[0]))


@pytest.mark.abreast
def test_three_hosts(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each vNIC reaches each, and a broadcast comes to each host once: hosts do not pass it on."""
    with scene(tmp_path, tmp_path_factory.mktemp("h"), 3, Via.BRIDGE) as made:
        for stack in made.stacks:
            for number in (1, 2, 3):
                wait_for("an echo", partial(answers, stack, number))
        before = [broadcasts(stack) for stack in made.stacks]
        made.a.try_run("ping -b -c 20 -i 0.01 -W 0.2 10.9.0.255")
        wait_for("the last broadcast", lambda: broadcasts(made.b) - before[1] == 20)
        time.sleep(0.2)
        counts = [broadcasts(stack) - old for stack, old in zip(made.stacks, before, strict=True)]
        assert counts == [20, 20, 20], "the first is the sender's kernel, which hears itself"


@pytest.mark.abreast
def test_a_path_shrinks(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Frames that a router or the own device has no room for are lost, shorter ones pass.

    All pass again with room for them.
    """
    with scene(tmp_path, tmp_path_factory.mktemp("h"), 2, Via.ROUTER) as made:
        a, net = made.a, made.underlay.net
        assert net is not None
        whole = MTU - 28
        wait_for("an echo", lambda: answers(a, 2, size=whole))
        net.run("ip link set eth2 mtu 1400")
        assert not answers(a, 2, size=whole)
        assert answers(a, 2, size=1200)
        net.run("ip link set eth2 mtu 1500")
        assert answers(a, 2, size=whole), "no old answer of the router is kept"
        made.underlay.one.run("ip link set eth0 mtu 1400")
        assert not answers(a, 2, size=whole)
        assert answers(a, 2, size=1200)
        made.underlay.one.run("ip link set eth0 mtu 1500")
        assert answers(a, 2, size=whole)


def test_a_link_goes_down_and_comes_back(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Little waits for the link: the kernel's queue for a neighbour. New requests have replies at once."""
    with scene(tmp_path, tmp_path_factory.mktemp("h"), 2, Via.BRIDGE) as made:
        a, net = made.a, made.underlay.net
        assert net is not None
        wait_for("an echo", lambda: answers(a, 2))
        for stack, device in ((net, "eth1"), (made.underlay.one, "eth0")):
            stack.run(f"ip link set {device} down")
            flood = a.spawn("ping", "-c", "200", "-i", "0.002", "-s", "1000", "-W", "1", "10.9.0.2")
            time.sleep(0.5)
            stack.run(f"ip link set {device} up")
            wait_for("an echo", lambda: answers(a, 2))
            flood.popen.wait(10)
            times = [float(part.split()[0]) for part in flood.output().split("time=")[1:]]
            # unres_qlen_bytes is 208 KiB, and a request takes more than 1 KiB of it.
            assert sum(ms > 100 for ms in times) <= 208, flood.output()
            assert " 0% packet loss" in a.run("ping -c 20 -i 0.01 10.9.0.2")
