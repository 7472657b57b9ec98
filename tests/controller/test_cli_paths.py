"""The command line asks the program for paths, on real Open vSwitch.

```text
 tidegate path, topology, decisions ─HTTP, operator's token─▶ tidegate-controller ─OpenFlow, OVSDB─ s1 ══ s2
```
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tidegate_controller

from lab.fabric import Fabric, address, line
from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import Process, wait_for

pytestmark = pytest.mark.abreast

URL = "http://127.0.0.1:6654"
PATH, TAGGED = "a1>b1", "b2>a2"
TERMS = f"""
[openflow]
listen = "127.0.0.1:6653"
[api]
listen = "127.0.0.1:6654"
operator-token = "sha256:{hashlib.sha256(b"operator").hexdigest()}"
[discovery]
interval = "200ms"
[paths]
marks = [46, 34]
hold = "300ms"
[terms]
capacity = "100Mbit"
reservable = "50Mbit"
levels = [{{ delay = "3ms", frames = 5000 }}, {{ delay = "10ms", frames = 5000 }}]
"""


class Operator:
    """The controller of two switches, and who asks it by the command line."""

    def __init__(self, fabric: Fabric, folder: Path) -> None:
        self.fabric = fabric
        self._token = folder / "token"
        self._token.touch(0o600)
        self._token.write_text("operator\n")
        (folder / "operator.toml").write_text(f'controller = "{URL}"\ntoken-file = "token"\n')
        self._file = folder / "operator.toml"
        self.process = self._start(folder)
        fabric.connect("tcp:127.0.0.1:6653")

    def _start(self, folder: Path) -> Process:
        text = [TERMS, f'[state]\nfile = "{folder}/state.sqlite"']
        for switch in self.fabric.ports:
            database = f'database = "{self.fabric.ovs.remote}"'
            text.append(f'[switches.{switch}]\ndatapath = "{self.fabric.datapath(switch):016x}"\n{database}')
        for one, other in self.fabric.links:
            text.append(f'[[links]]\nbetween = ["{one.replace(".", ":")}", "{other.replace(".", ":")}"]')
        for number, (host, edge) in enumerate(self.fabric.edges.items(), 1):
            own = f'address = "{address(number)}"\nmac = "02:00:00:00:00:{number:02x}"'
            text.append(f'[hosts.{host}]\nport = "{edge.replace(".", ":")}"\n{own}')
        file = folder / "network.toml"
        file.write_text("\n".join(text))
        source = Path(tidegate_controller.__file__).parents[1]
        words = (sys.executable, "-m", "tidegate_controller.main", "--config", str(file))
        process = self.fabric.net.spawn("env", f"PYTHONPATH={source}", *words)
        process.wait_for("the API", lambda: f"the API is served at {URL}" in process.output())
        return process

    def ask(self, *words: str) -> tuple[int, str]:
        """Exit code and all output of a command."""
        done = self.fabric.net.try_run([str(BINARY), *words, "--operator", str(self._file)])
        return done.returncode, done.stdout + done.stderr

    def links(self) -> int:
        """How many directions are up."""
        code, text = self.ask("topology", "--json")
        return sum(link["up"] for link in json.loads(text)["links"]) if code == 0 else 0

    def is_installed(self) -> bool:
        """Whether the ingress edge has a rule for the path's own UDP port."""
        return any("tp_src=50001" in flow for flow in self.fabric.dump_flows("s1"))

    def request_tagged(self) -> tuple[int, str]:
        """Asks for a path between plain NICs, from h2 to h1."""
        hosts = ("--source", "h2", "--target", "h1", "--vlan", "42")
        macs = ("--source-mac", "02:00:00:00:0B:01", "--target-mac", "02:00:00:00:0a:01")
        frames = ("--burst", "3kB", "--smallest-frame", "64B", "--largest-frame", "1518B")
        terms = ("--rate", "5mbit", "--budget", "1s")
        return self.ask("path", "request", TAGGED, *hosts, *macs, *frames, *terms)

    def request(self, rate: str) -> tuple[int, str]:
        """Asks for the path from h1 to h2."""
        hosts = ("--source", "h1", "--target", "h2", "--source-port", "50001", "--dscp", "40")
        addresses = ("--source-address", address(1), "--target-address", address(2))
        frames = ("--burst", "3kB", "--smallest-frame", "100B", "--largest-frame", "1500B")
        return self.ask(
            "path", "request", PATH, *hosts, *addresses, *frames, "--rate", rate, "--budget", "1s"
        )


@pytest.fixture(name="operator")
def _operator(tmp_path: Path) -> Iterator[Operator]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    with Fabric(tmp_path / "f", line(2)) as fabric:
        yield Operator(fabric, tmp_path)


def test_an_operator_asks_for_a_path(operator: Operator) -> None:
    """A refusal with its link and exit code, a path that is drawn, decided about, and released."""
    wait_for("all links", lambda: operator.links() == 6, timeout=60)

    def refused() -> bool:
        code, text = operator.request("90mbit")
        assert code == 3, text
        return "reservable" in text and "s1:" in text

    # Until the switches' queues are in force there is no route.
    wait_for("a refusal that names a link", refused, timeout=60)
    print(operator.request("90mbit")[1])

    def granted() -> bool:
        return operator.request("20mbit")[0] == 0

    wait_for("the path", granted, timeout=60)
    wait_for("its rules", lambda: "active" in operator.ask("path", "ls")[1], timeout=60)
    assert operator.is_installed()
    code, text = operator.ask("path", "show", PATH)
    print(text)
    assert code == 0
    assert "s1:1>s2:1" in text
    code, text = operator.ask("topology")
    print(text)
    assert code == 0
    assert "2 switches, 6 directions" in text
    assert "╭─" in text
    wait_for("the path between plain NICs", lambda: operator.request_tagged()[0] == 0, timeout=60)
    code, text = operator.ask("path", "show", TAGGED)
    print(text)
    assert "(02:00:00:00:0b:01, VLAN 42)" in text
    assert "priority 5 in the tag" in text
    key = "dl_vlan=42,dl_vlan_pcp=5,dl_src=02:00:00:00:0b:01,dl_dst=02:00:00:00:0a:01"
    wait_for("its rule", lambda: any(key in flow for flow in operator.fabric.dump_flows("s2")), timeout=60)
    code, text = operator.ask("path", "release", PATH)
    assert code == 0, text
    assert operator.ask("path", "show", PATH)[0] == 1
    code, text = operator.ask("decisions", "--path", PATH)
    print(text)
    assert code == 0
    assert "refused" in text
    assert "released" in text
    wait_for("the end of its rules", lambda: not operator.is_installed(), timeout=60)
    assert "Traceback" not in operator.process.output()
