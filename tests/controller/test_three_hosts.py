"""Three hosts that name each other in no file are one network: docs/operations/three-hosts.md.

```text
 a ─ h1 ═╗ switches, by tidegate-controller ╔═ h3 ─ c      a promises to b; c promises more than b can take
         ╚══════════════ h2 ─ b ════════════╝
```
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import wait_for
from lab.three_hosts import ThreeHosts, three_hosts

pytestmark = pytest.mark.abreast

MTU = "mtu = 1418"
TERMS = {
    "a": (MTU, 'tx = { max = "2mbit", burst = "2kB" }', 'deadline = "100ms"', 'to = ["b"]'),
    "b": (MTU, 'rx = { max = "10gbit" }'),
    "c": (
        MTU,
        'tx = { max = "100mbit", burst = "2kB" }',
        'deadline = "100ms"',
        'to = ["b"]',
        'on-refused = "best-effort"',
    ),
}


@pytest.fixture(name="network")
def _network(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ThreeHosts]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool", "ping")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    with three_hosts(tmp_path, TERMS, tls=getattr(request, "param", False)) as network:
        yield network


def test_three_hosts_from_nothing(network: ThreeHosts) -> None:
    """Reached, promised, refused; then without the controller, and without one of the agents."""
    for host, name in network.NAMES.items():
        others = ({*network.NAMES} - {host}, {*network.NAMES.values()} - {name})
        wait_for(f"the others at {host}", partial(network.knows, host, *others), 60)
    for name, other in ("ab", "bc", "ca"):
        wait_for(f"{other} from {name}", partial(network.reaches, name, other), 60)

    # A deadline becomes a path, by rules of its own.
    def path() -> dict[str, object]:
        found = network.shown("h1").get("paths")
        return dict(found[0]) if found else {}

    wait_for("the path", lambda: path().get("promised"), 60)
    assert path()["bound_ns"]
    text = network.hosts["h1"].cli("vnic", "show", "a")
    print(text)
    assert "path to b: active, at most" in text
    assert any(f"tp_src={path()['port']}" in flow for flow in network.fabric.dump_flows("s1"))
    print(network.operator("path", "ls"))
    assert json.loads(network.hosts["h1"].get("/v1/uplinks/up"))["state"] == "in force"

    # What the far host cannot take is refused there, and its reason is told here.
    def why() -> str:
        return str(network.shown("h3").get("deadline_suspended") or "")

    wait_for("the refusal", lambda: "refuses its path to b" in why(), 60)
    print(why())
    assert "host h2 refuses vNIC c: egress b refuses" in why()
    assert network.reaches("c", "b")
    assert path()["promised"], "one remote that does not fit stops no other"

    # The controller is away: frames and promises stay, also with another process of the agent.
    network.controller.kill()
    assert network.flows("a", "b")
    assert path()["promised"]
    agent = network.hosts["h1"]
    agent.kill_agent()
    agent.start_agent()
    assert network.knows("h1", {"h2", "h3"}, {"b", "c"})
    assert network.flows("a", "b")

    # It begins again, and takes nothing away before hosts had the time to register.
    network.controller = network.start_controller()
    wait_for("the path after its return", lambda: path().get("promised"), 90)
    assert network.knows("h1", {"h2", "h3"}, {"b", "c"})

    # An agent ends: what its host promised goes when its lease has ended, and frames go on.
    network.hosts["h2"].kill_agent()
    wait_for("the end of b at h1", partial(network.knows, "h1", {"h2", "h3"}, {"c"}), 60)
    wait_for("the end of b at h3", partial(network.knows, "h3", {"h1", "h2"}, {"a"}), 60)
    assert "b is no vNIC here" in network.shown("h1")["deadline_suspended"]
    assert network.flows("a", "b")
    network.hosts["h2"].start_agent()
    wait_for("its return", lambda: path().get("promised"), 60)


@pytest.mark.nightly
@pytest.mark.parametrize("network", [True], indirect=True, ids=["tls"])
def test_keys_of_segments_come_from_the_controller(network: ThreeHosts) -> None:
    """Hosts with certificates have one key, which changes under traffic; a start needs no controller."""

    def path() -> dict[str, object]:
        found = network.shown("h1").get("paths")
        return dict(found[0]) if found else {}

    def keys(host: str) -> str:
        file = network.hosts[host].state / "segment-keys.json"
        if not file.exists():
            return ""
        assert file.stat().st_mode & 0o777 == 0o600
        return str(json.loads(file.read_text())[0]["key"])

    def judged() -> int:
        """How many frames came under a key that the far host has; none came under another one."""
        (pair,) = json.loads(network.hosts["h2"].get("/v1/uplinks/up"))["pairs"]
        assert (pair["forged"], pair["lost"]) == (0, 0)
        return int(pair["arrived"])

    wait_for("the path", lambda: path().get("promised"), 90)
    first = keys("h1")
    assert len(first) == 32
    wait_for("the same key at h2", lambda: keys("h2") == keys("h1"), 30)
    assert network.flows("a", "b")
    before = judged()
    assert before >= 40
    wait_for("another key", lambda: keys("h1") not in {"", first}, 60)
    assert network.flows("a", "b")
    assert judged() >= before + 40
    network.controller.kill()
    before, agent = judged(), network.hosts["h1"]
    agent.kill_agent()
    agent.start_agent()
    assert network.flows("a", "b")
    assert judged() >= before + 40
    logs = "".join(host.agent.output() for host in network.hosts.values())
    assert keys("h1") not in logs
