"""The connection of the namespaces: Tidegate or the kernel's bridge. Each gives every namespace an `eth0`.

A `Fabric` has namespaces by name, with addresses 10.9.0.1, 10.9.0.2, ... in the order given.
"""

import array
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.model import Json
from lab.host import BINARY, Host, tap_vnic
from lab.namespaces import Stack
from lab.process import Process

ECHO_PORT = 7
ACTOR = Path(__file__).with_name("actor.py")


class Fabric:
    """Namespaces, not yet connected."""

    def __init__(self, folder: Path, names: Sequence[str], cleanup: ExitStack) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.stacks = {name: cleanup.enter_context(Stack(folder / name)) for name in names}
        for stack in self.stacks.values():
            # No frames of its own: no router solicitations, no multicast reports.
            stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        self._files = 0

    def address(self, name: str) -> str:
        """The IPv4 address of a namespace."""
        return f"10.9.0.{list(self.stacks).index(name) + 1}"

    def mac(self, name: str) -> str:
        """The MAC of a namespace."""
        return f"52:54:00:09:00:{list(self.stacks).index(name) + 1:02x}"

    def settle(self) -> None:
        """Gives every `eth0` its address, and every namespace all MACs: no ARP in a measurement."""
        for name, stack in self.stacks.items():
            stack.address("eth0", f"{self.address(name)}/24")
        for name, stack in self.stacks.items():
            for other in self.stacks:
                if other != name:
                    entry = f"{self.address(other)} lladdr {self.mac(other)}"
                    stack.run(f"ip neigh replace {entry} dev eth0 nud permanent")

    def act(self, name: str, *arguments: str, cpus: str = "") -> Process:
        """Starts an actor in a namespace, on `cpus` alone where given, and waits until it is ready."""
        pin = ("taskset", "-c", cpus) if cpus else ()
        process = self.stacks[name].spawn("env", *pin, sys.executable, "-E", "-S", str(ACTOR), *arguments)
        log = process.log
        process.wait_for(f"actor {arguments[0]}", lambda: "ready" in log.read_text())
        return process

    def echo(self, name: str) -> tuple[str, ...]:
        """Words of the actor that returns every datagram to its sender."""
        return ("echo", self.address(name), str(ECHO_PORT))

    def ping(self, name: str, peer: str) -> tuple[str, ...]:
        """Words of the actor that sends from `name` to the echo of `peer`, but for count, gap and file."""
        del name
        return ("ping", self.address(peer), str(ECHO_PORT))

    def file(self) -> Path:
        """A new file for the values of an actor."""
        self._files += 1
        return self.folder / f"measured-{self._files}"


def load(path: Path) -> "array.array[int]":
    """The values of an actor; the file is removed."""
    values: array.array[int] = array.array("q")
    values.frombytes(path.read_bytes())
    path.unlink()
    return values


class Bridge(Fabric):
    """The kernel's bridge in a namespace of its own, a veth pair to each namespace."""

    def __init__(self, folder: Path, names: Sequence[str], cleanup: ExitStack) -> None:
        super().__init__(folder, names, cleanup)
        self.middle = cleanup.enter_context(Stack(folder / "bridge"))
        self.middle.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        self.middle.run("ip link add br0 type bridge && ip link set br0 up")
        for name, stack in self.stacks.items():
            pid = stack.path.parent.parent.name
            self.middle.run(
                f"ip link add to-{name} type veth peer name eth0 netns {pid} address {self.mac(name)}"
                f" && ip link set to-{name} master br0 up"
            )
        self.settle()

    def qdisc(self, end: str, *commands: str) -> None:
        """Replaces the queueing at an interface: `NAME` is a namespace's own end, `to-NAME` the bridge's.

        `commands` are of tc(8), with DEV for the device.
        """
        own = end in self.stacks
        stack, device = (self.stacks[end], "eth0") if own else (self.middle, end)
        stack.try_run(f"tc qdisc del dev {device} root")
        for command in commands:
            stack.run("tc " + command.replace("DEV", device))


class TapBridge(Fabric):
    """The kernel's bridge with taps that the actors themselves hold: no stack at either end."""

    def __init__(self, folder: Path, names: Sequence[str], cleanup: ExitStack) -> None:
        super().__init__(folder, names, cleanup)
        # All in one namespace, for an actor opens its tap where the bridge is.
        first = next(iter(self.stacks.values()))
        first.run("ip link add br0 type bridge && ip link set br0 up")
        for name in names:
            first.run(f"ip tuntap add dev {name} mode tap && ip link set dev {name} master br0 up")

    def act(self, name: str, *arguments: str, cpus: str = "") -> Process:
        """As for all, but where the bridge is."""
        del name
        return super().act(next(iter(self.stacks)), *arguments, cpus=cpus)

    def echo(self, name: str) -> tuple[str, ...]:
        """See `Fabric.echo`."""
        return ("tap_echo", name, self.mac(name))

    def ping(self, name: str, peer: str) -> tuple[str, ...]:
        """See `Fabric.ping`."""
        return ("tap_ping", name, self.mac(name), self.mac(peer))


class CopyLoop(Fabric):
    """Two namespaces, a tap in each, and a program between that only copies."""

    def __init__(self, folder: Path, names: Sequence[str], cleanup: ExitStack) -> None:
        super().__init__(folder, names, cleanup)
        self.act(names[0], "pump", *(str(stack.path) for stack in self.stacks.values()))
        for name, stack in self.stacks.items():
            stack.run(f"ip link set eth0 address {self.mac(name)}")
        self.settle()


class Tidegate(Fabric):
    """A switch and an agent of its own, a tap in each namespace."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        cleanup: ExitStack,
        *,
        switch_options: Sequence[str] = (),
        binary: Path = BINARY,
    ) -> None:
        super().__init__(folder, names, cleanup)
        self.host = cleanup.enter_context(Host(folder / "host", switch_options=switch_options, binary=binary))

    def apply(self, terms: Mapping[str, Sequence[str]], more: str = "") -> None:
        """Puts contracts in force: terms by namespace, none for those not named; `more` is further TOML."""
        self.host.apply(
            "".join(
                tap_vnic(name, stack.path, self.mac(name), *terms.get(name, ()))
                for name, stack in self.stacks.items()
            )
            + more
        )

    def start(self, terms: Mapping[str, Sequence[str]]) -> None:
        """The first `apply`, and addresses on the taps it makes."""
        self.apply(terms)
        self.host.wait_up(*self.stacks)
        self.settle()

    def stats(self, name: str) -> Json:
        """Counters and histogram of a vNIC."""
        stats: Json = self.host.show(name).document["stats"]
        return stats
