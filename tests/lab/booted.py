"""A machine that systemd has booted: a container of this machine's own files, with a network of its own.

with Booted(folder) as machine:              this machine's /, what is written goes to memory
    machine.run("dpkg -i ...")                  ├─ systemd, as process 1, in target `lab`
    machine.journal("tidegate-agent")           └─ nothing of what this machine has enabled

systemd-nspawn boots it in about two seconds. It needs root: for mounts, control groups, /dev/net/tun.
"""

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from .need import need, need_commands, need_systemd
from .process import Process, wait_for

_CGROUPS = Path("/sys/fs/cgroup")

# Left out is what the machine has enabled, and what it has of an installed Tidegate. A policy-rc.d, which
# images of containers have, would keep packages from starting their services.
_SCRIPT = r"""
set -e
layers=$1 name=$2
shift 2
for groups in "$@"; do
    mkdir "$groups"
    echo $$ >"$groups/cgroup.procs"
done
mount -t tmpfs -o mode=755 layers "$layers"
mkdir -p "$layers/upper/usr/lib/systemd/system" "$layers/work" "$layers/root"
cat >"$layers/upper/usr/lib/systemd/system/lab.target" <<EOF
[Unit]
Requires=sysinit.target
After=sysinit.target
EOF
mount -t overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work,volatile" overlay "$layers/root"
cd "$layers/root"
rm -rf etc/systemd/system/* etc/tidegate* var/lib/tidegate* var/log/journal usr/sbin/policy-rc.d .dockerenv
exec systemd-nspawn --quiet --boot --directory="$layers/root" --machine="$name" --register=no --keep-unit \
    --link-journal=no --private-network --capability=all --system-call-filter=bpf --console=pipe \
    --bind=/dev/net/tun systemd.unit=lab.target
"""

_numbers = itertools.count()

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
}


def need_booted() -> None:
    """`need` of what it takes to boot a container."""
    need_systemd()
    need_commands("systemd-nspawn", "nsenter", "ps")
    need("no container without root", os.geteuid() == 0 and _is_initial_user_namespace())
    need("no /dev/net/tun (modprobe tun)", Path("/dev/net/tun").exists())
    hierarchies = _hierarchies()
    writable = hierarchies and all(os.access(path, os.W_OK) for path in hierarchies)
    need(f"no control groups can be made in {_CGROUPS}", writable)


def _is_initial_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def _hierarchies() -> list[Path]:
    """Of control groups: the one, or the two that systemd uses where the older ones are mounted, too."""
    among = [_CGROUPS, _CGROUPS / "unified", _CGROUPS / "systemd"]
    return [path for path in among if (path / "cgroup.procs").exists()]


class Booted:
    """The container. What runs in it ends with it, and what was written is forgotten."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        layers = folder / "layers"
        layers.mkdir()
        name = f"tidegate-{os.getpid()}-{next(_numbers)}"
        self.init = 0
        self._groups = [path / name for path in _hierarchies()]
        self._nspawn = Process(
            ["unshare", "--mount", "bash", "-c", _SCRIPT, "booted", layers, name, *self._groups],
            folder / "console.log",
            env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )
        try:
            self._nspawn.wait_for("systemd", self._is_up)
        except BaseException:
            self.stop()
            raise

    def _is_up(self) -> bool:
        pid = self._nspawn.pid
        # One that prepares the container comes before systemd itself.
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            self.init = int(child)
        return self.init > 0 and self.try_run("systemctl is-active lab.target").returncode == 0

    @property
    def root(self) -> Path:
        """Its files, as seen from outside."""
        return Path(f"/proc/{self.init}/root")

    def holds(self, process: int) -> bool:
        """Whether a process, by its number here, is one of it."""
        namespace = "/proc/{}/ns/pid"
        return os.readlink(namespace.format(process)) == os.readlink(namespace.format(self.init))

    def enter(self, command: str | Sequence[str | Path]) -> list[str | Path]:
        """The command line that runs `command` in it: a shell's, or words."""
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return ["nsenter", f"--target={self.init}", "--all", "--wdns=/", *words]

    def try_run(
        self, command: str | Sequence[str | Path], timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as root."""
        return subprocess.run(
            self.enter(command),
            env=_ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run(self, command: str | Sequence[str | Path], timeout: float = 60) -> str:
        """`try_run` that must succeed; its standard output."""
        done = self.try_run(command, timeout)
        if done.returncode != 0:
            raise RuntimeError(f"`{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        """Power off, at once."""
        self._nspawn.stop()
        # systemd-nspawn that was killed, or ended while systemd shut down, leaves processes of the container.
        try:
            for groups in self._groups:
                wait_for("the container's processes to end", partial(_remove, groups))
        except TimeoutError as error:
            left = [pid for groups in self._groups for path in _below(groups) for pid in _processes(path)]
            states = [_status(pid) for pid in sorted(set(left))]
            raise TimeoutError(f"{error}: {', '.join(states) or 'none is left'}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _below(groups: Path) -> list[Path]:
    """These control groups, the innermost first."""
    return [Path(path) for path, _, _ in os.walk(groups, topdown=False)]


def _processes(group: Path) -> list[int]:
    """Of one control group: those that have a number here."""
    try:
        pids = map(int, (group / "cgroup.procs").read_text().split())
    except OSError:  # It went meanwhile, or has threads only.
        return []
    return [pid for pid in pids if pid > 0]


def _status(pid: int) -> str:
    """Its name and state, as /proc says them."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return f"{pid}, which has ended"
    return f"{pid} ({', '.join(line for line in lines if line.startswith(('Name:', 'State:')))})"


def _remove(groups: Path) -> bool:
    """Whether these control groups are gone: kills the processes that are left, removes empty groups."""
    all_processes_ended = True
    for group in _below(groups):
        for pid in _processes(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            group.rmdir()
        except FileNotFoundError:
            pass
        except OSError:  # A killed process needs a moment.
            all_processes_ended = False
    return all_processes_ended
