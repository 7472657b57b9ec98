"""Machines without an operating system: firmware and boot loaders, with drivers of virtio-net of their own.

```text
 Netboot: a namespace behind a tap ─ dnsmasq (DHCP, TFTP), HTTP ─┐
                                                                 ├─ Tidegate ─ vhost-user ─ iPXE, u-boot, OVMF
 kernel's own tap, to compare with ─ HTTP ───────────────────────┴──────────── QEMU ───────┘
```
"""

import itertools
from pathlib import Path

from .guest import ACCEL
from .namespaces import Stack
from .process import Process
from .qemu import INSTALLED

IPXE = Path("/usr/lib/ipxe/qemu/efi-virtio.rom")
"""What QEMU gives a virtio-net device by itself, and only by itself."""
UBOOT = Path("/usr/lib/u-boot/qemu-x86_64/u-boot.rom")
OVMF = Path("/usr/share/OVMF/OVMF_CODE.fd")
HTTP_PORT = 80
_SERVE = Path(__file__).with_name("serve.py")


class Netboot:
    """What machines boot from: the files of `folder`, by DHCP, TFTP and HTTP.

    `device` of `stack` has the first address of the network `network` (its first three numbers).
    """

    def __init__(self, stack: Stack, folder: Path, device: str, network: str = "10.0.0") -> None:
        self.url = f"http://{network}.1"
        self.folder = folder
        folder.mkdir()
        stack.run(f"ip addr add fd00::1/64 dev {device} nodad")
        boots = (
            # iPXE asks as a PXE client first, too, and says who it is.
            *("--dhcp-userclass=set:ipxe,iPXE", f"--dhcp-boot=tag:ipxe,{self.url}/boot.ipxe"),
            *("--dhcp-vendorclass=set:http,HTTPClient", "--dhcp-option-force=tag:http,60,HTTPClient"),
            f"--dhcp-boot=tag:http,{self.url}/boot.efi",
            "--dhcp-boot=tag:!ipxe,tag:!http,boot.bin",
        )
        self.dhcp = stack.spawn(
            *("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--user=root", "--group=root"),
            *(f"--interface={device}", "--bind-interfaces", f"--dhcp-leasefile={stack.folder}/leases"),
            *(f"--dhcp-range={network}.10,{network}.99,255.255.255.0", "--no-ping", "--dhcp-authoritative"),
            # Without a router's word iPXE waits 16 s for one.
            *("--enable-ra", "--dhcp-range=fd00::,ra-only"),
            *("--log-dhcp", "--enable-tftp", f"--tftp-root={folder}", *boots),
        )
        self.http = stack.spawn("python3", str(_SERVE), str(folder), str(HTTP_PORT))

    def requests(self) -> list[tuple[str, float]]:
        """Paths that were asked for by HTTP, and when, in seconds."""
        lines = (line.split() for line in self.http.output().splitlines())
        return [(words[1], float(words[0])) for words in lines if len(words) == 2]

    def took(self) -> list[float]:
        """How long each fetch of `large` took that is over, in seconds: until the next request."""
        times = [at for path, at in self.requests() if path in ("/large", "/done")]
        return [after - before for before, after in itertools.pairwise(times)]

    def was_sent(self, name: str) -> bool:
        """Whether a file was sent by TFTP, to its end."""
        return f"sent {self.folder}/{name} to" in self.dhcp.output()


def power_on(
    folder: Path, firmware: list[str], nics: list[list[str]], *, stack: Stack | None = None
) -> Process:
    """A machine that runs `firmware`; its serial console is its standard input and output.

    With the kernel's taps of a namespace it runs in that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    memory = "memory-backend-memfd,id=mem,size=256M,share=on"
    return Process(
        [
            *(("nsenter", f"--net={stack.path}") if stack else ()),
            *(INSTALLED, "-accel", ACCEL, "-cpu", "max" if ACCEL.startswith("tcg") else "host"),
            *("-m", "256M", "-object", memory, "-machine", "q35,memory-backend=mem"),
            *("-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"),
            *(["-global", "virtio-net-pci.vectors=0"] if ACCEL.startswith("tcg") else []),
            *firmware,
            *(argument for nic in nics for argument in nic),
        ],
        folder / "console.log",
        stdin=True,
    )


def ipxe_script(rounds: int, *urls: str) -> str:
    """What iPXE does with the file `large` of each server, in turns; its second device has 10.0.1.2.

    After the last one it asks the first server for `done`.
    """
    turns = "".join(f"imgfetch {url}/large || exit 1\nimgfree\n" for url in urls * rounds)
    set_up = "ifopen net1\nset net1/ip 10.0.1.2\nset net1/netmask 255.255.255.0\n"
    return f"#!ipxe\n{set_up}{turns}imgfetch {urls[0]}/done\n"


def kernel_tap(stack: Stack, device: str = "tap0") -> list[str]:
    """A tap of the kernel's in a namespace, with 10.0.1.1, and QEMU's arguments for a device on it."""
    up = f"ip addr add 10.0.1.1/24 dev {device} && ip link set {device} up"
    stack.run(f"ip tuntap add {device} mode tap && {up}")
    return [
        *("-netdev", f"tap,id=net1,ifname={device},script=no,downscript=no"),
        *("-device", "virtio-net-pci,netdev=net1,mac=52:54:00:00:01:0b,romfile="),
    ]


def boot_nic(socket: Path, mac: str, options: str = "") -> list[str]:
    """QEMU's arguments for a device on a vhost-user socket that a machine boots from."""
    return [
        *("-chardev", f"socket,id=char0,path={socket},reconnect=1"),
        *("-netdev", "vhost-user,id=net0,chardev=char0"),
        *("-device", f"virtio-net-pci,netdev=net0,mac={mac},bootindex=0{options}"),
    ]
