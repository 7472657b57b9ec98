"""Two hosts in network namespaces, joined by a veth pair: the network between them."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from .host import Host
from .namespaces import Stack

ADDRESSES = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}


class Underlay:
    """Namespaces `one` and `two` with `eth0` in each, IPv4 and IPv6."""

    def __init__(self, folder: Path) -> None:
        self.one = Stack(folder / "one")
        self.two = Stack(folder / "two")
        self.connect()

    def disconnect(self) -> None:
        """Take the network devices away."""
        self.one.run("ip link del eth0")

    def connect(self) -> None:
        """Make the network devices, with their addresses."""
        two = self.two.path.parts[2]
        self.one.run(f"ip link add eth0 type veth peer name eth0 netns {two}")
        for number, stack in enumerate((self.one, self.two)):
            stack.run(f"ip addr add {ADDRESSES[4][number]}/24 dev eth0")
            stack.run(f"ip addr add {ADDRESSES[6][number]}/64 dev eth0 nodad")
            stack.run("ip link set eth0 up")

    def host(self, number: int, folder: Path) -> Host:
        """A switch with an agent whose network is that of host `number`, 1 or 2."""
        path = (self.one, self.two)[number - 1].path
        return Host(folder, agent_wrapper=("nsenter", f"--net={path}"))

    def stop(self) -> None:
        """End everything on both hosts."""
        self.one.stop()
        self.two.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def uplink(number: int, *lines: str, version: int = 4, peer: Iterable[str] = ()) -> str:
    """The uplink of host `number` to the other host, `far`; further lines of both tables."""
    local, far = ADDRESSES[version][number - 1], ADDRESSES[version][2 - number]
    more = "".join(f"{line}\n" for line in lines)
    of_peer = "".join(f"{line}\n" for line in peer)
    return (
        f'[uplink.net0]\nlocal = "{local}"\nrate = "10gbit"\n{more}\n'
        f'[uplink.net0.peer.far]\naddress = "{far}"\n{of_peer}\n'
    )
