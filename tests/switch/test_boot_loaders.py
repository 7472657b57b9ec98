"""Drivers of virtio-net that are not Linux's boot from the network: iPXE, u-boot and the UEFI firmware OVMF.

They give few receive buffers and take no super-frame; the server's kernel sends super-frames.
"""

import os
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from lab.firmware import IPXE, OVMF, UBOOT, Netboot, boot_nic, ipxe_script, kernel_tap, power_on
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.process import Process

pytestmark = pytest.mark.lab

LARGE = 12_000_000
"""Bytes that iPXE fetches at a time."""
SMALL = 1_000_000
ROUNDS = 3
SLOWER = 6.0
"""How many times longer than by the kernel's own tap it may take; all or nothing took 40 times as long."""
MACS = {
    "server": "52:54:00:00:00:0a",
    "ipxe": "52:54:00:00:00:0b",
    # Its driver reads the first byte of its address six times.
    "uboot": "52:52:52:52:52:52",
    "ovmf": "52:54:00:00:00:0d",
}
OPTIONS = {"uboot": ",romfile=,addr=5", "ovmf": ",romfile="}
"""Of QEMU's device; without a ROM the firmware's own driver boots."""


@dataclass
class Scene:
    """Three machines on one switch, and what they boot from."""

    host: Host
    netboot: Netboot
    machines: dict[str, Process]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """All machines boot side by side."""
    need("cannot make network namespaces and taps here", can_make_namespaces())
    need_commands("qemu-system-x86_64", "dnsmasq")
    for file in (IPXE, UBOOT, OVMF):
        need(f"{file} missing: run scripts/setup test", file.exists())
    folder = tmp_path_factory.mktemp("f")
    with Stack(folder / "ns") as stack, Host(folder / "h") as host:
        guests = [name for name in MACS if name != "server"]
        sockets = {name: host.folder / f"{name}.sock" for name in guests}
        contracts = [vhost_user_vnic(name, sockets[name], MACS[name]) for name in guests]
        host.apply(tap_vnic("server", stack.path, MACS["server"]) + "".join(contracts))
        stack.address("eth0", "10.0.0.1/24")
        netboot = Netboot(stack, folder / "files", "eth0")
        for name, size in (("large", LARGE), ("boot.bin", SMALL), ("boot.efi", SMALL)):
            (netboot.folder / name).write_bytes(os.urandom(size))
        (netboot.folder / "boot.ipxe").write_text(ipxe_script(ROUNDS, netboot.url, "http://10.0.1.1"))
        (netboot.folder / "done").touch()

        tap = kernel_tap(stack)
        nics = {name: boot_nic(sockets[name], MACS[name], OPTIONS.get(name, "")) for name in guests}
        machines = {
            "ipxe": power_on(folder / "ipxe", [], [nics["ipxe"], tap], stack=stack),
            "uboot": power_on(folder / "uboot", ["-bios", str(UBOOT)], [nics["uboot"]]),
            "ovmf": power_on(
                folder / "ovmf",
                ["-drive", f"if=pflash,format=raw,readonly=on,file={OVMF}"],
                [nics["ovmf"]],
            ),
        }
        try:
            yield Scene(host, netboot, machines)
        finally:
            for machine in machines.values():
                machine.kill()
        host.check_alive()


def is_prompted(machine: Process, times: int) -> bool:
    """Whether u-boot has asked for so many commands."""
    return machine.output().count("\n=> ") >= times


def test_uboot_fetches_the_whole_file(scene: Scene) -> None:
    """By TFTP, and its bytes are those of the file. First of all tests: it waits for 2 s for a key."""
    machine = scene.machines["uboot"]
    machine.wait_for("u-boot", lambda: "stop autoboot" in machine.output(), 60)
    checksum = zlib.crc32((scene.netboot.folder / "boot.bin").read_bytes())
    size = f"{SMALL:x}"
    commands = ("", "pci", "virtio scan", "dhcp 0x2000000", f"crc32 0x2000000 {size}")
    for prompts, command in enumerate(commands):
        # What is typed while a command runs is lost.
        machine.wait_for("a prompt", partial(is_prompted, machine, prompts), 60)
        machine.stdin.write(f"{command}\n".encode())
        machine.stdin.flush()
    machine.wait_for("its checksum", lambda: f"==> {checksum:08x}" in machine.output(), 60)


def test_ipxe_fetches_as_fast_as_by_the_kernels_tap(scene: Scene) -> None:
    """The same file through the switch and through a tap of the kernel's, in turns, in one boot."""
    machine = scene.machines["ipxe"]

    def asked() -> set[str]:
        return {path for path, _ in scene.netboot.requests()}

    machine.wait_for("all of iPXE's requests", lambda: "/done" in asked(), 60)
    took = scene.netboot.took()
    assert len(took) == 2 * ROUNDS
    switch, kernel = (statistics.median(took[way::2]) for way in (0, 1))
    rx = scene.host.show("ipxe").document["stats"]["rx"]
    assert switch <= SLOWER * kernel, f"{switch:.3f} s, by the kernel's tap {kernel:.3f} s: {took}, {rx}"
    assert rx["wire_bytes"] > ROUNDS * LARGE
    # The server's kernel cut nothing.
    assert rx["wire_frames"] > 2 * rx["frames"], rx


def test_ovmf_fetches_by_its_own_driver(scene: Scene) -> None:
    """By TFTP, as PXE asks for it."""
    machine = scene.machines["ovmf"]
    machine.wait_for("the file", lambda: "NBP file downloaded successfully" in machine.output(), 60)
    assert scene.netboot.was_sent("boot.bin")
    assert scene.host.show("ovmf").document["stats"]["rx"]["wire_bytes"] > SMALL
