"""`tidegate cores`: the machine, the plan, and the switch for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, vhost_user_vnic
from lab.process import wait_for

MAC = {"plc1": "52:54:00:00:19:01", "plc2": "52:54:00:00:19:02"}


def report(host: Host) -> dict[str, Any]:
    """`GET /v1/cores`."""
    return dict(json.loads(host.cli("cores", "show", "--json")))


def placement(host: Host) -> dict[str, Any]:
    """`[host.cores]` in force."""
    return dict(json.loads(host.get("/v1/host"))["host"].get("cores", {}))


@pytest.fixture
def planned(host: Host) -> Host:
    """A host whose CPUs are reported, with two vNICs of which one has a deadline."""
    plc1 = ('tx = { max = "10mbit", burst = "4kB" }', 'deadline = "10ms"', 'to = ["plc2"]')
    host.apply(
        '[host]\nflood = "5mbit"\n'
        + vhost_user_vnic("plc1", host.folder / "plc1.sock", MAC["plc1"], *plc1)
        + vhost_user_vnic("plc2", host.folder / "plc2.sock", MAC["plc2"], 'rx = { max = "1gbit" }')
    )
    wait_for("CPUs", lambda: host.try_cli("cores", "show").returncode == 0)
    return host


def test_the_machine_is_drawn(planned: Host) -> None:
    """Every online CPU is there once, within the width, and nothing changes."""
    online = {
        int(cpu.name[3:]) for cpu in Path("/sys/devices/system/cpu").glob("cpu[0-9]*") if is_online(cpu)
    }
    assert {cpu["cpu"] for cpu in report(planned)["cpus"]} == online
    drawn = planned.cli("cores", "show")
    boxes = [line for line in drawn.splitlines() if line.startswith(("┌", "│", "└"))]
    assert boxes
    assert {len(line) for line in boxes} == {100}
    assert placement(planned).get("placement", "off") == "off"
    assert "tidegate_cores_plan_kept 0.0" in planned.get("/metrics")


def is_online(cpu: Path) -> bool:
    """Whether a CPU is online; one that cannot be turned off has no such file."""
    file = cpu / "online"
    return not file.exists() or file.read_text().strip() == "1"


def test_the_plan_is_switched_on_and_off(planned: Host) -> None:
    """`apply` changes one key of the table in force, and says so; `--off` changes it back."""
    before = json.loads(planned.get("/v1/host"))["host"]
    done = planned.cli("cores", "apply")
    assert done.startswith("Done, 1 change:\n  change host\n    cores.placement: off -> plan\n"), done
    assert placement(planned)["placement"] == "plan"
    wait_for("the plan to be kept", lambda: report(planned)["kept"])
    assert planned.cli("cores", "show").startswith(("The plan is kept", "Nothing can be planned"))
    assert "tidegate_cores_plan_kept 1.0" in planned.get("/metrics")
    assert planned.cli("cores", "apply").startswith("Nothing to change: all contracts are in force.\n")

    assert "cores.placement: plan -> off\n" in planned.cli("cores", "apply", "--off")
    assert json.loads(planned.get("/v1/host"))["host"] == before
    wait_for("the plan to end", lambda: not report(planned)["kept"])


def test_a_plan_says_what_it_would_move(planned: Host) -> None:
    """With costs that fit each other; the exit code tells whether the deadline gets what it needs."""
    wait_for("a plan", lambda: report(planned).get("plan") or report(planned).get("impossible"), timeout=30)
    cores = report(planned)
    done = planned.try_cli("cores", "plan")
    if "impossible" in cores:
        assert (done.returncode, cores["impossible"] in done.stdout) == (3, True)
        return
    plan = cores["plan"]
    assert plan["lower_bound_ns"] <= plan["cost_ns"]
    assert done.returncode == (3 if plan["impossible"] else 0), done
    assert "\ncost" in done.stdout


def test_a_file_that_owns_the_host_is_named(host: Host) -> None:
    """Nothing changes; the exit code is that of a refusal, and the lines to write are printed. They work."""
    path = host.etc / "host.toml"
    path.write_text('[host]\nflood = "4mbit"\n')
    wait_for("the file", lambda: json.loads(host.get("/v1/host"))["host"]["flood"] == "4mbit")
    done = host.try_cli("cores", "apply")
    assert done.returncode == 3
    first, second, *lines = done.stderr.splitlines()
    assert first.startswith(f"tidegate: [host] belongs to {path}: change it there")
    assert second == "Write there:"
    assert placement(host).get("placement", "off") == "off"
    path.write_text(path.read_text() + "".join(f"{line.strip()}\n" for line in lines))
    wait_for("the plan", lambda: placement(host).get("placement") == "plan")


def test_bad_tables_are_refused_with_their_line(host: Host) -> None:
    """Wrong CPUs, and flows that contradict each other; the contracts in force stay."""
    file = host.file(
        '[host.cores]\ncpus = "1-2"\nhousekeeping = "2"\n[host.flow.a]\ndevice = "eth9"\nto = "::1"\n'
    )
    done = host.try_cli("apply", "-f", file)
    assert done.returncode == 3
    assert f"{file}:3:16: host.cores.housekeeping: CPU 2 is in cpus, too" in done.stderr
    assert f'{file}:5:10: host.flow.a.device: "eth9" is not in [host.cores] steer' in done.stderr
    assert placement(host) == {}
