"""A libvirtd of its own: private configuration, state and network, nothing of the host's.

Libvirt(folder) ── mount and network namespace ─┬─ libvirtd, its hooks in folder/hooks
                                                └─ bridge br0
libvirt.virsh("create", ...)      Host(..., agent_wrapper=libvirt.enter_network) keeps its taps
"""

import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .guest import KERNEL_COMMAND_LINE, Guest, Machine
from .host import BINARY
from .initramfs import initramfs, kernel
from .process import Process, wait_for

# libvirt's libraries look up the user they would run QEMU as, whatever qemu.conf says; Debian's package
# libvirt-daemon-system makes it, which tests do not need.
_SCRIPT = r"""
set -e
folder=$1
for empty in /etc/libvirt /var/lib /var/log /var/cache /run; do mount -t tmpfs none "$empty"; done
mkdir -p /run/libvirt /etc/libvirt/hooks /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
mount --bind "$folder/hooks" /etc/libvirt/hooks
for file in passwd group; do cp "/etc/$file" "/run/$file"; done
grep -q ^libvirt-qemu: /run/passwd || echo libvirt-qemu:x:64055:64055::/:/usr/sbin/nologin >>/run/passwd
grep -q ^libvirt-qemu: /run/group || echo libvirt-qemu:x:64055: >>/run/group
grep -q ^kvm: /run/group || echo kvm:x:64056: >>/run/group
for file in passwd group; do mount --bind "/run/$file" "/etc/$file"; done
cp "$folder/qemu.conf" "$folder/libvirtd.conf" /etc/libvirt/
tc=$(readlink -f "$(command -v tc)")
cp "$tc" "$folder/tc.real"
mount --bind "$folder/tc" "$tc"
ip link set lo up
if "$folder/tc.real" qdisc add dev lo root sfq; then touch "$folder/stock"; fi
"$folder/tc.real" qdisc del dev lo root || true
ip link add br0 type bridge
ip link set br0 up
touch "$folder/ready"
exec sleep infinity
"""

_QEMU_CONF = """\
user = "root"
group = "root"
cgroup_controllers = [ ]
security_driver = "none"
namespaces = [ ]
remember_owner = 0
stdio_handler = "file"
"""

_LIBVIRTD_CONF = """\
auth_unix_ro = "none"
auth_unix_rw = "none"
log_outputs = "3:stderr"
"""


# What libvirt runs for <bandwidth>, noted. Kernels of test machines may lack what it takes; where the script
# above finds that, libvirt is told that it is done. The rest is done. On a stock kernel all of it is:
# tests/kernel/test_stock_kernel.py. With the file `odd` the root qdisc has a size table, which cannot be put
# back.
_TC = """\
#!/bin/sh
echo "$*" >>{folder}/tc.log
[ -e {folder}/stock ] || case " $* " in *" sfq "* | *" fw "* | *" police "*) exit 0 ;; esac
if [ -e {folder}/odd ]; then
    dev=$4
    case "$*" in
    "qdisc add dev $4 root handle 1: htb "*)
        shift 8
        exec {folder}/tc.real qdisc add dev "$dev" root handle 1: stab overhead 20 htb "$@" ;;
    esac
fi
exec {folder}/tc.real "$@"
"""


class LibvirtError(Exception):
    """virsh failed; its text is what it said."""


class Libvirt:
    """A running libvirtd. Everything of it ends at `stop`, with the domains."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.hooks = folder / "hooks"
        self.hooks.mkdir(exist_ok=True)
        (folder / "qemu.conf").write_text(_QEMU_CONF)
        # Of its own, so that domains migrate between two on one machine.
        own = f'host_uuid = "{uuid.uuid4()}"\n'
        (folder / "libvirtd.conf").write_text(_LIBVIRTD_CONF + own)
        (folder / "tc").write_text(_TC.format(folder=folder))
        (folder / "tc").chmod(0o755)
        self._holder = Process(
            ["unshare", "--mount", "--net", "bash", "-c", _SCRIPT, "libvirt", folder],
            folder / "namespaces.log",
        )
        self._holder.wait_for("the namespaces", (folder / "ready").exists)
        self.start()

    def start(self) -> None:
        """Start libvirtd and wait until it answers."""
        self._daemon = Process(self.enter("libvirtd"), self.folder / "libvirtd.log")
        self._daemon.wait_for("libvirtd", lambda: self.try_virsh("list").returncode == 0)

    def restart(self) -> None:
        """End libvirtd and start it again; domains keep running."""
        self._daemon.stop()
        self.start()

    @property
    def enter_network(self) -> list[str]:
        """The words before a command that shall see the domains' taps."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]

    def enter(self, *command: str | Path) -> list[str | Path]:
        """`command`, inside."""
        holder = f"/proc/{self._holder.pid}"
        # Its root, since in a guest that is not the one of its mount namespace.
        places = (f"--mount={holder}/ns/mnt", f"--root={holder}/root", "--wd=/", f"--net={holder}/ns/net")
        return ["nsenter", *places, *command]

    def run(self, *command: str | Path) -> str:
        """Run a command inside; it must succeed. Its standard output."""
        return subprocess.run(
            self.enter(*command), capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def try_virsh(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `virsh ARGUMENTS`."""
        command = self.enter("virsh", "--connect", "qemu:///system", *arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    def virsh(self, *arguments: str | Path) -> str:
        """`try_virsh` that must succeed; its standard output."""
        done = self.try_virsh(*arguments)
        if done.returncode != 0:
            raise LibvirtError(f"virsh {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
        return done.stdout

    def xml(self, text: str, name: str = "xml") -> Path:
        """A file with this text that virsh can read."""
        path = self.folder / f"{name}.xml"
        path.write_text(text)
        return path

    def create(self, text: str) -> None:
        """Start a domain that is gone when it stops."""
        self.virsh("create", self.xml(text))

    def domains(self) -> set[str]:
        """The running domains."""
        return set(self.virsh("list", "--name").split())

    def process(self, domain: str) -> int:
        """The process id of a domain's QEMU."""
        return int(self.run("cat", f"/run/libvirt/qemu/{domain}.pid"))

    def crash(self, domain: str) -> None:
        """End a domain's QEMU as a bug of it would."""
        os.kill(self.process(domain), signal.SIGKILL)
        wait_for(f"libvirt to see that {domain} is gone", lambda: domain not in self.domains())

    def migrate(self, domain: str, to: "Libvirt") -> None:
        """Move a running domain to another libvirtd."""
        socket = f"/proc/{to._holder.pid}/root/run/libvirt/libvirt-sock"
        self.virsh(
            *("migrate", "--live", domain, f"qemu+unix:///system?socket={socket}"),
            *("--migrateuri", f"unix://{to.folder}/migration.sock"),
        )

    def counted(self, netdev: str, direction: str) -> int:
        """Bytes that a netdev of the domains' network counted; `direction`: the host's `rx` or `tx`."""
        (link,) = json.loads(self.run("ip", "--json", "--statistics", "link", "show", netdev))
        return int(link["stats64"][direction]["bytes"])

    def shaping(self, netdev: str) -> str:
        """What tc shows of a netdev, without its name, counters, and the numbers that the kernel chose."""
        shown = ""
        for words in ("qdisc show dev", "class show dev", "filter show dev", "filter show ingress dev"):
            shown += self.run("tc", "-d", *words.split(), netdev)
        chosen = r"direct_packets_stat \d+|\bref \d+ bind \d+|\b80[0-9a-f]:\S*|ht 80\d|police 0x\S+"
        shown = re.sub(chosen, "", shown)
        return " ".join(shown.replace("parent ffff: ", "").split())

    def shaping_by_libvirt(self, netdev: str) -> str:
        """What tc shows after the commands that libvirt ran for this netdev, on one of its own."""
        commands = [line.split() for line in (self.folder / "tc.log").read_text().splitlines()]
        self.run("ip", "tuntap", "add", "again0", "mode", "tap")
        try:
            for command in commands:
                if netdev in command and "show" not in command:
                    words = ["again0" if word == netdev else word for word in command]
                    subprocess.run(self.enter("tc", *words), capture_output=True, check="del" not in words)
            return self.shaping("again0")
        finally:
            self.run("ip", "link", "del", "again0")

    def watch(self, api: Path) -> Process:
        """`tidegate libvirt watch`, running."""
        command = self.enter(BINARY, "-v", "--api", api, "libvirt", "watch")
        return Process(command, self.folder / "watch.log")

    def stop(self) -> None:
        """End the domains, libvirtd and the namespaces."""
        if self._daemon.running:
            for domain in self.domains():
                self.try_virsh("destroy", domain)
        self._daemon.stop()
        self._holder.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def domain(name: str, *devices: str, metadata: str = "", more: str = "") -> str:
    """A domain that boots nothing; `more` are further elements, such as `<os>` with a kernel."""
    os_element = "" if "<os>" in more else "<os><type arch='x86_64' machine='pc'>hvm</type></os>"
    return (
        f"<domain type='qemu'><name>{name}</name><memory unit='MiB'>128</memory><vcpu>1</vcpu>"
        f"<metadata>{metadata}</metadata>{os_element}<features><acpi/></features>{more}<devices>"
        "<emulator>/usr/bin/qemu-system-x86_64</emulator><controller type='usb' model='none'/>"
        f"<memballoon model='none'/>{''.join(devices)}</devices></domain>"
    )


def bridged(mac: str, more: str = "") -> str:
    """An interface on br0."""
    return (
        f"<interface type='bridge'><mac address='{mac}'/><source bridge='br0'/><model type='virtio'/>"
        f"<rom enabled='no'/>{more}</interface>"
    )


def vhost_user(mac: str, socket: Path, mode: str = "client") -> str:
    """An interface on a vhost-user socket; `mode` is QEMU's."""
    return (
        f"<interface type='vhostuser'><mac address='{mac}'/>"
        f"<source type='unix' path='{socket}' mode='{mode}'/>"
        "<model type='virtio'/><rom enabled='no'/></interface>"
    )


def contracts(vnics: Iterable[str]) -> str:
    """The metadata with these contracts: attributes of each, its `mac` among them."""
    elements = "".join(f"<t:vnic {attributes}/>" for attributes in vnics)
    return f"<t:contracts xmlns:t='https://tidegate.dev/libvirt/1'>{elements}</t:contracts>"


@dataclass
class _Domain:
    """A domain as what runs a guest."""

    libvirt: Libvirt
    name: str
    console: Path

    @property
    def running(self) -> bool:
        return self.name in self.libvirt.domains()

    def output(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def kill(self) -> None:
        self.libvirt.try_virsh("destroy", self.name)


@dataclass(kw_only=True)
class DomainGuest(Guest):
    """A guest that libvirt runs: its devices are elements of the domain's XML."""

    libvirt: Libvirt
    name: str
    devices: tuple[str, ...] = ()
    metadata: str = ""

    def power_on(self, control: Path) -> Machine:
        """Start the domain."""
        console = self.folder / "console.log"
        os_element = (
            f"<os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel()}</kernel>"
            f"<initrd>{initramfs()}</initrd><cmdline>{KERNEL_COMMAND_LINE}</cmdline></os>"
            "<cpu mode='maximum'/>"
        )
        lab = (
            f"<serial type='file'><source path='{console}'/></serial>",
            "<filesystem type='mount' accessmode='passthrough' multidevs='remap'>"
            "<source dir='/'/><target dir='host'/><readonly/></filesystem>",
            f"<channel type='unix'><source mode='connect' path='{control}'/>"
            "<target type='virtio' name='lab'/></channel>",
            "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>",
        )
        text = domain(self.name, *lab, *self.devices, metadata=self.metadata, more=os_element)
        self.libvirt.create(text.replace("<memory unit='MiB'>128<", f"<memory unit='MiB'>{self.memory_mb}<"))
        return _Domain(self.libvirt, self.name, console)
