"""Flows of datagrams between two stacks: `stream.py` at both ends.

```text
 Flow ─▶ begin ─▶ Running (a sender in one namespace, a receiver in another one) ─▶ Report
```
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from . import stream
from .namespaces import Stack
from .process import Process

PROGRAM = str(Path(stream.__file__))


@dataclass(frozen=True)
class Flow:
    """Datagrams at even intervals."""

    count: int
    interval: int
    """us between two of them."""
    size: int = 200
    """Bytes of UDP payload, 16 to 1472."""
    dscp: int = 0
    port: int = 9000
    source_port: int = 9001

    @classmethod
    def of_rate(cls, rate: int, seconds: float, size: int = 1400, *, dscp: int = 0, port: int = 9000) -> Self:
        """Of a rate in bit/s of IP packets, for so long."""
        interval = max(1, (size + 28) * 8 * 1_000_000 // rate)
        return cls(int(seconds * 1_000_000 / interval), interval, size, dscp, port, port + 1)

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.count * self.interval / 1e6


@dataclass(frozen=True)
class Report:
    """What the receiver saw; times in us."""

    received: int
    lost: int
    reordered: int
    duplicates: int
    silence: int
    """The longest between two datagrams."""
    delays: tuple[int, ...]
    """Sorted."""
    first: float = 0.0
    """Unix time at which the first one was sent."""
    late: tuple[int, ...] = ()
    """Numbers of those that came after the deadline, if there is one."""
    gone: tuple[int, ...] = ()
    """Numbers of those that were lost, if there is a deadline."""

    def delay(self, percent: float) -> int:
        """A percentile of the delays; 0 if nothing came."""
        if not self.delays:
            return 0
        return self.delays[min(len(self.delays) - 1, int(len(self.delays) * percent / 100))]

    def __str__(self) -> str:
        percentiles = ", ".join(f"p{percent:g} {self.delay(percent)} us" for percent in (50, 99, 100))
        return (
            f"{self.received} received, {self.lost} lost, {self.reordered} reordered, "
            f"{self.duplicates} twice; delay {percentiles}; longest silence {self.silence} us"
        )


@dataclass(frozen=True)
class Misses:
    """A batch of datagrams that were late."""

    count: int
    worst: int
    """The longest time beyond the deadline, us."""
    at: float
    """When the last one came, Unix time."""


class Running:
    """A flow that is under way."""

    def __init__(self, flow: Flow, sender: Process, receiver: Process, patience: float) -> None:
        self._flow = flow
        self._sender = sender
        self._receiver = receiver
        self._patience = patience

    def misses(self) -> list[Misses]:
        """What the receiver has told so far of late datagrams."""
        lines = (
            json.loads(line) for line in self._receiver.output().splitlines() if line.startswith('{"late"')
        )
        return [Misses(line["late"], line["worst"], line["at"]) for line in lines]

    def report(self) -> Report:
        """Wait for the end."""
        self._receiver.popen.wait(self._flow.seconds * 3 + self._patience + 20)
        self._sender.stop()
        lines = self._receiver.output().splitlines()
        assert lines[-1].startswith('{"received"'), lines
        found = json.loads(lines[-1])
        lists = {name: tuple(found.pop(name)) for name in ("delays", "late", "gone")}
        return Report(**(found | lists))


def begin(
    source: Stack, target: Stack, address: str, flow: Flow, patience: float = 1.5, deadline: int | None = None
) -> Running:
    """Send a flow to an address of the target; its receiver gives up after `patience` seconds of silence,
    before the first datagram later.

    With a deadline (us), it tells which datagrams miss it.
    """
    words = ["receive", str(flow.port), str(flow.count), f"{patience}"]
    words += [] if deadline is None else [str(deadline)]
    receiver = target.spawn("python3", PROGRAM, *words)
    receiver.wait_for("the receiver", lambda: stream.READY in receiver.output())
    numbers = (flow.port, flow.source_port, flow.dscp, flow.count, flow.size, flow.interval)
    sender = source.spawn("python3", PROGRAM, "send", address, *map(str, numbers))
    sender.wait_for("the sender", lambda: stream.SENDING in sender.output())
    return Running(flow, sender, receiver, patience)
