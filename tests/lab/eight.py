"""A guest of eight CPUs: two sockets, which are NUMA nodes, each of two cores with two threads.

with eight_cpus(folder) as guest:
    Tunnels(guest)                            near ═ Geneve, GRE with Ethernet, ESP ═ far, in a namespace
    with Vm(guest, "vm0") as vm: ...          QEMU in the guest: a tap with vhost-net, two virtual CPUs

Its NIC `eth0` is QEMU's igb, on node 1: an interrupt of its own and one for each queue, which can be moved,
and XDP in the driver. 10.0.2.2 answers there.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .guest import Guest, GuestError, Nic
from .igb import MAC, USER
from .qemu import with_igb

NODES = 2
_MEMORY = 640
"""MiB of each node."""

OTHER_ENDS = {"geneve": "10.20.0.2", "gre": "10.21.0.2", "esp": "10.22.0.2"}
"""Addresses at `far`, by tunnel."""
NUMBERS = {"geneve": 42, "gre": 43, "esp": 4097}
"""VNI, key, and the SPI of what `near` receives."""
_PEER = "52:55:0a:00:02:02"
"""The MAC of 10.0.2.2, which QEMU plays."""
_TUNNELS = ["veth", "geneve", "gre", "ip_gre", "esp4", "xfrm_user", "authenc", "crypto_null"]


def _nodes() -> list[str]:
    words = []
    for node in range(NODES):
        words += ["-object", f"memory-backend-memfd,id=mem{node},size={_MEMORY}M,share=on"]
        words += [
            "-numa",
            f"node,nodeid={node},memdev=mem{node}",
            "-numa",
            f"cpu,node-id={node},socket-id={node}",
        ]
    return words


def _nic() -> Nic:
    """Below a bridge that is on node 1."""
    kind, _, options = USER.partition(",")
    return Nic(
        [
            *("-device", "pxb-pcie,id=node1,bus_nr=64,numa_node=1"),
            *("-device", "pcie-root-port,id=port1,bus=node1,slot=1,chassis=1"),
            *("-netdev", f"{kind},id=net1,{options}", "-device", f"igb,bus=port1,netdev=net1,mac={MAC}"),
        ]
    )


def eight_cpus(folder: Path) -> Guest:
    """The guest; `eth0` has two queues, to plan less."""
    machine = [
        "-m",
        f"{NODES * _MEMORY}M",
        "-smp",
        "8,sockets=2,cores=2,threads=2",
        "-machine",
        "q35",
        *_nodes(),
    ]
    guest = Guest(
        folder,
        [_nic()],
        machine=machine,
        qemu=with_igb(),
        modules=["igb", "tun", "vhost_net", "bridge", *_TUNNELS],
        # QEMU's own processor is AMD's, and has no threads there without KVM.
        arguments=["-cpu", "max,vendor=GenuineIntel"],
        boot_seconds=180,
    )
    # With so few queues its driver has an interrupt for each direction.
    guest.run("ethtool -L eth0 combined 2; ethtool -K eth0 rxvlan off >/dev/null", timeout=120)
    return guest


class Tunnels:
    """The kernel's tunnels over a veth pair, `near` and `far`; the other end answers in each."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        queues = "numrxqueues 2 numtxqueues 2"
        guest.run(
            f"ip netns add far && ip link add near {queues} type veth peer name far {queues} netns far"
            " && ethtool -K near rxvlan off tx off txvlan off >/dev/null"
            # Without GRO a veth in XDP mode has no ring to take frames from.
            " && ip netns exec far ethtool -K far gro on tx off txvlan off >/dev/null"
        )
        for end, other, at in ((1, 2, "ip"), (2, 1, "ip -n far")):
            device = "near" if end == 1 else "far"
            local, remote = f"10.19.0.{end}", f"10.19.0.{other}"
            # GRE's keys and addresses are of this pair alone, so that both ends may have one name.
            guest.run(
                f"{at} link set lo up; {at} link set {device} up; {at} addr add {local}/24 dev {device}"
                f"; {at} link add tunnel0 type geneve id {NUMBERS['geneve']} remote {remote}"
                f"; {at} addr add 10.20.0.{end}/24 dev tunnel0; {at} link set tunnel0 up"
                f"; {at} link add tunnel1 type gretap local {local} remote {remote} key {NUMBERS['gre']}"
                f"; {at} addr add 10.21.0.{end}/24 dev tunnel1; {at} link set tunnel1 up"
                f"; {at} addr add 10.22.0.{end}/32 dev lo"
                f"; {at} route add 10.22.0.{other} via {remote} src 10.22.0.{end}"
            )
            # An emulated clock may run ahead, and questions for addresses fail.
            for number, of in ((19, device), (20, "tunnel0"), (21, "tunnel1")):
                mac = f"52:54:00:{number}:00:0"
                guest.run(
                    f"{at} link set {of} address {mac}{end}"
                    f" && {at} neigh replace 10.{number}.0.{other} lladdr {mac}{other} dev {of} nud permanent"
                )
            self._esp(at, end, other)

    def _esp(self, at: str, end: int, other: int) -> None:
        """Associations of both ways, and the policies of one end."""
        keys = "enc 'ecb(cipher_null)' '' auth 'hmac(sha1)' 0x0102030405060708090a0b0c0d0e0f1011121314"
        for source, target, spi in ((1, 2, NUMBERS["esp"] - 1), (2, 1, NUMBERS["esp"])):
            ends = f"src 10.19.0.{source} dst 10.19.0.{target} proto esp"
            self.guest.run(f"{at} xfrm state add {ends} spi {spi} mode tunnel {keys}")
        for source, target, way in ((end, other, "out"), (other, end, "in")):
            template = f"tmpl src 10.19.0.{source} dst 10.19.0.{target} proto esp mode tunnel"
            inner = f"src 10.22.0.{source} dst 10.22.0.{target}"
            self.guest.run(f"{at} xfrm policy add {inner} dir {way} {template}")

    def flow(self, tunnel: str, *lines: str) -> str:
        """The flow of a contract for all that `near` receives in a tunnel."""
        more = "".join(f"{line}\n" for line in lines)
        return f'[host.flow.{tunnel}]\ndevice = "near"\ntunnel = "{tunnel}"\nid = {NUMBERS[tunnel]}\n{more}'

    def ask(self, frames: int = 5) -> None:
        """Let the other end answer in each tunnel; fails unless each frame arrives."""
        for address in OTHER_ENDS.values():
            ping(self.guest, address, frames)


def ping(guest: Guest, address: str, frames: int = 5) -> None:
    """Fails unless each is answered; waits long, since an emulated clock may run ahead on a busy machine."""
    done = guest.try_run(f"ping -q -c {frames} -i 0.2 -W 600 {address}", timeout=120)
    if f" {frames} received" not in done.stdout:
        raise GuestError(
            f"not all of {frames} frames to {address} were answered:\n{done.stdout}{done.stderr}"
        )


@dataclass
class Vm:
    """A VM in the guest: a tap in the bridge of `eth0`, vhost-net, two virtual CPUs, an I/O thread.

    It has no disk: its firmware asks for an address, by frames that vhost-net carries, and gets 10.0.2.15.
    """

    guest: Guest
    tap: str

    def __enter__(self) -> Self:
        name = self.tap
        self.guest.run(
            "ip link show br0 >/dev/null 2>&1"
            " || { ip link add br0 type bridge && ip link set eth0 master br0"
            " && ip addr add 10.0.2.200/24 dev br0 && ip link set br0 up"
            f" && ip neigh replace 10.0.2.2 lladdr {_PEER} dev br0 nud permanent; }}"
            f"; ip tuntap add {name} mode tap && ip link set {name} master br0 up"
        )
        command = [
            *(with_igb(), "-accel", "tcg", "-machine", "q35", "-m", "64M", "-smp", "2", "-nodefaults"),
            *("-display", "none", "-name", f"{name},debug-threads=on", "-object", "iothread,id=iothread1"),
            *("-netdev", f"tap,id=net,ifname={name},script=no,downscript=no,vhost=on"),
            *("-device", "virtio-net-pci,netdev=net,mac=52:54:00:00:00:01"),
        ]
        log = f"/run/{name}.log"
        self.pid = int(self.guest.run(f"{shlex.join(command)} >{log} 2>&1 </dev/null & echo $!"))
        # vhost's thread is a process of its own before Linux 6.4.
        self.vhost = int(self.guest.run(f"until pgrep vhost-{self.pid}; do sleep 0.2; done", timeout=60))
        return self

    def kill(self) -> None:
        """End it as a crash would."""
        self.guest.run(f"kill -9 {self.pid}; while kill -0 {self.pid} 2>/dev/null; do sleep 0.1; done")

    def cpus(self, thread: int | None = None) -> str:
        """Where a thread may run; by default vhost's."""
        thread = thread or self.vhost
        return self.guest.run(f"sed -n 's/^Cpus_allowed_list:\\t//p' /proc/{thread}/status").strip()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.guest.try_run(f"kill -9 {self.pid}; ip link del {self.tap}")
