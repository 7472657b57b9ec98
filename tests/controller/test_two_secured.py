"""Two whole controllers with certificates, keys and three etcd members: the leader is killed.

```text
 etcd m0, m1, m2 ─── controller 0, controller 1 ─TLS, both─ s1 ── h1 ── frames of a path ──▶ h2
                         └──────── HTTPS ────────┘
                     hosts with certificates: ask, follow `standby` to the one that leads, register again
```
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.etcd import COMMANDS as ETCD
from lab.etcd import Etcd
from lab.fabric import Fabric, Plan
from lab.host import BINARY
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import Process, wait_for
from lab.secured import MANAGER, Host, Secured
from lab.traffic import Flow

pytestmark = pytest.mark.nightly
LEASE = 9.0
"""s of a registration."""
LEAD = 5.0
"""s of the lease of the lead."""
URLS = [f"https://127.0.0.1:{port}" for port in (6754, 6755)]


@dataclass
class Site:
    """All that runs."""

    fabric: Fabric
    secured: Secured
    files: list[Path]
    controllers: list[Process]
    hosts: list[Host]

    def renew(self) -> list[int]:
        """All hosts register again, as they do each third of the lease; the answers."""
        return [host.register()[0] for host in self.hosts]

    def leader(self) -> int:
        """The number of the controller that hosts ask."""
        assert self.renew() == [200, 200]
        assert self.hosts[0].found == self.hosts[1].found
        return URLS.index(self.hosts[0].found)

    def paths(self) -> str:
        """All paths, as the command tells, in JSON."""
        code, text = self.secured.as_operator(URLS, "path", "ls", "--json")
        return text if code == 0 else ""


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Site]:
    need_commands(*COMMANDS, *ETCD, "ovs-ofctl", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    need("no release build: cargo build --release", BINARY.exists())
    plan = Plan([], {"h1": "s1", "h2": "s1"})
    with Fabric(tmp_path / "f", plan, remote=MANAGER) as fabric, Etcd(tmp_path / "e", fabric.net, 3) as etcd:
        secured = Secured(fabric, tmp_path / "c")
        members = ", ".join(f'"{url}"' for url in etcd.urls)
        files = [tmp_path / f"{number}.toml" for number in (0, 1)]
        for number, file in enumerate(files):
            state = f'[state]\netcd = [{members}]\nlease = "{LEAD:g}s"'
            secured.filled_in(file, 6753 - 100 * number, 6754 + number, state, f"{LEASE:g}s")
        controllers = [secured.start(file, 6754 + number) for number, file in enumerate(files)]
        secured.connect(6753, 6653)
        hosts = [Host(secured, name, tmp_path / name, URLS) for name in ("h1", "h2")]
        for host in hosts:
            wait_for(f"the enrolment of {host.name}", lambda: host.enrol()[0] == 0, 60)  # noqa: B023
        hosts[1].arrivals = [hosts[0].vnic]
        yield Site(fabric, secured, files, controllers, hosts)


def test_hosts_find_the_next_leader(site: Site) -> None:
    """Registrations come back within a third of the lease, the path stays, and keys are the same."""
    one, other = site.hosts

    def granted() -> bool:
        site.renew()
        status, found = one.request(other)
        assert status in (0, 200, 409, 503), found
        return status == 200

    wait_for("the path", granted, 90)
    for _ in range(2):
        old = site.leader()
        new = 1 - old
        paths, rules = site.paths(), sorted(site.fabric.dump_flows("s1"))
        keys = [host.keys() for host in site.hosts]
        assert '"v1>v2"' in paths
        assert keys[0] == keys[1]
        # A standby says where the leader is.
        one.found = URLS[new]
        assert one.register()[0] == 200
        assert one.found == URLS[old]
        status, said = one.ask_at(URLS[new], "GET", "/v1/hosts/h1")
        assert (status, said["code"], said["leader"]) == (503, "standby", URLS[old])

        flow = site.fabric.flow("h1", "h2", Flow(5000, 4000, dscp=40, source_port=50_001), patience=40)
        time.sleep(1)
        site.controllers[old].kill()
        killed = time.monotonic()
        wait_for("a leader", lambda: site.secured.as_operator(URLS, "path", "ls")[0] == 0, 60)
        led = time.monotonic() - killed
        began = time.monotonic()
        wait_for("the registrations", lambda: site.renew() == [200, 200], 60)
        back = time.monotonic() - began
        print(f"leader killed: the next one leads after {led:.2f} s, registrations after {back:.2f} s more")
        assert {host.found for host in site.hosts} == {URLS[new]}
        assert back < LEASE / 3
        # Beyond the time in which no path is released for want of a registration.
        end = time.monotonic() + 1.5 * LEASE
        while time.monotonic() < end:
            assert site.renew() == [200, 200]
            assert site.paths() == paths
            time.sleep(LEASE / 3)
        assert [host.keys() for host in site.hosts] == keys
        assert sorted(site.fabric.dump_flows("s1")) == rules
        report = flow.report()
        print(report)
        assert report.lost == 0
        assert "Traceback" not in site.controllers[new].output()
        site.controllers[old] = site.secured.start(site.files[old], 6754 + old)
