"""The plan of CPUs on eight of them, in a guest: a VM with vhost-net, a NIC's interrupts and queues, tunnels.

No time is measured: all is emulated.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab.eight import Tunnels, Vm, eight_cpus, ping
from lab.guest import Guest
from lab.guest_agent import GuestAgent
from lab.initramfs import ROOT
from lab.need import need_commands, need_guests, need_sriov

# Emulated, on a machine that has other work, it takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(600)]

WAIT = 120
"""Seconds: a look, a plan and its settings take some ten, where the machine is not busy."""
CORES = '[host.cores]\nplacement = "{placement}"\ncpus = "1-7"\nsteer = [{steer}]\n'
VM = '[vnic.web]\nattach = {{ netdev = "{tap}" }}\nmac = "52:54:00:00:00:01"\nsegment = 0\n'
RESETS = ROOT / "tests/lab/resets.py"


@dataclass
class Place:
    """The guest, and the agent in it."""

    guest: Guest
    agent: GuestAgent
    before: str
    """The settings of `eth0` before the agent was there."""
    tunnels: Tunnels

    def settings(self) -> str:
        """The CPUs of the interrupts and queues of `eth0`, as the kernel writes them."""
        irqs = "/proc/irq/$(basename $irq)/smp_affinity_list"
        loop = f"for irq in /sys/class/net/eth0/device/msi_irqs/*; do grep -H '' {irqs}; done"
        return self.guest.run(f"{loop}; grep -H '' /sys/class/net/eth0/queues/*/?ps_cpus")

    def apply(self, text: str) -> None:
        """This contract, and no other."""
        self.agent.run("apply --prune -f -", text)

    def cores(self) -> dict[str, Any]:
        """The report."""
        return dict(json.loads(self.agent.run("cores show --json")))

    def stages(self) -> dict[str, dict[str, Any]]:
        """The stages by name."""
        return {stage["stage"]: stage for stage in self.cores()["stages"]}

    def placed(self, *names: str) -> dict[str, dict[str, Any]]:
        """The stages, once these (parts of names) are planned, and all that are planned are in place."""

        def is_placed() -> bool:
            stages = self.stages()
            planned = [stage for stage in stages.values() if stage["planned"]]
            return all(any(name in stage["stage"] for stage in planned) for name in names) and all(
                stage["present"] == stage["planned"] for stage in planned
            )

        self.agent.wait(f"{names} in place", is_placed, WAIT)
        return self.stages()

    def steering(self, device: str) -> dict[str, Any]:
        """The report on a steered NIC."""
        return next(nic for nic in self.cores()["steering"] if nic["device"] == device)

    def irq(self, name: str) -> int:
        """The number of an interrupt."""
        return int(self.guest.run(f"sed -n 's/ *\\([0-9]*\\):.* {name}$/\\1/p' /proc/interrupts"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A guest with all of it."""
    need_guests()
    need_sriov()
    need_commands("ip", "ethtool", "ping")
    with eight_cpus(tmp_path_factory.mktemp("g")) as guest:
        place = Place(guest, GuestAgent(guest), "", Tunnels(guest))
        place.before = place.settings()
        yield place


def find(stages: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """The only stage whose name has this part."""
    (found,) = [stage for stage in stages.values() if name in stage["stage"]]
    return found


def test_a_vm_with_vhost_net_and_the_interrupts_of_its_nic(place: Place) -> None:
    """Found, placed, repaired, left to another program, and dropped with the VM."""
    guest = place.guest
    with Vm(guest, "vm0") as vm:
        place.apply(CORES.format(placement="plan", steer="") + VM.format(tap="vm0"))
        stages = place.placed("vhost-net", "CPU 0/TCG", "CPU 1/TCG", "IO iothread1", "eth0-rx-1", "of vm0")

        cpus = place.cores()["cpus"]
        groups = [len({cpu[group] for cpu in cpus}) for group in ("cpu", "core", "cache", "node")]
        assert groups == [8, 4, 2, 2]
        vhost = find(stages, "vhost-net")
        assert (vhost["vnics"], vhost["stage"].split()[2]) == (["web"], str(vm.vhost))
        assert vm.cpus() == str(vhost["planned"][0])
        assert vm.cpus(vm.pid) == str(find(stages, f"emulator thread {vm.pid}")["planned"][0])

        # Of the interrupt for its link, which seldom arrives, the kernel shows the CPU of before.
        for name in ("eth0", "eth0-rx-0", "eth0-rx-1", "eth0-tx-0"):
            stage = find(stages, f"({name})")
            chosen = guest.run(f"cat /proc/irq/{place.irq(name)}/smp_affinity_list").strip()
            assert ([int(chosen)], "pinned" in stage["reason"]) == (stage["planned"], False), stage
        for queue in range(2):
            sent = find(stages, f"transmission of queue {queue} of eth0")
            mask = int(guest.run(f"cat /sys/class/net/eth0/queues/tx-{queue}/xps_cpus"), 16)
            assert mask == 1 << sent["planned"][0]

        # A program gives one back to the kernel, and takes another one for itself.
        reset, taken = place.irq("eth0-rx-0"), place.irq("eth0-rx-1")
        ours = guest.run(f"cat /proc/irq/{reset}/smp_affinity_list")
        theirs = next(cpu for cpu in range(1, 8) if [cpu] != find(stages, "eth0-rx-1")["planned"])
        guest.run(
            f"echo 0-7 >/proc/irq/{reset}/smp_affinity_list"
            f"; echo {theirs} >/proc/irq/{taken}/smp_affinity_list"
        )
        place.agent.wait(
            "repaired", lambda: guest.run(f"cat /proc/irq/{reset}/smp_affinity_list") == ours, WAIT
        )
        place.agent.wait(
            "left alone", lambda: "another program" in find(place.stages(), "eth0-rx-1")["reason"], WAIT
        )
        assert guest.run(f"cat /proc/irq/{taken}/smp_affinity_list").strip() == str(theirs)
        assert any("smp_affinity" in conflict["with"] for conflict in place.cores()["conflicts"])
        guest.run(f"echo 4-7 >/proc/irq/{taken}/smp_affinity_list")

        def recorded() -> set[int]:
            text = guest.run("cat /run/tidegate-test/state/own-cpus.json")
            settings = [setting for setting, _ in json.loads(text)["value"]]
            return {setting["affinity"]["process"] for setting in settings if "affinity" in setting}

        # Before Linux 6.4, vhost's thread is a process of its own.
        assert recorded() == {vm.pid, vm.vhost}
        vm.kill()
        place.agent.wait(
            "gone", lambda: not any("web" in stage["vnics"] for stage in place.stages().values()), WAIT
        )
        place.agent.wait("forgotten", lambda: recorded() == set(), WAIT)
    place.apply(CORES.format(placement="off", steer=""))
    place.agent.wait("put back", lambda: place.settings() == place.before, WAIT)


def test_cpus_that_go_off_and_come_back(place: Place) -> None:
    """The targets of a thread, an interrupt and flows: all work on, and each value of before is put back."""
    guest, tunnels = place.guest, place.tunnels
    flows = tunnels.flow("geneve") + tunnels.flow("gre") + tunnels.flow("esp", "cpu = 6")
    flows += '[host.flow.ping]\ndevice = "eth0"\nfrom = "10.0.2.2"\nprotocol = 1\n'
    cores = CORES.format(placement="plan", steer='"near", "eth0"')
    with Vm(guest, "vm1") as vm:
        place.apply(cores + flows + VM.format(tap="vm1"))
        names = ("vhost-net", "flow geneve", "flow gre", "flow ping", "eth0-rx-0")
        stages = place.placed(*names)

        def frames() -> dict[str, int]:
            return {flow["flow"]: flow["frames"] for flow in place.steering("near")["flows"]}

        def all_answer() -> None:
            tunnels.ask()
            ping(guest, "10.0.2.2")

        def all_are_steered() -> None:
            earlier = frames()
            all_answer()
            assert earlier.keys() == {"geneve", "gre", "esp"}
            assert all(now >= earlier[flow] + 5 for flow, now in frames().items()), (earlier, frames())

        all_are_steered()
        pings = place.steering("eth0")
        assert (pings["mode"], pings["flows"][0]["frames"]) == ("native", 5)

        logged = len(place.agent.log())
        off = {6} | {find(stages, name)["planned"][0] for name in ("vhost-net", "flow geneve", "eth0-rx-0")}
        for cpu in off:
            guest.run(f"echo 0 >/sys/devices/system/cpu/cpu{cpu}/online")
        # A flow without its CPU is spread, until the next plan.
        all_answer()

        def is_avoided() -> bool:
            report = place.cores()
            present = {cpu for stage in report["stages"] for cpu in stage["planned"]}
            spread = {cpu["cpu"] for nic in report["steering"] for cpu in nic["spread"]}
            return not off & (present | spread)

        place.agent.wait("avoided", is_avoided, WAIT)
        missing = {
            name: stage["missing"] for name, stage in place.placed(*names).items() if "missing" in stage
        }
        assert missing == {}
        all_are_steered()

        for cpu in off:
            guest.run(f"echo 1 >/sys/devices/system/cpu/cpu{cpu}/online")

        def is_used() -> bool:
            report = place.cores()
            spread = {cpu["cpu"] for nic in report["steering"] for cpu in nic["spread"]}
            return bool(off & spread) and all(stage.get("missing") is None for stage in report["stages"])

        place.agent.wait("used again", is_used, WAIT)
        place.placed(*names)
        all_are_steered()
        by = {stage["reason"] for stage in place.stages().values() if "another program" in stage["reason"]}
        assert by == set()
        assert "drift" not in place.agent.log()[logged:]

        place.apply(CORES.format(placement="off", steer="") + VM.format(tap="vm1"))
        place.agent.wait("put back", lambda: place.settings() == place.before, WAIT)
        assert {vm.cpus(), vm.cpus(vm.pid)} == {"0-7"}
    assert "xdp" not in guest.run("ip link show near; ip link show eth0")


@pytest.mark.nightly  # Three repairs are three looks at all settings, ten seconds each.
def test_programs_that_change_a_setting_again_and_again(place: Place) -> None:
    """An interrupt by another program, a thread by itself: three repairs, then they are left, and named."""
    guest = place.guest
    guest.run(
        "ip link show br0 >/dev/null 2>&1 || { ip link add br0 type bridge; ip link set eth0 master br0; }"
    )
    guest.run("ip tuntap add vm2 mode tap; ip link set vm2 master br0 up")
    pid = guest.run(f"python3 {RESETS} vm2 >/run/resets.log 2>&1 </dev/null & echo $!").strip()
    place.apply(CORES.format(placement="plan", steer="") + VM.format(tap="vm2"))
    number = place.irq("eth0-rx-0")
    loop = f"while sleep 0.5; do echo 0-7 >/proc/irq/{number}/smp_affinity_list; done"
    other = guest.run(f"({loop}) >/dev/null 2>&1 </dev/null & echo $!").strip()

    def are_left() -> bool:
        stages = place.stages()
        found = [
            [stage for name, stage in stages.items() if part in name] for part in ("eth0-rx-0", "CPU 0/TCG")
        ]
        return all(
            "after each repair" in stage.get("missing", "") for some in found for stage in some or [{}]
        )

    place.agent.wait("left", are_left, WAIT * 2)
    drift = [line for line in place.agent.log().splitlines() if "drift" in line]
    assert sum(f"interrupt {number}" in line for line in drift) == 3, drift
    assert sum(f"of process {pid}" in line for line in drift) == 3, drift
    guest.run(f"kill {other} {pid}; ip link del vm2; echo 4-7 >/proc/irq/{number}/smp_affinity_list")
    place.apply(CORES.format(placement="off", steer=""))
    place.agent.wait("put back", lambda: place.settings() == place.before, WAIT)
