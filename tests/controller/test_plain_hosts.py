"""Two hosts with plain NICs are promised paths by their addresses; all other frames are best effort.

```text
 a ─ tap ─ h1 ═eth0, VLAN 100═ s1 ══ s2 ═eth0, VLAN 100═ h2 ─ tap ─ b
```
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.agents_network import SEGMENT
from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import wait_for
from lab.three_hosts import ThreeHosts, mac

HOST = """
[controller]
url = ["{url}"]
host = "{host}"
{identity}
uplinks = ["lan"]

[uplink.lan]
kind = "packet"
device = "eth0"
rate = "1gbit"

[uplink.lan.peer.net]
segments = [{segment}]
"""
pytestmark = pytest.mark.nightly
TX = 'tx = { max = "2mbit", burst = "2kB" }'
TERMS = {
    "a": (TX, 'deadline = "100ms"', 'to = ["b"]'),
    "b": (TX, 'deadline = "100ms"', 'to = ["a"]', 'rx = { max = "10gbit" }'),
}


class PlainHosts(ThreeHosts):
    """h1 and h2, whose files name no other host."""

    NAMES = {"h1": "a", "h2": "b"}  # noqa: RUF012 - as in the base class
    TEMPLATE = HOST


@pytest.fixture(name="network")
def _network(tmp_path: Path) -> Iterator[PlainHosts]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool", "ping")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    with ExitStack() as cleanup:
        yield PlainHosts(tmp_path, TERMS, cleanup)


def test_two_hosts_with_plain_nics(network: PlainHosts) -> None:
    """Both ways; one rule at each edge; what is said of the promise."""

    def path(host: str) -> dict[str, Any]:
        found = network.shown(host).get("paths")
        return dict(found[0]) if found else {}

    def promised(host: str) -> object:
        return path(host).get("promised")

    for host in network.NAMES:
        wait_for(f"the path from {host}", partial(promised, host), 60)
    # They ask for each other's MAC (ARP), which no path carries.
    assert network.flows("a", "b"), "frames take the paths both ways"
    text = network.hosts["h1"].cli("vnic", "show", "a")
    print(text)
    assert "path to b: active, at most" in text
    assert "misses = not measured: the promise ends at the far host's NIC" in text
    shown = network.operator("path", "show", "a>b")
    print(shown)
    assert "misses   not measured" in shown
    (edge,) = [flow for flow in network.fabric.dump_flows("s1") if f"dl_src={mac(1)},dl_dst={mac(2)}" in flow]
    assert f"dl_vlan={SEGMENT},dl_vlan_pcp=5,dl_src={mac(1)},dl_dst={mac(2)}" in edge
    uplink = json.loads(network.hosts["h1"].get("/v1/uplinks/lan"))
    assert uplink["state"] == "in force"

    # A host may not ask for a path of another host's MAC, or in another segment.
    def asks(key: dict[str, Any]) -> str:
        file = network.folder / "request.json"
        (request,) = [
            one["request"]
            for one in json.loads(network.operator("path", "ls", "--json"))["paths"]
            if one["name"] == "a>b"
        ]
        file.write_text(json.dumps({**request, "key": {**request["key"], **key}}))
        token = (network.folder / "h1" / "token").read_text().strip()
        words = ["curl", "-s", "-X", "PUT", "-H", f"Authorization: Bearer {token}", "--data", f"@{file}"]
        url = f"{network.url}/v1/paths/a%3Eb"
        return network.fabric.net.run([*words, "-H", "Content-Type: application/json", url])

    for key, why in (
        ({"source_mac": mac(2), "target_mac": mac(1)}, f"vNIC a has MAC {mac(1)} in segment {SEGMENT}"),
        ({"vlan": SEGMENT + 1}, "host h1 has no plain NIC with it"),
    ):
        answer = asks(key)
        assert why in answer, answer
    assert path("h1")["promised"]
    # Without a path they go on.
    network.operator("path", "release", "a>b")
    assert network.flows("a", "b")
