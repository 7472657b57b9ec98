"""A VM that owns a VF: an inner guest under KVM, in an outer guest that has the igb and an IOMMU.

with outer_guest(folder / "outer") as outer:
    Pf(outer).make_vfs(1, macs=[mac], driver="vfio-pci")
    with InnerGuest(folder / "inner", outer=outer, vf=Pf(outer).vf_pci(0)) as inner:
        inner.run("ip link show eth0")

          host                    outer guest                      inner guest
 InnerGuest.run ── inner.sock ── /dev/vportNpM ── QEMU ── port `lab`
                                 /run/limit.sock ─ QEMU ── port `org.tidegate.limit.0`

All is emulated but the inner guest's own instructions count as KVM's: what holds here holds
for a host with a NIC. It takes most of a minute.
"""

import contextlib
import shlex
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from .guest import Guest, GuestError, Machine, Nic, serial_port
from .igb import igb
from .qemu import with_igb

LIMIT_PORT = "org.tidegate.limit.0"
"""The port by which an agent tells a guest its limit."""

LIMIT_SOCKET = "/run/limit.sock"
"""The agent's end of it, in the outer guest."""

_CONTROL = "inner"


def outer_guest(folder: Path) -> Guest:
    """A guest with an igb as `eth0`, an IOMMU, KVM and vfio-pci."""
    # At 3 GB the VFs' registers move above 4 GB, where their mailbox does not work.
    machine = [
        *("-m", "2560M", "-smp", "2", "-machine", "q35,kernel-irqchip=split"),
        *("-device", "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"),
    ]
    return Guest(
        folder,
        [igb()],
        machine=machine,
        qemu=with_igb(),
        modules=["igb", "igbvf", "kvm_amd", "vfio_pci", "vfio_iommu_type1"],
        command_line="iomem=relaxed intel_iommu=on",
        arguments=serial_port(_CONTROL, folder / "inner.sock"),
    )


class _InnerMachine:
    """The inner guest's QEMU, a process of the outer guest."""

    def __init__(self, outer: Guest, console: str, pid: str) -> None:
        self.outer = outer
        self._console = console
        self._pid = pid
        self._asked = time.monotonic()

    @property
    def running(self) -> bool:
        """Whether it runs; asked often, and each answer is taken from the inner guest's time."""
        if not self.outer.process.running or time.monotonic() < self._asked + 10:
            return self.outer.process.running
        self._asked = time.monotonic()
        return self.outer.try_run(f"kill -0 {self._pid}").status == 0

    def output(self) -> str:
        """What the inner guest's console and its QEMU have printed."""
        return self.outer.run(f"cat {self._console}")

    def kill(self) -> None:
        """Power off, at once."""
        with contextlib.suppress(GuestError):
            self.outer.try_run(f"kill -9 {self._pid}; while kill -0 {self._pid}; do sleep 0.1; done")


@dataclass
class InnerGuest(Guest):
    """A guest in a guest: one at a time."""

    outer: Guest = field(kw_only=True)
    vf: str = field(kw_only=True)
    """The VF's PCI address, such as `0000:01:10.0`; vfio-pci drives it."""

    def __post_init__(self) -> None:
        self.cpus = 1
        self.memory_mb = 256
        self.accel = "kvm"
        self.boot_seconds = 200
        self.nics = [Nic(["-device", f"vfio-pci,host={self.vf}"])]
        self.modules = ["igbvf", *self.modules]
        # A firmware that does nothing but start the kernel: a third less to emulate.
        self.arguments = ["-bios", "qboot.rom", *serial_port(LIMIT_PORT, LIMIT_SOCKET), *self.arguments]
        super().__post_init__()

    def power_on(self, control: Path) -> Machine:
        """Start QEMU in the outer guest; its port `lab` is the outer guest's port `inner`."""
        del control
        port = self.outer.run(f"grep -l '^{_CONTROL}$' /sys/class/virtio-ports/*/name").split("/")[-2]
        console = "/run/inner-console.log"
        arguments = self.qemu_arguments(f"pipe,id=control,path=/dev/{port}")
        command = shlex.join([str(self.qemu), *arguments])
        pid = self.outer.run(f"{command} </dev/null >{console} 2>&1 & echo $!").strip()
        return _InnerMachine(self.outer, console, pid)

    def connect(self, end: float) -> socket.socket:
        """The host's end of the outer guest's port `inner`."""
        del end
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.outer.folder / "inner.sock"))
        return connection
