"""A QEMU guest under test: Debian's kernel, the host's files, commands over virtio-serial.

Guest(folder, nics=[vhost_user(sock, mac)]) ── qemu ──▶ ready in a few seconds
guest.run("ping -c1 10.0.0.2").stdout
"""

import base64
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from .initramfs import initramfs, kernel
from .process import Process
from .qemu import INSTALLED

# Emulation runs everywhere; "kvm" where the machine's /dev/kvm boots stock kernels.
ACCEL = os.environ.get("TIDEGATE_LAB_ACCEL", "tcg,thread=multi")


# QEMU 7.2 without KVM dies when a guest unmasks an MSI-X vector of a vhost-user device: it
# looks for an irqfd that only KVM has. With pin interrupts nothing else changes.
_EMULATED = ["-global", "virtio-net-pci.vectors=0"] if ACCEL.startswith("tcg") else []


KERNEL_COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 random.trust_cpu=on tsc=reliable"
    # On a busy machine, an emulated timer comes too late for the kernel's check of it: a panic.
    " no_timer_check"
    # Each saves some of the time that an emulated boot takes.
    " mitigations=off nokaslr cryptomgr.notests audit=0"
)


class GuestError(Exception):
    """A command in the guest failed."""


@dataclass(frozen=True)
class Result:
    """What a command in the guest came to."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Nic:
    """One network device: QEMU's arguments for it, and what has to be true of the guest's memory."""

    arguments: list[str]


_numbers = iter(range(1_000_000))


def vhost_user(path: Path, mac: str, *, queues: int = 1, server: bool = False, options: str = "") -> Nic:
    """A virtio-net device on the vhost-user socket at `path`; `server` lets QEMU listen.

    `options` are appended to the device, such as `mrg_rxbuf=off`.
    """
    n = next(_numbers)
    mode = "server=on,wait=off" if server else "reconnect=1"
    mq = ",mq=on" if queues > 1 else ""
    return Nic(
        [
            *("-chardev", f"socket,id=char{n},path={path},{mode}"),
            *("-netdev", f"vhost-user,id=net{n},chardev=char{n},queues={queues}"),
            *("-device", f"virtio-net-pci,netdev=net{n},mac={mac}{mq}{options and ',' + options}"),
        ]
    )


def unix_link(path: Path, mac: str, *, server: bool) -> Nic:
    """A virtio-net device joined to another guest's by a Unix socket, without any switch.

    The server's guest starts first: a client does not wait for its server.
    """
    n = next(_numbers)
    mode = "server=on" if server else "server=off"
    return Nic(
        [
            *("-netdev", f"stream,id=net{n},{mode},addr.type=unix,addr.path={path}"),
            *("-device", f"virtio-net-pci,netdev=net{n},mac={mac}"),
        ]
    )


def serial_port(name: str, path: Path | str) -> list[str]:
    """QEMU arguments for a virtio-serial port of that name; QEMU listens at `path`, also without a client."""
    n = next(_numbers)
    return [
        *("-chardev", f"socket,id=char{n},path={path},server=on,wait=off"),
        *("-device", f"virtserialport,chardev=char{n},name={name}"),
    ]


class Machine(Protocol):
    """What runs a guest."""

    @property
    def running(self) -> bool:
        """Whether it still does."""
        ...

    def output(self) -> str:
        """What the guest's console and QEMU have printed."""
        ...

    def kill(self) -> None:
        """Power off, at once."""
        ...


@dataclass
class Guest:
    """A guest, powered on: several boot side by side, until the first command waits for one.

    Its folder keeps the console (`console.log`) and the control socket.
    """

    folder: Path
    nics: list[Nic] = field(default_factory=list)
    cpus: int = 1
    memory_mb: int = 512
    share: bool = True
    prealloc: bool = False
    """Memory that is there before the guest runs, which a contract with a deadline asks for."""
    may_reboot: bool = False
    """Without it a guest that reboots, also after a panic, ends."""
    setup: str = ""
    """A command to run before all others, such as giving devices their addresses."""
    machine: list[str] | None = None
    """QEMU arguments for memory and machine, instead of the lab's own (the documented line is tested so)."""

    modules: list[str] = field(default_factory=list)
    """Kernel modules beside those that every guest has."""
    qemu: str | Path = INSTALLED
    """The QEMU that runs it, see `lab.qemu`."""
    command_line: str = ""
    """Further words for the kernel's command line, such as `iomem=relaxed`."""
    arguments: list[str] = field(default_factory=list)
    """Further QEMU arguments, such as `serial_port`'s."""
    accel: str = ACCEL
    """QEMU's accelerator."""
    boot_seconds: int = 60
    """How long it may take until the first command runs."""

    limit: Path | None = None
    """Host-side socket of the port by which the guest sets its soft limit, where it is to have one."""

    def __post_init__(self) -> None:
        self._seq = 0
        self._buffer = b""
        self.folder.mkdir(parents=True, exist_ok=True)
        control = self.folder / "control.sock"
        control.unlink(missing_ok=True)
        self._socket: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(control))
        self._listener.listen(1)
        self.process = self.power_on(control)

    def power_on(self, control: Path) -> Machine:
        """Start the machine, with a virtio-serial port named `lab` on the socket `control`."""
        chardev = f"socket,id=control,path={control}"
        return Process([self.qemu, *self.qemu_arguments(chardev)], self.folder / "console.log")

    def qemu_arguments(self, control: str) -> list[str]:
        """What QEMU is given; commands come by the character device `control`, which has that id."""
        share, prealloc = ("on" if on else "off" for on in (self.share, self.prealloc))
        backend = f"memory-backend-memfd,id=mem,size={self.memory_mb}M,share={share},prealloc={prealloc}"
        memory = self.machine or [
            *("-m", f"{self.memory_mb}M", "-smp", str(self.cpus)),
            *("-object", backend),
            *("-machine", "q35,memory-backend=mem"),
        ]
        return [
            *("-accel", self.accel, "-cpu", "max" if self.accel.startswith("tcg") else "host"),
            *memory,
            *("-nodefaults", "-display", "none", "-serial", "stdio"),
            *([] if self.may_reboot else ["-no-reboot"]),
            *("-kernel", str(kernel()), "-initrd", str(initramfs(modules=self.modules))),
            *("-append", f"{KERNEL_COMMAND_LINE} {self.command_line}"),
            *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
            *("-device", "virtio-serial", "-chardev", control),
            *("-device", "virtserialport,chardev=control,name=lab", "-device", "virtio-rng-pci"),
            *self._limit_port(),
            *_EMULATED,
            *(argument for nic in self.nics for argument in nic.arguments),
            *self.arguments,
        ]

    def _limit_port(self) -> list[str]:
        if self.limit is None:
            return []
        return [
            *("-chardev", f"socket,id=limit,path={self.limit},server=on,wait=off"),
            *("-device", "virtserialport,chardev=limit,name=org.tidegate.limit.0"),
        ]

    def ready(self) -> None:
        """Wait until commands can be run and `setup` has been; the first command waits by itself."""
        if self._socket is not None:
            return
        end = time.monotonic() + self.boot_seconds
        self._socket = self.connect(end)
        self._read_reply(0, end)
        if self.setup:
            self.run(self.setup)

    def connect(self, end: float) -> socket.socket:
        """The other end of the port `lab`; fails where it is not there by `end`, of the monotonic clock."""
        self._listener.settimeout(0.2)
        while True:
            try:
                return self._listener.accept()[0]
            except TimeoutError:
                if not self.process.running or time.monotonic() > end:
                    raise GuestError(f"QEMU did not start:\n{self.console()}") from None

    def console(self) -> str:
        """What the guest and QEMU have printed."""
        return self.process.output()

    def _read_reply(self, seq: int, end: float) -> Result:
        assert self._socket is not None
        self._socket.settimeout(0.5)
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                number, status, out, err = line.split()
                if int(number) == seq:
                    return Result(int(status), _decode(out), _decode(err))
                continue
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                data = None
            if data == b"" or not self.process.running:
                raise GuestError(f"the guest is gone:\n{self.console()[-4000:]}")
            if data is None and time.monotonic() > end:
                raise GuestError(f"the guest does not answer:\n{self.console()[-4000:]}")
            self._buffer += data or b""

    def try_run(self, command: str, timeout: int = 60) -> Result:
        """Run a shell command as root in the guest, killed after `timeout` seconds (status 137)."""
        self.ready()
        assert self._socket is not None
        self._seq += 1
        text = base64.b64encode(command.encode()).decode()
        self._socket.settimeout(10)
        self._socket.sendall(f"{self._seq} {timeout} {text}\n".encode())
        return self._read_reply(self._seq, time.monotonic() + timeout + 20)

    def run(self, command: str, timeout: int = 60) -> str:
        """`try_run` that must succeed; its standard output."""
        result = self.try_run(command, timeout)
        if result.status != 0:
            raise GuestError(f"`{command}` ended with {result.status}\n{result.stdout}{result.stderr}")
        return result.stdout

    def address(self, cidr: str, device: str = "eth0") -> None:
        """Give a device its address and set it up."""
        self.run(f"ip addr add {cidr} dev {device} && ip link set {device} up")

    def reboot(self) -> None:
        """Reset the machine under the running kernel, as a crash would; wait until it is up again."""
        self.ready()
        assert self._socket is not None
        reset = base64.b64encode(b"echo b >/proc/sysrq-trigger").decode()
        self._socket.sendall(f"{self._seq + 1} 10 {reset}\n".encode())
        self._read_reply(0, time.monotonic() + 60)
        if self.setup:
            self.run(self.setup)

    def stop(self) -> None:
        """Power off, at once."""
        self.process.kill()
        self._listener.close()
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def transfer(giver: Guest, taker: Guest, address: str, size: int = 4_000_000) -> None:
    """Send random bytes by TCP from `giver`, at `address`, and check that they arrive unharmed."""
    giver.run(f"head -c {size} /dev/urandom >/tmp/given")
    giver.run("busybox nc -l -p 7000 </tmp/given >/dev/null 2>&1 &")
    giver.run("until grep -q ':1B58 ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done")
    # Opened both ways, the pipe never ends: nc waits for the giver to finish.
    taker.run("rm -f /tmp/hold; mkfifo /tmp/hold")
    taker.run(f"busybox nc {address} 7000 <>/tmp/hold >/tmp/taken")
    given, taken = (giver.run("sha256sum </tmp/given"), taker.run("sha256sum </tmp/taken"))
    if given != taken:
        raise GuestError(
            f"{size} bytes were sent, {taker.run('stat -c %s /tmp/taken').strip()} others arrived"
        )


def _decode(text: bytes) -> str:
    return "" if text == b"-" else base64.b64decode(text).decode(errors="replace")
