"""The controller's Debian package: what is in it, and how it is installed, serves and goes: no network."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.booted import need_booted
from lab.initramfs import ROOT
from lab.installed import Installed
from lab.need import need_commands
from lab.packages import build_controller_package
from lab.process import wait_for

pytestmark = pytest.mark.abreast

SERVICE = "tidegate-controller"
PLACE = f"usr/lib/{SERVICE}"
FOLDER = f"/etc/{SERVICE}"
FILE = f"{FOLDER}/controller.toml"
EXAMPLE = f"/usr/share/doc/{SERVICE}/examples/controller.toml"

CONFIGURATION = """
[openflow]
listen = "127.0.0.1:6653"

[terms]
capacity = "1Gbit"
reservable = "500Mbit"
levels = [{ delay = "200us", frames = 5000 }, { delay = "2ms", frames = 5000 }]

[switches.s1]
datapath = "0000000000000001"
database = "tcp:127.0.0.1:6640"
"""
"""One switch, which is not there."""

HELLO = """
import socket
with socket.create_connection(("127.0.0.1", 6653), timeout=30) as switch:
    print(switch.recv(8)[:2].hex())
"""
"""A switch's end: the first two bytes that it hears."""

USES = """
import socket, sqlite3, ssl, sys
sys.path.insert(0, "/usr/lib/tidegate-controller")
import aiohttp, networkx, os_ken.lib.packet.packet, prometheus_client, tidegate_native
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
key = ec.generate_private_key(ec.SECP256R1())
key.public_key().verify(key.sign(b"text", ec.ECDSA(hashes.SHA256())), b"text", ec.ECDSA(hashes.SHA256()))
AESGCM(AESGCM.generate_key(256)).encrypt(bytes(12), b"text", None)
ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
assert socket.getaddrinfo("localhost", 80)
with sqlite3.connect("/var/lib/tidegate-controller/tried.sqlite") as database:
    database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE tried (one)")
print("all was used")
"""
"""Libraries that could need what the unit forbids: code made at run time, system calls, other folders."""


@pytest.fixture(scope="module")
def tree(controller_package: Path) -> Path:
    """The package, unpacked."""
    root = controller_package.parent / "root"
    subprocess.run(["dpkg-deb", "-R", controller_package, root], check=True)
    return root


def said(command: list[str | Path]) -> str:
    """All that a program prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def test_contents(controller_package: Path, tree: Path) -> None:
    """All that it needs is there, owned by root, under a licence; and nothing that only tests need."""
    listing = subprocess.run(
        ["dpkg-deb", "-c", controller_package], capture_output=True, text=True, check=True
    )
    assert all(" root/root " in line for line in listing.stdout.splitlines())
    for path in (
        f"usr/bin/{SERVICE}",
        f"usr/lib/systemd/system/{SERVICE}.service",
        f"usr/lib/sysusers.d/{SERVICE}.conf",
        f"usr/lib/tmpfiles.d/{SERVICE}.conf",
        f"usr/share/doc/{SERVICE}/examples/controller.toml",
        f"usr/share/doc/{SERVICE}/controller/openapi.json",
        f"usr/share/doc/{SERVICE}/docs/operations/controller.md",
        f"{PLACE}/tidegate_native.abi3.so",
        f"{PLACE}/tidegate_controller/main.py",
    ):
        assert (tree / path).stat().st_size > 0, path
    folder = tree / PLACE
    needed = (ROOT / "controller/requirements.in").read_text()
    names = {re.sub(r"[-.]", "_", name) for name in re.findall(r"^[a-z].*$", needed, re.MULTILINE)}
    carried = {path.name.split("-")[0] for path in folder.glob("*.dist-info")}
    assert carried == names
    copyright_file = (tree / f"usr/share/doc/{SERVICE}/copyright").read_text()
    for carries in folder.iterdir():
        assert carries.name in copyright_file or carries.name == "tidegate_controller", carries
    parts = {part for path in folder.rglob("*") for part in path.relative_to(folder).parts}
    assert not parts & {"__pycache__", "tests", "bin", "eventlet", "ncclient", "pip", "RECORD"}
    assert not [
        path for path in folder.rglob("*") if path.is_symlink() or path.suffix in (".pyc", ".pyi", ".h")
    ]
    control = (tree / "DEBIAN/control").read_text()
    assert re.search(
        r"^Depends: python3 \(>= 3\.11\), python3 \(<< 3\.12\), libc6 \(>= 2\.\d+\)", control, re.M
    )
    assert not (tree / "DEBIAN/conffiles").exists()


def test_the_unit(tree: Path, tmp_path: Path) -> None:
    """systemd finds nothing to complain about, and little that is left allowed."""
    need_commands("systemd-analyze")
    installed = tree / f"usr/lib/systemd/system/{SERVICE}.service"
    text = installed.read_text()
    assert set(re.findall(r"^(?:User|Group)=(\S+)", text, re.MULTILINE)) == {SERVICE}
    assert f"u {SERVICE} " in (tree / f"usr/lib/sysusers.d/{SERVICE}.conf").read_text()
    # Verified where it is not installed: with the program's path as unpacked.
    unit = tmp_path / installed.name
    unit.write_text(text.replace(f"/usr/bin/{SERVICE}", str(tree / f"usr/bin/{SERVICE}")))
    complaints = said(["systemd-analyze", "verify", "--man=no", unit])
    assert [line for line in complaints.splitlines() if "tidegate-" in line] == []
    rated = said(["systemd-analyze", "security", "--offline=yes", "--no-pager", installed])
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", rated)
    assert found, rated
    assert float(found[1]) <= 1.2


def test_reproducible(controller_package: Path, tmp_path: Path) -> None:
    """The same source makes the same package."""
    assert build_controller_package(tmp_path).read_bytes() == controller_package.read_bytes()


@pytest.fixture(scope="module")
def bare(controller_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A machine without a network, with the package, and without a configuration."""
    need_booted()
    with Installed(tmp_path_factory.mktemp("machine") / "m") as machine:
        told = machine.install(controller_package)
        assert f"it starts when {FILE} is there" in told
        assert machine.property(SERVICE, "ConditionResult") == "no"
        assert state(machine) == ("inactive", "success")
        yield machine


@pytest.fixture
def machine(bare: Installed) -> Installed:
    """The same, where the controller serves one switch, which is not there."""
    configure(bare, CONFIGURATION)
    bare.run(f"systemctl start {SERVICE}")
    return bare


def configure(machine: Installed, text: str) -> None:
    """Write the configuration as the operator does: as the controller's user."""
    (machine.root / "run/controller.toml").write_text(text)
    machine.run(f"runuser -u {SERVICE} -- cp /run/controller.toml {FILE}")


def state(machine: Installed) -> tuple[str, str]:
    """What systemd says of it."""
    return machine.property(SERVICE, "ActiveState"), machine.property(SERVICE, "Result")


def log(machine: Installed) -> str:
    """What it and systemd have said."""
    return machine.run(f"journalctl --no-pager -o cat -u {SERVICE}")


def test_it_serves(machine: Installed) -> None:
    """It is up when it listens, as a user of its own, and has missed no right."""
    assert state(machine) == ("active", "success")
    assert machine.run(["/usr/bin/python3", "-c", HELLO]).startswith("04")
    process = machine.property(SERVICE, "MainPID")
    assert machine.run(f"ps --no-headers -o user:32,comm {process}").split()[0] == SERVICE
    owners = machine.run(f"stat --format '%n %a %U:%G' {FOLDER} /var/lib/{SERVICE}")
    assert owners.splitlines() == [
        f"{FOLDER} 750 {SERVICE}:{SERVICE}",
        f"/var/lib/{SERVICE} 700 {SERVICE}:{SERVICE}",
    ]
    inside = ["nsenter", f"--target={process}", "--mount", "sh", "-c"]
    assert machine.run([*inside, f"test -w /var/lib/{SERVICE} && ! test -w {FOLDER} && echo yes"]) == "yes\n"
    denied = r"denied|not permitted|Permission|Read-only|not supported|Traceback"
    assert [line for line in log(machine).splitlines() if re.search(denied, line)] == []


def test_it_uses_its_own_packages(bare: Installed) -> None:
    """Those of the environment and of the machine are not seen. The example is a configuration."""
    wrong = "/run/wrong/networkx.py /usr/lib/python3/dist-packages/networkx.py"
    bare.run(f"mkdir /run/wrong && for file in {wrong}; do echo 'raise SystemExit(9)' >$file; done")
    bare.run(f"cd /run/wrong && PYTHONPATH=/run/wrong {SERVICE} --check --config {EXAMPLE}")
    bare.run(f"test -e /{PLACE}/tidegate_controller/__pycache__/main.cpython-311.pyc")


def test_the_unit_forbids_nothing_that_is_needed(machine: Installed) -> None:
    """The libraries that are carried work under it."""
    (machine.root / "run/uses.py").write_text(USES)
    once = "Type=oneshot\nRestart=no\nExecStart=\nExecStart=/usr/bin/python3 -IS /run/uses.py\n"
    machine.restart_with(SERVICE, f"[Service]\n{once}")
    assert "all was used" in log(machine)
    machine.restart_with(SERVICE, "")


def test_a_key_from_elsewhere(machine: Installed) -> None:
    """One of systemd's credentials, if there is one, reaches the controller alone."""
    credentials = f"/run/credentials/{SERVICE}.service"
    assert machine.run(f"ls {credentials}") == ""
    machine.run(f"runuser -u {SERVICE} -- {SERVICE} init --name 10.0.0.1")
    machine.run(f"mkdir -p /etc/credstore && mv {FOLDER}/key-encryption.key /etc/credstore")
    configure(machine, CONFIGURATION + "[tls]\n")
    machine.run(f"systemctl restart {SERVICE}")
    owner = machine.run(f"stat --format '%a %U' {credentials} {credentials}/key-encryption.key")
    assert owner.splitlines() == [f"500 {SERVICE}", f"400 {SERVICE}"]
    # With [tls] it does not start without the key, which is nowhere else.
    assert state(machine) == ("active", "success")
    machine.run(f"rm /etc/credstore/key-encryption.key && systemctl stop {SERVICE}")


def test_reload(machine: Installed) -> None:
    """Files are read anew by the process that serves."""
    process = machine.property(SERVICE, "MainPID")
    machine.run(f"systemctl reload {SERVICE}")
    assert machine.run(["/usr/bin/python3", "-c", HELLO]).startswith("04")
    assert machine.property(SERVICE, "MainPID") == process
    assert state(machine) == ("active", "success")


def test_stop(machine: Installed) -> None:
    """It ends cleanly, and says so; it is there again at the next boot."""
    machine.run(f"systemctl stop {SERVICE}")
    assert state(machine) == ("inactive", "success")
    assert machine.property(SERVICE, "ExecMainStatus") == "0"
    assert "SIGTERM: the controller ends; switches keep what they have" in log(machine)
    assert machine.run(f"systemctl is-enabled {SERVICE}") == "enabled\n"


def test_a_wrong_configuration(machine: Installed) -> None:
    """It fails at once, with the line; it is not tried again until a person has mended it."""
    configure(machine, CONFIGURATION.replace("[switches.s1]", "[switch.s1]"))
    done = machine.try_run(f"systemctl restart {SERVICE}")
    assert done.returncode != 0
    assert state(machine) == ("failed", "exit-code")
    assert machine.property(SERVICE, "ExecMainStatus") == "2"
    assert machine.restarts(SERVICE) == 0
    assert f"{FILE}: " in log(machine)
    configure(machine, CONFIGURATION)
    machine.run(f"systemctl start {SERVICE}")


def test_a_damaged_state(machine: Installed) -> None:
    """It fails at once, and says what to do."""
    file = f"/var/lib/{SERVICE}/state.sqlite"
    machine.run(f"systemctl stop {SERVICE} && mv {file} {file}.good && echo damaged >{file}")
    assert machine.try_run(f"systemctl start {SERVICE}").returncode != 0
    assert state(machine) == ("failed", "exit-code")
    assert machine.property(SERVICE, "ExecMainStatus") == "3"
    assert f"{file}: " in log(machine)
    machine.run(f"mv {file}.good {file} && systemctl start {SERVICE}")


def test_one_that_ends_or_hangs(machine: Installed) -> None:
    """It is started anew."""
    patient = "[Service]\nWatchdogSec=2s\nTimeoutAbortSec=1s\nRestartSec=0\n"
    machine.restart_with(SERVICE, patient)
    for number, signal in enumerate(("KILL", "STOP"), 1):
        machine.run(f"systemctl kill --signal={signal} {SERVICE}")

        def is_back(number: int = number) -> bool:
            return machine.restarts(SERVICE) == number and state(machine)[0] == "active"

        wait_for(f"the controller after SIG{signal}", is_back, timeout=60)
    machine.restart_with(SERVICE, "")


def test_removed_and_purged(machine: Installed) -> None:
    """What is removed does not run, and leaves configuration and state; what is purged leaves its user."""
    machine.run(f"touch /var/lib/{SERVICE}/kept && dpkg --remove {SERVICE}")
    assert machine.try_run(f"systemctl is-active {SERVICE}").stdout == "inactive\n"
    assert machine.try_run(["pgrep", "--full", "tidegate-controller"]).stdout == ""
    machine.run(f"test -e {FILE} && test -e /var/lib/{SERVICE}/kept && ! test -e /{PLACE}")
    machine.run(f"rm -r /etc/systemd/system/{SERVICE}.service.d; dpkg --purge {SERVICE}")
    left = f"ls -d /etc/*/system/*/{SERVICE}* /*/{SERVICE}* /*/*/{SERVICE}* /usr/share/*/{SERVICE}*"
    assert machine.try_run(left).stdout == ""
    assert SERVICE not in machine.run("systemctl list-units --all --plain --no-legend")
