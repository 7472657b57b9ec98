"""Two switches on a network by rules, with vNICs on taps that make promises between hosts, under one key.

```text
 a ─ tap ─ switch 1 ─ eth0 ─ network by rules ─ eth0 ─ switch 2 ─ tap ─ b
                                  └─ records
```
"""

import json
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .host import Host, tap_vnic
from .namespaces import Stack
from .process import wait_for
from .underlay import Underlay, Via, uplink

SEGMENT = 42
MTU = 1418
"""What fits beside a stamp."""
KEYS = ("00112233445566778899aabbccddeef0", "ffeeddccbbaa99887766554433221101")

Terms = Mapping[str, Sequence[str]]
"""Lines of contracts, by vNIC."""


def write_key(path: Path, key: str) -> Path:
    """Write a key for its owner only; its file."""
    path.touch(0o600)
    path.write_text(key + "\n")
    return path


class TwoHosts:
    """Two hosts, and their vNICs in namespaces by name."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[Iterable[str]],
        cleanup: ExitStack,
        *,
        via: Via = Via.RULES,
        network: Iterable[str] = (),
        options: Sequence[Mapping[str, Any]] = ({}, {}),
    ) -> None:
        """`names` are the vNICs of each host; `network` options of the network by rules.

        `options` are further ones of each `Host`.
        """
        self.folder = folder
        self.underlay = cleanup.enter_context(Underlay(folder / "net", via=via, options=network))
        self.hosts: list[Host] = []
        for number, of_host in enumerate(options, 1):
            host = self.underlay.host(number, folder / f"h{number}", **of_host)
            self.hosts.append(cleanup.enter_context(host))
        self.names = [list(of_host) for of_host in names]
        self.all = [name for of_host in self.names for name in of_host]
        self.stacks = {name: cleanup.enter_context(Stack(folder / name)) for name in self.all}
        for stack in self.stacks.values():
            stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        self.keys = [write_key(folder / f"key-{number}", key) for number, key in enumerate(KEYS, 1)]

    def address(self, name: str) -> str:
        """The IPv4 address of a vNIC."""
        return f"10.9.0.{self.all.index(name) + 1}"

    def mac(self, name: str) -> str:
        """The MAC of a vNIC."""
        return f"52:54:00:09:00:{self.all.index(name) + 1:02x}"

    def contracts(self, number: int, terms: Terms, lines: Iterable[str]) -> str:
        """The contracts of host `number`, without keys.

        A vNIC of the other host whose terms have a deadline is a remote with that deadline.
        """
        text = uplink(number, *lines)
        for name in self.names[number - 1]:
            path, own = self.stacks[name].path, terms.get(name, ())
            text += tap_vnic(name, path, self.mac(name), f"mtu = {MTU}", *own, segment=SEGMENT)
        for name in self.names[2 - number]:
            promise = [line for line in terms.get(name, ()) if not line.startswith("rx")]
            kept = "\n".join(promise) if any("deadline" in line for line in promise) else ""
            text += (
                f'[remote.{name}]\nmac = "{self.mac(name)}"\nsegment = {SEGMENT}\npeer = "far"\n{kept}\n\n'
            )
        return text

    def apply(self, terms: Terms, lines: Iterable[str] = ()) -> None:
        """Put contracts in force under the first key: `terms` of vNICs, `lines` of both uplinks."""
        lines = list(lines)
        for number, host in enumerate(self.hosts, 1):
            host.apply(self.contracts(number, terms, lines) + self.key_table(self.keys[0]))

    def key_table(self, current: Path) -> str:
        """The key of the segment."""
        return f'[segment.{SEGMENT}]\nkey-file = "{current}"\n'

    def settle(self) -> None:
        """Addresses, and all MACs everywhere: no ARP in a measurement. Then the two first vNICs meet."""
        for name, stack in self.stacks.items():
            stack.address("eth0", f"{self.address(name)}/24")
            for other in self.all:
                if other != name:
                    entry = f"{self.address(other)} lladdr {self.mac(other)}"
                    stack.run(f"ip neigh replace {entry} dev eth0 nud permanent")
        first, far = self.names[0][0], self.names[1][0]
        echo = f"ping -c 1 -W 1 {self.address(far)}"
        wait_for("an echo", lambda: self.stacks[first].try_run(echo).returncode == 0, 30)

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

    def pair(self, number: int) -> dict[str, Any]:
        """The counters of host `number` for its only pair of vNICs."""
        (only,) = self.status(number)["pairs"]
        return dict(only)
