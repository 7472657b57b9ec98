"""Two controllers and three etcd members: each is killed under load, stopped, and started again.

```text
 etcd m0, m1, m2 ─── controller 0, controller 1 ─OpenFlow, both─ s1 ══ s2, s4 ══ s3
                        MASTER       SLAVE                       h1 ── frames of a path ──▶ h3
```
"""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.driven import Driven
from lab.etcd import COMMANDS as ETCD
from lab.etcd import Etcd
from lab.fabric import Fabric, ring
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.process import wait_for
from lab.traffic import Flow

pytestmark = pytest.mark.nightly
DSCP = 40
PATHS = 20
LEASE = 5
"""s"""


@dataclass
class Site:
    """All that runs."""

    fabric: Fabric
    etcd: Etcd
    controllers: list[Driven]

    def leads(self, number: int) -> bool:
        """Whether a controller leads, and has all switches."""
        return self.controllers[number].ready()

    def leader(self) -> int:
        """The number of the controller that leads."""
        found = [number for number in (0, 1) if self.controllers[number].state().get("leading")]
        assert len(found) == 1, found
        return found[0]

    def has(self, number: int, key: str, value: object) -> None:
        """Wait for something that a controller tells of itself."""
        wait_for(f"{key} {value}", lambda: self.controllers[number].state().get(key) == value, 60)

    def flows(self) -> dict[str, list[str]]:
        """Rules of all switches, without counters."""
        return {switch: sorted(self.fabric.dump_flows(switch)) for switch in self.fabric.ports}

    def roles(self) -> list[str]:
        """Roles of the controllers at all switches, as Open vSwitch has them."""
        words = f"ovs-vsctl --db={self.fabric.ovs.remote} --bare --columns=role list controller"
        return sorted(self.fabric.net.run(words).split())


@pytest.fixture(name="site")
def _site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Each controller asks all members, or those that a parameter names."""
    need_commands(*COMMANDS, *ETCD, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    folder = tmp_path_factory.mktemp("t")
    with Fabric(folder / "f", ring(4)) as fabric, Etcd(folder / "etcd", fabric.net, 3) as etcd:
        members: list[list[int]] = getattr(request, "param", [[0, 1, 2]] * 2)
        controllers = []
        for n in (0, 1):
            urls = ", ".join(f'"{etcd.urls[member]}"' for member in members[n])
            state = f'etcd = [{urls}]\nlease = "{LEASE}s"'
            controllers.append(Driven(fabric, folder / f"c{n}", 6653 + n, state))
        fabric.connect("tcp:127.0.0.1:6653 tcp:127.0.0.1:6654")
        site = Site(fabric, etcd, controllers)
        wait_for("a leader", lambda: site.leads(0) or site.leads(1), 90)
        wait_for("a standby", lambda: site.roles() == ["master"] * 4 + ["slave"] * 4, 60)
        one = controllers[site.leader()]
        for number in range(PATHS):
            assert one.ask(f"v{number}>h3", 9001 + number, 100_000) == ""
        one.wait()
        yield site
        for controller in controllers:
            controller.process.stop()


def test_the_leader_is_killed(site: Site) -> None:
    """The standby takes over with all reservations; no rule changes, no frame is lost. Then the other way."""
    for old in (site.leader(), 1 - site.leader()):
        new = 1 - old
        before, rules = site.controllers[old].state(), site.flows()
        flow = site.fabric.flow("h1", "h3", Flow(5000, 4000, dscp=DSCP, source_port=9001), patience=20)
        time.sleep(1)
        site.controllers[old].process.kill()
        began = time.monotonic()
        site.has(new, "leading", True)
        led = time.monotonic() - began
        site.controllers[new].wait("the takeover")
        ready = time.monotonic() - began
        assert site.controllers[new].ask("new>h3", 9900, 100_000) == ""
        answered = time.monotonic() - began
        assert site.controllers[new].order("release", name="new>h3")["reasons"] == ""
        report = flow.report()
        found = site.controllers[new].state()
        print(
            f"leader killed (lease {LEASE} s): led after {led:.2f} s, all switches after {ready:.2f} s,"
            f" a new path granted after {answered:.2f} s; {len(before['paths'])} paths before,"
            f" {len(found['paths'])} after; {report}"
        )
        assert found["paths"] == before["paths"]
        assert found["reserved"] == before["reserved"]
        assert found["term"] > before["term"]
        assert site.flows() == rules
        assert report.lost == 0
        site.controllers[old].begin()
        site.has(old, "sessions", 4)
        wait_for("the standby's role", lambda: site.roles() == ["master"] * 4 + ["slave"] * 4, 60)
        assert not site.controllers[old].state()["leading"]


def test_the_leader_of_etcd_is_killed(site: Site) -> None:
    """The controller goes on to lead; what is asked meanwhile waits, and is granted; no frame is lost."""
    leader = site.leader()
    one = site.controllers[leader]
    before = one.state()
    flow = site.fabric.flow("h1", "h3", Flow(5000, 4000, dscp=DSCP, source_port=9001), patience=20)
    time.sleep(1)
    killed = site.etcd.leader()
    assert killed is not None
    site.etcd.members[killed].kill()
    began = time.monotonic()
    assert one.ask("new>h3", 9900, 100_000) == ""
    took = time.monotonic() - began
    began = time.monotonic()
    assert one.ask("next>h3", 9901, 100_000) == ""
    again = time.monotonic() - began
    report = flow.report()
    found = one.state()
    print(
        f"etcd's leader killed: a path was granted after {took:.2f} s, the next one after {again:.2f} s;"
        f" {len(before['paths'])} paths before, {len(found['paths'])} after; {report}"
    )
    assert (found["leading"], found["term"]) == (True, before["term"])
    assert len(found["paths"]) == PATHS + 2
    assert report.lost == 0


def test_an_old_leader_returns(site: Site) -> None:
    """It slept for longer than its lease; it changes nothing, and ends."""
    old = site.leader()
    new = 1 - old
    before = site.controllers[old].state()
    process = site.controllers[old].process
    process.popen.send_signal(signal.SIGSTOP)
    site.controllers[new].wait("the takeover")
    assert site.controllers[new].ask("new>h3", 9900, 100_000) == ""
    rules = site.flows()
    process.popen.send_signal(signal.SIGCONT)
    assert process.popen.wait(30) == 1
    last = process.output().splitlines()[-1]
    print(f"the old leader: {last}")
    assert "another controller" in last
    time.sleep(2)
    found = site.controllers[new].state()
    assert found["paths"].keys() == before["paths"].keys() | {"new>h3"}
    assert site.flows() == rules
    assert site.controllers[new].ready()


def test_etcd_is_not_there(site: Site, tmp_path: Path) -> None:
    """Both controllers go out of office before the lease ends; frames go on; one leads when etcd is back."""
    del tmp_path
    old = site.leader()
    before, rules = site.controllers[old].state(), site.flows()
    flow = site.fabric.flow("h1", "h3", Flow(5000, 4000, dscp=DSCP, source_port=9001), patience=20)
    site.etcd.hold()
    began = time.monotonic()
    process = site.controllers[old].process
    assert process.popen.wait(60) == 1
    print(f"without etcd: the leader ended after {time.monotonic() - began:.2f} s (lease {LEASE} s)")
    site.etcd.go_on()
    new = 1 - old
    site.controllers[new].wait("the takeover")
    report = flow.report()
    print(f"etcd was away: {report}")
    found = site.controllers[new].state()
    assert found["paths"] == before["paths"]
    assert site.flows() == rules
    assert report.lost == 0


@pytest.mark.parametrize("site", [[[0], [1, 2]]], indirect=True)
def test_a_leader_without_etcd_beside_one_that_has_it(site: Site) -> None:
    """A partition: the leader reaches switches, but no etcd that works. It ends, and changes nothing more."""
    if site.leader() == 1:
        site.controllers[1].process.kill()
        site.controllers[0].wait("the takeover")
        site.controllers[1].begin()
        site.has(1, "sessions", 4)
    before, rules = site.controllers[0].state(), site.flows()
    flow = site.fabric.flow("h1", "h3", Flow(5000, 4000, dscp=DSCP, source_port=9001), patience=20)
    site.etcd.members[0].popen.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert site.controllers[0].process.popen.wait(60) == 1
    ended = time.monotonic() - began
    site.controllers[1].wait("the takeover")
    ready = time.monotonic() - began
    report = flow.report()
    found = site.controllers[1].state()
    print(f"partition: old leader ended after {ended:.2f} s, new one had all after {ready:.2f} s; {report}")
    assert (found["paths"], found["reserved"]) == (before["paths"], before["reserved"])
    assert site.flows() == rules
    assert report.lost == 0
    assert site.controllers[1].ask("new>h3", 9900, 100_000) == ""
