"""Other work is steered off the CPU of a worker while a deadline is in force, and comes back afterwards."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, tap_vnic
from lab.namespaces import Stack
from lab.need import need
from lab.process import wait_for

DEADLINE = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "10ms"', 'to = ["sink"]')
SYSFS = Path("/sys/devices/system/cpu")


def writable() -> bool:
    """Whether masks of interfaces can be written here: not in a user namespace."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split()[2] == "4294967295"


def read(stack: Stack, device: str = "eth0") -> str:
    """The CPUs that run the stack of a tap; a namespace's interfaces are in a sysfs mounted for it."""
    return sysfs(stack, f"cat /mnt/class/net/{device}/queues/rx-0/rps_cpus").strip()


def sysfs(stack: Stack, command: str) -> str:
    """Runs a command where /mnt is the namespace's sysfs."""
    return stack.run(["unshare", "--mount", "sh", "-ec", f"mount -t sysfs none /mnt; {command}"])


def halts(cpu: int) -> bool:
    """Whether a CPU may halt."""
    return (SYSFS / f"cpu{cpu}/power/pm_qos_resume_latency_us").read_text().strip() != "n/a"


def own(host: Host) -> dict[str, Any]:
    """What `tidegate status` says of the workers' CPUs."""
    return dict(json.loads(host.try_cli("status", "--json").stdout)["own_cpus"])


class Scene:
    """Two taps in namespaces of their own, under one switch whose worker has a CPU."""

    def __init__(self, folder: Path, stacks: dict[str, Stack], host: Host, cpu: int) -> None:
        self.folder, self.stacks, self.host, self.cpu = folder, stacks, host, cpu
        everything = sum(1 << online for online in os.sched_getaffinity(0))
        self.away = everything & ~(1 << cpu)
        # With two CPUs, `away` is the first CPU alone: the worker's own CPU is another mask on every machine.
        self.chosen_mask = 1 << cpu

    def write(self, *terms: str) -> None:
        """The file of contracts: `voice` has these terms."""
        (self.host.etc / "contracts.toml").write_text(
            tap_vnic("voice", self.stacks["voice"].path, "52:54:00:00:16:01", *terms)
            + tap_vnic("sink", self.stacks["sink"].path, "52:54:00:00:16:02", 'rx = { max = "1gbit" }')
        )

    def apply(self, *terms: str) -> None:
        """The same, and until it is in force."""
        self.write(*terms)
        wait_for("the contracts", lambda: self.in_force(has_deadline=bool(terms)))

    def in_force(self, *, has_deadline: bool) -> bool:
        """Whether both contracts are in force, with or without a deadline."""
        if not {"voice", "sink"} <= set(self.host.names()):
            return False
        shown = [self.host.show(name).document for name in ("voice", "sink")]
        with_deadline = bool(shown[0]["contract"].get("deadline"))
        return all(one["state"] == "in force" for one in shown) and with_deadline == has_deadline

    def masks(self) -> set[int]:
        """The masks of both taps."""
        return {int(read(stack).replace(",", ""), 16) for stack in self.stacks.values()}

    def set_by_others(self, name: str) -> None:
        """Another program steers a tap's stack to the worker's CPU."""
        sysfs(self.stacks[name], f"echo {self.chosen_mask:x} > /mnt/class/net/eth0/queues/rx-0/rps_cpus")

    def wait_for(self, mask: int) -> None:
        """Until both taps have this mask."""
        wait_for(f"masks {mask:x}", lambda: self.masks() == {mask})


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """A switch with its worker on the last CPU."""
    need("sysfs of the machine can be written by root only", writable())
    cpus = sorted(os.sched_getaffinity(0))
    need("two CPUs are needed", len(cpus) > 1)
    with (
        Stack(folder / "voice") as voice,
        Stack(folder / "sink") as sink,
        Host(
            folder / "host",
            switch_options=("--cpus", str(cpus[-1])),
            agent_options=("--own-cpus", "all"),
        ) as host,
    ):
        yield Scene(folder, {"voice": voice, "sink": sink}, host, cpus[-1])


def test_taps_are_steered_off_a_workers_cpu_while_a_deadline_is_in_force(tmp_path: Path) -> None:
    """Masks are set, survive a crash of the agent, are put right, and put back as others had set them."""
    with scene(tmp_path) as it:
        it.apply()
        it.set_by_others("sink")
        assert it.masks() == {0, it.chosen_mask}
        assert own(it.host)["cpus"] == []

        it.apply(*DEADLINE)
        it.wait_for(it.away)
        wait_for("it is told", lambda: own(it.host)["steered"] == 2)
        told = own(it.host)
        assert (told["cpus"], told["queues"], told["steered"], told["awake"]) == ([it.cpu], 2, 2, [])
        assert f"{it.cpu} of workers; 2 of 2 queues" in it.host.try_cli("status").stdout
        agent = Path(f"/proc/{it.host.agent.pid}/task")
        threads = [int(task.name) for task in agent.iterdir()]
        assert all(it.cpu not in os.sched_getaffinity(thread) for thread in threads)

        # Another program writes; the next agent puts it right.
        it.set_by_others("voice")
        it.host.kill_agent()
        it.host.start_agent()
        it.wait_for(it.away)
        assert "drift: another program changed it" in it.host.agent.output()

        # The agent is not there when the deadline goes.
        it.host.kill_agent()
        it.write()
        it.host.start_agent()
        wait_for("what was there before", lambda: it.masks() == {0, it.chosen_mask})
        assert own(it.host)["cpus"] == []
        assert not json.loads((it.host.state / "own-cpus.json").read_text())["value"]


def test_a_workers_cpu_does_not_halt_while_real_time_frames_flow(tmp_path: Path) -> None:
    """No longer than an agent looks whether they do."""
    with scene(tmp_path) as it:
        assert halts(it.cpu)
        it.apply(*DEADLINE)
        for index, stack in enumerate(it.stacks.values(), 1):
            stack.address("eth0", f"10.16.0.{index}/24")
        wait_for("queues", lambda: own(it.host)["steered"] == 2)
        assert halts(it.cpu), "nothing flows"
        it.stacks["voice"].spawn("ping", "-q", "-i", "0.2", "10.16.0.2")
        wait_for("no halts", lambda: not halts(it.cpu))
        wait_for("it is told", lambda: own(it.host)["awake"] == [it.cpu])
        it.host.kill_agent()
        assert not halts(it.cpu)
        it.host.start_agent()
        it.host.agent.stop()
        assert halts(it.cpu), "no agent looks whether frames flow"


@pytest.mark.parametrize("what", ["none", "halts"])
def test_steering_can_be_turned_off(tmp_path: Path, what: str) -> None:
    """What was steered off is put back by an agent that is not to do that."""
    with scene(tmp_path) as it:
        it.apply(*DEADLINE)
        it.wait_for(it.away)
        it.host.agent.stop()
        assert it.masks() == {it.away}, "the next agent finds them"
        it.host.agent_options = ("--own-cpus", what)
        it.host.start_agent()
        it.wait_for(0)
        wait_for("nothing to keep", lambda: own(it.host)["queues"] == 0)
