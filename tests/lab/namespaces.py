"""A Linux TCP/IP stack of its own: a network namespace held open by a sleeping process.

Needs root, or to be "root" of a user namespace: `make test` enters one
(`unshare --user --map-root-user`) for ordinary users.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from .process import Process, wait_for

T = TypeVar("T")


def can_make_namespaces() -> bool:
    """Whether this process may make network namespaces and taps in them."""
    return (
        os.access("/dev/net/tun", os.R_OK | os.W_OK)
        and subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    )


class Stack:
    """One namespace, with `lo` up. Ends, with everything in it, at `stop`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._count = 0
        self._holder = Process(["unshare", "--net", "sleep", "infinity"], folder / "holder.log")
        own = os.readlink("/proc/self/ns/net")
        self._holder.wait_for("the namespace", lambda: os.readlink(self.path) != own)
        self._background: list[Process] = []
        self.run("ip link set lo up")

    @property
    def path(self) -> Path:
        """The namespace, as a path that `attach = { tap = ..., netns = PATH }` takes."""
        return Path(f"/proc/{self._holder.pid}/ns/net")

    def _enter(self, command: str | Sequence[str]) -> list[str]:
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return ["nsenter", f"--net={self.path}", *argv]

    def try_run(self, command: str | Sequence[str], timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command on this stack."""
        return subprocess.run(
            self._enter(command), capture_output=True, text=True, timeout=timeout, check=False
        )

    def run(self, command: str | Sequence[str], timeout: float = 60) -> str:
        """`try_run` that must succeed; its standard output."""
        done = self.try_run(command, timeout)
        if done.returncode != 0:
            raise RuntimeError(f"`{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def spawn(self, *argv: str) -> Process:
        """Start a program on this stack; it ends with the stack."""
        self._count += 1
        process = Process(self._enter(argv), self.folder / f"{argv[0]}-{self._count}.log")
        self._background.append(process)
        return process

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function in a thread on this stack: its sockets are here. Returns or raises what it does."""

        def enter() -> T:
            with self.path.open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.path}")
            return function()

        # A thread of its own, which ends: it could not go back.
        with ThreadPoolExecutor(max_workers=1) as pool:
            return pool.submit(enter).result()

    def address(self, device: str, cidr: str) -> None:
        """Wait for a device, give it its address and set it up."""
        wait_for(f"device {device}", lambda: self.try_run(["ip", "link", "show", device]).returncode == 0)
        self.run(f"ip addr add {cidr} dev {device} && ip link set {device} up")

    def iperf_server(self, port: int = 5201) -> Process:
        """An iperf3 server, listening."""
        server = self.spawn("iperf3", "--server", "--port", str(port), "--forceflush")
        server.wait_for("iperf3", lambda: "listening" in server.output())
        return server

    def stop(self) -> None:
        """End everything on this stack."""
        for process in self._background:
            process.stop()
        self._holder.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
