"""An agent inside a guest, for devices that only a guest has.

agent = GuestAgent(guest)
agent.run("apply -f -", stdin=contracts)
agent.vnic("web")["state"]
"""

import json
import shlex
import time
from collections.abc import Callable
from typing import Any

from .guest import Guest, Result
from .host import BINARY

_FOLDER = "/run/tidegate-test"


class GuestAgent:
    """`tidegate agent` in a guest, without a switch, with its state in the guest's memory."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.run(f"mkdir -p {_FOLDER}/etc {_FOLDER}/state")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"--switch {_FOLDER}/switch.sock --state {_FOLDER}/state --config {_FOLDER}/etc"
        options += " --socket-root /run"
        command = f"setsid {BINARY} --api {_FOLDER}/api.sock -v agent {options}"
        self.guest.run(f"rm -f {_FOLDER}/api.sock; {command} >>{_FOLDER}/log 2>&1 </dev/null &")
        self.guest.run(f"until {self._tidegate('vnic ls')} >/dev/null 2>&1; do sleep 0.1; done", timeout=30)

    def kill(self) -> None:
        """End it as a crash would."""
        self.guest.run(
            f"pkill -9 -f '{_FOLDER}/[e]tc'; while pgrep -f '{_FOLDER}/[e]tc'; do sleep 0.05; done"
        )

    def log(self) -> str:
        """What it has logged."""
        return self.guest.run(f"cat {_FOLDER}/log")

    def try_run(self, arguments: str, stdin: str = "", timeout: int = 60) -> Result:
        """A command of the command line, in the guest."""
        return self.guest.try_run(f"printf %s {shlex.quote(stdin)} | {self._tidegate(arguments)}", timeout)

    def run(self, arguments: str, stdin: str = "", timeout: int = 60) -> str:
        """`try_run` that must succeed; its standard output."""
        result = self.try_run(arguments, stdin, timeout)
        assert result.status == 0, (
            f"{arguments}: {result.status}\n{result.stdout}{result.stderr}\n{self.log()[-4000:]}"
        )
        return result.stdout

    def refused(self, arguments: str, stdin: str = "") -> str:
        """`try_run` that must be refused (exit status 2 or 3); what it says."""
        result = self.try_run(arguments, stdin)
        assert result.status not in (0, 4), f"{arguments}: {result.status}\n{result.stdout}{result.stderr}"
        return result.stdout + result.stderr

    def vnic(self, name: str) -> dict[str, Any]:
        """One vNIC, as the API shows it."""
        return dict(json.loads(self.run(f"--json vnic show {name}")))

    def figures(self, name: str) -> dict[str, Any]:
        """Each figure of `vnic show --statistics`, by name."""
        figures = json.loads(self.run(f"--json vnic show {name} --statistics"))
        return {figure["name"]: figure for figure in figures}

    def wait(self, what: str, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Until it holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (
                f"not {what} after {seconds} s\n{self.run('vnic ls')}\n{self.log()[-4000:]}"
            )
            time.sleep(0.2)

    def _tidegate(self, arguments: str) -> str:
        return f"{BINARY} --api {_FOLDER}/api.sock {arguments}"
