"""Steering on Debian's kernel, in a guest: Geneve, GRE and ESP, a CPU that goes off, libxdp's dispatcher.

Test machines' kernels have none of these tunnels and may refuse extensions of programs, which a dispatcher
is made of. Their CPUs are others', too.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from lab.cargo import unit_tests
from lab.guest import Guest
from lab.guest_agent import GuestAgent
from lab.need import need_commands, need_guests

# Emulated, on a machine that has other work, it takes minutes.
pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(600)]

_TUNNELS = ["veth", "vxlan", "geneve", "gre", "ip_gre", "ip6_gre"]
_ESP = ["esp4", "xfrm_user", "authenc", "crypto_null"]

PORT = 5004
CORES = '[host.cores]\nplacement = "plan"\n'
STEERED = f"""{CORES}steer = ["near"]
[host.flow.voice]
device = "near"
protocol = "udp"
to-port = {PORT}
cpu = 1
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with all of it."""
    need_guests()
    with Guest(tmp_path_factory.mktemp("g"), modules=[*_TUNNELS, *_ESP], memory_mb=1024, cpus=3) as guest:
        guest.run("mount -t bpf -o mode=700 bpf /sys/fs/bpf")
        yield guest


def test_flows_in_the_kernels_tunnels_run_on_their_cpu(guest: Guest) -> None:
    """Geneve, GRE with Ethernet, ESP; a CPU goes off and comes back."""
    names = ["in_geneve", "in_gre_with_ethernet", "in_esp"]
    _run(guest, "stock", [*names, "a_cpu_goes_off_and_comes_back_without_losing_a_frame"])


@pytest.mark.nightly
def test_flows_in_further_tunnels_run_on_their_cpu(guest: Guest) -> None:
    """GRE with IP; tunnels over IPv6."""
    _run(guest, "stock", ["in_gre_with_ip", "in_gre_over_ipv6", "in_geneve_over_ipv6"])


def test_the_program_is_one_of_several(guest: Guest) -> None:
    """It joins and leaves, others come and go, a next process takes over; refused without room or library."""
    need_commands("xdp-loader")
    both, chain = "both_run_and_each_comes_and_goes_alone", "a_redirected_frame_ends_the_chain"
    _run(guest, "chained", [both, chain, "a_dispatcher_without_room_or_library_stays"])


@pytest.mark.nightly
def test_others_come_and_go_at_the_same_time(guest: Guest) -> None:
    """None of both loses the other's program."""
    need_commands("xdp-loader")
    _run(guest, "chained", ["others_come_and_go_at_the_same_time"])


def _run(guest: Guest, module: str, names: list[str]) -> None:
    """Run these of the crate's tests in the guest."""
    need_commands("cargo", "ip", "ethtool", "ping")
    tests = " ".join(f"tests::{module}::{name}" for name in names)
    command = f"{unit_tests('tidegate-steering')} {tests} --exact --test-threads=1"
    done = guest.try_run(f"CI=true TIDEGATE_TEST_STOCK_KERNEL=1 {command} 2>&1", timeout=400)
    assert done.status == 0, done.stdout
    assert f"test result: ok. {len(names)} passed" in done.stdout


def test_an_agent_steers_a_nic_that_xdp_filter_has(guest: Guest) -> None:
    """The filter stays and counts; agents come and go; what was taken out is put back."""
    need_commands("xdp-loader", "xdp-filter", "ip", "ethtool", "ping")
    guest.run("ip link add near type veth peer name far && ethtool -K near rxvlan off")
    guest.run("ip netns add far && ip link set far netns far && ip -n far link set far up")
    guest.run("ip link set near up && ip address add 10.19.0.1/24 dev near")
    guest.run("ip -n far address add 10.19.0.2/24 dev far && ip netns exec far ping -c 1 -W 10 10.19.0.1")
    guest.run("xdp-filter load --mode native near")
    agent = GuestAgent(guest)
    agent.run("apply -f -", STEERED)

    def steering() -> dict[str, Any]:
        nics = json.loads(agent.run("cores show --json"))["steering"]
        return dict(nics[0]) if nics else {}

    def counted() -> list[int]:
        """The frames of each flow; none while an agent begins."""
        return [flow["frames"] for flow in steering().get("flows", [])]

    def programs() -> dict[str, str]:
        """The number of each program in the dispatcher."""
        lines = re.findall(r"=>\s+\d+\s+(\S+)\s+(\d+)", guest.run("xdp-loader status near"))
        return {name: number for name, number in lines}

    def send() -> None:
        loop = f"for i in $(seq 20); do echo x >/dev/udp/10.19.0.1/{PORT}; done"
        guest.run(f"ip netns exec far bash -c '{loop}'")

    def passed() -> int:
        """Frames that the filter let go on."""
        found = re.search(r"XDP_PASS\s+(\d+) pkts", guest.run("xdp-filter status"))
        return int(found[1]) if found else 0

    agent.wait("steered", lambda: bool(steering().get("chained")))
    before = passed()
    send()
    agent.wait("counted", lambda: counted() == [20])
    assert passed() >= before + 20

    # Without an agent it goes on; the next one finds it.
    there = programs()
    agent.kill()
    send()
    agent.start()
    agent.wait("counted on", lambda: counted() == [40])
    assert programs() == there

    guest.run(f"xdp-loader unload near --id {there['tidegate_steer']}")
    agent.wait("put back", lambda: programs().get("tidegate_steer") not in (None, there["tidegate_steer"]))
    assert "drift: its XDP program was taken away" in agent.log()

    guest.run("xdp-filter unload near")
    assert list(programs()) == ["tidegate_steer"]
    guest.run("xdp-filter load --mode native near")
    assert len(programs()) == 2

    agent.run("apply --prune -f -", CORES)
    agent.wait("taken out", lambda: "tidegate_steer" not in programs())
    assert len(programs()) == 1
    assert steering() == {}
