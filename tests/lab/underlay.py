"""Two or three hosts in network namespaces, and the network between them.

```text
 namespace one ─eth0────────────────────────eth0─ namespace two     Via.PAIR
 namespace one ─eth0─eth1─ namespace net ─eth2─eth0─ namespace two
                             └─eth3─eth0─ namespace three
```

In `net`, a bridge, a router, or rules (`lab.network`) join eth1 to eth3.
"""

from collections.abc import Iterable
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .host import Host
from .namespaces import Stack
from .network import Network

ADDRESSES = {
    4: ("192.0.2.1", "192.0.2.2", "192.0.2.3"),
    6: ("2001:db8::1", "2001:db8::2", "2001:db8::3"),
}
ROUTER = {4: "198.51.100.{}", 6: "2001:db8:1::{}"}
"""The router's addresses, one at each host."""
NETS = {4: ("192.0.2.0/24", 32), 6: ("2001:db8::/64", 128)}
NAMES = ("one", "two", "three")


class Via(Enum):
    """What joins the hosts."""

    PAIR = auto()
    """A veth pair between two hosts."""
    BRIDGE = auto()
    """The kernel's bridge."""
    ROUTER = auto()
    """The kernel routes: each host is in a network of its own."""
    RULES = auto()
    """`underlay.rules`: delays, losses, copies, a rate (`lab.network`)."""


class Underlay:
    """Namespaces with `eth0` in each, IPv4 and IPv6; `net` is that of the network, if there is one."""

    def __init__(
        self, folder: Path, hosts: int = 2, via: Via = Via.PAIR, *, options: Iterable[str] = ()
    ) -> None:
        """`options` are of the network by rules, see `tidegate-bench network --help`."""
        self.hosts = [Stack(folder / name) for name in NAMES[:hosts]]
        self.one, self.two = self.hosts[:2]
        self.via = via
        self.net: Stack | None = None
        self._rules: Network | None = None
        if via is not Via.PAIR:
            self.net = Stack(folder / "net")
            silent = "true" if via is Via.ROUTER else "sysctl -qw net.ipv6.conf.default.disable_ipv6=1"
            self.net.run(silent)
        self.connect()
        self._begin(options)

    def disconnect(self) -> None:
        """Take the network devices of the first host away."""
        self.one.run("ip link del eth0")

    def connect(self) -> None:
        """Make the network devices, with their addresses."""
        if self.net is None:
            self._join(self.one, "eth0", self.two)
        for number, stack in enumerate(self.hosts, 1):
            if self.net is not None:
                self._join(self.net, f"eth{number}", stack)
            self._configure(number, stack, routed=self.via is Via.ROUTER)

    def _join(self, stack: Stack, name: str, host: Stack) -> None:
        there = host.path.parts[2]
        stack.run(f"ip link add {name} type veth peer name eth0 netns {there} && ip link set {name} up")

    def _configure(self, number: int, stack: Stack, *, routed: bool) -> None:
        stack.run("ip link set eth0 up")
        for version, (net, whole) in NETS.items():
            address = ADDRESSES[version][number - 1]
            length = whole if routed else net.split("/")[1]
            flag = "nodad" if version == 6 else ""
            stack.run(f"ip addr add {address}/{length} dev eth0 {flag}")
            if routed:
                assert self.net is not None
                router = ROUTER[version].format(number)
                self.net.run(f"ip addr add {router}/{whole} dev eth{number} {flag}")
                self.net.run(f"ip -{version} route add {address} dev eth{number}")
                stack.run(
                    f"ip -{version} route add {router} dev eth0 && ip -{version} route add {net} via {router}"
                )

    def _begin(self, options: Iterable[str]) -> None:
        if self.net is None:
            return
        ports = [f"eth{number}" for number in range(1, len(self.hosts) + 1)]
        if self.via is Via.BRIDGE:
            self.net.run("ip link add br0 type bridge && ip link set br0 up")
            for port in ports:
                self.net.run(f"ip link set {port} master br0")
        elif self.via is Via.ROUTER:
            self.net.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
        else:
            for stack in self.hosts:
                finished(stack)
            self._rules = Network(self.net, ports, options=options)

    @property
    def rules(self) -> Network:
        """The network by rules."""
        assert self._rules is not None, "Underlay(via=Via.RULES)"
        return self._rules

    def host(self, number: int, folder: Path, **options: Any) -> Host:  # noqa: ANN401 - `Host` has them
        """A switch with an agent whose network is that of host `number`, from 1; `options` are of `Host`."""
        enter = ("nsenter", f"--net={self.hosts[number - 1].path}")
        return Host(folder, agent_wrapper=enter, **options)

    def stop(self) -> None:
        """End everything on all hosts."""
        if self._rules is not None:
            self._rules.kill()
        for stack in [*self.hosts, *([self.net] if self.net else [])]:
            stack.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def finished(stack: Stack) -> None:
    """Let a host finish its frames itself, as on a wire: each cut, each checksum there."""
    stack.run("ethtool -K eth0 tx off gso off tso off")


def uplink(number: int, *lines: str, version: int = 4, peer: Iterable[str] = (), hosts: int = 2) -> str:
    """The uplink of host `number`; further lines of its table and of each peer's.

    The peer is `far`, of several hosts `host1` to `host3`.
    """
    more = "".join(f"{line}\n" for line in lines)
    of_peer = "".join(f"{line}\n" for line in peer)
    rate = "" if "rate = " in more else 'rate = "10gbit"\n'
    text = f'[uplink.net0]\nlocal = "{ADDRESSES[version][number - 1]}"\n{rate}{more}\n'
    for other in range(1, hosts + 1):
        if other != number:
            name = "far" if hosts == 2 else f"host{other}"
            address = ADDRESSES[version][other - 1]
            text += f'[uplink.net0.peer.{name}]\naddress = "{address}"\n{of_peer}\n'
    return text
