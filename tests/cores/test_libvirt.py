"""Threads of a real libvirtd's domain: found, placed, left to libvirt where it pins them, put back."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.host import BINARY, Host
from lab.libvirt import Libvirt, bridged, contracts, domain
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for

pytestmark = pytest.mark.abreast

MAC = "52:54:00:00:19:01"
ONLINE = os.sched_getaffinity(0)
VCPUS = ("CPU 0/TCG", "CPU 1/TCG")
THREADS = {*VCPUS, "qemu-system-x86", "IO iothread1"}
"""Names of the threads that have stages; the first 15 characters of QEMU's own name."""


@dataclass
class Lab:
    """libvirtd, and an agent that sees its domains' states."""

    libvirt: Libvirt
    host: Host

    def start(self, more: str = "") -> None:
        """Start the domain; it has a contract, two virtual CPUs and an I/O thread."""
        metadata = contracts([f"mac='{MAC}' name='web' tx.max='50mbit'"])
        text = domain("web", bridged(MAC), metadata=metadata, more=f"<iothreads>1</iothreads>{more}")
        self.libvirt.create(text.replace("<vcpu>1<", "<vcpu>2<"))

    def threads(self) -> dict[str, int]:
        """The domain's threads by name; of several of a name the first."""
        tasks = Path(f"/proc/{self.libvirt.process('web')}/task")
        ids = sorted((int(task.name) for task in tasks.iterdir()), reverse=True)
        return {(tasks / str(number) / "comm").read_text().strip(): number for number in ids}

    def cpus(self) -> dict[str, set[int]]:
        """Where the threads that have stages may run."""
        threads = self.threads()
        return {name: os.sched_getaffinity(threads[name]) for name in THREADS & threads.keys()}

    def pin(self, vcpu: int, cpus: set[int]) -> None:
        """`virsh vcpupin`."""
        self.libvirt.virsh("vcpupin", "web", str(vcpu), ",".join(map(str, cpus)), "--live")

    def contract(self, **cores: str | bool) -> None:
        """`[host.cores]` with these keys."""
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in cores.items())
        (self.host.etc / "host.toml").write_text(f"[host.cores]\n{lines}")

    def report(self) -> dict[str, Any]:
        """`tidegate cores show`."""
        return dict(json.loads(self.host.cli("cores", "show", "--json")))

    def stages(self) -> dict[str, dict[str, Any]]:
        """The stages of the vNIC that are threads, by the thread's name."""
        stages = [stage for stage in self.report()["stages"] if stage["vnics"] == ["web"]]
        kinds = ("vcpu", "emulator", "vhost")
        threads = [stage for stage in stages if stage["kind"] in kinds]
        return {stage["stage"].rpartition("(")[2].rstrip(")"): stage for stage in threads}

    def conflicts(self) -> set[str]:
        """The programs that chose CPUs of threads."""
        by = {conflict["with"] for conflict in self.report()["conflicts"]}
        return {name for name in by if name.startswith(("libvirt", "its CPU affinity"))}

    def recorded(self) -> set[int]:
        """The threads on record."""
        pairs = json.loads((self.host.state / "own-cpus.json").read_text())["value"]
        return {setting["affinity"]["thread"] for setting, _ in pairs if "affinity" in setting}

    def placed(self, names: set[str]) -> bool:
        """Whether these threads are where the plan has them, on record, and no others are."""
        cpus, stages, threads = self.cpus(), self.stages(), self.threads()
        planned = {name: set(stages.get(name, {}).get("planned", [])) for name in names}
        return all(
            len(planned[name]) == 1 and cpus[name] == planned[name] for name in names
        ) and self.recorded() == {threads[name] for name in names}


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An agent in libvirtd's namespaces, which has its states of domains and its taps."""
    need_commands("libvirtd", "virsh", "qemu-system-x86_64", "nsenter")
    may_set_groups = Path("/proc/self/setgroups").read_text().strip() == "allow"
    need("libvirtd runs VMs as root only, not in a user namespace", os.geteuid() == 0 and may_set_groups)
    need("network namespaces and /dev/net/tun", can_make_namespaces())
    need("two CPUs are needed", len(ONLINE) > 1)
    folder = tmp_path_factory.mktemp("l")
    hooks, api = folder / "libvirt/hooks", folder / "host/api.sock"
    hooks.mkdir(parents=True)
    # Before libvirtd starts: it looks for hooks then.
    install: list[str | Path] = [BINARY, "--api", api, "libvirt", "install-hook", "--hooks-dir", hooks]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    with (
        Libvirt(folder / "libvirt") as libvirt,
        Host(folder / "host", agent_wrapper=map(str, libvirt.enter())) as host,
    ):
        yield Lab(libvirt, host)
        host.check_alive()


def test_threads_of_a_domain_are_found_placed_left_to_libvirt_and_put_back(lab: Lab) -> None:
    """With the plan, without it, after `virsh vcpupin`, and after the domain's end and next start."""
    lab.start()
    wait_for("the stages", lambda: lab.stages().keys() == THREADS, timeout=60)
    kinds = {name: stage["kind"] for name, stage in lab.stages().items()}
    assert kinds == {name: "vcpu" if name in VCPUS else "emulator" for name in THREADS}
    assert all(set(stage["present"]) == ONLINE for stage in lab.stages().values())
    before = lab.cpus()
    assert lab.conflicts() == set()

    lab.contract(placement="plan")
    wait_for("all threads on their CPUs", lambda: lab.placed(THREADS), timeout=90)
    # To the CPU that the plan gave it, and to another one.
    first, second = (lab.cpus()[name] for name in VCPUS)
    theirs = {VCPUS[0]: first, VCPUS[1]: ONLINE - second}
    for number, name in enumerate(VCPUS):
        lab.pin(number, theirs[name])
    wait_for("the conflict", lambda: lab.conflicts() == {"libvirt's <vcpupin>"}, timeout=30)
    wait_for("the others alone", lambda: lab.placed(THREADS - {*VCPUS}), timeout=60)
    assert {name: lab.cpus()[name] for name in VCPUS} == theirs

    lab.libvirt.virsh("destroy", "web")
    wait_for("no thread on record", lambda: lab.recorded() == set(), timeout=60)
    wait_for("no stage", lambda: lab.stages() == {}, timeout=60)
    assert "web" not in lab.host.names()
    lab.start()
    wait_for("its new threads on their CPUs", lambda: lab.placed(THREADS), timeout=90)
    lab.contract(placement="off")
    wait_for("the CPUs of before", lambda: lab.cpus() == before and lab.recorded() == set(), timeout=60)


def test_elements_of_a_domain_hold_unless_they_are_adopted(lab: Lab) -> None:
    """They are named; when `adopt` goes, they hold again, as they are then."""
    lab.contract(placement="plan")
    one, other = min(ONLINE), max(ONLINE)
    lab.start(f"<cputune><vcpupin vcpu='0' cpuset='{one}'/><emulatorpin cpuset='{other}'/></cputune>")
    free = {VCPUS[1], "IO iothread1"}
    wait_for("the others' CPUs", lambda: lab.placed(free), timeout=90)
    by = {"libvirt's <vcpupin>", "libvirt's <emulatorpin>"}
    assert lab.conflicts() == by
    theirs = {VCPUS[0]: {one}, "qemu-system-x86": {other}}
    assert {name: lab.cpus()[name] for name in theirs} == theirs

    lab.contract(placement="plan", adopt=True)
    wait_for("all threads on their CPUs", lambda: lab.placed(THREADS), timeout=90)
    assert lab.conflicts() == by
    lab.pin(0, ONLINE)
    wait_for("the planned CPU again", lambda: lab.placed(THREADS), timeout=60)
    lab.contract(placement="plan")
    theirs[VCPUS[0]] = ONLINE
    wait_for("the others alone", lambda: lab.placed(free), timeout=90)
    assert {name: lab.cpus()[name] for name in theirs} == theirs
