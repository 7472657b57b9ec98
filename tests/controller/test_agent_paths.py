"""An agent asks for paths: granted, refused, best effort, no controller.

```text
 a ─ tap ─ switch 1, agent ─ eth0 ═══ eth0 ─ switch 2 ─ tap ─ b
                  └─ HTTP ─ a controller that does as a file says (`lab.fake_controller`)
```
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab import fake_controller
from lab.namespaces import can_make_namespaces
from lab.need import need
from lab.process import Process, wait_for
from lab.two_hosts import SEGMENT, TwoHosts
from lab.underlay import ADDRESSES, Via

MS = 1_000_000
DEADLINE, ARRIVAL = 100 * MS, 500_000
PORT = 16654


class Network:
    """Two hosts, of which the first asks a controller."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.hosts = TwoHosts(folder, [["a"], ["b"]], cleanup, via=Via.PAIR)
        self.agent = self.hosts.hosts[0]
        self.folder = folder / "controller"
        self.folder.mkdir()
        (self.folder / "token").touch(0o600)
        (self.folder / "token").write_text("secret-of-h1\n")
        self.rule(verdict="grant")
        self.process: Process | None = None
        self.start()
        cleanup.callback(self.kill)
        other = self.hosts.contracts(2, self.terms(), ['latency = "10ms"'])
        self.hosts.hosts[1].apply(other + self.hosts.key_table(self.hosts.keys[0]))

    def rule(self, verdict: str) -> None:
        """What the controller says from now on."""
        b = {"name": "b", "mac": self.hosts.mac("b"), "segment": SEGMENT, "addresses": [], "to": []}
        peer = {"host": "h2", "address": ADDRESSES[4][1], "port": 4789, "segments": [SEGMENT]}
        rules = {
            "verdict": verdict,
            "lease": 3000 * MS,
            "peers": [{**peer, "arrival_budget": ARRIVAL}],
            "remotes": [{"vnic": {**b, "rate": None, "burst": None, "deadline": None}, "host": "h2"}],
        }
        new = self.folder / "rules.new"
        new.write_text(json.dumps(rules))
        new.rename(self.folder / "rules.json")

    def start(self) -> None:
        """Start the controller, which knows nothing."""
        program = [sys.executable, fake_controller.__file__, str(self.folder), "127.0.0.1", str(PORT)]
        enter = ["nsenter", f"--net={self.hosts.underlay.one.path}"]
        self.process = Process([*enter, *program], self.folder / "log")

    def kill(self) -> None:
        """End it."""
        assert self.process is not None
        self.process.popen.kill()
        self.process.popen.wait()

    def requests(self, method: str, path: str) -> list[Any]:
        """What came for a path so far."""
        log = self.folder / "requests.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line["body"] for line in lines if (line["method"], line["path"]) == (method, path)]

    def terms(self, rate: str = "10mbit") -> dict[str, list[str]]:
        """What both vNICs promise."""
        tx = f'tx = {{ max = "{rate}", burst = "4kB" }}'
        return {"a": [tx, f'deadline = "{DEADLINE // MS}ms"', 'to = ["b"]'], "b": ['rx = { max = "10gbit" }']}

    def contracts(self, *lines: str, rate: str = "10mbit", uplink: Iterable[str] = ()) -> Path:
        """The contracts of the first host, with further lines of `a` and of the uplink."""
        terms = self.terms(rate)
        terms["a"] += lines
        table = f"""
[controller]
url = ["http://127.0.0.1:{PORT}"]
host = "h1"
token-file = "{self.folder / "token"}"
uplinks = ["net0"]
"""
        text = self.hosts.contracts(1, terms, uplink) + self.hosts.key_table(self.hosts.keys[0]) + table
        return self.agent.file(text)

    def shown(self) -> dict[str, Any]:
        """What is shown of `a`."""
        return self.agent.show("a").document

    def path(self) -> dict[str, Any]:
        """Its path."""
        (path,) = self.shown()["paths"]
        return dict(path)


@pytest.fixture(name="network")
def _network(tmp_path: Path) -> Iterator[Network]:
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with ExitStack() as cleanup:
        yield Network(tmp_path, cleanup)


def test_an_agent_asks_for_paths(network: Network) -> None:
    """Granted, refused, best effort."""
    agent = network.agent
    agent.cli("apply", "-f", network.contracts())
    wait_for("a path", lambda: network.path()["promised"], 30)
    path = network.path()
    budget = (DEADLINE - ARRIVAL) // 2
    assert (path["state"], path["budget_ns"], path["bound_ns"]) == ("active", budget, budget // 2)
    assert "deadline_suspended" not in network.shown()
    assert "path to b: active, at most" in agent.cli("vnic", "show", "a")
    request = network.requests("PUT", "paths/a>b")[-1]
    assert request["key"]["source_port"] == network.hosts.pair(1)["port"] == path["port"]
    assert (request["dscp"], request["source"], request["target"]) == (46, "h1", "h2")
    # 4,000 bytes and what 10 Mbit/s bunch within d, in frames of 60 bytes that are 142 on the wire.
    burst = (4000 + 10_000_000 * (DEADLINE - ARRIVAL - budget) / 8e9) * 142 / 60
    assert request["burst"] == pytest.approx(burst, abs=3)
    (announced,) = network.requests("PUT", "hosts/h1")[-1]["vnics"]
    assert (announced["name"], announced["to"], announced["deadline"]) == ("a", ["b"], DEADLINE)

    # Refused: the change fails with the controller's reason, and the path stays.
    network.rule("refuse")
    refused = agent.try_cli("apply", "-f", network.contracts(rate="20mbit"))
    assert refused.returncode != 0
    assert fake_controller.REASON in refused.stderr + refused.stdout
    assert network.shown()["contract"]["tx"]["max"] == "10mbit"

    # So is another uplink that needs another path: the one in force was granted for the uplink as it was.
    refused = agent.try_cli("apply", "-f", network.contracts(uplink=['latency = "20ms"']))
    assert refused.returncode != 0
    assert fake_controller.REASON in refused.stderr + refused.stdout
    assert network.path()["budget_ns"] == budget

    # Best effort: in force, not promised, and promised as soon as it fits.
    agent.cli("apply", "-f", network.contracts('on-refused = "best-effort"', rate="20mbit"))
    shown = network.shown()
    assert (shown["state"], shown["contract"]["tx"]["max"]) == ("in force", "20mbit")
    assert fake_controller.REASON in shown["deadline_suspended"]
    assert "not promised" in agent.cli("vnic", "show", "a")
    network.rule("grant")
    wait_for("the path after a refusal", lambda: network.path()["promised"], 60)


def test_a_controller_that_is_away_stops_no_frame(network: Network) -> None:
    """Frames go on; changes wait or are best effort; all is asked for again."""
    agent, stacks = network.agent, network.hosts.stacks
    agent.cli("apply", "-f", network.contracts())
    wait_for("a path", lambda: network.path()["promised"], 30)
    network.hosts.settle()
    network.kill()
    echoes = f"ping -q -i 0.02 -c 150 -W 5 {network.hosts.address('b')}"
    assert " 0% packet loss" in stacks["a"].run(echoes)
    wait_for("the end of the lease", lambda: not network.path()["promised"], 30)
    problem = "the network's controller does not answer"
    wait_for("the problem in the status", lambda: problem in agent.try_cli("status").stdout, 30)

    # A change that must have its path waits; another one comes into force, and is not promised.
    waits = agent.try_cli("apply", "-f", network.contracts('on-unreachable = "wait"', rate="20mbit"))
    assert waits.returncode != 0
    assert "does not answer" in waits.stderr + waits.stdout
    assert network.shown()["contract"]["tx"]["max"] == "10mbit"
    agent.cli("apply", "-f", network.contracts(rate="30mbit"))
    assert "does not answer" in network.shown()["deadline_suspended"]

    # A controller that knows nothing gets all again; so does one whose agent was restarted.
    network.start()
    wait_for("the path after an absence", lambda: network.path()["promised"], 30)
    agent.kill_agent()
    agent.start_agent()
    before = network.requests("PUT", "paths/a>b")[-1]
    wait_for("the path after a restart", lambda: network.path()["promised"], 30)
    assert network.requests("PUT", "paths/a>b")[-1] == before

    # A vNIC that goes releases its path.
    agent.cli("vnic", "rm", "a")
    wait_for("the release", lambda: network.requests("DELETE", "paths/a>b"), 30)
