"""Tidegate under test: a switch and an agent of its own, driven by the command line only.

folder/  etc/*.toml  state/  switch.sock  api.sock  switch.log  agent.log
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .initramfs import ROOT
from .process import Process, wait_for
from .rates import Limit, Rate

BINARY = Path(os.environ.get("TIDEGATE_BIN", ROOT / "target/release/tidegate"))
GUEST_PROGRAM = Path(os.environ.get("TIDEGATE_GUEST_BIN", BINARY.with_name("tidegate-guest")))
"""What a guest is given; it sees the host's files."""


@cache
def own_network() -> tuple[str, ...]:
    """What gives a command a network namespace of its own, where that may be had.

    Where it may not, an agent cannot change interfaces, and is in no other's way.
    """
    unshare = ("unshare", "--net")
    done = subprocess.run([*unshare, "true"], capture_output=True, check=False)
    return unshare if done.returncode == 0 else ()


@dataclass(frozen=True)
class Vnic:
    """What `tidegate vnic show NAME --json` says. The only place here that knows the shape of it."""

    document: dict[str, Any]

    def _count(self, direction: str, counter: str) -> int:
        return int(self.document["stats"][direction][counter])

    @property
    def tx_bytes(self) -> int:
        """Bytes of Ethernet frames the VM sent, every segment with its headers."""
        return self._count("tx", "wire_bytes")

    @property
    def rx_bytes(self) -> int:
        """Bytes of Ethernet frames the VM received."""
        return self._count("rx", "wire_bytes")

    @property
    def tx_frames(self) -> int:
        """Frames the VM sent; a super-frame is one."""
        return self._count("tx", "frames")

    @property
    def tx_wire_frames(self) -> int:
        """Frames on the wire that the VM sent; a super-frame is its segments."""
        return self._count("tx", "wire_frames")

    @property
    def rx_frames(self) -> int:
        """Frames the VM received; a super-frame is one."""
        return self._count("rx", "frames")

    @property
    def throttled_ns(self) -> int:
        """How long frames of the VM have waited for tokens."""
        return int(self.document["stats"]["throttled_ns"])

    def dropped(self, direction: str) -> dict[str, int]:
        """Frames dropped, by reason."""
        return dict(self.document["stats"][direction]["dropped"])

    @property
    def connection(self) -> str:
        """`waiting`, `disconnected`, `connected` or `up`; empty while the switch is away."""
        return str(self.document.get("connection") or "")

    @property
    def in_force(self) -> dict[str, Any]:
        """The contract and its limits, but for where it is attached; empty where it is not in force."""
        if self.document["state"] != "in force":
            return {}
        contract = {key: value for key, value in self.document["contract"].items() if key != "attach"}
        return {**contract, "limits": self.document["limits"]}

    @property
    def promises(self) -> list[dict[str, Any]]:
        """Delay bounds, worst delays seen and margins, per egress."""
        return list(self.document["promises"])

    @property
    def last_error(self) -> str:
        """Why the last front end was disconnected; empty where none was."""
        return str(self.document.get("last_error") or "")


class Host:
    """A running switch and agent."""

    def __init__(
        self,
        folder: Path,
        *,
        switch_options: Iterable[str] = (),
        switch_wrapper: Iterable[str] = (),
        agent_wrapper: Iterable[str] | None = None,
        agent_options: Iterable[str] = (),
        socket_roots: Iterable[Path] = (),
        binary: Path = BINARY,
    ) -> None:
        """`switch_options` are further words for `tidegate switch`, such as `--cpus`, `1`.

        `switch_wrapper` is a program with its options that becomes the switch, such as prlimit(1);
        `agent_wrapper` one that becomes the agent, such as nsenter(1): by default unshare(1), since a network
        namespace has one agent; nothing (`()`) leaves it here. Sockets are in `folder` and `socket_roots`.
        `binary` is the program, where another is to be compared.
        """
        if not binary.exists():
            raise FileNotFoundError(f"{binary} is missing: cargo build --release")
        self.binary = binary
        self.folder = folder
        self.etc = folder / "etc"
        self.state = folder / "state"
        self.etc.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(exist_ok=True)
        self.switch_options = tuple(switch_options)
        self.switch_wrapper = tuple(switch_wrapper)
        self.agent_wrapper = own_network() if agent_wrapper is None else tuple(agent_wrapper)
        self.agent_options = tuple(agent_options)
        """Further words for `tidegate agent`, of the next start."""
        self.socket_roots = (folder, *socket_roots)
        self.switch_socket = folder / "switch.sock"
        self.api = folder / "api.sock"
        try:
            self.start_switch()
            self.start_agent()
        except BaseException:
            self.stop()
            raise

    def start_switch(self) -> None:
        """Start the switch and wait for its socket; the agent finds it there by itself."""

        def made() -> int:
            return self.switch_socket.stat().st_ctime_ns if self.switch_socket.exists() else 0

        left_behind = made()
        self.switch = Process(
            [
                *self.switch_wrapper,
                self.binary,
                "switch",
                "--socket",
                self.switch_socket,
                *self.switch_options,
            ],
            self.folder / "switch.log",
        )
        self.switch.wait_for("its control socket", lambda: made() > left_behind)

    def replace_switch(self) -> None:
        """`tidegate switch --replace`: a new process takes the place of the running one."""
        old = self.switch
        self.switch = Process(
            [self.binary, "switch", "--socket", self.switch_socket, "--replace", *self.switch_options],
            self.folder / "switch.log",
        )
        self.switch.wait_for("the end of the switch before", lambda: not old.running)

    def agent_command(self) -> list[str | Path]:
        """The command line of the agent."""
        return [
            *self.agent_wrapper,
            *(self.binary, "agent", "--config", self.etc, "--state", self.state),
            *(word for root in self.socket_roots for word in ("--socket-root", root)),
            # Of a namespace without a name: that of a process.
            *("--netns-root", "/proc", "--switch", self.switch_socket, "--api", self.api),
            *self.agent_options,
        ]

    def start_agent(self) -> None:
        """Start the agent and wait until its API answers."""
        self.agent = Process(self.agent_command(), self.folder / "agent.log")
        self.agent.wait_for("an answer of the API", self._answers)

    def _answers(self) -> bool:
        return self.try_cli("vnic", "ls", "--json").returncode == 0

    def kill_agent(self) -> None:
        """kill -9, as a crash would."""
        self.agent.kill()

    def try_cli(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `tidegate ARGUMENTS` against this host's API."""
        return subprocess.run(
            [self.binary, "--api", self.api, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def cli(self, *arguments: str | Path) -> str:
        """`try_cli` that must succeed; its standard output."""
        done = self.try_cli(*arguments)
        if done.returncode != 0:
            command = " ".join(map(str, arguments))
            raise RuntimeError(f"tidegate {command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def get(self, path: str) -> str:
        """`GET path` of the API; the body of an answer that must be 200."""
        connection = HTTPConnection("tidegate", timeout=10)
        with closing(connection), socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(10)
            connected.connect(str(self.api))
            connection.sock = connected
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
        if answer.status != 200:
            raise RuntimeError(f"GET {path} was answered {answer.status}: {body}")
        return body

    def file(self, toml: str, name: str = "contracts.toml") -> Path:
        """A contract file outside of the agent's own folder."""
        path = self.folder / name
        path.write_text(toml)
        return path

    def apply(self, toml: str) -> None:
        """`tidegate apply -f`; must succeed."""
        self.cli("apply", "-f", self.file(toml))

    def names(self) -> set[str]:
        """The vNICs there are."""
        document = json.loads(self.cli("vnic", "ls", "--json"))
        vnics: Iterable[dict[str, Any]] = document["vnics"] if isinstance(document, dict) else document
        return {str(v["name"]) for v in vnics}

    def show(self, name: str) -> Vnic:
        """`tidegate vnic show NAME --json`."""
        return Vnic(json.loads(self.cli("vnic", "show", name, "--json")))

    def wait_up(self, *names: str, timeout: float = 30) -> None:
        """Wait until frames can flow at these vNICs."""
        for name in names:
            wait_for(f"vNIC {name} to come up", partial(self._is_up, name), timeout)

    def _is_up(self, name: str) -> bool:
        return self.show(name).connection == "up"

    def tx_rate(self, name: str, seconds: float = 4.0) -> float:
        """What the VM surely sends, bit/s, by the switch's counters over `seconds`.

        When exactly the counters were read is not known, only that it was while `show` ran.
        """
        asked = time.monotonic()
        first = self.show(name).tx_bytes
        time.sleep(seconds)
        return (self.show(name).tx_bytes - first) * 8 / (time.monotonic() - asked)

    def limit(self, name: str) -> Limit:
        """The limit in effect on what the VM sends."""
        limits = self.show(name).document["limits"]
        return Limit(limits["tx_bps"], limits["tx_burst_bytes"])

    def keeps_rate(self, name: str, rate: float, low: float = 0.85, *, seconds: float = 2.0) -> None:
        """Fail where what the VM sends is ever more than its limit of `rate` (bit/s) lets through.

        And unless it is at least the share `low` of it in one of the windows, each of `seconds`.
        """
        limit = self.limit(name)
        assert limit.rate == rate
        Rate(name, lambda: self.show(name).tx_bytes, limit).reaches(low, seconds)

    def check_alive(self) -> None:
        """Fail when the switch has died."""
        assert self.switch.running, f"the switch ended:\n{self.switch.output()[-4000:]}"

    def stop(self) -> None:
        """Stop both processes. Whatever the switch did in a test, its confinement allows."""
        for process in ("agent", "switch"):
            if hasattr(self, process):
                getattr(self, process).stop()
        denied = [line for line in self.switch.output().splitlines() if "denied system call" in line]
        assert not denied, denied

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def vhost_user_vnic(name: str, socket: Path, mac: str, *lines: str, segment: int = 1) -> str:
    """The contract of a vNIC on a vhost-user socket; `lines` are further TOML lines."""
    return _vnic(name, f'{{ vhost-user = "{socket}" }}', mac, segment, lines)


def tap_vnic(name: str, netns: Path, mac: str, *lines: str, segment: int = 1, device: str = "eth0") -> str:
    """The contract of a vNIC on a tap made inside a namespace; `lines` are further TOML lines."""
    return _vnic(name, f'{{ tap = "{device}", netns = "{netns}" }}', mac, segment, lines)


def _vnic(name: str, attach: str, mac: str, segment: int, lines: Iterable[str]) -> str:
    more = "".join(f"{line}\n" for line in lines)
    return f'[vnic.{name}]\nattach = {attach}\nmac = "{mac}"\nsegment = {segment}\n{more}\n'
