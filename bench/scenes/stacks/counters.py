"""The kernel's counters: bytes of interfaces, time of threads and of CPUs."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from lab.namespaces import Stack

HEADERS = 14 + 20 + 32
"""Ethernet, IPv4, and TCP with timestamps: before each segment."""
MSS = 1500 - HEADERS + 14
"""Payload of a full segment, MTU 1500."""


@dataclass(frozen=True)
class Interface:
    """Counters of an interface at one moment."""

    at: float
    """`time.monotonic()`, s."""
    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int


def interface(stack: Stack, name: str = "eth0") -> Interface:
    """Reads the counters of one interface, from outside its namespace."""
    text = (stack.path.parent.parent / "net/dev").read_text()
    at = time.monotonic()
    for line in text.splitlines():
        device, colon, rest = line.partition(":")
        if colon and device.strip() == name:
            n = [int(word) for word in rest.split()]
            return Interface(at, n[0], n[1], n[8], n[9])
    raise RuntimeError(f"no interface {name} in {stack.path}")


def tcp_wire_bytes(first: Interface, last: Interface) -> int:
    """Bytes of Ethernet frames received between two readings, of a TCP bulk stream.

    An interface counts a super-frame once, with one header. Its payload tells how many
    segments it stands for: a bulk stream fills all of them.
    """
    packets = last.rx_packets - first.rx_packets
    payload = last.rx_bytes - first.rx_bytes - packets * HEADERS
    return round(payload * (MSS + HEADERS) / MSS)


def edge(stack: Stack, patience: float = 2.0) -> Interface:
    """The counters just after a frame came: a window between two edges holds whole frames."""
    first = interface(stack)
    while True:
        now = interface(stack)
        if now.rx_bytes != first.rx_bytes or now.at - first.at > patience:
            return now
        time.sleep(0.0002)


def threads_ns(pid: int) -> int:
    """CPU time of all threads of a process, ns (proc(5), schedstat)."""
    return sum(thread_ns(pid, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir())


def thread_ns(pid: int, thread: int) -> int:
    """CPU time of one thread of a process, ns."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])


def workers_ns(pid: int) -> int:
    """CPU time of a switch's workers, ns."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("worker-"):
            total += int((task / "schedstat").read_text().split()[0])
    return total


@dataclass(frozen=True)
class Cpus:
    """Time of all CPUs together, s, at one moment."""

    at: float
    busy: float
    stolen: float

    @classmethod
    def now(cls) -> "Cpus":
        """Reads /proc/stat."""
        at = time.monotonic()
        line = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = (int(word) for word in line[:8])
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(at, (user + nice + system + irq + softirq) / ticks, steal / ticks)
