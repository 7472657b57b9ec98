"""A switch between two vhost-user sockets, as the throughput scenes use it.

```text
 generator ── socket a ──▶ Peer, one forwarding thread on switch_cpu ── socket b ──▶ generator
                             │ pid, tid: whose schedstat tells whether its core was taken away
                             └ pause/resume: while others are measured, it must not spin on their core
```
"""

import os
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from harness.machine import threads
from harness.model import Missing
from lab.process import Process, wait_for

GUEST_A = "52:54:00:00:0a:01"
"""MAC of the guest that sends."""
GUEST_B = "52:54:00:00:0b:01"
"""MAC of the guest that receives; its further MACs count up from here."""
RING = 1024
"""Entries of every ring."""


def need(program: str, package: str) -> None:
    """`Missing` unless `program` is installed."""
    if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        raise Missing(f"{program} is not installed ({package}): scripts/setup bench")


def run(*command: str | Path) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run([*command], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout


class Peer(ABC):
    """A running switch with two vhost-user ports. Started by its constructor; `stop` undoes everything."""

    name: str
    """As tables name it."""
    sockets: tuple[Path, Path]
    """Guest A's and guest B's."""
    front_end_listens = False
    """Whether the front end makes the sockets, and the switch connects to them."""
    process: Process
    """The process that forwards."""

    @abstractmethod
    def forwarding_thread(self) -> int:
        """Id of the thread that forwards."""

    @abstractmethod
    def stop(self) -> None:
        """End it, and remove everything that it made."""

    def connected(self) -> None:  # noqa: B027 - most need not wait
        """Called when the front end runs: wait until frames can flow."""

    def bridge_behind_b(self, on: bool) -> None:  # noqa: B027 - a learning switch needs nothing
        """Called with True before guest B uses many addresses, with False afterwards."""

    def thread_named(self, *prefixes: str) -> int:
        """The one thread whose name begins with one of `prefixes`, once it exists."""

        def found() -> list[int]:
            return [tid for tid, name in threads(self.process.pid).items() if name.startswith(prefixes)]

        wait_for(f"thread {prefixes[0]} of {self.name}", lambda: len(found()) == 1)
        return found()[0]

    def pause(self) -> None:
        """Pause it (SIGSTOP)."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.process.pid, signal.SIGCONT)
