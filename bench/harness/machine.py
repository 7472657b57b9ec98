"""The machine: its cores and their distance, hugepages, CPU time and threads of a process.

```text
 sched_getaffinity ─▶ generator_cpu, switch_cpu
 generator/pingpong ─▶ ns for a cache line there and back
 /proc/sys/vm/nr_hugepages ◀─ what a scene needs; given back afterwards
 /proc/PID/stat, task ─▶ CPU time, threads
```
"""

import os
import platform
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from .model import NEAR_BELOW_NS, Json, Missing

GENERATOR = Path(__file__).resolve().parent.parent / "generator"
BUILT = GENERATOR.parent.parent / "target/bench/generator"
HUGEPAGES = Path("/proc/sys/vm/nr_hugepages")
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


def build(program: str) -> Path:
    """A program of `bench/generator`, compiled if it is older than its source."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", GENERATOR, f"OUT={BUILT}", BUILT / program],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Missing(f"{program} does not build (scripts/setup bench): {done.stderr.strip()[-400:]}")
    return BUILT / program


class Machine:
    """The cores of a run: the last two that this process may use, because interrupts prefer the first."""

    def __init__(self) -> None:
        self.cpus = tuple(sorted(os.sched_getaffinity(0)))

    @cached_property
    def _last_two(self) -> tuple[int, int]:
        if len(self.cpus) < 2:
            raise Missing("two CPUs are needed: one for the generator, one for the switch")
        return self.cpus[-2], self.cpus[-1]

    @property
    def generator_cpu(self) -> int:
        """The last but one; `Missing` on a machine with one CPU."""
        return self._last_two[0]

    @property
    def switch_cpu(self) -> int:
        """The last; `Missing` on a machine with one CPU."""
        return self._last_two[1]

    @cached_property
    def _pingpong(self) -> Path:
        return build("pingpong")

    def ping_pong_ns(self) -> float:
        """A cache line from one of the two CPUs to the other and back; about 10 ms."""
        done = subprocess.run(
            [self._pingpong, str(self.generator_cpu), str(self.switch_cpu)],
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    def describe(self, *, distance: bool = True) -> Json:
        """What the figures were measured on; with `distance` also how far apart the last two CPUs are."""
        cpu = "unknown"
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
        virtual = "hypervisor" in Path("/proc/cpuinfo").read_text()
        memory = int(Path("/proc/meminfo").read_text().split()[1]) // (1 << 20)
        release = dict(
            line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
        )
        return {
            "cpu": cpu,
            "cpus": os.cpu_count(),
            "virtual machine": virtual,
            "memory [GiB]": memory,
            "system": release.get("PRETTY_NAME", "").strip('"'),
            "kernel": platform.release(),
        } | (
            {"ping-pong [ns]": round(self.ping_pong_ns(), 1), "near below [ns]": NEAR_BELOW_NS}
            if distance
            else {}
        )


@contextmanager
def hugepages(count: int) -> Iterator[int]:
    """At least `count` hugepages of 2 MB; afterwards as many as before. Yields their number."""
    before = int(HUGEPAGES.read_text())
    try:
        if before < count:
            try:
                HUGEPAGES.write_text(str(count))
            except OSError as error:
                raise Missing(f"hugepages cannot be set ({error}); run as root") from None
        now = int(HUGEPAGES.read_text())
        if now < count:
            raise Missing(f"{count} hugepages are needed, the kernel found {now}: free some memory")
        yield now
    finally:
        if before < count:
            HUGEPAGES.write_text(str(before))


@contextmanager
def without_autogroup() -> Iterator[None]:
    """Let nice values count among all processes; with autogroups they count within a session alone.

    Without autogroups in the kernel, or without the right to switch them off, nothing changes.
    """
    try:
        before = AUTOGROUP.read_text()
        AUTOGROUP.write_text("0")
    except OSError:
        yield
        return
    try:
        yield
    finally:
        AUTOGROUP.write_text(before)


def enough_descriptors(count: int = 65536) -> None:
    """Raise the limit of descriptors to that of the switch's unit; without the right to, leave it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), count))


def process_cpu_s(pid: int) -> float:
    """CPU time of a whole process, user and kernel, in seconds (all threads, dead ones as well)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stolen_ticks() -> tuple[int, int]:
    """CPU time that the host of this machine took away since boot, and all CPU time, in ticks."""
    words = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return words[7], sum(words)


def threads(pid: int) -> dict[int, str]:
    """Thread ids and names of a process."""
    return {
        int(task.name): (task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()
    }
