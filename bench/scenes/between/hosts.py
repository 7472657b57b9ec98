"""Two switches on a network by rules, with vNICs on taps, and what they count of frames between them."""

import json
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lab.host import Host, tap_vnic
from lab.namespaces import Stack
from lab.process import Process, wait_for
from lab.underlay import Underlay, Via, uplink
from scenes.stacks.fabric import ACTOR

SEGMENT = 42
MTU = 1418
"""What fits beside a stamp."""
KEY = "00112233445566778899aabbccddeef0"


class Hosts:
    """Two hosts, and their vNICs in namespaces by name."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[Sequence[str]],
        cleanup: ExitStack,
        wrappers: Sequence[Sequence[str]],
    ) -> None:
        """`names` are the vNICs of each host; `wrappers` the words before each host's switch."""
        self.folder = folder
        self.underlay = cleanup.enter_context(Underlay(folder / "net", via=Via.RULES))
        self.hosts: list[Host] = []
        for number, words in enumerate(wrappers, 1):
            self.hosts.append(
                cleanup.enter_context(self.underlay.host(number, folder / f"h{number}", switch_wrapper=words))
            )
        self.names = [list(of_host) for of_host in names]
        self.stacks = {name: cleanup.enter_context(Stack(folder / name)) for name in self.all}
        for stack in self.stacks.values():
            stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        self.key = folder / "key"
        self.key.touch(0o600)
        self.key.write_text(KEY + "\n")

    @property
    def all(self) -> list[str]:
        """The vNICs of both hosts."""
        return [name for of_host in self.names for name in of_host]

    def address(self, name: str) -> str:
        """The IPv4 address of a vNIC."""
        return f"10.9.0.{self.all.index(name) + 1}"

    def mac(self, name: str) -> str:
        """The MAC of a vNIC."""
        return f"52:54:00:09:00:{self.all.index(name) + 1:02x}"

    def apply(self, terms: Mapping[str, Sequence[str]], lines: Sequence[str]) -> None:
        """Put contracts in force: `terms` of vNICs by name, `lines` of both uplinks.

        A vNIC whose terms have a deadline is a remote with that deadline to the other host.
        """
        for number, host in enumerate(self.hosts, 1):
            text = uplink(number, *lines)
            for name in self.names[number - 1]:
                path = self.stacks[name].path
                text += tap_vnic(
                    name, path, self.mac(name), f"mtu = {MTU}", *terms.get(name, ()), segment=SEGMENT
                )
            for name in self.names[2 - number]:
                promise = [line for line in terms.get(name, ()) if not line.startswith("rx")]
                kept = "\n".join(promise) if any("deadline" in line for line in promise) else ""
                text += f'[remote.{name}]\nmac = "{self.mac(name)}"\nsegment = {SEGMENT}\n'
                text += f'peer = "far"\n{kept}\n\n'
            host.apply(f'{text}[segment.{SEGMENT}]\nkey-file = "{self.key}"\n')

    def settle(self) -> None:
        """Addresses, and all MACs everywhere: no ARP in a measurement. Then all vNICs are heard of."""
        for name, stack in self.stacks.items():
            stack.address("eth0", f"{self.address(name)}/24")
            for other in self.all:
                if other != name:
                    entry = f"{self.address(other)} lladdr {self.mac(other)}"
                    stack.run(f"ip neigh replace {entry} dev eth0 nud permanent")
        first, far = self.names[0][0], self.names[1][0]
        echo = f"ping -c 1 -W 1 {self.address(far)}"
        wait_for("an echo", lambda: self.stacks[first].try_run(echo).returncode == 0, 30)

    def act(self, name: str, *words: str) -> Process:
        """Start an actor in the namespace of a vNIC, and wait until it is ready."""
        process = self.stacks[name].spawn(sys.executable, "-E", "-S", str(ACTOR), *words)
        process.wait_for(f"actor {words[0]}", lambda: "ready" in process.output())
        return process

    def status(self, number: int) -> dict[str, Any]:
        """What the switch of host `number` says of its uplink."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.hosts[number - 1].switch_socket))
            request = json.dumps("uplinks").encode()
            control.sendall(struct.pack("<I", len(request)) + request)
            answer = control.makefile("rb")
            (length,) = struct.unpack("<I", answer.read(4))
            (status,) = json.loads(answer.read(length))["uplinks"]
            return dict(status)
