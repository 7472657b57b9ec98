"""Two hosts, network namespaces with a veth pair of several queues, and the kernel's VXLAN over it.

```text
 senders ─ vx0 ─ up0 ═════════ up0 ─ [XDP] ─ stack on a CPU ─ vx0 ─ sockets
        host a                        host b
```
"""

import json
import os
from pathlib import Path

from harness.machine import build
from harness.model import Context, Json
from lab.namespaces import Stack
from scenes.steers import counts
from scenes.steers.counts import Counts

OUTER = ("192.168.77.1", "192.168.77.2")
INNER = ("10.77.0.1", "10.77.0.2")
MACS = ("02:00:00:00:77:01", "02:00:00:00:77:02")
VNI = 77
PORT = 7000
"""Of the priority flow; background flows have the following ones."""
BYTES = 1_000


class Network:
    """Both hosts."""

    def __init__(self, context: Context, queues: int) -> None:
        self.context = context
        self.flows = build("flows")
        self.hosts = [Stack(context.folder / name) for name in "ab"]
        for host in self.hosts:
            context.cleanup.callback(host.stop)
        a, b = self.hosts
        several = f"numtxqueues {queues} numrxqueues {queues}"
        a.run(f"ip link add up0 {several} type veth peer name up0 {several} netns {b.path.parts[2]}")
        for number, host in enumerate(self.hosts):
            other = 1 - number
            host.run(
                f"ip link set up0 mtu 1600 && ip addr add {OUTER[number]}/24 dev up0 && ip link set up0 up"
            )
            host.run(
                f"ip link add vx0 address {MACS[number]} mtu 1450 type vxlan id {VNI} dstport 4789 "
                f"local {OUTER[number]} remote {OUTER[other]} dev up0"
            )
            host.run(f"ip addr add {INNER[number]}/24 dev vx0 && ip link set vx0 up")
            host.run(f"ip neigh replace {INNER[other]} lladdr {MACS[other]} dev vx0 nud permanent")
        # XDP programs would not see tags that the driver takes out; `steer` refuses such a device.
        b.run("ethtool -K up0 rxvlan off")
        # As on a wire: a veth leaves checksums to its peer, and XDP loses that on the way to another CPU.
        for device in ("vx0", "up0"):
            a.run(f"ethtool -K {device} tx off")
        # No ARP in a window.
        for number, host in enumerate(self.hosts):
            mac = json.loads(self.hosts[1 - number].run("ip -j link show up0"))[0]["address"]
            host.run(f"ip neigh replace {OUTER[1 - number]} lladdr {mac} dev up0 nud permanent")

    @property
    def receiver(self) -> Stack:
        """The host that receives."""
        return self.hosts[1]

    def spread(self, cpus: frozenset[int]) -> None:
        """Has the kernel run the stack for received frames on these CPUs (RPS); on the sender's if empty."""
        mask = f"{sum(1 << cpu for cpu in cpus):x}"
        files = "/sys/class/net/up0/queues/rx-*/rps_cpus"
        # A namespace's devices are in a sysfs of its own.
        self.receiver.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                f"mount -t sysfs none /sys && for f in {files}; do echo {mask} > $f; done",
            ]
        )

    def counts(self, cpumap: int) -> Counts:
        """Drops of each stage so far; those of cpumap are known to the program."""
        a, b = self.hosts
        of_a, of_b = (counts.links(host.run("ip -s -j link show")) for host in (a, b))
        xdp = counts.xdp_drops(b.run("ethtool -S up0"))
        return Counts(
            {
                "sender's tunnel": of_a["vx0"][0],
                "veth's ring": of_a["up0"][0],
                "XDP": xdp,
                "cpumap": cpumap,
                "a CPU's input queue": counts.softnet_drops(Path("/proc/net/softnet_stat").read_text()),
                "receiver's tunnel": of_b["vx0"][1],
                "socket": counts.socket_errors(b.run("cat /proc/net/snmp")),
            }
        )

    def send(self, seconds: float, flows: list[tuple[str, int, int, int]]) -> Json:
        """One window of flows: name, CPUs of sender and receiver, datagrams on their way at most."""
        words = [
            f"{name},{sender},{receiver},{INNER[0]},{INNER[1]},{PORT + number},{window}"
            for number, (name, sender, receiver, window) in enumerate(flows)
        ]
        paths = [str(host.path) for host in self.hosts]
        done = self.hosts[0].run(
            [str(self.flows), *paths, str(seconds), str(BYTES), *words],
            timeout=seconds + 60,
        )
        answer: Json = json.loads(done)
        return answer


def cpus() -> list[int]:
    """The CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0))
