"""Two emulated hosts with soft-RoCE on one link.

```text
 host 1: eth0, rxe0 ══ stream socket, MTU 4200 ══ host 2: eth0, rxe0
```

Soft-RoCE (rdma_rxe) is in Debian's kernel, so it runs in a guest; verbs programs run unchanged.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from .guest import Guest, unix_link
from .process import wait_for
from .rxe import JUMBO, rxe_setup
from .rxe import MODULES as RXE

MODULES = [*RXE, "tun"]


def address(number: int) -> str:
    """The address of host `number`, 1 or 2."""
    return f"192.0.2.{number}"


def setup(*addresses: str, mtu: int = JUMBO) -> str:
    """The commands that give eth0 its addresses and a device of soft-RoCE, in a guest."""
    return f"ip link set lo up && {rxe_setup(addresses, mtu)}"


class TwoRoceHosts:
    """Both hosts, powered on."""

    def __init__(self, folder: Path, *, cpus: int = 1, mtu: int = JUMBO) -> None:
        self._cleanup = ExitStack()
        link = folder / "link.sock"
        self.hosts: list[Guest] = []
        for number in (1, 2):
            nic = unix_link(link, f"52:54:00:0e:00:{number:02x}", server=number == 1)
            guest = Guest(
                folder / f"host{number}",
                [nic],
                cpus=cpus,
                memory_mb=1024,
                modules=MODULES,
                setup=setup(address(number), mtu=mtu),
            )
            self.hosts.append(self._cleanup.enter_context(guest))
            # QEMU's client does not wait for its server.
            wait_for("the link", link.exists, 30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()
