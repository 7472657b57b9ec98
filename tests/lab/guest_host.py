"""An agent and a switch inside a guest, for devices that only a guest has.

host = GuestHost(guest, "a", "--rdma", "rxe0")
host.run("apply -f -", stdin=contracts)
"""

import json
import shlex
import time
from collections.abc import Callable
from typing import Any

from .guest import Guest, Result
from .host import BINARY


class GuestHost:
    """`tidegate switch` and `tidegate agent` in a guest, in its folder `/run/NAME`."""

    def __init__(self, guest: Guest, name: str, *switch_options: str, netns: str = "") -> None:
        """Both in network namespace `netns` of the guest, or in its first one."""
        self.guest = guest
        self.folder = f"/run/{name}"
        self._options = " ".join(switch_options)
        self._inside = f"ip netns exec {netns} " if netns else ""
        guest.run(f"mkdir -p {self.folder}/etc {self.folder}/state && chmod 711 {self.folder}")
        self.start_switch()
        options = f"--switch {self.folder}/switch.sock --state {self.folder}/state --config {self.folder}/etc"
        agent = f"{BINARY} --api {self.folder}/api.sock agent {options} --socket-root {self.folder}"
        self._begin(agent, "agent")
        ready = f"until {self._tidegate('vnic ls')} >/dev/null 2>&1; do sleep 0.1; done"
        ended = guest.try_run(ready, timeout=120)
        assert ended.status == 0, self.log()

    def _begin(self, command: str, name: str) -> None:
        log = f"{self.folder}/{name}.log"
        self.guest.run(
            f"(setsid {self._inside}{command} >>{log} 2>&1 </dev/null & echo $! >{self.folder}/{name}.pid)"
        )

    def start_switch(self) -> None:
        """Start the switch, and wait for its socket."""
        socket = f"{self.folder}/switch.sock"
        self.guest.run(f"rm -f {socket}")
        self._begin(f"{BINARY} switch --socket {socket} {self._options}", "switch")
        self.guest.run(f"until [ -S {socket} ]; do sleep 0.05; done", timeout=30)

    def kill_switch(self) -> None:
        """End the switch as a crash would."""
        self.guest.run(f"kill -9 $(cat {self.folder}/switch.pid)")

    def log(self) -> str:
        """The ends of both logs."""
        return self.guest.run(f"tail -n 40 {self.folder}/switch.log {self.folder}/agent.log")

    def try_run(self, arguments: str, stdin: str = "", timeout: int = 60) -> Result:
        """A command of the command line, in the guest."""
        return self.guest.try_run(f"printf %s {shlex.quote(stdin)} | {self._tidegate(arguments)}", timeout)

    def run(self, arguments: str, stdin: str = "", timeout: int = 60) -> str:
        """`try_run` that must succeed; its standard output."""
        result = self.try_run(arguments, stdin, timeout)
        assert result.status == 0, (
            f"{arguments}: {result.status}\n{result.stdout}{result.stderr}\n{self.log()}"
        )
        return result.stdout

    def vnic(self, name: str) -> dict[str, Any]:
        """One vNIC, as the API shows it."""
        return dict(json.loads(self.run(f"--json vnic show {name}")))

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Until it holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (
                f"not {what} after {seconds} s\n{self.run('vnic ls')}\n{self.log()}"
            )
            time.sleep(0.3)

    def _tidegate(self, arguments: str) -> str:
        return f"{BINARY} --api {self.folder}/api.sock {arguments}"
