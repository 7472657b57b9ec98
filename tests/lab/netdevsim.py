"""A simulated NIC in a guest: VFs, their rates and representors, without any traffic.

with netdevsim_guest(folder) as guest:
    nic = Netdevsim(guest)
    nic.make_vfs(2)
    guest.run(f"ip link set {nic.device} vf 0 max_tx_rate 1000 min_tx_rate 100")
    nic.switchdev()
    guest.run(f"devlink port function rate set {nic.port(0)} tx_share 100mbit")

Kernel: drivers/net/netdevsim, Documentation/networking/devlink/netdevsim.rst.
"""

import json
from pathlib import Path
from typing import Any

from .guest import Guest
from .igb import vfs

# The number of VF 0's port in devlink: the physical ports come first (netdevsim.h).
_FIRST_VF_PORT = 128


def netdevsim_guest(folder: Path) -> Guest:
    """A guest with the driver loaded, and no device yet."""
    return Guest(folder, cpus=1, modules=["netdevsim"])


class Netdevsim:
    """One simulated NIC with one physical port; made with the object."""

    def __init__(self, guest: Guest, number: int = 1, most_vfs: int = 8) -> None:
        self.guest = guest
        self.name = f"netdevsim{number}"
        debug = "/sys/kernel/debug"
        guest.run(
            f"mountpoint -q {debug} || mount -t debugfs debugfs {debug}"
            f"; echo '{number} 1' >/sys/bus/netdevsim/new_device"
            f" && echo {most_vfs} >{debug}/netdevsim/{self.name}/max_vfs"
        )
        self.device = guest.run(f"ls /sys/bus/netdevsim/devices/{self.name}/net").strip()
        """The PF's network device."""

    @property
    def handle(self) -> str:
        """The device, for devlink."""
        return f"netdevsim/{self.name}"

    def port(self, vf: int) -> str:
        """The port of a VF, for devlink; there is one in switchdev mode."""
        return f"{self.handle}/{_FIRST_VF_PORT + vf}"

    def make_vfs(self, count: int) -> None:
        """Make VFs, where there are none, or remove all with 0. They have no network devices of their own."""
        self.guest.run(f"echo {count} >/sys/bus/netdevsim/devices/{self.name}/sriov_numvfs")

    def switchdev(self) -> None:
        """Go to switchdev mode: each VF has a representor, and rates are set by devlink alone."""
        self.guest.run(f"devlink dev eswitch set {self.handle} mode switchdev")

    def legacy(self) -> None:
        """Go back to legacy mode, which a new one is in: rates are set by `ip link`."""
        self.guest.run(f"devlink dev eswitch set {self.handle} mode legacy")

    def vfs(self) -> list[dict[str, Any]]:
        """What `ip -json link show` says of each VF."""
        return vfs(self.guest, self.device)

    def rates(self) -> dict[str, dict[str, Any]]:
        """Leaves and nodes of `devlink port function rate`; tx_share and tx_max in bytes per second."""
        document = json.loads(self.guest.run("devlink -j port function rate show"))
        return dict(document.get("rate", {}))
