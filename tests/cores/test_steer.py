"""Received frames of a NIC go to CPUs by flow, by contract: attached, counted, attached again, taken away."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host
from lab.namespaces import Stack
from lab.need import need
from lab.process import wait_for

pytestmark = pytest.mark.abreast

PORT = 5004


def contracts(steer: str, cpu: int) -> str:
    """The plan is kept, with one flow on a CPU."""
    cores = f'[host.cores]\nplacement = "plan"\nsteer = [{steer}]\n'
    flow = f'[host.flow.voice]\ndevice = "near"\nprotocol = "udp"\nto-port = {PORT}\ncpu = {cpu}\n'
    return cores + (flow if steer else "")


def steering(host: Host) -> dict[str, Any]:
    """What the agent says of the only steered NIC; empty without one."""
    nics = json.loads(host.cli("cores", "show", "--json"))["steering"]
    return dict(nics[0]) if nics else {}


def program(stack: Stack) -> str:
    """The XDP program of the NIC, as the kernel shows it."""
    return next((line for line in stack.run("ip -d link show near").splitlines() if "prog/xdp" in line), "")


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[tuple[Stack, Stack]]:
    """The agent's network with a NIC, and the one at its other end."""
    need("two CPUs are needed", len(os.sched_getaffinity(0)) > 1)
    with Stack(tmp_path / "near") as near, Stack(tmp_path / "far") as far:
        queues = "numrxqueues 2 numtxqueues 2"
        near.run(f"ip link add near {queues} type veth peer name far {queues}")
        near.run(f"ip link set far netns {far.path.parts[2]}")
        # Tags that the device takes out would be lost on the way to another CPU.
        near.run("ethtool -K near rxvlan off")
        near.run("ip link set near up && ip address add 10.19.0.1/24 dev near")
        far.run("ip link set far up && ip address add 10.19.0.2/24 dev far")
        # Without it a veth in XDP mode has no ring to take frames from.
        far.run("ethtool -K far gro on || true")
        yield near, far


def test_a_flow_of_a_steered_nic_goes_to_its_cpu(tmp_path: Path, stacks: tuple[Stack, Stack]) -> None:
    """The program comes with the contract, is attached again, survives the agent, goes with the contract."""
    near, far = stacks
    cpu = max(os.sched_getaffinity(0))
    with Host(tmp_path / "host", agent_wrapper=("nsenter", f"--net={near.path}")) as host:
        file = host.etc / "contracts.toml"
        file.write_text(contracts('"near"', cpu))
        wait_for("the program", lambda: steering(host).get("mode") == "native", timeout=30)
        sender = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"for _ in range(50): s.sendto(b'x', ('10.19.0.1', {PORT}))"
        )
        far.run(["python3", "-c", sender])
        wait_for("frames", lambda: [flow["frames"] for flow in steering(host)["flows"]] == [50], timeout=30)
        flow = steering(host)["flows"][0]
        assert (flow["flow"], flow["cpu"]) == ("voice", cpu)

        # Another program takes it away.
        near.run("ip link set near xdp off")
        wait_for("the program again", lambda: program(near), timeout=30)
        assert "drift: its XDP program was taken away" in host.agent.output()

        # An agent dies; the next one finds other contracts.
        host.kill_agent()
        assert program(near)
        file.write_text(contracts("", cpu))
        host.start_agent()
        wait_for("no program", lambda: not program(near), timeout=30)
        assert steering(host) == {}
        assert json.loads((host.state / "steered-nics.json").read_text())["value"] == {}
