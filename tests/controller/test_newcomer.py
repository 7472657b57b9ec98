"""From nothing to a path, as a newcomer types it, with the real programs and certificates everywhere.

```text
 tidegate-controller init, certificate s1 ─▶ controller.toml ─▶ tidegate-controller --config
 ovs-vsctl set-ssl, set-manager, set-controller ─▶ s1
 tidegate controller enrol ─▶ h1, h2 ─▶ registrations, a path ─▶ tidegate path ls, topology, decisions
```
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fabric import Fabric, Plan
from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import wait_for
from lab.secured import Host, Secured

pytestmark = pytest.mark.abreast
URLS = ["https://127.0.0.1:6654"]
MANAGER = "db:Open_vSwitch,Open_vSwitch,manager_options"
"""Where a database of Open vSwitch listens for who sets queues, as distributions start it."""


@pytest.fixture(name="fabric")
def _fabric(tmp_path: Path) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    with Fabric(tmp_path / "f", Plan([], {"h1": "s1", "h2": "s1"}), remote=MANAGER) as fabric:
        yield fabric


def test_the_way_of_a_newcomer(fabric: Fabric, tmp_path: Path) -> None:
    """Each command does what the guide says of it."""
    secured = Secured(fabric, tmp_path / "c")
    file = tmp_path / "c" / "network.toml"
    secured.filled_in(file, 6653, 6654, f'[state]\nfile = "{tmp_path}/state.sqlite"')
    secured.command("--config", str(file), "--check")
    process = secured.start(file, 6654)
    secured.connect(6653)

    one, other = (Host(secured, name, tmp_path / name, URLS) for name in ("h1", "h2"))
    for host in (one, other):
        code, text = host.enrol()
        assert code == 0, text
        assert f'certificate = "{host.folder}/host.pem"' in text
    code, text = one.enrol()
    assert code != 0
    assert "--renew" in text
    # The token is used up, whoever has it.
    thief = Host(secured, "h1", tmp_path / "thief", URLS)
    code, text = thief.enrol()
    assert (code != 0, "used" in text) == (True, True), text

    def up() -> bool:
        code, text = secured.as_operator(URLS, "topology", "--json")
        return code == 0 and sum(link["up"] for link in json.loads(text)["links"]) == 4

    wait_for("the switch", up, 60)
    wait_for("the registrations", lambda: one.register()[0] == 200 and other.register()[0] == 200)
    status, found = one.request(other)
    assert (status, found["code"]) == (409, "waiting"), found
    other.arrivals = [one.vnic]
    assert [each["vnic"]["name"] for each in other.register()[1]["remotes"]] == [one.vnic]
    assert other.register()[0] == 200

    def granted() -> bool:
        assert (one.register()[0], other.register()[0]) == (200, 200)
        status, found = one.request(other)
        # Until the switch has its queues there is no way.
        assert status in (200, 409, 503), found
        return status == 200

    wait_for("the path", granted, 60)
    assert any("tp_src=50001" in line for line in fabric.dump_flows("s1"))
    for words, expected in (
        (["path", "ls"], ("v1>v2", "active")),
        (["topology"], ("1 switch", "h1", "h2")),
        (["decisions"], ("v1>v2", "admitted")),
    ):
        code, text = secured.as_operator(URLS, *words)
        print(text)
        assert code == 0, text
        assert all(each in text for each in expected), text

    keys = one.keys()
    assert [key["segment"] for key in keys] == [100]
    assert other.keys() == keys
    before = (one.folder / "host.pem").read_bytes()
    code, text = one.renew()
    assert code == 0, text
    assert (one.folder / "host.pem").read_bytes() != before
    assert one.register()[0] == 200
    assert one.keys() == keys
    assert "Traceback" not in process.output()
