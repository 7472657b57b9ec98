"""The controller of hosts with agents, and how they reach it, apart from the switches.

```text
 Fabric, lines of [api], hosts and their MACs ─▶ file ─▶ controller, in the network's namespace, at LISTEN
```
"""

import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tidegate_controller

from .fabric import Fabric, address
from .process import Process

SEGMENT = 100
LISTEN = "198.51.100.254:6654"
"""Of the API, in the network of `mgmt`."""
NETWORK = """
[openflow]
listen = "127.0.0.1:6653"
[api]
listen = "{listen}"
operator-token = "{operator}"
{api}
[state]
file = "{folder}/state.sqlite"
[discovery]
interval = "200ms"
[paths]
marks = [46, 34]
hold = "300ms"
[terms]
capacity = "100Mbit"
reservable = "50Mbit"
levels = [{{ delay = "5ms", frames = 5000 }}, {{ delay = "12ms", frames = 5000 }}]
"""


def digest(token: str) -> str:
    """A token as in the configuration of the controller."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def network(fabric: Fabric, folder: Path, api: str, macs: Callable[[int], str]) -> str:
    """The controller's configuration, with more lines of `[api]` and tables after it; `macs` of host N."""
    text = [NETWORK.format(listen=LISTEN, operator=digest("operator"), api=api, folder=folder)]
    for switch in fabric.ports:
        database = f'database = "{fabric.ovs.remote}"'
        text.append(f'[switches.{switch}]\ndatapath = "{fabric.datapath(switch):016x}"\n{database}')
    for one, other in fabric.links:
        text.append(f'[[links]]\nbetween = ["{one.replace(".", ":")}", "{other.replace(".", ":")}"]')
    for number, (host, edge) in enumerate(fabric.edges.items(), 1):
        own = f'address = "{address(number)}"\nmac = "02:00:00:00:00:{number:02x}"'
        may = f'token = "{digest(host)}"\nsegments = [{SEGMENT}]\nmacs = ["{macs(number)}"]'
        text.append(f'[hosts.{host}]\nport = "{edge.replace(".", ":")}"\n{own}\n{may}\nreservable = "90Mbit"')
    return "\n".join(text)


def start(fabric: Fabric, file: Path, text: str, served: str) -> Process:
    """The program with this configuration; it serves the API at the URL `served`."""
    file.write_text(text)
    source = Path(tidegate_controller.__file__).parents[1]
    words: Sequence[str] = (sys.executable, "-m", "tidegate_controller.main", "--config", str(file))
    process = fabric.net.spawn("env", f"PYTHONPATH={source}", *words)
    process.wait_for("the API", lambda: f"the API is served at {served}" in process.output())
    return process
