"""The program with its API, on real Open vSwitch: from two registrations to a path that is released.

```text
 hosts h1, h3 (here: HTTP on loopback) ─▶ tidegate-controller ─OpenFlow, OVSDB─ s1 ══ s2 ══ s3 ══ s4 ══ s1
```
"""

import hashlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tidegate_controller

from lab.fabric import Fabric, address, ring
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import Process, wait_for

pytestmark = pytest.mark.abreast
PATH = "a1>c1"
TERMS = """
[openflow]
listen = "127.0.0.1:6653"
[api]
listen = "127.0.0.1:6654"
lease = "2s"
operator-token = "{operator}"
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


@pytest.fixture(name="circle")
def _circle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path_factory.mktemp("f"), ring(4)) as running:
        yield running


def digest(token: str) -> str:
    """As in the configuration."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def configuration(fabric: Fabric) -> str:
    """The file of the network."""
    text = [TERMS.format(operator=digest("operator"))]
    for switch in fabric.ports:
        database = f'database = "{fabric.ovs.remote}"'
        text.append(f'[switches.{switch}]\ndatapath = "{fabric.datapath(switch):016x}"\n{database}')
    for one, other in fabric.links:
        text.append(f'[[links]]\nbetween = ["{one.replace(".", ":")}", "{other.replace(".", ":")}"]')
    for number, (host, edge) in enumerate(fabric.edges.items(), 1):
        own = f'address = "{address(number)}"\nmac = "02:00:00:00:00:{number:02x}"'
        may = f'token = "{digest(host)}"\nsegments = [100]\nmacs = ["02:00:0a:00:00:00/24"]'
        text.append(f'[hosts.{host}]\nport = "{edge.replace(".", ":")}"\n{own}\n{may}\nreservable = "90Mbit"')
    return "\n".join(text)


class Hosts:
    """The agents of two hosts, and an operator."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.h1 = True
        """Whether h1 renews its registration."""
        self._view = 0
        """The version of the view that h3 has."""

    def ask(self, method: str, path: str, token: str, body: object = None) -> tuple[int, Any]:
        """A request to the controller; renews what has to be renewed first."""
        if self.h1:
            self._ask("PUT", "/v1/hosts/h1", "h1", self._announcement("h1", 1, "a1"))
        arrivals = [{"remote": "a1", "refused": None}]
        words = {"arrivals": arrivals, "view": self._view}
        status, found = self._ask("PUT", "/v1/hosts/h3", "h3", {**self._announcement("h3", 3, "c1"), **words})
        self._view = found["version"] if status == 200 else 0
        return self._ask(method, path, token, body)

    def until(self, what: str, ready: Callable[[], object]) -> None:
        """Waits, and renews meanwhile."""
        wait_for(what, ready, timeout=60)

    def path(self) -> dict[str, Any]:
        """The path, or nothing."""
        status, found = self.ask("GET", f"/v1/paths/{PATH.replace('>', '%3E')}", "operator")
        return dict(found) if status == 200 else {}

    def _announcement(self, host: str, number: int, vnic: str) -> dict[str, Any]:
        mac = f"02:00:0a:00:00:{number:02x}"
        terms = {"rate": 2_000_000, "burst": 3000, "deadline": 2 * 10**9, "to": ["c1"]}
        own = {"name": vnic, "mac": mac, "segment": 100, "addresses": [], **terms}
        uplink = {"name": "up", "address": address(number), "port": 4789, "arrival_budget": 100_000}
        return {"run": host, "uplinks": [uplink], "vnics": [own], "arrivals": []}

    def _ask(self, method: str, path: str, token: str, body: object = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:6654{path}",
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
                return error.code, json.loads(error.read())
            except OSError as error:
                return 0, str(error)

        return self._fabric.net.call(send)


def started(fabric: Fabric, folder: Path) -> Process:
    """The program, in the network's namespace."""
    file = folder / "network.toml"
    file.write_text(f'{configuration(fabric)}\n[state]\nfile = "{folder}/state.sqlite"\n')
    source = Path(tidegate_controller.__file__).parents[1]
    words = (sys.executable, "-m", "tidegate_controller.main", "--config", str(file))
    process = fabric.net.spawn("env", f"PYTHONPATH={source}", *words)
    process.wait_for("the API", lambda: "the API is served at http://127.0.0.1:6654" in process.output())
    fabric.connect("tcp:127.0.0.1:6653")
    return process


def test_from_registration_to_release(circle: Fabric, tmp_path: Path) -> None:
    """Two hosts register, a path is installed, late frames move it, and its host's lease ends."""
    process, hosts = started(circle, tmp_path), Hosts(circle)

    def links() -> set[str]:
        status, found = hosts.ask("GET", "/v1/topology", "operator")
        return {link["name"] for link in found["links"] if link["up"]} if status == 200 else set()

    hosts.until("all links", lambda: len(links()) == 8 + 8)

    def marked() -> bool:
        return any("tp_src=50001" in line for line in circle.dump_flows("s1"))

    assert not marked()
    body = {
        **{"vnic": "a1", "remote": "c1", "source": "h1", "target": "h3", "dscp": 40},
        "key": {"source": address(1), "target": address(3), "source_port": 50_001, "target_port": 4789},
        **{"rate": 2_000_000, "burst": 3000, "smallest_frame": 100, "largest_frame": 1500, "budget": 10**9},
    }

    def asked() -> bool:
        status, found = hosts.ask("PUT", "/v1/paths/a1%3Ec1", "h1", body)
        assert status in (200, 409, 503), found
        return status == 200

    hosts.until("the path", asked)
    first = hosts.path()
    assert (first["state"], first["level"], first["generation"]) == ("active", 1, 1)
    assert marked()
    total = 0

    def changed(level: int, way: object) -> Callable[[], bool]:
        def look() -> bool:
            nonlocal total
            total += 3
            record = {"name": PATH, "total": total, "worst": 1000, "last": time.time()}
            assert hosts.ask("POST", "/v1/hosts/h3/misses", "h3", {"run": "h3", "paths": [record]})[0] == 204
            path = hosts.path()
            return bool(path["level"] == level) and (path["links"] == first["links"]) == way

        return look

    hosts.until("the raise", changed(0, True))
    hosts.until("the move", changed(0, False))
    moved = hosts.path()
    assert moved["misses"] == total
    print(f"{total} late frames: from {first['links'][1:-1]} to {moved['links'][1:-1]}")
    hosts.h1 = False
    hosts.until("the end of the path", lambda: not hosts.path())
    hosts.until("the end of its rules", lambda: not marked())
    _, found = hosts.ask("GET", "/v1/decisions", "operator")
    verdicts = [one["verdict"] for one in found["decisions"]]
    assert verdicts[-1] == "released"
    assert {"admitted", "level-raised", "moved"} <= set(verdicts)
    assert "Traceback" not in process.output()
