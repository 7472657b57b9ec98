"""A real agent with three pairs, the real controller, real Open vSwitch; the far host is spoken for here.

```text
 a, m, z ─ taps ─ h1: switch, agent ═eth0═ s1 ══ s2 ═eth0═ h2: c, by this process
                            └────── mgmt ───── controller ──────┘
```
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .agents_network import LISTEN, SEGMENT, network, start
from .fabric import Fabric, address, line
from .host import Host, tap_vnic
from .namespaces import Stack
from .process import Process, wait_for
from .two_hosts import KEYS, write_key

API = 'plain = true\nlease = "2s"'
HOST = """
[controller]
url = ["http://{listen}"]
host = "h1"
token-file = "{folder}/token"
uplinks = ["up"]

[uplink.up]
local = "{local}"
rate = "1gbit"

[uplink.up.peer.far]
address = "{far}"

[segment.{segment}]
key-file = "{folder}/key"

[remote.c]
mac = "52:54:00:09:00:09"
segment = {segment}
peer = "far"
"""


class ThreePairs:
    """h1 with its agent, and h2 as this process announces it."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        """No vNIC is there yet."""
        self.folder = folder
        self.version = 0
        """Of the View that h2 has read last."""
        self.fabric = cleanup.enter_context(Fabric(folder / "net", line(2)))
        self._manage()
        write_key(folder / "token", "h1")
        write_key(folder / "key", KEYS[0])
        self.controller = self.start_controller()
        self.fabric.connect("tcp:127.0.0.1:6653")
        self.stacks = {name: cleanup.enter_context(Stack(folder / name)) for name in "amz"}
        enter = ("nsenter", f"--net={self.fabric.hosts['h1'].path}")
        self.host = cleanup.enter_context(Host(folder / "h1", agent_wrapper=enter))

    def _manage(self) -> None:
        """A way of the agent to the controller, apart from the switches."""
        stack = self.fabric.hosts["h1"]
        self.fabric.net.run(f"ip link add m1 type veth peer name mgmt netns {stack.path.parts[2]}")
        self.fabric.net.run("ip addr add 198.51.100.254/24 dev m1 && ip link set m1 up")
        stack.run("ip addr add 198.51.100.1/24 dev mgmt && ip link set mgmt up")

    def start_controller(self) -> Process:
        """The program, in the network's namespace."""
        text = network(self.fabric, self.folder, API, lambda _: "52:54:00:09:00:00/40")
        return start(self.fabric, self.folder / "network.toml", text, f"http://{LISTEN}")

    def apply(self, *names: str, rate: str = "400kbit") -> None:
        """Put contracts of these vNICs in force, each with a deadline towards `c`."""
        terms = {"listen": LISTEN, "folder": self.folder, "segment": SEGMENT}
        text = HOST.format(local=address(1), far=address(2), **terms)
        for name in names:
            promise = (f'tx = {{ max = "{rate}", burst = "2kB" }}', 'deadline = "100ms"', 'to = ["c"]')
            text += tap_vnic(name, self.stacks[name].path, mac(name), "mtu = 1418", *promise, segment=SEGMENT)
        self.announce()
        self.host.apply(text)

    def announce(self) -> None:
        """Have h2 registered, with `c`, where every sender is welcome."""
        own = {"name": "c", "mac": "52:54:00:09:00:09", "segment": SEGMENT, "addresses": [], "to": []}
        uplink = {"name": "up", "address": address(2), "port": 4789, "arrival_budget": 500_000}
        arrivals = [{"remote": name, "refused": None} for name in "amz"]
        body = {"run": "h2", "uplinks": [uplink], "vnics": [own], "arrivals": arrivals, "view": self.version}
        status, view = self.ask("PUT", "/v1/hosts/h2", "h2", body)
        if status == 200:
            self.version = view["version"]

    def ask(self, method: str, path: str, token: str, body: object = None) -> tuple[int, Any]:
        """A request to the controller: status and answer; 0 without one."""
        request = urllib.request.Request(
            f"http://{LISTEN}{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )

        def send() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(request, timeout=40) as answer:
                    data = answer.read()
                    return answer.status, json.loads(data) if data else None
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError as error:
                return 0, str(error)

        return self.fabric.net.call(send)

    def until(self, what: str, ready: Callable[[], object]) -> None:
        """Wait, and keep h2 registered meanwhile."""

        def look() -> object:
            self.announce()
            return ready()

        wait_for(what, look, timeout=60)

    def ports(self, *names: str) -> dict[str, int]:
        """The source ports of the pairs whose paths are promised."""
        found = {}
        for name in names:
            for path in self.host.show(name).document.get("paths", []):
                if path["promised"]:
                    found[name] = int(path["port"])
        return found

    def are_promised(self, *names: str) -> bool:
        """Whether each of these vNICs has its path."""
        return set(self.ports(*names)) == set(names)

    def path_carries(self, name: str, port: int) -> bool:
        """Whether the first switch sees frames of a vNIC to `c` as those of the path with this port."""

        def frames() -> int:
            flows = self.fabric.ofctl("dump-flows", "s1").splitlines()
            counts = [re.search(r"n_packets=(\d+)", flow) for flow in flows if f"tp_src={port}" in flow]
            return sum(int(count[1]) for count in counts if count)

        stack, before = self.stacks[name], frames()
        stack.run("ip addr replace 10.9.0.1/24 dev eth0 && ip link set eth0 up")
        stack.run("ip neigh replace 10.9.0.9 lladdr 52:54:00:09:00:09 dev eth0 nud permanent")
        stack.try_run("ping -q -c 20 -i 0.05 -W 1 10.9.0.9")
        wait_for("its frames", lambda: self.host.show(name).tx_frames > 0)
        return frames() > before

    def granted(self) -> dict[str, int]:
        """The source ports of the paths that the controller has, by vNIC."""
        status, found = self.ask("GET", "/v1/paths", "operator")
        assert status == 200, found
        paths = [path["request"] for path in found["paths"]]
        return {path["vnic"]: path["key"]["source_port"] for path in paths}


def mac(name: str) -> str:
    """Of a vNIC of h1."""
    return f"52:54:00:09:00:{'amz'.index(name) + 1:02x}"
