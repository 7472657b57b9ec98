"""The cost of observing the CPUs of the switch's workers: how often eBPF programs run, and how long.

Runs the demo (voice beside bulk TCP, which switches tasks all the time) and reads the kernel's own
statistics of the agent's eBPF programs (sysctl kernel.bpf_stats_enabled, put back afterwards). The share is
of one CPU, all CPUs' time together.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.model import Context, Figure, Missing, OptionGroup, Result, Sample, Scene
from harness.options import add_binary, binary

ENABLED = Path("/proc/sys/kernel/bpf_stats_enabled")


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    add_binary(group)
    group.add_argument("--seconds", type=float, default=3, metavar="N", help="of a run; 3")
    group.add_argument("--runs", type=int, default=5, metavar="N", help="5")


@contextmanager
def counted() -> Iterator[None]:
    """The kernel counts runs of eBPF programs meanwhile."""
    before = ENABLED.read_text()
    ENABLED.write_text("1")
    try:
        yield
    finally:
        ENABLED.write_text(before)


def agents(parent: int) -> list[int]:
    """Processes below this one that are an agent."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(folder.name)
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[1:2] == [b"agent"] and os.getsid(number) in (
                os.getsid(parent),
                parent,
            ):
                found.append(number)
    return found


def programs(agent: int) -> dict[int, tuple[int, int]]:
    """Nanoseconds and runs of each eBPF program that a process holds, by program id."""
    found = {}
    for entry in Path(f"/proc/{agent}/fdinfo").iterdir():
        with suppress(OSError):
            text = entry.read_text()
            values = {
                key: int(number)
                for key, number in re.findall(r"(prog_id|run_time_ns|run_cnt):\s*(\d+)", text)
            }
            if "run_cnt" in values:
                found[values["prog_id"]] = (values["run_time_ns"], values["run_cnt"])
    return found


def measure(binary: Path, seconds: float) -> tuple[float, float, float]:
    """Share of one CPU, runs a second, ns a run."""
    demo = subprocess.Popen([binary, "demo", "--json"], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        limit = time.monotonic() + 20
        while not (found := [a for a in agents(demo.pid) if programs(a)]):
            if time.monotonic() > limit or demo.poll() is not None:
                raise Missing("the demo's agent runs no eBPF program: it needs root, and a kernel with BTF")
            time.sleep(0.2)
        time.sleep(2)
        began, before = time.monotonic(), programs(found[0])
        time.sleep(seconds)
        took, after = time.monotonic() - began, programs(found[0])
    finally:
        demo.terminate()
        demo.wait()
    ns = sum(after[p][0] - before[p][0] for p in after if p in before)
    runs = sum(after[p][1] - before[p][1] for p in after if p in before)
    return ns / 1e9 / took, runs / took, ns / max(runs, 1)


def run(context: Context) -> Result:
    """Run the demo `--runs` times."""
    if os.geteuid() != 0:
        raise Missing("eBPF programs need root")
    program = binary(context)
    with counted():
        runs = [measure(program, context.options.seconds) for _ in range(context.options.runs)]
    rows = (("share of one CPU", "%", 100), ("runs a second", "", 1), ("time of a run", "ns", 1))
    return Result(
        figures=[
            Figure(name, "eBPF programs", unit, tuple(Sample(value * scale) for value in values))
            for (name, unit, scale), values in zip(rows, zip(*runs, strict=True), strict=True)
        ]
    )


SCENE = Scene(
    name="observe_cpu",
    title="Cost of observing the workers' CPUs",
    about=(
        "How often the agent's eBPF programs run while the demo runs, and how long, by the kernel's own "
        "statistics (kernel.bpf_stats_enabled). As root."
    ),
    order=920,
    run=run,
    default=False,
    add_options=add_options,
)
