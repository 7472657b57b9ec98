"""A guest with soft-RoCE: an RDMA device of the kernel's own, over a virtio-net device.

with rxe_guest(folder) as guest:
    guest.run(f"ibv_devinfo -d {DEVICE}")

The device has a GID for each address of `eth0`, so two programs in one guest talk by RDMA over two
addresses. The kernel hands such datagrams back without the network device, so one guest needs no
network. Kernel: drivers/infiniband/sw/rxe.
"""

from pathlib import Path

from .guest import Guest, Nic
from .need import need, need_commands, need_guests

DEVICE = "rxe0"
MODULES = ["rdma_rxe", "crc32_generic"]
"""The device's driver, and the checksum that it asks for by name."""

ADDRESSES = ("10.0.0.1", "10.0.0.2")
ADDRESSES_V6 = ("fd00::1", "fd00::2")
JUMBO = 4200
"""An MTU of `eth0` by which the device carries 4,096 bytes: with 1,500 it is 1,024."""


def need_rxe() -> None:
    """`need` of guests, and of what programs in them use the device by."""
    need_guests()
    need_commands("rdma")
    driver = Path("/etc/libibverbs.d/rxe.driver")
    need("no driver of soft-RoCE: run scripts/setup test", driver.exists())


def unlinked(mac: str, number: int = 0) -> Nic:
    """A virtio-net device that is up, and whose frames reach none."""
    network = f"hubport,id=alone{number},hubid={number}"
    return Nic(["-netdev", network, "-device", f"virtio-net-pci,netdev=alone{number},mac={mac}"])


def rxe_setup(addresses: tuple[str, ...] = ADDRESSES + ADDRESSES_V6, mtu: int = JUMBO) -> str:
    """A command that makes the device over `eth0` with these addresses."""
    prefixes = [f"{a}/64 nodad" if ":" in a else f"{a}/24" for a in addresses]
    added = " && ".join(f"ip addr add {address} dev eth0" for address in prefixes)
    device = f"ip link set eth0 mtu {mtu} up && {added} && rdma link add {DEVICE} type rxe netdev eth0"
    # libibverbs loads the drivers of all vendors at each start of a program: seconds, where emulated.
    drivers = "mkdir /run/drivers && cp /etc/libibverbs.d/rxe.driver /run/drivers"
    return f"{device} && {drivers} && mount --bind /run/drivers /etc/libibverbs.d"


def rxe_guest(
    folder: Path,
    nics: list[Nic] | None = None,
    *,
    addresses: tuple[str, ...] = ADDRESSES + ADDRESSES_V6,
    cpus: int = 1,
    memory_mb: int = 768,
    modules: list[str] | None = None,
) -> Guest:
    """A guest with the device; without `nics`, over a network of its own."""
    return Guest(
        folder,
        nics=nics or [unlinked("52:54:00:00:0a:01")],
        cpus=cpus,
        memory_mb=memory_mb,
        modules=[*MODULES, *(modules or [])],
        setup=rxe_setup(addresses),
    )
