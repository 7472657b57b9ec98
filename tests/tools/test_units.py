"""The package where systemd is process 1: installed, used at every place, upgraded, hung, removed."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.booted import need_booted
from lab.held import stopped_thread
from lab.igb import Pf, igb_guest, vfs
from lab.initramfs import ROOT
from lab.installed import VM, Installed
from lab.need import need_commands, need_sriov, need_systemd
from lab.process import wait_for
from lab.testpmd import Testpmd, virtio_user

pytestmark = pytest.mark.abreast

SERVICES = ("tidegate-switch", "tidegate-agent")

EARLIER = Path(__file__).resolve().parents[1] / "lab/earlier"
"""Of the release before: units that tell systemd nothing; the folder of all sockets is the switch's.

Without RestrictSUIDSGID= of the agent: the program of today does not run under it.
"""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Installed]:
    """A machine without the package."""
    need_booted()
    with Installed(tmp_path / "m") as machine:
        yield machine


@pytest.fixture(scope="module")
def machine(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A machine with the package, and contracts of every place in force."""
    need_booted()
    with Installed(tmp_path_factory.mktemp("machine") / "m") as machine:
        machine.install(package)
        machine.prepare()
        yield machine


@pytest.fixture
def vm(machine: Installed, tmp_path: Path) -> Iterator[Testpmd]:
    """A VM on vhost-user, which sends as much as it may."""
    need_commands("dpdk-testpmd")
    socket = virtio_user(machine.root / VM["socket"], VM["mac"])
    with Testpmd(tmp_path, [socket], forward="txonly", peers={0: VM["peer"]}) as vm:
        wait_for("the VM's port", lambda: machine.show("vm").connection == "up")
        vm.start()
        yield vm


@pytest.mark.parametrize(("service", "most"), [("agent", 3.0), ("switch", 1.0), ("libvirt", 1.0)])
def test_exposure(service: str, most: float) -> None:
    """What the units leave allowed, as systemd rates it: 0 is nothing, 10 everything."""
    need_commands("systemd-analyze")
    unit = ROOT / f"packaging/tidegate-{service}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    rated = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert rated, done.stdout + done.stderr
    assert float(rated[1]) <= most


def test_installed(machine: Installed) -> None:
    """Both services run and have said so; what is whose."""
    for service in SERVICES:
        assert machine.property(service, "Type") == "notify"
        assert machine.property(service, "ActiveState") == "active"
        assert machine.property(service, "WatchdogUSec") not in ("0", "infinity")
    owners = machine.run(
        "cd /run/tidegate && stat --format '%n %a %U:%G' . api.sock vm vm/vm.sock switch switch/control.sock"
    )
    assert owners.splitlines() == [
        ". 755 root:root",
        "api.sock 660 root:tidegate",
        "vm 2755 root:kvm",
        "vm/vm.sock 660 root:kvm",
        "switch 700 tidegate-switch:tidegate-switch",
        "switch/control.sock 700 tidegate-switch:tidegate-switch",
    ]


def test_every_place(machine: Installed, vm: Testpmd) -> None:
    """Contracts of every place are kept, measured, changed and taken back under the units' restrictions."""
    machine.wait_in_force()
    machine.check_traffic()
    before = machine.show("vm").tx_bytes
    wait_for("frames of the VM", lambda: machine.show("vm").tx_bytes > before + 100_000)
    # What eBPF programs measured is read: waits for the limit, and delays under the deadline.
    stats = machine.show("plc").document["stats"]
    assert stats["delay"]["count"] > 0
    assert stats["realtime_delivered"] > 0
    assert "7464:" in machine.run("tc class show dev lan; tc filter show dev plc ingress")
    machine.run("tidegate vnic set plc tx.max=20mbit")
    machine.run("tidegate vnic rm plc && tidegate vnic rm lan")
    assert "7464:" not in machine.run("tc qdisc show; tc filter show dev plc ingress")
    machine.prepare_again()
    machine.check_nothing_denied()


def test_restarts(machine: Installed, vm: Testpmd) -> None:
    """Services may be restarted, and the switch be replaced: frames go on, no front end connects again."""
    for how in (
        "restart tidegate-agent",
        "reload tidegate-switch",
        "kill --signal=KILL tidegate-switch",
        "restart tidegate-switch",
        "reload tidegate-switch",
        "stop tidegate-agent; systemctl start tidegate-agent",
    ):
        machine.run(f"systemctl {how}")
        machine.wait_in_force()
        before = machine.show("vm").tx_bytes

        def goes_on(before: int = before) -> bool:
            return machine.show("vm").tx_bytes > before

        wait_for(f"frames of the VM after {how}", goes_on)
        machine.check_traffic()
    assert not re.search(r"disconnect|reconnect", vm.process.output(), re.IGNORECASE)
    machine.check_nothing_denied()


@pytest.fixture(scope="module")
def impatient(machine: Installed) -> Iterator[Installed]:
    """The machine with watchdogs that wait for 2 s only."""
    for service in SERVICES:
        machine.restart_with(service, "[Service]\nWatchdogSec=2s\n")
    # A switch that systemd did not start: it took the place of the one before.
    machine.run("systemctl reload tidegate-switch")
    machine.wait_in_force()
    yield machine
    for service in SERVICES:
        machine.restart_with(service, "")


def test_a_stalled_thread_restarts_its_service(impatient: Installed) -> None:
    """A worker, the thread that takes the agent's connections; the reconciler, the API's thread."""
    # They are left alone as long as they turn.
    time.sleep(3)
    restarts = dict.fromkeys(SERVICES, 0)
    assert {service: impatient.restarts(service) for service in SERVICES} == restarts
    for service, thread in (
        ("tidegate-switch", "worker-0"),
        ("tidegate-agent", "reconciler"),
        ("tidegate-switch", "tidegate"),
        ("tidegate-agent", "tidegate"),
    ):
        restarts[service] += 1

        def is_ended(service: str = service) -> bool:
            return impatient.restarts(service) == restarts[service]

        with stopped_thread(impatient.main_process(service), thread):
            wait_for(f"{service} to be ended, whose {thread} stands still", is_ended)
        impatient.wait_in_force()
        impatient.check_traffic()


RIGHTS = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_CHOWN", "CAP_FOWNER", "CAP_DAC_OVERRIDE")

NEEDED = """
[vnic.a]
attach  = { vhost-user = "/run/tidegate/vm/a.sock", owner = "nobody" }
mac     = "52:54:00:00:0b:11"
segment = 8

[vnic.b]
attach  = { tap = "eth1", netns = "/run/netns/box" }
mac     = "52:54:00:00:0b:12"
segment = 8

[vnic.c]
attach  = { netdev = "spare" }
mac     = "52:54:00:00:0b:13"
segment = 0
tx      = { max = "10mbit" }
"""
"""What takes all of them."""


def test_the_agent_has_no_right_without_need(machine: Installed) -> None:
    """Without any one of its capabilities it cannot do what it is there for, and says so."""
    granted = machine.property("tidegate-agent", "CapabilityBoundingSet").upper().split()
    assert sorted(granted) == sorted(RIGHTS)
    machine.run("ip link add spare type veth peer name spare-peer && ip link set spare up")
    (machine.root / "run/needed.toml").write_text(NEEDED)
    apply = "tidegate apply -f /run/needed.toml && for vnic in a b c; do tidegate vnic rm $vnic; done"
    machine.run(apply)
    for right in RIGHTS:
        rest = " ".join(RIGHTS).replace(right, "")
        restricted = f"[Service]\nCapabilityBoundingSet=\nCapabilityBoundingSet={rest}\n"
        machine.restart_with("tidegate-agent", restricted)
        done = machine.try_run(apply)
        assert done.returncode != 0, f"all went well without {right}"
        assert re.search(r"not permitted|Permission denied", done.stderr), done.stderr
    machine.restart_with("tidegate-agent", "")
    machine.run(apply)
    machine.wait_in_force()


def test_the_drop_in_of_the_plan(machine: Installed) -> None:
    """It opens interrupts and devices for writing, no other setting of the kernel, and the agent runs."""
    machine.restart_with("tidegate-agent", (ROOT / "packaging/cores.conf").read_text())
    machine.wait_in_force()
    writable = 'for path in "$@"; do test -w $path && echo $path; done; true'
    closed = ["/proc/sys/kernel/printk", "/proc/sysrq-trigger", "/sys/kernel", "/sys/bus", "/sys/fs"]
    paths = ["/proc/irq", *closed]
    process = machine.property("tidegate-agent", "MainPID")
    entered = ["nsenter", f"--target={process}", "--mount", "sh", "-c", writable, "paths", *paths]
    # A container has /sys read-only by itself, /sys/devices, too.
    assert machine.run(entered).split() == ["/proc/irq"]
    machine.restart_with("tidegate-agent", "")
    machine.wait_in_force()


def drop_in(heading: str) -> str:
    """The one that docs/operations shows below a heading."""
    pages = "".join(page.read_text() for page in sorted((ROOT / "docs/operations").glob("*.md")))
    page = pages.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (found,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    return str(found)


ELSEWHERE = """
[vnic.elsewhere]
attach  = { vhost-user = "/srv/vm/elsewhere.sock" }
mac     = "52:54:00:00:0b:14"
segment = 8

[vnic.process]
attach  = { tap = "eth2", netns = "/proc/PID/ns/net" }
mac     = "52:54:00:00:0b:15"
segment = 8
"""


def test_other_roots(machine: Installed) -> None:
    """The documentation's drop-in lets sockets be elsewhere, and namespaces be those of processes."""
    machine.run("mkdir /srv/vm")
    waits = "ip netns exec box sh -c 'sleep 600 >/dev/null 2>&1 & echo $!'"
    process = machine.run(waits).strip()
    (machine.root / "run/elsewhere.toml").write_text(ELSEWHERE.replace("PID", process))
    refused = machine.try_run("tidegate apply -f /run/elsewhere.toml")
    assert "/srv/vm/elsewhere.sock is not below" in refused.stderr
    more = drop_in("The socket exists").replace('vm"', 'vm --netns-root /proc"')
    machine.restart_with("tidegate-agent", f"{more}CapabilityBoundingSet=CAP_SYS_PTRACE\n")
    machine.run("tidegate apply -f /run/elsewhere.toml")
    machine.run("test -S /srv/vm/elsewhere.sock && ip -n box link show eth2")
    machine.run("tidegate vnic rm elsewhere && tidegate vnic rm process")
    machine.run(["kill", process])
    machine.restart_with("tidegate-agent", "")
    machine.wait_in_force()


def test_realtime(machine: Installed) -> None:
    """The documentation's drop-in gives workers and writers priority, no other; also after an upgrade."""
    machine.restart_with("tidegate-switch", drop_in("Real-time priority"))
    for how in ("restart", "reload", "kill --signal=KILL", "reload"):
        machine.run(f"systemctl {how} tidegate-switch")
        machine.wait_in_force()
        threads = machine.threads("tidegate-switch")
        assert threads.pop("worker-0") == ["FF", "10"]
        assert threads.pop("writer-0") == ["FF", "1"]
        assert all(rest == ["TS", "-"] for rest in threads.values()), threads
    assert "gets no real-time priority" not in machine.run("journalctl --no-pager -u tidegate-switch")
    machine.restart_with("tidegate-switch", "")


def earlier(package: Path, folder: Path) -> Path:
    """The package of the release before: its units and scripts, around the program of today."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    for name, place in {
        "tidegate-agent.service": "usr/lib/systemd/system",
        "tidegate-switch.service": "usr/lib/systemd/system",
        "sysusers.conf": "usr/lib/sysusers.d/tidegate.conf",
        "tmpfiles.conf": "usr/lib/tmpfiles.d/tidegate.conf",
        "postinst": "DEBIAN",
    }.items():
        shutil.copy(EARLIER / name, tree / place)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"^Version: .*", "Version: 0.0.1", control.read_text(), flags=re.MULTILINE))
    built = folder / "earlier.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", tree, built], check=True, capture_output=True)
    return built


def test_upgrade(bare: Installed, package: Path, tmp_path: Path) -> None:
    """From the release before: the running switch is reached where it is; its successor listens elsewhere."""
    need_commands("dpkg-deb")
    bare.install(earlier(package, tmp_path))
    bare.prepare()
    bare.check_traffic()
    process = bare.property("tidegate-switch", "MainPID")
    bare.edit("tidegate-switch", "[Service]\nWatchdogSec=2s\n")
    told = bare.install(package)
    assert "systemctl reload tidegate-switch" in told
    # The agent is the new one. The switch is the old one, and systemd does not wait to hear from it.
    assert bare.property("tidegate-agent", "Type") == "notify"
    bare.wait_in_force()
    bare.check_traffic()
    time.sleep(3)
    assert bare.property("tidegate-switch", "MainPID") == process
    for how in ("reload", "restart", "reload"):
        bare.run(f"systemctl {how} tidegate-switch")
        bare.wait_in_force()
        bare.check_traffic()
    owners = bare.run("stat --format '%F %U' /run/tidegate /run/tidegate/switch/control.sock")
    assert owners.splitlines() == ["directory root", "socket tidegate-switch"]
    bare.check_nothing_denied()


def test_removed(bare: Installed, package: Path) -> None:
    """What is removed does not run, and can be had again; what is purged leaves only users and groups."""
    bare.install(package)
    bare.prepare()
    bare.run("dpkg --remove tidegate")
    assert (
        bare.try_run("systemctl is-active tidegate-switch tidegate-agent").stdout.split() == ["inactive"] * 2
    )
    assert bare.try_run("pgrep --exact tidegate").stdout == ""
    bare.install(package)
    bare.wait_in_force()
    bare.run("dpkg --purge tidegate")
    assert bare.try_run("pgrep --exact tidegate").stdout == ""
    left = "ls -d /run/tidegate* /var/lib/tidegate* /etc/tidegate* /etc/systemd/system/*/tidegate*"
    assert bare.try_run(left).stdout == ""


VF_CONTRACT = """
[vnic.db]
attach  = { vf = "eth0/0" }
mac     = "52:54:00:00:0b:20"
segment = 0
tx      = { max = "100mbit" }
"""


@pytest.mark.lab
def test_a_virtual_function(package: Path, tmp_path: Path) -> None:
    """The agent's unit leaves it what a NIC takes: limits by netlink, counters by mapping the registers."""
    need_sriov()
    need_systemd()
    tree, contract = tmp_path / "tree", tmp_path / "contract.toml"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    contract.write_text(VF_CONTRACT)
    with igb_guest(tmp_path / "guest", cpus=2, modules=["tun"], command_line="lab.systemd") as guest:
        pf = Pf(guest)
        (device,) = pf.make_vfs(1, macs=["52:54:00:00:0b:20"])
        pf.into_namespace(device, "vm", "10.0.2.9/24")
        guest.run("until systemctl is-system-running | grep running; do sleep 0.5; done", timeout=90)
        # Installing it takes an emulated machine long.
        guest.run(f"cp {tree}/usr/bin/tidegate /usr/bin/")
        guest.run(f"cp {tree}/usr/lib/systemd/system/* /etc/systemd/system/")
        guest.run(f"systemd-sysusers {tree}/usr/lib/sysusers.d/tidegate.conf")
        guest.run(f"systemd-tmpfiles --create {tree}/usr/lib/tmpfiles.d/tidegate.conf")
        guest.run("systemctl daemon-reload && systemctl start tidegate-agent")
        guest.run(f"tidegate apply -f {contract}")
        assert vfs(guest, "eth0")[0]["rate"]["max_tx"] == 100
        guest.run("ip netns exec vm ping -c 3 -W 5 10.0.2.2")
        shown = json.loads(guest.run("tidegate vnic show db --json"))
        counted = {figure["name"]: figure for figure in shown["figures"]}
        assert counted["tx.frames"]["source"] == "registers"
        assert counted["tx.frames"]["value"] >= 3
        # Of devices it sees what taps are made of, and none that are the machine's.
        process = "$(systemctl show --value --property MainPID tidegate-agent)"
        devices = guest.run(f"nsenter --target={process} --mount ls /dev /dev/net").split()
        assert "tun" in devices
        assert not [name for name in devices if name.startswith(("vport", "mem", "ttyS"))]
