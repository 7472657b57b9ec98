"""From nothing to a path, as a newcomer types it, with the real programs and certificates everywhere.

```text
 tidegate-controller init, certificate s1 ─▶ controller.toml ─▶ tidegate-controller --config
 ovs-vsctl set-ssl, set-manager, set-controller ─▶ s1
 tidegate controller enrol ─▶ h1, h2 ─▶ registrations, a path ─▶ tidegate path ls, topology, decisions
```
"""

import json
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from lab.fabric import Fabric, Plan
from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import wait_for
from lab.secured import MANAGER, Host, Secured

pytestmark = pytest.mark.abreast
URLS = ["https://127.0.0.1:6654"]
PATH = "v1>v2"


class Site:
    """The controller of one switch, and two hosts that have their tokens."""

    def __init__(self, fabric: Fabric, folder: Path, hosts: Collection[str]) -> None:
        """`hosts` are those of the file."""
        self.folder, self.fabric = folder, fabric
        self.secured = Secured(fabric, folder / "c")
        self.file = folder / "c" / "network.toml"
        self.write(hosts)
        self.secured.command("--config", str(self.file), "--check")
        self.process = self.secured.start(self.file, 6654)
        self.secured.connect(6653)
        self.h1, self.h2 = (Host(self.secured, name, folder / name, URLS) for name in ("h1", "h2"))

    def write(self, hosts: Collection[str]) -> None:
        """The controller's file, with these hosts."""
        state = f'[state]\nfile = "{self.folder}/state.sqlite"'
        self.secured.filled_in(self.file, 6653, 6654, state, hosts=hosts)

    def reload(self, said: str) -> None:
        """SIGHUP, and what the log says then."""
        self.process.popen.send_signal(signal.SIGHUP)
        self.process.wait_for(said, lambda: said in self.process.output())

    def enrol(self) -> None:
        """Both hosts get their certificates."""
        for host in (self.h1, self.h2):
            code, text = host.enrol()
            assert code == 0, text
            assert f'certificate = "{host.folder}/host.pem"' in text

    def ask(self) -> None:
        """Both hosts register, the far one admits the near one, and the path is granted."""
        wait_for("the switch", self._is_up, 60)
        assert (self.h1.register()[0], self.h2.register()[0]) == (200, 200)
        status, found = self.h1.request(self.h2)
        assert (status, found["code"]) == (409, "waiting"), found
        self.h2.arrivals = [self.h1.vnic]
        assert [each["vnic"]["name"] for each in self.h2.register()[1]["remotes"]] == [self.h1.vnic]
        wait_for("the path", self._is_granted, 60)
        assert any("tp_src=50001" in line for line in self.fabric.dump_flows("s1"))

    def _is_up(self) -> bool:
        code, text = self.tidegate("topology", "--json")
        return code == 0 and sum(link["up"] for link in json.loads(text)["links"]) == 4

    def _is_granted(self) -> bool:
        assert (self.h1.register()[0], self.h2.register()[0]) == (200, 200)
        status, found = self.h1.request(self.h2)
        # Until the switch has its queues there is no way.
        assert status in (200, 409, 503), found
        return status == 200

    def tidegate(self, *words: str) -> tuple[int, str]:
        """A command of an operator."""
        return self.secured.as_operator(URLS, *words)


@pytest.fixture(name="fabric")
def _fabric(tmp_path: Path) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    with Fabric(tmp_path / "f", Plan([], {"h1": "s1", "h2": "s1"}), remote=MANAGER) as fabric:
        yield fabric


def test_the_way_of_a_newcomer(fabric: Fabric, tmp_path: Path) -> None:
    """Each command does what the guide says of it."""
    site = Site(fabric, tmp_path, ["h1", "h2"])
    site.enrol()
    code, text = site.h1.enrol()
    assert code != 0
    assert "--renew" in text
    # The token is used up.
    code, text = Host(site.secured, "h1", tmp_path / "thief", URLS).enrol()
    assert code != 0
    assert "used" in text
    site.ask()
    for words, expected in (
        (["path", "ls"], (PATH, "active")),
        (["topology"], ("1 switch", "h1", "h2")),
        (["decisions"], (PATH, "admitted")),
    ):
        code, text = site.tidegate(*words)
        print(text)
        assert code == 0, text
        assert all(each in text for each in expected), text

    keys, file = site.h1.keys(), site.h1.folder / "host.pem"
    assert [key["segment"] for key in keys] == [100]
    assert site.h2.keys() == keys
    before = file.read_bytes()
    code, text = site.h1.renew()
    assert code == 0, text
    assert file.read_bytes() != before
    assert site.h1.register()[0] == 200
    assert site.h1.keys() == keys
    assert "Traceback" not in site.process.output()


def test_hosts_come_and_go_without_a_restart(fabric: Fabric, tmp_path: Path) -> None:
    """SIGHUP: a host that is new has a path; one that is gone may nothing; operators get another token."""
    site = Site(fabric, tmp_path, ["h1"])
    code, text = site.h2.enrol()
    assert code != 0
    assert "no host" in text
    site.write(["h1", "h2"])
    site.reload("host h2 is in the file now")
    site.enrol()
    site.ask()
    token = site.secured.folder / "operator.token"
    before = token.read_text()
    token.write_text("another-token-of-the-operators\n")
    site.write(["h1"])
    site.reload("host h2 left the file")
    status, found = site.h2.register()
    assert (status, found["code"]) == (401, "unauthorized"), found
    assert "not in the controller's configuration" in found["message"]
    assert site.h1.register()[1]["remotes"] == []
    assert PATH in site.tidegate("path", "ls")[1]
    site.write([])
    site.reload("host h1 left the file")
    wait_for("the end of the path", lambda: PATH not in site.tidegate("path", "ls")[1])
    token.write_text(before)
    assert site.tidegate("path", "ls")[0] != 0
    assert "Traceback" not in site.process.output()
