"""The guests' kernel and the initramfs made for it, without root.

target/lab/kernel (scripts/setup) ──▶ modules + busybox + init ──▶ target/lab/initramfs.cpio
"""

import hashlib
import lzma
import os
import re
import stat
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "target" / "lab"
KERNEL = LAB / "kernel"
BUILT = LAB / "netdevsim"
"""A module that Debian's kernel lacks."""
BUSYBOX = Path("/bin/busybox")

# Loaded in this order, each after what it depends on.
_MODULES = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "virtio_rng",
    "af_packet",
]


def have_kernel() -> bool:
    """Whether `scripts/setup test` has unpacked a kernel."""
    return (KERNEL / "ready").exists()


def have_netdevsim() -> bool:
    """Whether `scripts/setup test` has built the module netdevsim for it."""
    return (BUILT / "ready").exists()


def _bzimage() -> Path:
    (image,) = (KERNEL / "boot").glob("vmlinuz-*")
    return image


def kernel() -> Path:
    """The kernel image QEMU boots: the ELF inside Debian's bzImage where it can be taken out.

    QEMU enters an ELF kernel by PVH, which spares the emulated machine the
    decompression, some 5 s of a boot.
    """
    packed = _bzimage()
    image = LAB / packed.name.replace("vmlinuz", "vmlinux")
    if image.exists():
        return image
    # Boot protocol, kernel: Documentation/arch/x86/boot.rst.
    data = packed.read_bytes()
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    payload = data[(setup_sectors + 1) * 512 + offset :][:length]
    try:
        elf = _unpack(payload)
    except (lzma.LZMAError, OSError, subprocess.CalledProcessError):
        return packed
    if not elf.startswith(b"\x7fELF"):
        return packed
    _write_atomically(image, elf)
    return image


def _unpack(payload: bytes) -> bytes:
    if payload.startswith(b"\xfd7zXZ"):
        # The compressed kernel is followed by its size: not part of the xz stream.
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dcq"], input=payload[:-4], capture_output=True, check=True).stdout
    return b""


def _write_atomically(path: Path, data: bytes) -> None:
    # Several test runs may make it at once: each writes its own, the last rename wins.
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(data)
    partial.rename(path)


def _module_text(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def _with_dependencies(names: list[str]) -> list[tuple[str, bytes]]:
    """Modules and what they depend on, in loading order, decompressed; built-in ones are left out."""
    files = {
        p.name.split(".ko")[0].replace("-", "_"): p
        for modules in (KERNEL / "lib/modules", KERNEL / "usr/lib/modules", BUILT)
        for p in modules.glob("**/*.ko*")
    }
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded or name not in files:
            return
        text = _module_text(files[name])
        depends = re.search(rb"\0depends=([^\0]*)\0", text)
        for dependency in depends.group(1).decode().split(",") if depends else []:
            if dependency:
                load(dependency.replace("-", "_"))
        loaded[name] = text

    for name in names:
        load(name)
    return list(loaded.items())


class _Cpio:
    """Writer of the "newc" cpio format (kernel: driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._inode = 0

    def add(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        path = name.encode() + b"\0"
        fields = [self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0]
        self._out += b"070701" + b"".join(b"%08X" % f for f in fields) + path
        self._pad()
        self._out += data
        self._pad()

    def _pad(self) -> None:
        self._out += b"\0" * (-len(self._out) % 4)

    def bytes(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return bytes(self._out)


def initramfs(script: str = "init.sh", modules: Sequence[str] = ()) -> Path:
    """The initramfs for `kernel` with that first process and further modules, made when any of it changed."""
    init = Path(__file__).with_name(script).read_bytes()
    key = hashlib.sha256()
    further = " ".join(modules).encode()
    for part in (_bzimage().name.encode(), init, Path(__file__).read_bytes(), BUSYBOX.read_bytes(), further):
        key.update(part)
    image = LAB / f"initramfs-{key.hexdigest()[:16]}.cpio"
    if image.exists():
        return image

    cpio = _Cpio()
    for folder in ("bin", "dev", "proc", "sys", "modules", "host", "rw", "new"):
        cpio.add(folder, stat.S_IFDIR | 0o755)
    cpio.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    cpio.add("bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes())
    cpio.add("init", stat.S_IFREG | 0o755, init)
    loaded = _with_dependencies([*_MODULES, *modules])
    for name, text in loaded:
        cpio.add(f"modules/{name}.ko", stat.S_IFREG | 0o644, text)
    cpio.add("modules/order", stat.S_IFREG | 0o644, "".join(f"{n}\n" for n, _ in loaded).encode())

    _write_atomically(image, cpio.bytes())
    return image
