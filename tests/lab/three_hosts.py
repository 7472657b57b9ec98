"""Three hosts with agents, a controller, and switches of Open vSwitch between them.

```text
 a ─ tap ─ h1 ═eth0═ s1 ══ s2 ══ s3 ═eth0═ h3 ─ tap ─ c
                            ╚═eth0═ h2 ─ tap ─ b
```

Agents reach the controller over `mgmt`, a network apart from the switches.

The files of the hosts name no other host, and no vNIC there but in `to`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tidegate_controller.main import main

from .agents_network import LISTEN, SEGMENT, network, start
from .fabric import Fabric, address, line
from .host import BINARY, Host, tap_vnic
from .namespaces import Stack
from .process import Process
from .two_hosts import KEYS, write_key

ADDRESS = LISTEN.partition(":")[0]
URL = f"http://{LISTEN}"
SECURE = f"https://{LISTEN}"
PLAIN = 'plain = true\nlease = "3s"'
TLS = """lease = "3s"
[tls]
folder = "{folder}/trust"
[keys]
store = "{folder}/trust.db"
rotate = "9s"
overlap = "3s"
"""
HOST = """
[controller]
url = ["{url}"]
host = "{host}"
{identity}
uplinks = ["up"]

[uplink.up]
local = "{local}"
rate = "1gbit"

[segment.{segment}]
{key}
"""


class ThreeHosts:
    """h1 to h3 with the vNICs a to c, whose contracts have the lines of `terms`."""

    NAMES: Mapping[str, str] = {"h1": "a", "h2": "b", "h3": "c"}
    TEMPLATE = HOST
    """Of a host's own file."""

    def __init__(
        self, folder: Path, terms: Mapping[str, Sequence[str]], cleanup: ExitStack, *, tls: bool = False
    ) -> None:
        """With `tls` hosts have certificates and keys of the controller, else tokens and a key in a file."""
        self.folder, self.tls, self.url = folder, tls, SECURE if tls else URL
        if tls:
            assert main(["init", "--folder", str(folder / "trust"), "--name", ADDRESS]) == 0
        self.fabric = cleanup.enter_context(Fabric(folder / "net", line(len(self.NAMES))))
        self._manage()
        self.controller = self.start_controller()
        self.fabric.connect("tcp:127.0.0.1:6653")
        self.stacks = {name: cleanup.enter_context(Stack(folder / name)) for name in self.NAMES.values()}
        self.hosts: dict[str, Host] = {}
        for number, (host, name) in enumerate(self.NAMES.items(), 1):
            stack = self.stacks[name]
            stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
            self._files(number, host, tap_vnic(name, stack.path, mac(number), *terms[name], segment=SEGMENT))
            enter = ("nsenter", f"--net={self.fabric.hosts[host].path}")
            self.hosts[host] = cleanup.enter_context(Host(folder / host, agent_wrapper=enter))
            stack.address("eth0", f"{ip(name)}/24")

    def _manage(self) -> None:
        """A network of its own for agents and controller."""
        net = self.fabric.net
        net.run(
            "ip link add mgmt type bridge && ip link set mgmt up && ip addr add 198.51.100.254/24 dev mgmt"
        )
        for number, stack in enumerate(self.fabric.hosts.values(), 1):
            there = stack.path.parts[2]
            net.run(f"ip link add m{number} type veth peer name mgmt netns {there}")
            net.run(f"ip link set m{number} master mgmt up")
            stack.run(f"ip addr add 198.51.100.{number}/24 dev mgmt && ip link set mgmt up")

    def _files(self, number: int, host: str, vnics: str) -> None:
        folder = self.folder / host
        (folder / "etc").mkdir(parents=True)
        token, identity = write_key(folder / "token", host), f'token-file = "{folder / "token"}"'
        key = f'key-file = "{write_key(folder / "key", KEYS[0])}"'
        if self.tls:
            identity, key = self._enrol(host, token, folder / "enrolled"), 'key = "controller"'
        terms = {"url": self.url, "host": host, "identity": identity, "key": key, "segment": SEGMENT}
        (folder / "etc/tidegate.toml").write_text(self.TEMPLATE.format(local=address(number), **terms))
        (folder / "etc/vnics.toml").write_text(vnics)

    def _enrol(self, host: str, token: Path, folder: Path) -> str:
        """Have a certificate made; the lines of `[controller]` about it."""
        reach = ("--controller", self.url, "--ca", f"{self.folder}/trust/ca.pem", "--token-file", str(token))
        words = ("controller", "enrol", "--host", host, "--folder", str(folder), *reach)
        self.fabric.hosts[host].run([str(BINARY), *words])
        both = f'certificate = "{folder}/host.pem"\nkey = "{folder}/host.pem"'
        return f'ca = "{folder}/ca.pem"\n{both}'

    def network(self) -> str:
        """The controller's configuration."""
        api = TLS.format(folder=self.folder) if self.tls else PLAIN
        return network(self.fabric, self.folder, api, mac)

    def start_controller(self) -> Process:
        """The program, in the network's namespace; it knows what its files say."""
        return start(self.fabric, self.folder / "network.toml", self.network(), self.url)

    def operator(self, *words: str) -> str:
        """All output of a command of an operator, at the controller's host."""
        file = self.folder / "operator.toml"
        if not file.exists():
            write_key(self.folder / "operator", "operator")
            file.write_text(f'controller = "{URL}"\ntoken-file = "operator"\n')
        done = self.fabric.net.try_run([str(BINARY), *words, "--operator", str(file)])
        return done.stdout + done.stderr

    def knows(self, host: str, peers: set[str], remotes: set[str]) -> bool:
        """Whether an agent has exactly these in force."""
        found = json.loads(self.hosts[host].get("/v1/host"))
        there = {peer["name"] for uplink in found.get("uplinks", []) for peer in uplink["peers"]}
        return there == peers and {remote["name"] for remote in found.get("remotes", [])} == remotes

    def shown(self, host: str) -> dict[str, Any]:
        """What an agent shows of its vNIC."""
        return self.hosts[host].show(self.NAMES[host]).document

    def reaches(self, name: str, other: str) -> bool:
        """Whether an echo comes back."""
        return self.stacks[name].try_run(f"ping -c 1 -W 1 {ip(other)}").returncode == 0

    def flows(self, name: str, other: str) -> bool:
        """Whether echoes keep coming back: a busy machine may lose a few, at a tap served late."""
        text = self.stacks[name].try_run(f"ping -q -i 0.02 -c 50 -W 5 {ip(other)}").stdout
        received = re.search(r"(\d+) received", text)
        return received is not None and int(received[1]) >= 40


def mac(number: int) -> str:
    """Of the vNIC of host `number`."""
    return f"52:54:00:09:00:{number:02x}"


def ip(name: str) -> str:
    """The address of a vNIC."""
    return f"10.9.0.{ord(name) - ord('a') + 1}"


@contextmanager
def three_hosts(
    folder: Path, terms: Mapping[str, Sequence[str]], *, tls: bool = False
) -> Iterator[ThreeHosts]:
    """All of it, running."""
    with ExitStack() as cleanup:
        yield ThreeHosts(folder, terms, cleanup, tls=tls)
