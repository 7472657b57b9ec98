#!/usr/bin/env python3
"""Write the listings of machines in this folder.

    make.py                 the machines that are written after documented layouts
    make.py --capture NAME  the machine that this runs on, as NAME.txt

A line is a path and its content, or a path and the target of a link (`->`). `{0-3,8}` in a path stands for
each of these numbers. The first line says whether the listing was captured.

Layouts: Documentation/admin-guide/cputopology.rst and Documentation/ABI/testing/sysfs-devices-system-cpu of
Linux.
"""

import argparse
import platform
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
CPU = "/sys/devices/system/cpu"
Files = dict[str, str]


def listed(numbers: list[int]) -> str:
    """Numbers as the kernel lists them."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def machine(cpus: list[tuple[int, int, int, int]], *, memory_only: int = 0, isolated: str = "") -> Files:
    """A machine of CPUs with (package, core, last cache, node)."""
    numbers = list(range(len(cpus)))
    files = {
        f"{CPU}/online": listed(numbers),
        f"{CPU}/possible": listed(numbers),
        f"{CPU}/isolated": isolated,
        f"{CPU}/nohz_full": "",
    }

    def alike(number: int, field: slice) -> str:
        return listed([other for other in numbers if cpus[other][field] == cpus[number][field]])

    for number, (package, core, _, _) in enumerate(cpus):
        one = f"{CPU}/cpu{number}"
        threads = alike(number, slice(0, 2))
        files |= {
            f"{one}/topology/physical_package_id": str(package),
            f"{one}/topology/core_id": str(core),
            f"{one}/topology/thread_siblings_list": threads,
            f"{one}/topology/core_cpus_list": threads,
        }
        caches = [("1", "Data", threads), ("1", "Instruction", threads), ("2", "Unified", threads)]
        caches.append(("3", "Unified", alike(number, slice(2, 3))))
        for index, (level, kind, shared) in enumerate(caches):
            cache = f"{one}/cache/index{index}"
            files |= {f"{cache}/level": level, f"{cache}/type": kind, f"{cache}/shared_cpu_list": shared}
    nodes = sorted({node for *_, node in cpus})
    for node in nodes:
        having = [number for number in numbers if cpus[number][3] == node]
        files[f"/sys/devices/system/node/node{node}/cpulist"] = listed(having)
    for node in range(len(nodes), len(nodes) + memory_only):
        files[f"/sys/devices/system/node/node{node}/cpulist"] = ""
    return files


def nic(name: str, pci: str, node: int, first: int, queues: int) -> Files:
    """An interface with an interrupt for each queue, on CPUs in turn."""
    files = {
        f"/sys/class/net/{name}/device": f"-> ../../../devices/pci0000:00/{pci}",
        f"/sys/devices/pci0000:00/{pci}/numa_node": str(node),
        f"/sys/class/net/{name}/statistics/rx_packets": "0",
        f"/sys/class/net/{name}/statistics/tx_packets": "0",
    }
    for queue in range(queues):
        irq = first + queue
        files |= {
            f"/sys/devices/pci0000:00/{pci}/msi_irqs/{irq}": "msix",
            f"/sys/kernel/irq/{irq}/actions": f"{name}-TxRx-{queue}",
            f"/sys/kernel/irq/{irq}/per_cpu_count": "0",
            f"/proc/irq/{irq}/smp_affinity_list": str(queue),
            f"/proc/irq/{irq}/effective_affinity_list": str(queue),
            f"/sys/class/net/{name}/queues/rx-{queue}/rps_cpus": "0",
            f"/sys/class/net/{name}/queues/tx-{queue}/xps_cpus": "0",
        }
    return files


WRITTEN: dict[str, tuple[str, Files]] = {
    "two-sockets": (
        "two sockets of 32 cores with two threads each, second threads last; a NIC at each socket",
        machine([((n % 64) // 32, n % 32, (n % 64) // 32, (n % 64) // 32) for n in range(128)])
        | nic("ens1", "0000:17:00.0", 0, 100, 8)
        | nic("ens2", "0000:b1:00.0", 1, 200, 8),
    ),
    "cache-groups": (
        "one socket of 16 cores with two threads each, in four groups with a third-level cache each, "
        "one node, and a node of memory alone",
        machine([(0, n % 16, (n % 16) // 4, 0) for n in range(32)], memory_only=1)
        | nic("enp1s0", "0000:01:00.0", -1, 60, 4),
    ),
    "eight-cores": (
        "one socket of eight cores without threads, two of them isolated",
        machine([(0, n, 0, 0) for n in range(8)], isolated="6-7") | nic("eth0", "0000:00:03.0", -1, 30, 2),
    ),
    "hybrid": (
        "one socket of four cores with two threads each and four small ones without",
        machine([(0, n // 2 if n < 8 else n - 4, 0, 0) for n in range(12)]),
    ),
    "one-cpu": ("one CPU", machine([(0, 0, 0, 0)])),
}

CAPTURED = (
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/nohz_full",
    "sys/devices/system/cpu/cpu*/online",
    "sys/devices/system/cpu/cpu*/topology/*_id",
    "sys/devices/system/cpu/cpu*/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu*/cache/index*/level",
    "sys/devices/system/cpu/cpu*/cache/index*/type",
    "sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list",
    "sys/devices/system/node/node*/cpulist",
    "sys/fs/cgroup/cpuset/cpuset*cpus",
    "sys/fs/cgroup/cpuset.cpus.effective",
)
OF_IRQ = ("sys/kernel/irq/{}/actions", "sys/kernel/irq/{}/per_cpu_count", "proc/irq/{}/*affinity_list")
OF_NIC = (
    "statistics/rx_packets",
    "statistics/tx_packets",
    "queues/*/rps_cpus",
    "queues/*/xps_cpus",
    "ifindex",
)


def captured() -> Files:
    """The files of this machine that discovery reads."""
    files: Files = {}

    def take(path: Path, name: str) -> None:
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return
        if len(text) < 2000 and "\n" not in text:
            files[name] = text

    def take_all(pattern: str) -> None:
        for path in sorted(Path("/").glob(pattern)):
            take(path, str(path))

    for pattern in CAPTURED:
        take_all(pattern)
    counted = [line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    files["/proc/stat"] = "\\n".join(counted)
    for interface in sorted(Path("/sys/class/net").iterdir()):
        for pattern in OF_NIC:
            for path in sorted(interface.glob(pattern)):
                take(path, str(path))
        if (interface / "device").exists():
            device = (interface / "device").resolve()
            files[f"{interface}/device"] = "-> ../../.." + str(device).removeprefix("/sys")
            files[f"{device}/uevent"] = ""
            # Of a virtio device, the PCI device has them.
            for holder in (device, device.parent):
                take(holder / "numa_node", f"{holder}/numa_node")
                for irq in sorted(holder.glob("msi_irqs/*")):
                    take(irq, str(irq))
                    for pattern in OF_IRQ:
                        take_all(pattern.format(irq.name))
    return files


def grouped(files: Files) -> list[str]:
    """Lines of a listing; CPUs with equal contents share one."""
    lines: list[str] = []
    of_cpus: dict[tuple[str, str], list[int]] = defaultdict(list)
    for path, content in files.items():
        rest = path.removeprefix(f"{CPU}/cpu")
        number, _, file = rest.partition("/")
        if rest != path and number.isdigit():
            of_cpus[file, content].append(int(number))
        else:
            lines.append(f"{path} {content}".rstrip())
    for (file, content), numbers in of_cpus.items():
        lines.append(f"{CPU}/cpu{{{listed(numbers)}}}/{file} {content}".rstrip())
    return lines


def write(name: str, title: str, files: Files) -> None:
    """Write a listing."""
    (HERE / f"{name}.txt").write_text("\n".join([f"# {title}", *grouped(files), ""]))


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capture", metavar="NAME")
    name = parser.parse_args().capture
    if name:
        write(name, f"Captured: {platform.release()} {platform.machine()}", captured())
        return
    for name, (title, files) in WRITTEN.items():
        write(name, f"Written after documented layouts, not captured: {title}", files)


if __name__ == "__main__":
    main()
