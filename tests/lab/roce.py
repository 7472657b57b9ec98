"""Two emulated hosts with soft-RoCE on one link, or in one guest.

```text
 TwoRoceHosts    host 1: eth0, rxe0 ══ stream socket, MTU 4200 ══ host 2: eth0, rxe0
 OneRoceGuest    host 1: namespace h1, 192.0.2.1 ══ rxe0, looped back ══ host 2: namespace h2, 192.0.2.2
```

Soft-RoCE (rdma_rxe) is in Debian's kernel, so it runs in a guest; verbs programs run unchanged.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from .guest import Guest, unix_link
from .process import wait_for
from .rxe import JUMBO, rxe_setup, unlinked
from .rxe import MODULES as RXE

MODULES = [*RXE, "tun"]


def address(number: int) -> str:
    """The address of host `number`, 1 or 2."""
    return f"192.0.2.{number}"


def setup(*addresses: str, mtu: int = JUMBO) -> str:
    """The commands that give eth0 its addresses and a device of soft-RoCE, in a guest."""
    return f"ip link set lo up && {rxe_setup(addresses, mtu)}"


def namespaces() -> str:
    """The commands that make a network namespace for each host of one guest, joined, for all but RDMA."""
    made = [f"ip netns add h{number}" for number in (1, 2)]
    made.append(f"ip link add v1 netns h1 mtu {JUMBO} type veth peer name v2 netns h2 mtu {JUMBO}")
    for number in (1, 2):
        made.append(f"ip -n h{number} addr add {address(number)}/24 dev v{number}")
        made.append(f"ip -n h{number} link set v{number} up")
    return " && ".join(made)


class OneRoceGuest:
    """Both hosts in one guest of one CPU, whose clock counts that CPU's instructions: 4 ns for each.

    A time is the same on a busy machine. It is no real time: on a real CPU some instructions take longer.
    """

    netns = ("h1", "h2")
    """The network namespace of each host."""
    gids = (1, 2)
    """The index of each host's address in the table of its device."""

    def __init__(self, folder: Path) -> None:
        self._guest = Guest(
            folder / "both",
            [unlinked("52:54:00:0e:00:03")],
            memory_mb=1024,
            modules=[*MODULES, "veth"],
            setup=f"{setup(address(1), address(2))} && {namespaces()}",
            accel="tcg,thread=single",
            arguments=["-icount", "shift=2,sleep=on"],
            boot_seconds=180,
        )
        self.guests = [self._guest]
        self.hosts = [self._guest, self._guest]
        """The guest of each host."""

    def __enter__(self) -> Self:
        self._guest.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guest.__exit__(kind, error, trace)


class TwoRoceHosts:
    """Both hosts, powered on."""

    netns = ("", "")
    """None: each host is a guest of its own."""
    gids = (1, 1)

    def __init__(self, folder: Path, *, cpus: int = 1, mtu: int = JUMBO) -> None:
        link = folder / "link.sock"
        self.hosts: list[Guest] = []
        # Where the second one does not start, the first one ends.
        with ExitStack() as guests:
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
                self.hosts.append(guests.enter_context(guest))
                # QEMU's client does not wait for its server.
                wait_for("the link", link.exists, 30)
            self._cleanup = guests.pop_all()
        self.guests = self.hosts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()
