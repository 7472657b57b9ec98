"""The load of a vNIC as a shell script, and its output as figures. Pure.

```text
 Load(up=8, down=0) ── script ──▶ at the vNIC:  iperf3, up  ════▶ peer
                                                iperf3, down ◀═══ peer
                                  after WARM_UP: irtt, 100 probes/s, there and back
                                  "== ping" ... "== up" ... ──▶ values: ms, %, shares of the limit
```
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model import Json
from scenes.stacks.figures import percentile

UP_PORT, DOWN_PORT, PING_PORT = 5201, 5202, 2112
WARM_UP = 3
"""Seconds of load before the first probe: the queue has built up."""
TAIL = 0.3
"""Seconds of load after the last probe, at least."""
PROBES = 100
"""A second."""
SEGMENT, FRAME = 1448, 1514
"""TCP's payload of a full segment, and the frame that carries it: the most of a limit that is goodput."""
PATIENCE = 25
"""Seconds after its time within which a program has to end: a queue of seconds drains, too."""


@dataclass(frozen=True)
class Load:
    """TCP connections in each direction, of the VM's view."""

    up: int = 0
    down: int = 0

    @property
    def name(self) -> str:
        """As `--flows` takes it: `8up`, `1down`, `64both`, `idle`."""
        if not self.up and not self.down:
            return "idle"
        if self.up and self.down:
            return f"{self.up}both"
        return f"{self.up}up" if self.up else f"{self.down}down"

    @classmethod
    def of(cls, name: str) -> "Load":
        """The load called `name`; raises `ValueError` if there is none."""
        if name == "idle":
            return cls()
        found = re.fullmatch(r"([1-9][0-9]*)(up|down|both)", name)
        if not found:
            raise ValueError(f"load '{name}': expected such as 8up, 8down, 8both, idle")
        count, way = int(found[1]), found[2]
        return cls(up=count if way != "down" else 0, down=count if way != "up" else 0)


def bits(rate: str) -> float:
    """bit/s of `20mbit`, `5gbit`."""
    found = re.fullmatch(r"([0-9]+)([kmg])bit", rate)
    if not found:
        raise ValueError(f"rate '{rate}': expected such as 20mbit, 5gbit")
    return int(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


def servers(address: str) -> list[str]:
    """The commands that the peer runs meanwhile."""
    flows = [f"iperf3 --server --port {port}" for port in (UP_PORT, DOWN_PORT)]
    # -i 0: no lower bound of the interval; by default the server allows 10 ms.
    return [*flows, f"irtt server -i 0 -b {address}:{PING_PORT}"]


LISTENING = f"[ $(ss -Hlntu | grep -cE ':({UP_PORT}|{DOWN_PORT}|{PING_PORT}) ') -ge 3 ]"
"""True, in a shell, once all servers can be reached."""


def script(
    load: Load, peer: str, folder: str, seconds: float, congestion: str = "cubic", warm_up: float = WARM_UP
) -> str:
    """Runs at the vNIC, in `folder`; prints its parts under headings. Probes go for `seconds`."""
    # iperf3 knows whole seconds.
    omit, length = int(warm_up), math.ceil(warm_up % 1 + seconds + TAIL)

    def flows(count: int, port: int, name: str, more: str = "") -> str:
        options = f"--omit {omit} --time {length} --interval 0 --congestion {congestion} --json {more}"
        client = f"iperf3 --client {peer} --port {port} --parallel {count} {options}"
        return f"timeout -k 1 {omit + length + PATIENCE} {client} >{name} 2>&1 &"

    lines = [f"cd {folder} || exit 1", "rm -f up down ping.json"]
    if load.up:
        lines.append(flows(load.up, UP_PORT, "up"))
    if load.down:
        lines.append(flows(load.down, DOWN_PORT, "down", "--reverse"))
    # It waits for the last ones: twice the longest round trip, or 4 s where none came back yet.
    probes = f"-i {1000 // PROBES}ms -d {seconds}s -l 60 --wait=2x4s -o ping.json {peer}:{PING_PORT}"
    lines += [
        f"sleep {warm_up if load.up or load.down else 0}",
        f"timeout -k 1 {math.ceil(seconds) + PATIENCE} irtt client -Q {probes} >ping.log 2>&1"
        " || cat ping.log",
        "wait",
        # Of each probe, the time there and back is enough: of 500 of them the whole report has 300 kB.
        'echo "== ping"',
        """grep -E '"(rtt|packets_sent|packets_received)": *[0-9]' ping.json""",
        *(f'echo "== {name}"; cat {name}' for name in ("up", "down") if getattr(load, name)),
    ]
    return "\n".join(lines) + "\n"


def timeout(seconds: float) -> float:
    """Seconds within which the script ends."""
    return WARM_UP + seconds + 2 * PATIENCE + 10


def sparse(report: Json, load: Load, rate: float) -> Json:
    """The same figures, one way, of `tidegate-bench sparse`."""
    found = {
        name: report[f"{key}_ns"] / 1e6
        for name, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("max", "worst"))
    }
    found |= {"probes": float(report["probes"]), "lost": 100 * report["lost"] / report["probes"]}
    if load.up or load.down:
        share = report["goodput_bits_per_second"] / (rate * report["payload_share"])
        found |= {"goodput up" if load.up else "goodput down": share, "jain": float(report["jain"])}
    return found


def sections(text: str) -> dict[str, str]:
    """The text under each heading; the text before the first heading has the key `""`."""
    found: dict[str, list[str]] = {"": []}
    current = found[""]
    for line in text.splitlines():
        if line.startswith("== "):
            current = found.setdefault(line[3:], [])
        else:
            current.append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def ping(text: str) -> Json:
    """Lines of irtt's report; ms, and percent of the probes without an answer.

    Where none came back, a ping takes for ever.

    Raises `ValueError` where no probe was sent.
    """
    trips = [int(ns) / 1e6 for ns in re.findall(r'"rtt": *([0-9]+)', text)]
    counts = {
        what: int(found[1]) if (found := re.search(rf'"{what}": *([0-9]+)', text)) else 0
        for what in ("packets_sent", "packets_received")
    }
    sent, received = counts["packets_sent"], counts["packets_received"]
    if not sent:
        raise ValueError(f"irtt: no probe was sent:\n{text[-400:]}")
    trips = trips or [math.inf]
    return {
        "p50": percentile(trips, 0.5),
        "p99": percentile(trips, 0.99),
        "p99.9": percentile(trips, 0.999),
        "max": max(trips),
        "probes": float(sent),
        "lost": 100 * (sent - received) / sent,
    }


def received(text: str) -> list[float]:
    """`iperf3 --json`: bit/s of each connection, as its receiver counted them.

    Raises `ValueError` with what iperf3 says where it failed.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        raise ValueError(f"iperf3: {text[-400:] or 'nothing printed'}") from None
    if error := document.get("error"):
        raise ValueError(f"iperf3: {error}")
    return [float(stream["receiver"]["bits_per_second"]) for stream in document["end"]["streams"]]


def jain(rates: Sequence[float]) -> float:
    """Jain's index: 1 if all have the same, 1/n if one has everything."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def values(text: str, load: Load, rate: float) -> Json:
    """The figures of one window: of the ping, ms; goodput, as a share of the limit's most for TCP."""
    parts = sections(text)
    if "ping" not in parts:
        raise ValueError(f"the window printed no probes:\n{text[-400:]}")
    found = ping(parts["ping"] or parts[""])
    indices = []
    for name in ("up", "down"):
        if getattr(load, name):
            rates = received(parts[name])
            found[f"goodput {name}"] = sum(rates) / (rate * SEGMENT / FRAME)
            indices.append(jain(rates))
    if indices:
        found["jain"] = min(indices)
    return found


def three_digits(value: float) -> str:
    """Three digits; for a probe that never came, the sign of infinity."""
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def line(found: Mapping[str, float]) -> str:
    """One window: `p50 / p99 / worst`, lost, goodput, Jain's index."""
    times = " / ".join(three_digits(found[name]) for name in ("p50", "p99", "max"))
    shares = ", ".join(f"{found[name]:.3f}" for name in ("goodput up", "goodput down") if name in found)
    index = f"{found['jain']:.2f}" if "jain" in found else "-"
    return f"{times} ms, {found['lost']:.1f} % lost, goodput {shares or '-'}, Jain {index}"
