"""A CPU of its own for each worker with deadlines to keep, while there are any."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.host import BINARY, Host, vhost_user_vnic
from lab.need import need, need_commands
from lab.process import wait_for

DEADLINE = ('tx = { max = "4mbit", burst = "2kB" }', 'deadline = "10ms"', 'to = ["sink"]')
ALLOWED = os.sched_getaffinity(0)
CPUSETS = (Path("/sys/fs/cgroup/cpuset"), Path("/sys/fs/cgroup"))


def contracts(host: Host, *terms: str, senders: int = 1) -> str:
    """A vNIC of a known capacity, and others with these terms."""
    names = ["sink", *(f"voice{n}" for n in range(senders))]
    rx = ('rx = { max = "1gbit" }',)
    return "".join(
        vhost_user_vnic(name, host.folder / f"{name}.sock", f"52:54:00:00:15:{n:02x}", *(terms if n else rx))
        for n, name in enumerate(names)
    )


def threads(host: Host) -> dict[str, set[int]]:
    """The CPUs of the switch's threads, by name."""
    found: dict[str, set[int]] = {}
    for task in Path(f"/proc/{host.switch.pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            found[(task / "comm").read_text().strip()] = os.sched_getaffinity(int(task.name))
    return found


def own(host: Host) -> list[int | None]:
    """The CPU of each worker, as the API tells."""
    return [worker.get("cpu") for worker in json.loads(host.get("/v1/host"))["workers"]]


def worker_runs_on(host: Host, cpus: set[int]) -> bool:
    """Whether the first worker has these CPUs."""
    return threads(host)["worker-0"] == cpus


def off(host: Host, name: str, cpu: int | None) -> bool:
    """Whether a thread has left a CPU, after it was given something to do."""
    host.cli("vnic", "ls")
    return threads(host)[name] == ALLOWED - {cpu}


def two_cpus() -> None:
    """What these tests are about takes two."""
    need("two CPUs are needed", len(ALLOWED) > 1)


def test_while_a_deadline_is_in_force(host: Host) -> None:
    """The worker has a CPU, not the first, and other threads leave it; without a deadline none is bound."""
    two_cpus()
    host.apply(contracts(host))
    assert own(host) == [None]
    assert all(cpus == ALLOWED for cpus in threads(host).values()), threads(host)

    host.apply(contracts(host, *DEADLINE))
    wait_for("a CPU of its own", lambda: own(host) != [None])
    (cpu,) = own(host)
    assert cpu in ALLOWED - {0}
    assert worker_runs_on(host, {cpu})
    # Each as soon as it has something to do.
    wait_for("the others elsewhere", lambda: off(host, "cpus", cpu) and off(host, "control", cpu))

    host.apply(contracts(host))
    wait_for("no CPU of its own", lambda: own(host) == [None])
    assert worker_runs_on(host, ALLOWED)
    wait_for("all where they were", partial(off, host, "control", None))


def test_each_worker_with_deadlines_has_another(tmp_path: Path) -> None:
    """One CPU is left: workers beyond that go without."""
    two_cpus()
    with Host(tmp_path, switch_options=("--workers", str(len(ALLOWED)), "--placement", "fixed")) as host:
        host.apply(contracts(host, *DEADLINE, senders=len(ALLOWED)))
        wait_for("their CPUs", lambda: sum(cpu is not None for cpu in own(host)) == len(ALLOWED) - 1)
        given = [cpu for cpu in own(host) if cpu is not None]
        assert len(set(given)) == len(given)
        assert 0 not in given
        (rest,) = (n for n, cpu in enumerate(own(host)) if cpu is None)
        wait_for("the last one", lambda: threads(host)[f"worker-{rest}"] == ALLOWED - set(given))


def test_a_worker_that_was_moved_returns_to_its_cpu(host: Host) -> None:
    """Its CPUs are widened by another program, as the kernel does where a CPU goes: it goes back."""
    two_cpus()
    host.apply(contracts(host, *DEADLINE))
    wait_for("a CPU of its own", lambda: own(host) != [None])
    cpu = own(host)[0]
    assert cpu is not None
    subprocess.run(["taskset", "-pac", "0-1023", str(host.switch.pid)], check=True, capture_output=True)
    wait_for("its CPU again", partial(worker_runs_on, host, {cpu}))
    wait_for("the assigner elsewhere", lambda: threads(host)["cpus"] == ALLOWED - {cpu})


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cpuset of its own, with all CPUs."""
    root = next((root for root in CPUSETS if (root / "cpuset.cpus").exists()), None)
    if root is None and "cpuset" in (CPUSETS[1] / "cgroup.controllers").read_text().split():
        root = CPUSETS[1]
    need("no cpusets that root may make", root and os.access(root, os.W_OK) and os.geteuid() == 0)
    assert root is not None
    group = root / f"tidegate-test-{os.getpid()}"
    if not (root / "cpuset.cpus").exists():
        (root / "cgroup.subtree_control").write_text("+cpuset")
    group.mkdir()
    try:
        # Version 1 gives a new one nothing.
        if (root / "cpuset.mems").exists():
            (group / "cpuset.mems").write_text((root / "cpuset.mems").read_text())
        (group / "cpuset.cpus").write_text(",".join(map(str, sorted(ALLOWED))))
        yield group
    finally:
        # Empty a moment after its last process has ended.
        wait_for("the end of its processes", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_a_cpuset_that_shrinks(cpuset: Path, tmp_path: Path) -> None:
    """The worker goes to a CPU that is left; with one left it has none, and runs."""
    two_cpus()
    with Host(tmp_path) as host:
        (cpuset / "cgroup.procs").write_text(str(host.switch.pid))
        host.apply(contracts(host, *DEADLINE))
        wait_for("a CPU of its own", lambda: own(host) != [None])
        first = own(host)[0]
        assert first is not None
        left = ALLOWED - {first}
        (cpuset / "cpuset.cpus").write_text(",".join(map(str, sorted(left))))
        if len(left) > 1:
            wait_for("another CPU", lambda: own(host)[0] in left)
            second = own(host)[0]
            assert second is not None
            assert worker_runs_on(host, {second})
        last = min(left)
        (cpuset / "cpuset.cpus").write_text(str(last))
        wait_for("none", lambda: own(host) == [None])
        assert worker_runs_on(host, {last})
        host.switch.wait_for(
            "a word about it", lambda: "no worker can have a CPU of its own" in host.switch.output()
        )
        (cpuset / "cpuset.cpus").write_text(",".join(map(str, sorted(ALLOWED))))
        wait_for("a CPU again", lambda: own(host) != [None])
        host.check_alive()


def test_one_cpu(tmp_path: Path) -> None:
    """There is nothing to choose: it runs, and says what is lost."""
    need_commands("taskset")
    cpu = min(ALLOWED)
    with Host(tmp_path, switch_wrapper=("taskset", "-c", str(cpu))) as host:
        host.apply(contracts(host, *DEADLINE))
        host.switch.wait_for(
            "a word about it", lambda: "no worker can have a CPU of its own" in host.switch.output()
        )
        assert own(host) == [None]
        assert all(cpus == {cpu} for cpus in threads(host).values()), threads(host)
        host.check_alive()


def test_a_list_is_in_force_from_the_start(tmp_path: Path) -> None:
    """With or without deadlines; it is not given up with the last one."""
    two_cpus()
    cpu = max(ALLOWED)
    with Host(tmp_path, switch_options=("--workers", "2", "--cpus", str(cpu))) as host:
        assert own(host) == [cpu, None]
        host.apply(contracts(host, *DEADLINE))
        host.apply(contracts(host))
        assert own(host) == [cpu, None]
        now = threads(host)
        assert (now["worker-0"], now["worker-1"]) == ({cpu}, ALLOWED - {cpu})


def reads_load(host: Host) -> bool:
    """Whether the switch can read what each CPU of the host does."""
    opened = Path(f"/proc/{host.switch.pid}/fd").iterdir()
    return "/proc/stat" in {os.readlink(descriptor) for descriptor in opened}


@pytest.mark.parametrize(("cpus", "expected"), [("auto", True), ("none", False), (str(max(ALLOWED)), False)])
def test_host_load_is_readable_only_to_choose_cpus(tmp_path: Path, cpus: str, expected: bool) -> None:
    """The file tells a process that reads it all the time what other programs do."""
    with Host(tmp_path, switch_options=("--cpus", cpus)) as host:
        assert reads_load(host) == expected


def test_cpus_none_changes_nothing(tmp_path: Path) -> None:
    """`--cpus none`."""
    with Host(tmp_path, switch_options=("--cpus", "none")) as host:
        host.apply(contracts(host, *DEADLINE))
        assert own(host) == [None]
        # The thread `cpus` counts them.
        assert all(cpus == ALLOWED for cpus in threads(host).values()), threads(host)


def test_cpus_that_are_not_there_are_named(tmp_path: Path) -> None:
    """Before anything is started."""
    assert shutil.which("taskset")
    pinned: list[str | Path] = ["taskset", "-c", str(min(ALLOWED)), BINARY, "switch"]
    done = subprocess.run(
        [*pinned, "--socket", tmp_path / "s", "--workers", "3", "--cpus", f"{min(ALLOWED)},1000-1001"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert "may not run on CPU 1000,1001" in done.stderr, done.stderr
    assert f"the process may use {min(ALLOWED)}" in done.stderr
    assert not (tmp_path / "s").exists()
