"""The switch follows directions: CPUs of workers, workers of vNICs.

The test speaks for the agent, whose own plan directs nothing: it is stopped meanwhile.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.control import Control, Refused
from lab.host import Host, vhost_user_vnic
from lab.need import need
from lab.process import wait_for

DEADLINE = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "10ms"', 'to = ["b"]')
ALLOWED = os.sched_getaffinity(0)
FIRST, LAST = min(ALLOWED), max(ALLOWED)


def contracts(host: Host, *terms: str) -> str:
    """Two vNICs, the first one with these terms."""
    of_b = ('rx = { max = "1gbit" }',)
    return "".join(
        vhost_user_vnic(name, host.folder / f"{name}.sock", f"52:54:00:00:19:{n:02x}", *of)
        for n, (name, of) in enumerate((("a", terms), ("b", of_b)))
    )


def threads(host: Host) -> dict[str, set[int]]:
    """The CPUs of the switch's threads, by name."""
    found: dict[str, set[int]] = {}
    for task in Path(f"/proc/{host.switch.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found[(task / "comm").read_text().strip()] = os.sched_getaffinity(int(task.name))
    return found


def workers(host: Host) -> list[set[int]]:
    """The CPUs of its two workers."""
    now = threads(host)
    return [now["worker-0"], now["worker-1"]]


def directed(host: Host) -> Control:
    """A connection to the switch, whose ports the stopped agent has made."""
    host.apply(contracts(host))
    host.agent.stop()
    return Control(host.switch_socket)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with two workers."""
    need("two CPUs are needed", len(ALLOWED) > 1)
    with Host(tmp_path, switch_options=("--workers", "2")) as host:
        yield host


@pytest.mark.abreast
def test_a_directed_worker_is_bound_and_the_others_leave_its_cpu(host: Host) -> None:
    """Also without deadlines, also to the first CPU; until the directions end."""
    with directed(host) as control:
        for cpu in (FIRST, LAST):
            control.direct(workers={1: cpu})
            wait_for("its CPU", lambda cpu=cpu: workers(host)[1] == {cpu})  # type: ignore[misc]
            wait_for("the other worker elsewhere", lambda cpu=cpu: workers(host)[0] == ALLOWED - {cpu})  # type: ignore[misc]
            wait_for("other threads elsewhere", lambda cpu=cpu: threads(host)["cpus"] == ALLOWED - {cpu})  # type: ignore[misc]
        assert control.work()["not_followed"] == {"workers": {}, "vnics": {}}
        control.direct()
        wait_for("no CPU of its own", lambda: workers(host) == [ALLOWED, ALLOWED])


@pytest.mark.abreast
def test_an_impossible_cpu_is_reported_and_the_worker_has_its_own_choice(host: Host) -> None:
    """A CPU that does not exist, the last CPU, and a worker that does not exist."""
    host.apply(contracts(host, *DEADLINE))
    wait_for("a CPU of its own", lambda: {LAST} in workers(host))
    realtime = workers(host).index({LAST})
    host.agent.stop()
    with Control(host.switch_socket) as control:
        control.direct(workers={realtime: 1000})

        def reasons() -> dict[str, str]:
            return dict(control.work()["not_followed"]["workers"])

        wait_for("a reason", lambda: str(realtime) in reasons())
        assert "may not run on CPU 1000" in reasons()[str(realtime)]
        assert workers(host)[realtime] == {LAST}
        # Each CPU for one: the last one is for all other threads.
        control.direct(workers={0: FIRST, 1: LAST})
        if len(ALLOWED) == 2:
            wait_for("another reason", lambda: "last one" in reasons().get("1", ""))
            wait_for("the first", lambda: workers(host)[0] == {FIRST})
        with pytest.raises(Refused, match="there is no worker 2: the switch has 2"):
            control.direct(workers={2: FIRST})


@pytest.mark.abreast
def test_directed_vnics_move_and_stay(host: Host) -> None:
    """Without any traffic; also a vNIC that is made later."""
    with directed(host) as control:
        at = control.workers_of_vnics()
        there = {name: 1 - worker for name, worker in at.items()}
        control.direct(vnics=there)
        wait_for("their moves", lambda: control.workers_of_vnics() == there)
        together = {"a": 1, "b": 1, "later": 1}
        control.direct(vnics=together)
        # A vNIC that has just moved rests.
        wait_for("both at one", lambda: control.workers_of_vnics() == {"a": 1, "b": 1}, timeout=60)


@pytest.mark.abreast
@pytest.mark.parametrize(
    ("options", "kind", "what"),
    [
        (("--cpus", "none"), "workers", "--cpus none"),
        (("--cpus", str(LAST)), "workers", f"--cpus {LAST}"),
        (("--placement", "fixed"), "vnics", "--placement fixed"),
    ],
)
def test_the_administrators_options_prevail(
    tmp_path: Path, options: tuple[str, str], kind: str, what: str
) -> None:
    """And are named as the reason."""
    need("two CPUs are needed", len(ALLOWED) > 1)
    with Host(tmp_path, switch_options=("--workers", "2", *options)) as host, directed(host) as control:
        vnics = {name: 1 - worker for name, worker in control.workers_of_vnics().items()}
        before = workers(host)
        if kind == "workers":
            control.direct(workers={1: FIRST})
        else:
            control.direct(vnics=vnics)
        wait_for("a reason", lambda: control.work()["not_followed"][kind])
        assert all(f"{what}, which prevails" in why for why in control.work()["not_followed"][kind].values())
        assert workers(host) == before
        assert control.work()["chooses_cpus" if kind == "workers" else "chooses_workers"] is False


@pytest.mark.abreast
def test_directions_are_those_of_the_agents_plan(host: Host) -> None:
    """An agent that starts ends the directions of another; a new switch has none."""
    with directed(host) as control:
        control.direct(workers={1: LAST}, vnics={"a": 1})
        wait_for("its CPU", lambda: workers(host)[1] == {LAST})
        host.start_agent()
        wait_for("the end of the directions", lambda: control.work()["directions"]["workers"] == {})
        wait_for("no CPU of its own", lambda: workers(host) == [ALLOWED, ALLOWED])
    host.agent.stop()
    with Control(host.switch_socket) as control:
        control.direct(workers={1: LAST})
    host.replace_switch()
    with Control(host.switch_socket) as control:
        assert control.work()["directions"] == {"workers": {}, "vnics": {}}
