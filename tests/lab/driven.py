"""Real processes of the controller that tests ask by a socket, and what runs in them.

```text
 Driven ─ nsenter, python driven.py CONFIG SOCKET ─▶ main: state, sessions, databases
        ─ one line of JSON ─▶ SOCKET: ask, release, miss, state ─▶ one line of JSON
```
"""

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import tidegate_controller
from tidegate_controller import events as ev
from tidegate_controller import main as program
from tidegate_controller.model.paths import FlowKey, PathRequest
from tidegate_controller.runtime.loop import Runtime

from .fabric import Fabric, address
from .process import Process

TERMS = """
[openflow]
listen = "127.0.0.1:{port}"
[discovery]
interval = "1s"
[paths]
marks = [46, 34]
hold = "300ms"
[terms]
capacity = "100Mbit"
reservable = "50Mbit"
levels = [{{ delay = "3ms", frames = 5000 }}, {{ delay = "10ms", frames = 5000 }}]
[state]
{state}
"""


def configuration(fabric: Fabric, port: int, state: str) -> str:
    """The file of a network; `state` are lines of its table."""
    text = [TERMS.format(port=port, state=state)]
    for switch in fabric.ports:
        database = f'database = "{fabric.ovs.remote}"'
        text.append(f'[switches.{switch}]\ndatapath = "{fabric.datapath(switch):016x}"\n{database}')
    for one, other in fabric.links:
        text.append(f'[[links]]\nbetween = ["{one.replace(".", ":")}", "{other.replace(".", ":")}"]')
    for number, (host, edge) in enumerate(fabric.edges.items(), 1):
        own = f'address = "{address(number)}"\nmac = "02:00:00:00:00:{number:02x}"'
        text.append(f'[hosts.{host}]\nport = "{edge.replace(".", ":")}"\n{own}\nreservable = "90Mbit"')
    return "\n".join(text)


class Driven:
    """One controller."""

    def __init__(self, fabric: Fabric, folder: Path, port: int, state: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.fabric, self.folder, self.port = fabric, folder, port
        self._file, self._socket = folder / "c.toml", folder / "s"
        self._file.write_text(configuration(fabric, port, state))
        self.process = self._begin()

    def _begin(self) -> Process:
        self._socket.unlink(missing_ok=True)
        words = (sys.executable, "-m", "lab.driven", self._file, self._socket)
        places = [Path(__file__).parents[1], Path(tidegate_controller.__file__).parents[1]]
        return Process(
            ["nsenter", f"--net={self.fabric.net.path}", *words],
            self.folder / "log",
            env={"PYTHONPATH": ":".join(map(str, places))},
        )

    def begin(self) -> None:
        """Start it anew, after it has ended."""
        self.process = self._begin()

    def order(self, what: str, timeout: float = 60, **values: object) -> dict[str, Any]:
        """One question. `OSError` if it ends before it answers."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(timeout)
            link.connect(str(self._socket))
            link.sendall(json.dumps({"what": what, **values}).encode() + b"\n")
            with link.makefile() as lines:
                line = lines.readline()
        if not line:
            raise ConnectionError("no answer")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def ask(self, name: str, port: int, rate: int = 1_000_000) -> str:
        """Ask for a path from h1 to h3; returns why not, or nothing."""
        return str(self.order("ask", name=name, port=port, rate=rate)["reasons"])

    def state(self) -> dict[str, Any]:
        """What it has; empty if it is not there."""
        try:
            return self.order("state", timeout=5)
        except OSError:
            return {}

    def ready(self) -> bool:
        """It leads, all switches are there, and nothing is under way."""
        return bool(self.state().get("ready"))

    def wait(self, what: str = "the controller") -> None:
        """Wait until it is ready."""
        self.process.wait_for(what, self.ready, 90)


def stands(runtime: Runtime) -> dict[str, object]:
    """What a process tells of itself."""
    core = runtime.core
    busy = bool(core.engine.running) or bool(core.stale) or not core.is_still
    whole = core.followed.links == runtime._config.links
    here = all(switch.session is not None and not switch._orders for switch in runtime.switches.values())
    return {
        "ready": runtime.leading and whole and here and not busy,
        "leading": runtime.leading,
        "term": runtime.term,
        "sessions": len(runtime.server.sessions),
        "paths": {name: [path.tag, path.generation, path.state] for name, path in core.engine.paths.items()},
        "reserved": core.engine.book.names(),
        "changed": sum(switch.changed for switch in runtime.switches.values()),
    }


def request(name: str, port: int, rate: int) -> PathRequest:
    """From h1 to h3."""
    key = FlowKey(address(1), address(3), port, 9000)
    return PathRequest(name, "h1", "h3", key, 40, rate, 3000, 100, 1500, 10**9)


async def answer(runtime: Runtime, order: dict[str, Any]) -> dict[str, object]:
    """Does what a line says."""
    match order["what"]:
        case "ask":
            told = await runtime.ask(request(order["name"], order["port"], order["rate"]))
            return {"reasons": "; ".join(told.reasons) if told.path is None else ""}
        case "release":
            told = await runtime.release(order["name"])
            return {"reasons": "; ".join(told.reasons) if told.path is None else ""}
        case "miss":
            runtime.happened(ev.Missed(order["name"], 3, 1000, runtime.now))
    return stands(runtime)


async def listen(runtime: Runtime, place: str) -> None:
    """Answers lines."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                found = await answer(runtime, json.loads(line))
            except Exception as error:
                found = {"reasons": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(found).encode() + b"\n")
        writer.close()

    await asyncio.start_unix_server(served, place)


class Asked(Runtime):
    """The runtime of the program, which tests can ask."""

    place = ""

    async def start(self) -> None:
        """Begins, and listens to tests."""
        await super().start()
        await listen(self, self.place)


def main(words: list[str]) -> int:
    """The program."""
    Asked.place = words[1]
    # The class that the program begins, whatever else it gives to it.
    vars(program)["Runtime"] = Asked
    return program.main(["--config", words[0]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
