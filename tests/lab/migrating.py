"""A guest that migrates, and a stream to it that must not notice.

MigratingGuest(folder, port).migrate(to)    Stream(stack).silence(since)
"""

import json
import os
import socket
from pathlib import Path
from typing import Any, Self

from .guest import ACCEL, vhost_user
from .initramfs import initramfs, kernel
from .namespaces import Stack
from .process import Process, wait_for

MAC = "52:54:00:00:09:02"

# Not a multiple of 256 KiB. Of memory that is one, QEMU 7.2 takes dirty bits 64 pages at a time, and
# forgets to tell its emulated CPUs to set them again: what the guest writes then is lost at the target,
# whatever its network device is.
MEMORY = f"{160 * 1024 + 8}K"


class MigratingGuest:
    """A guest without shared folders, and QEMU's monitor (QMP)."""

    def __init__(
        self, folder: Path, port: Path, *, incoming: Path | None = None, paused: bool = False
    ) -> None:
        folder.mkdir(parents=True)
        self.console = folder / "console.log"
        monitor = folder / "qmp.sock"
        self.process = Process(
            [
                *("qemu-system-x86_64", "-accel", ACCEL, "-cpu", "max", "-m", MEMORY),
                *("-object", f"memory-backend-memfd,id=mem,size={MEMORY},share=on"),
                *("-machine", "q35,memory-backend=mem", "-nodefaults", "-display", "none", "-no-reboot"),
                *("-serial", f"file:{self.console}", "-qmp", f"unix:{monitor},server=on,wait=off"),
                *("-kernel", str(kernel()), "-initrd", str(initramfs("echo.sh"))),
                *("-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on lab.address=10.9.0.2/24"),
                # Without KVM, pin interrupts: see lab/guest.py.
                *(("-global", "virtio-net-pci.vectors=0") if ACCEL.startswith("tcg") else ()),
                *vhost_user(port, MAC).arguments,
                *(("-incoming", f"unix:{incoming}") if incoming else ()),
                *(("-S",) if paused else ()),
            ],
            folder / "qemu.log",
        )
        self._monitor = socket.socket(socket.AF_UNIX)
        self._monitor.settimeout(30)
        # The socket is there before QEMU listens on it.
        self.process.wait_for("its monitor", lambda: self._monitor.connect_ex(str(monitor)) == 0)
        self._lines = self._monitor.makefile("r")
        self._lines.readline()
        self.qmp("qmp_capabilities")

    def qmp(self, command: str, **arguments: object) -> dict[str, Any]:
        """One command of QEMU's monitor; what it returns."""
        self._monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            answer = json.loads(self._lines.readline())
            assert "error" not in answer, answer
            if "return" in answer:
                return dict(answer["return"])

    def migrate(self, to: Path) -> dict[str, Any]:
        """Move to the guest that waits there; what QEMU says of it."""
        self.qmp("migrate", uri=f"unix:{to}")
        status: dict[str, Any] = {}

        def over() -> bool:
            status.update(self.qmp("query-migrate"))
            assert status.get("status") != "failed", status
            return status.get("status") == "completed"

        wait_for("the migration", over, 60)
        return status

    def memory(self) -> bytes:
        """All of the guest's memory, as its memfd has it."""
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            if "memory-backend-memfd" in os.readlink(descriptor):
                return descriptor.read_bytes()
        raise FileNotFoundError("QEMU has no memfd")

    def stop(self) -> None:
        """End this QEMU."""
        self._monitor.close()
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Stream:
    """lab/echo.py towards the guest, in the bridge's namespace."""

    def __init__(self, stack: Stack) -> None:
        self._process = stack.spawn("python3", str(Path(__file__).parent / "echo.py"), "10.9.0.2", "7")

    def _lines(self) -> list[str]:
        # The last one may be half written.
        return self._process.output().splitlines()[:-1]

    def blocks(self) -> int:
        """How many came back so far."""
        lines = self._lines()
        return int(lines[-1].split()[0]) if lines else 0

    def goes_on(self, blocks: int, timeout: float = 60) -> None:
        """Wait until so many more have come back."""
        wanted = self.blocks() + blocks
        self._process.wait_for("the stream", lambda: self.blocks() > wanted, timeout)
        assert self._process.running, self._process.output()[-500:]

    def lines(self) -> int:
        """How many chunks came so far."""
        return len(self._lines())

    def silence(self, since: int) -> float:
        """The longest time without a byte since so many `lines`, in seconds."""
        return max(float(line.split()[1]) for line in self._lines()[since:])
