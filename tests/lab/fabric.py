"""A network of Open vSwitch bridges, with hosts, in network namespaces.

```text
 namespace of h1          namespace `net`: one database, one ovs-vswitchd            namespace of h2
 eth0 10.0.0.1 ──veth── s1.3 ┌ bridge s1 ┐ s1.1 ──veth── s2.1 ┌ bridge s2 ┐ s2.2 ──veth── eth0 10.0.0.2
                             └───────────┘                    └───────────┘
```

With more `processes`, bridges take turns among as many ovs-vswitchd, each with a database and a namespace of
its own (there can be one userspace datapath in each). So a network is whose switches stall one by one:

```text
 namespace `net`: controller, first process       namespace of the second process
                  s1.1 ──────── veth ──────────── s2.1 ┌ bridge s2 ┐
            172.31.0.1 ──────── veth ──────────── 172.31.0.2, by which its bridges reach the controller
```

Ports are called SWITCH.NUMBER; the datapath id is the place of the switch in `switches`, from 1. A bridge
without a controller drops all (`fail_mode=secure`).

The userspace datapath ignores `set_queue`. `steer` stands in for it: tc filters by DSCP, on the HTB that Open
vSwitch has made, with and without the VLAN tag of a path; frames that switches send by themselves (BFD, LLDP)
stay in queue 0. It also shortens the queue of best effort: all ports send by one socket of Open vSwitch. A
long queue fills its buffer; then frames of other queues and switches are lost, and no queue counts them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from .namespaces import Stack
from .ovs import OpenVswitch
from .traffic import Flow, Running, begin

SHORT = 50
"""Frames in the queue of best effort."""
BFD = 48
"""DSCP of the BFD frames of Open vSwitch (CS6)."""
LLDP = 0x88CC
"""EtherType."""


@dataclass(frozen=True)
class Plan:
    """Pairs of switches, and the switch of each host. Ports count up in the order of links, hosts last."""

    links: Sequence[tuple[str, str]]
    hosts: Mapping[str, str]

    @property
    def switches(self) -> list[str]:
        """Names, in the order in which they first appear."""
        ends = [end for link in self.links for end in link]
        return list(dict.fromkeys([*ends, *self.hosts.values()]))


def line(count: int) -> Plan:
    """s1 to sN in a row, a host hN at each switch."""
    names = [f"s{n}" for n in range(1, count + 1)]
    return Plan(list(pairwise(names)), _one_each(names))


def ring(count: int) -> Plan:
    """s1 to sN in a circle, a host at each switch."""
    row = line(count)
    return Plan([*row.links, (f"s{count}", "s1")], row.hosts)


def fat_tree(pods: int = 4) -> Plan:
    """A k-ary fat tree (Al-Fares et al., SIGCOMM 2008, 2.2), a host at each edge; 20 switches for 4 pods."""
    half = pods // 2
    links = []
    for pod in range(pods):
        for way in range(half):
            links += [(f"a{pod}-{way}", f"c{way * half + core}") for core in range(half)]
            links += [(f"e{pod}-{edge}", f"a{pod}-{way}") for edge in range(half)]
    edges = [f"e{pod}-{edge}" for pod in range(pods) for edge in range(half)]
    return Plan(links, _one_each(edges))


def _one_each(switches: Sequence[str]) -> dict[str, str]:
    return {f"h{number}": switch for number, switch in enumerate(switches, 1)}


@dataclass
class Part:
    """Bridges of one ovs-vswitchd, with the namespace of their ports."""

    stack: Stack
    switches: list[str]
    net: str = "127.0.0.1"
    """The address at which they reach the namespace `net`."""


class Fabric:
    """The network of a plan, running."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        datapath: str = "netdev",
        remote: str = "",
        processes: int = 1,
        mtu: int = 1500,
    ) -> None:
        """`datapath` is `netdev`, or `system`: that of the kernel, where `set_queue` works.

        `remote` is one more that the database listens at, of the first process. `mtu` is that of all links.
        """
        self.plan = plan
        self._datapath, self._mtu = datapath, mtu
        self.net = Stack(folder / "net")
        names = plan.switches
        processes = min(processes, len(names))
        self.parts = [Part(self.net, names[::processes])]
        for number in range(1, processes):
            self.parts.append(self._apart(folder / f"net-{number}", number, names[number::processes]))
        self._part = {switch: part for part in self.parts for switch in part.switches}
        for part in self.parts:
            part.stack.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1")
        self.hosts = {name: Stack(folder / name) for name in plan.hosts}
        self.ports: dict[str, list[str]] = {name: [] for name in plan.switches}
        """Names of a switch's ports; the first has number 1."""
        self.links: list[tuple[str, str]] = []
        """The two ports of each link."""
        self.edges: dict[str, str] = {}
        """The port of each host."""
        self._join()
        self.all_ovs = [
            OpenVswitch(folder / (f"ovs-{number}" if number else "ovs"), part.stack, "" if number else remote)
            for number, part in enumerate(self.parts)
        ]
        """By process."""
        self.ovs = self.all_ovs[0]
        for part, ovs in zip(self.parts, self.all_ovs, strict=True):
            self._make_bridges(part, ovs)

    def _apart(self, folder: Path, number: int, switches: list[str]) -> Part:
        """A namespace for a further process, with a way to `net`."""
        stack, first = Stack(folder), 4 * number - 3
        here, there = (f"172.31.{at // 256}.{at % 256}" for at in (first, first + 1))
        own, peer = f"m{number}", f"peer name mgmt netns {stack.path.parts[2]}"
        ends = (f"link add {own} type veth {peer}", f"addr add {here}/30 dev {own}", f"link set {own} up")
        self._batch(self.net, ends)
        self._batch(stack, [f"addr add {there}/30 dev mgmt", "link set mgmt up"])
        return Part(stack, switches, here)

    def _join(self) -> None:
        mtu = f"mtu {self._mtu}"
        commands = {part.stack: list[str]() for part in self.parts}
        for one, other in self.plan.links:
            ends = self._port(one), self._port(other)
            self.links.append(ends)
            stack, peer = (self._part[switch].stack for switch in (one, other))
            where = "" if stack is peer else f" netns {peer.path.parts[2]}"
            commands[stack].append(f"link add {ends[0]} type veth peer name {ends[1]}{where}")
        for at, words in commands.items():
            self._batch(at, words)
        for number, (host, switch) in enumerate(self.plan.hosts.items(), 1):
            stack, port = self.hosts[host], self._port(switch)
            self.edges[host] = port
            mac = f"02:00:00:00:00:{number:02x}"
            where = f"netns {stack.path.parts[2]}"
            self._batch(self._part[switch].stack, [f"link add {port} type veth peer name eth0 {where}"])
            own = f"address {mac} {mtu} up"
            self._batch(stack, [f"link set eth0 {own}", f"addr add {address(number)}/24 dev eth0"])
            # The userspace datapath passes on frames as they are: checksums and cuts belong to the host.
            stack.run("ethtool -K eth0 tx off gso off tso off")
        for part in self.parts:
            ports = [port for switch in part.switches for port in self.ports[switch]]
            self._batch(part.stack, [f"link set {port} {mtu} up" for port in ports])

    def _port(self, switch: str) -> str:
        ports = self.ports[switch]
        ports.append(f"{switch}.{len(ports) + 1}")
        return ports[-1]

    def _batch(self, stack: Stack, commands: Iterable[str]) -> None:
        text = "\n".join(commands)
        stack.run(["sh", "-c", f"ip -batch - <<'END'\n{text}\nEND"])

    def _make_bridges(self, part: Part, ovs: OpenVswitch) -> None:
        words = []
        for switch in part.switches:
            words.append(
                f"add-br {switch} -- set bridge {switch} datapath_type={self._datapath} fail_mode=secure"
                f" protocols=OpenFlow13 other_config:datapath-id={self.datapath(switch):016x}"
            )
            for number, port in enumerate(self.ports[switch], 1):
                words.append(f"add-port {switch} {port} -- set interface {port} ofport_request={number}")
        ovs.vsctl(" -- ".join(words))

    def datapath(self, switch: str) -> int:
        """The datapath id of a switch."""
        return list(self.ports).index(switch) + 1

    def connect(self, controller: str) -> None:
        """Give all bridges a controller, such as `unix:PATH`.

        127.0.0.1 in it is the namespace `net`, whose address for others is another one.
        """
        for part, ovs in zip(self.parts, self.all_ovs, strict=True):
            target = controller.replace("127.0.0.1", part.net)
            ovs.vsctl(" -- ".join(f"set-controller {switch} {target}" for switch in part.switches))

    def switch_of(self, switch: str) -> OpenVswitch:
        """The Open vSwitch that has a bridge."""
        return self.all_ovs[self.parts.index(self._part[switch])]

    def _on(self, port: str) -> Stack:
        """The namespace of a port."""
        return self._part[port.rsplit(".", 1)[0]].stack

    def ofctl(self, command: str, switch: str, words: str = "") -> str:
        """`ovs-ofctl COMMAND SWITCH WORDS`; standard output."""
        socket = f"unix:{self.switch_of(switch).folder}/{switch}.mgmt"
        return self.net.run(f"ovs-ofctl -O OpenFlow13 {command} {socket} {words}")

    def dump_flows(self, switch: str) -> list[str]:
        """One line for each rule, without counters."""
        return self._lines("dump-flows", switch)

    def dump_groups(self, switch: str) -> list[str]:
        """One line for each group."""
        return self._lines("dump-groups", switch)

    def _lines(self, command: str, switch: str) -> list[str]:
        lines = self.ofctl(f"--no-stats --no-names {command}", switch).splitlines()
        return [line.strip() for line in lines if not re.match(r"\s*(OFPST|NXST)", line)]

    def learn(self) -> None:
        """Let all bridges forward as switches that learn; for networks without loops."""
        for switch in self.ports:
            self.ofctl("add-flow", switch, "actions=normal")

    def queue_statistics(self, port: str) -> dict[int, tuple[int, int]]:
        """Frames that each queue of a port has sent, and dropped, as OpenFlow tells."""
        switch, number = port.rsplit(".", 1)
        text = self.ofctl("queue-stats", switch, number)
        found = re.findall(r"queue (\d+): bytes=\d+, pkts=(\d+), errors=(\d+)", text)
        return {int(queue): (int(sent), int(dropped)) for queue, sent, dropped in found}

    def classes(self, port: str) -> dict[str, str]:
        """What tc tells of each HTB class of a port, by its handle."""
        text = self._on(port).run(f"tc class show dev {port}")
        found = (re.match(r"class htb (\S+) (.*)", line) for line in text.splitlines())
        return {one[1]: one[2] for one in found if one}

    def steer(
        self,
        marks: Mapping[int, int],
        best_effort: int,
        ports: Iterable[str] = (),
        short: Mapping[int, int] | None = None,
    ) -> None:
        """Put frames into queues by DSCP (`marks`) at ports with an HTB, at all of these if none is named.

        `short` has lengths of queues, in frames. Anew after each change of queues: what was there before
        is replaced.
        """
        lengths = {best_effort: SHORT, **(short or {})}
        for port in ports or [port for ports in self.ports.values() for port in ports]:
            rest = f"1:{best_effort + 1:x}"
            if rest not in self.classes(port):
                continue
            add = f"filter add dev {port} parent 1:"
            tagged = f"{add} protocol 802.1q prio 2 u32"
            commands = [
                f"filter del dev {port} parent 1:",
                *(
                    f"qdisc replace dev {port} parent 1:{queue + 1:x} pfifo limit {length}"
                    for queue, length in lengths.items()
                ),
            ]
            for dscp, queue in {BFD: 0, **marks}.items():
                match, target = f"{dscp << 2:#x} 0xfc", f"flowid 1:{queue + 1:x}"
                commands += [
                    f"{add} protocol ip prio 1 u32 match ip dsfield {match} {target}",
                    # With a tag, offsets count from behind it since Linux 6.9, before that from the tag.
                    f"{tagged} match u8 0x45 0xff at 0 match u8 {match} at 1 {target}",
                    f"{tagged} match u16 0x0800 0xffff at 2 match u8 {match} at 5 {target}",
                ]
            commands += [
                f"{add} protocol {LLDP} prio 3 u32 match u32 0 0 flowid 1:1",
                f"{add} protocol all prio 4 u32 match u32 0 0 flowid {rest}",
            ]
            self._on(port).run(" && ".join(f"tc {command}" for command in commands))

    def flow(
        self, source: str, target: str, flow: Flow, patience: float = 1.5, deadline: int | None = None
    ) -> Running:
        """Begin a flow between two hosts, with a deadline in us if there is one."""
        place = list(self.hosts).index(target) + 1
        return begin(self.hosts[source], self.hosts[target], address(place), flow, patience, deadline)

    def cut(self, port: str) -> None:
        """Lose all frames that leave by a port, without its carrier: neither end's link goes down."""
        drop = "bpf bytecode '1,6 0 0 2' direct-action"
        self._on(port).run(f"tc qdisc add dev {port} clsact && tc filter add dev {port} egress {drop}")

    def mend(self, port: str) -> None:
        """Undo `cut`."""
        self._on(port).run(f"tc qdisc del dev {port} clsact")

    def stop(self) -> None:
        """End everything."""
        for ovs in self.all_ovs:
            ovs.stop()
        for stack in [*self.hosts.values(), *(part.stack for part in self.parts)]:
            stack.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def address(number: int) -> str:
    """The address of host hN."""
    return f"10.0.0.{number}"
