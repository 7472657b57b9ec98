"""Two hosts in network namespaces, a veth pair between them, and what carries guests' frames over it.

```text
 guest a ─eth0─ tap ── Tidegate ── UDP ───────────────┐
 guest a ─eth0─ tap ── pump ── tap ─ bridge ─ vxlan ──┤
 guest a ─eth0─ veth ─────────────── bridge ─ vxlan ──┴─ eth0 ═ eth0 ── the same, reversed ── guest b
     host 1: its own CPU                                       host 2: its own CPU
```

A frame of a tap's guest passes a program, as a VM's frames do: Tidegate, or one that only copies (`pump`). A
veth pair spares the kernel that. Each contender has guests of its own. All programs of a host, its guests'
too, run on its CPU. What is done for a frame in the kernel runs where the frame was sent.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.machine import build, process_cpu_s
from harness.model import Context
from lab.host import Host, tap_vnic
from lab.namespaces import Stack
from lab.process import Process, wait_for
from lab.underlay import ADDRESSES, Underlay, uplink

FRAMES = Path(__file__).with_name("frames.py")
TAPS = "kernel vxlan, taps"
VETHS = "kernel vxlan, veths"
KINDS = {"vxlan": "tidegate", "packet": "tidegate, packet", "xdp": "tidegate, xdp"}
"""Kinds of uplink, and the name of each in the tables."""
PEERS = {"vxlan": "far", "packet": "lan", "xdp": "lan"}
"""The name of the peer in an uplink of each kind."""
MTU = 1450
"""Of a guest: what fits into 1500 bytes of the network."""
VNI = 42
PORTS = {TAPS: 8472, VETHS: 8473}
"""UDP ports of the kernel's vxlan: 4789 is Tidegate's."""


@dataclass(frozen=True)
class Guest:
    """A network namespace on one of the hosts."""

    stack: Stack
    address: str
    mac: str
    cpu: int

    def pinned(self, *words: str) -> tuple[str, ...]:
        """A command on the host's CPU."""
        return ("taskset", "-c", str(self.cpu), *words)

    def spawn(self, *words: str) -> Process:
        """Starts a program on the host's CPU."""
        return self.stack.spawn("env", *self.pinned(*words))

    @property
    def pid(self) -> int:
        """A process in the namespace."""
        return int(self.stack.path.parts[2])


class Pair:
    """Guests `a` and `b` that one contender connects."""

    def __init__(
        self,
        name: str,
        a: Guest,
        b: Guest,
        processes: Sequence[Process] = (),
        *,
        mtu: int = MTU,
    ) -> None:
        self.name, self.a, self.b, self.processes, self.mtu = name, a, b, processes, mtu

    def settle(self) -> None:
        """Gives addresses, and each guest the other's MAC: no ARP in a measurement."""
        for guest, other in ((self.a, self.b), (self.b, self.a)):
            guest.stack.address("eth0", f"{guest.address}/24")
            guest.stack.run(f"ip link set eth0 mtu {self.mtu}")
            entry = f"{other.address} lladdr {other.mac}"
            guest.stack.run(f"ip neigh replace {entry} dev eth0 nud permanent")
        answers = f"ping -c 1 -W 1 {self.b.address}"
        wait_for(
            f"an echo over {self.name}",
            lambda: self.a.stack.try_run(answers).returncode == 0,
        )

    def send(self, seconds: float, length: int, flows: int) -> Process:
        """Starts frames from a to b; see `frames.py`."""
        words = (
            str(self.b.pid),
            str(seconds),
            self.b.mac,
            self.a.mac,
            str(length),
            str(flows),
        )
        sender = self.a.spawn(sys.executable, "-E", "-S", str(FRAMES), *words)
        sender.wait_for("the sender of frames", lambda: "ready" in sender.output())
        return sender


class Network:
    """The hosts, with nothing that carries frames yet."""

    def __init__(self, context: Context, name: str, cpus: tuple[int, int]) -> None:
        """`cpus`: that of host 1 and that of host 2."""
        self.folder, self.cleanup = context.folder / name, context.cleanup
        self.binary, self.cpus = context.tidegate, cpus
        self.underlay = Underlay(self.folder / "underlay")
        self.cleanup.callback(self.underlay.stop)
        for stack in self.stacks:
            quiet(stack)

    def guest(self, pair: str, host: int, number: int = 1) -> Guest:
        """A new guest of host 1 or 2; `number` tells those of one host apart."""
        stack = self.cleanup.enter_context(Stack(self.folder / f"{pair}-{host}-{number}"))
        quiet(stack)
        at = 10 * host + number
        return Guest(stack, f"10.9.0.{at}", f"52:54:00:09:00:{at:02x}", self.cpus[host - 1])

    def host(self, number: int, folder: Path, *options: str) -> Host:
        """A switch and an agent on host 1 or 2, its worker on the host's CPU."""
        cpu = str(self.cpus[number - 1])
        path = self.stacks[number - 1].path
        host = Host(
            folder,
            switch_options=("--cpus", cpu, *options),
            agent_wrapper=("nsenter", f"--net={path}"),
            binary=self.binary,
        )
        self.cleanup.callback(host.stop)
        return host

    def prepare(self, kind: str) -> None:
        """Sets the devices as AF_XDP asks for. It slows others down, so it needs a network of its own."""
        if kind == "xdp":
            for stack in self.stacks:
                stack.run("ip link set eth0 promisc on && ethtool -K eth0 rxvlan off")

    def tidegate(self, kind: str) -> Pair:
        """Guests on taps of two switches, whose uplinks are of this kind."""
        self.prepare(kind)
        guests = (self.guest(kind, 1), self.guest(kind, 2))
        hosts = [self.host(number, self.folder / f"{kind}{number}") for number in (1, 2)]
        for number, (host, guest, name) in enumerate(zip(hosts, guests, "ab", strict=True), 1):
            vnic = tap_vnic(name, guest.stack.path, guest.mac, f"mtu = {MTU}", segment=VNI)
            host.apply(uplink_of(kind, number) + vnic)
            host.wait_up(name)
        pair = Pair(KINDS[kind], *guests, [host.switch for host in hosts])
        pair.settle()
        return pair

    def cable(self) -> Pair:
        """Guests on the two ends of a veth pair, with nothing between."""
        a, b = self.guest("c", 1), self.guest("c", 2)
        end = f"peer name eth0 netns {b.pid} address {b.mac}"
        a.stack.run(f"ip link add eth0 address {a.mac} type veth {end}")
        pair = Pair("guests alone", a, b)
        pair.settle()
        return pair

    def kernel(self, name: str) -> Pair:
        """Guests at a bridge of each host, with a vxlan interface: by veth pairs or by taps."""
        short = "t" if name == TAPS else "v"
        guests = (self.guest(f"k{short}", 1), self.guest(f"k{short}", 2))
        pumps = []
        for number, guest in enumerate(guests):
            self.bridge(number, short, PORTS[name])
            if name == TAPS:
                stack = self.stacks[number]
                pumps.append(self.pump(guest, stack, short))
                stack.run(f"ip link set to-{short} mtu {MTU} master br{short} up")
            else:
                self.veth(number, short, guest)
        pair = Pair(name, *guests, pumps)
        pair.settle()
        return pair

    @property
    def stacks(self) -> tuple[Stack, Stack]:
        """Both hosts."""
        return self.underlay.one, self.underlay.two

    def bridge(self, number: int, short: str, port: int = PORTS[VETHS]) -> None:
        """A bridge with a vxlan interface on host 0 or 1."""
        local, far = ADDRESSES[4][number], ADDRESSES[4][1 - number]
        vxlan = f"vxlan id {VNI} dstport {port} local {local} remote {far} dev eth0"
        self.stacks[number].run(
            f"ip link add vx{short} mtu {MTU} type {vxlan} && ip link add br{short} type bridge"
            f" && ip link set vx{short} master br{short} up && ip link set br{short} up"
        )

    def veth(self, number: int, short: str, guest: Guest) -> None:
        """A veth pair from such a bridge to a guest."""
        end = f"to-{short}{guest.mac[-2:]}"
        self.stacks[number].run(
            f"ip link add {end} type veth peer name eth0 netns {guest.pid} address {guest.mac}"
            f" && ip link set {end} mtu {MTU} master br{short} up"
        )

    def pump(self, guest: Guest, host: Stack, short: str) -> Process:
        """A tap in the guest and one in the host, and a program that copies between them."""
        words = (str(guest.stack.path), "eth0", str(host.path), f"to-{short}")
        process = guest.spawn(str(build("pump")), *words)
        process.wait_for("the pump", lambda: "ready" in process.output())
        guest.stack.run(f"ip link set eth0 address {guest.mac}")
        return process


def uplink_of(kind: str, number: int, *lines: str) -> str:
    """The uplink of host 1 or 2 to the other one."""
    if kind == "vxlan":
        return uplink(number, *lines).replace("10gbit", "100gbit")
    more = "".join(f"{line}\n" for line in lines)
    return (
        f'[uplink.net0]\nkind = "{kind}"\ndevice = "eth0"\nrate = "100gbit"\n{more}\n'
        f"[uplink.net0.peer.lan]\nsegments = [{VNI}]\n\n"
    )


def quiet(stack: Stack) -> None:
    """No frames of its own: no router solicitations, no multicast reports."""
    stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")


def busy_s(cpus: Sequence[int]) -> float:
    """Time for which these CPUs were busy since boot, interrupts among it (s)."""
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _, _, irq, softirq = (int(word) for word in words[:7])
            busy += user + nice + system + irq + softirq
    return busy / os.sysconf("SC_CLK_TCK")


def kernel_threads(cpus: Sequence[int]) -> list[int]:
    """Those that handle frames where no process does."""
    wanted = {f"ksoftirqd/{cpu}" for cpu in cpus}
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (path / "comm").exists() and (path / "comm").read_text().strip() in wanted:
            found.append(int(path.name))
    return found


def processes_s(pids: Sequence[int]) -> float:
    """CPU time of processes (s)."""
    return sum(process_cpu_s(pid) for pid in pids if Path(f"/proc/{pid}").exists())
