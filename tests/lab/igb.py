"""A guest with QEMU's `igb`, an Intel 82576 with SR-IOV, whose VFs are made in the guest.

with igb_guest(folder) as guest:
    pf = Pf(guest)
    first, second = pf.make_vfs(2)
    guest.run("ip link set eth0 vf 0 max_tx_rate 100")

Rates are accepted, read back and not enforced. docs/places/nic/lab.md has the rest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .guest import Guest, Nic
from .qemu import with_igb

MAC = "52:54:00:82:57:60"

USER = "user,ipv6=off"
"""A peer that QEMU itself plays: 10.0.2.2, which answers pings to a guest in 10.0.2.0/24."""


def stream(path: Path, *, server: bool) -> str:
    """The peer is another guest, over a Unix socket; the server's guest starts first."""
    return f"stream,server={'on' if server else 'off'},addr.type=unix,addr.path={path}"


def igb(peer: str = USER, mac: str = MAC, number: int = 0) -> Nic:
    """The NIC, on a root port as SR-IOV asks for; `peer` is a QEMU netdev without its id."""
    # VFs get bus numbers behind their PF's, so each has a root port of its own.
    port = f"pcie-root-port,id=igb-port{number},slot={number + 1},chassis={number + 1}"
    kind, _, options = peer.partition(",")
    return Nic(
        [
            *("-device", port, "-netdev", f"{kind},id=igb-net{number}{options and ',' + options}"),
            *("-device", f"igb,bus=igb-port{number},netdev=igb-net{number},mac={mac}"),
        ]
    )


def igb_guest(
    folder: Path,
    nics: list[Nic] | None = None,
    *,
    cpus: int = 1,
    modules: list[str] | None = None,
    command_line: str = "",
) -> Guest:
    """A guest with an igb as `eth0`, its drivers loaded and its registers open to root.

    Without `iomem=relaxed` the kernel refuses to map the registers of a device that has a driver.
    """
    return Guest(
        folder,
        [igb()] if nics is None else nics,
        cpus=cpus,
        qemu=with_igb(),
        modules=["igb", "igbvf", *(modules or [])],
        command_line=f"iomem=relaxed {command_line}",
    )


@dataclass(frozen=True)
class Pf:
    """A physical function in a guest."""

    guest: Guest
    device: str = "eth0"

    @property
    def pci(self) -> str:
        """Its PCI device, in sysfs."""
        return f"/sys/class/net/{self.device}/device"

    def make_vfs(self, count: int, *, macs: Sequence[str] = (), driver: str = "igbvf") -> list[str]:
        """Make VFs, the first ones with these addresses; their network devices, by VF number.

        With another driver than igbvf, such as `vfio-pci`, there are none.
        """
        # A VF whose driver starts while the PF is in reset, as making VFs leaves it for a second,
        # has no link for 10 s: so drivers wait for the PF's link. Without a link, also, every rate
        # is refused.
        self.guest.run(
            f"cd {self.pci} && echo 0 >sriov_drivers_autoprobe"
            f" && ip link set {self.device} up && echo {count} >sriov_numvfs"
        )
        self.wait_for_link()
        for number, mac in enumerate(macs):
            self.guest.run(f"ip link set {self.device} vf {number} mac {mac}")
        self.guest.run(
            f"for vf in {self.pci}/virtfn*; do echo {driver} >$vf/driver_override"
            " && basename $(readlink $vf) >/sys/bus/pci/drivers_probe; done"
        )
        return self.guest.run(f"ls {self.pci}/virtfn*/net 2>/dev/null | grep -v ^/ | xargs").split()

    def vf_pci(self, number: int) -> str:
        """The PCI address of a VF."""
        return self.guest.run(f"basename $(readlink {self.pci}/virtfn{number})").strip()

    def wait_for_link(self, device: str = "") -> None:
        """Wait until the device, else the PF itself, has a carrier."""
        carrier = f"/sys/class/net/{device or self.device}/carrier"
        self.guest.run(f"until grep -q 1 {carrier}; do sleep 0.05; done 2>/dev/null", timeout=20)

    def into_namespace(self, device: str, name: str, cidr: str) -> None:
        """Move a VF's device into a namespace made for it, with that address, and wait for its link."""
        self.guest.run(
            f"ip netns add {name} && ip link set {device} netns {name}"
            f" && ip netns exec {name} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"
            f" && ip -n {name} addr add {cidr} dev {device} && ip -n {name} link set {device} up"
        )
        self.guest.run(
            f"until ip netns exec {name} grep -q 1 /sys/class/net/{device}/carrier; do sleep 0.05; done",
            timeout=20,
        )

    def vfs(self) -> list[dict[str, Any]]:
        """What `ip -json link show` says of each VF."""
        return vfs(self.guest, self.device)


def vfs(guest: Guest, device: str) -> list[dict[str, Any]]:
    """What `ip -json link show` says of each VF of the physical function `device`."""
    (link,) = json.loads(guest.run(f"ip -details -json link show {device}"))
    return list(link.get("vfinfo_list", []))
