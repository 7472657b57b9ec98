"""The plan is kept: the switch's worker is where it is directed, and everything goes back afterwards."""

import json
import os
from pathlib import Path
from typing import Any

from lab.host import Host, tap_vnic
from lab.namespaces import Stack
from lab.need import need
from lab.process import wait_for

DEADLINE = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "10ms"', 'to = ["sink"]')


def worker(host: Host) -> dict[str, Any]:
    """The stage of the only worker."""
    stages = json.loads(host.cli("cores", "show", "--json"))["stages"]
    return next((stage for stage in stages if stage["stage"] == "worker 0"), {})


def placed(host: Host) -> int | None:
    """The CPU where the worker is, as planned."""
    stage = worker(host)
    planned = stage.get("planned", [])
    return planned[0] if planned and stage["present"] == planned else None


def own_cpus(host: Host) -> list[int]:
    """CPUs that one real-time stage has for itself, as reported."""
    return [cpu["cpu"] for cpu in json.loads(host.cli("cores", "show", "--json"))["cpus"] if cpu["own"]]


def test_the_worker_of_a_deadline_has_the_cpu_that_the_plan_gives_it(tmp_path: Path) -> None:
    """It is its own, also for the agent's threads, and after a crash of the agent."""
    need("two CPUs are needed", len(os.sched_getaffinity(0)) > 1)
    with (
        Stack(tmp_path / "voice") as voice,
        Stack(tmp_path / "sink") as sink,
        Host(tmp_path / "host") as host,
    ):
        vnics = tap_vnic("voice", voice.path, "52:54:00:00:19:01", *DEADLINE)
        vnics += tap_vnic("sink", sink.path, "52:54:00:00:19:02", 'rx = { max = "1gbit" }')
        file = host.etc / "contracts.toml"
        file.write_text('[host.cores]\nplacement = "plan"\n' + vnics)
        wait_for("the worker's CPU", lambda: placed(host) is not None, timeout=60)
        own = placed(host)
        wait_for("the plan to make it its own", lambda: own_cpus(host) == [own], timeout=60)

        def agents_cpus() -> set[int]:
            tasks = Path(f"/proc/{host.agent.pid}/task").iterdir()
            return set().union(*(os.sched_getaffinity(int(task.name)) for task in tasks))

        wait_for("the agent's threads elsewhere", lambda: own not in agents_cpus())
        host.kill_agent()
        host.start_agent()
        wait_for("the same CPU", lambda: placed(host) == own and own not in agents_cpus(), timeout=60)

        file.write_text(vnics.replace('deadline = "10ms"', "").replace('to = ["sink"]', ""))
        wait_for("all CPUs", lambda: own in agents_cpus(), timeout=60)
        record = host.state / "own-cpus.json"
        wait_for(
            "no setting",
            lambda: not record.exists() or not json.loads(record.read_text())["value"],
            timeout=60,
        )
