"""TCP between two namespaces as fast as possible, and its cost in CPU time."""

import time
from dataclasses import dataclass

from .counters import Cpus, edge, tcp_wire_bytes
from .fabric import Fabric

PORT = 5001


@dataclass(frozen=True)
class Flow:
    """The figures of one window of a flow."""

    bits_per_second: float
    """Of Ethernet frames, at the receiver's interface."""
    seconds: float
    busy_cpus: float
    """CPUs kept busy by everything on the machine."""
    stolen: float
    """Share of one CPU's time that was taken away."""


def measure(
    fabric: Fabric, sender: str, receiver: str, *, warm_up: float, seconds: float, connections: int = 1
) -> Flow:
    """Starts a flow, lets it settle, measures it between two frames, and ends it."""
    sink = fabric.act(receiver, "drain", fabric.address(receiver), str(PORT))
    try:
        source = fabric.act(sender, "bulk", fabric.address(receiver), str(PORT), str(connections))
        try:
            time.sleep(warm_up)
            return watch(fabric, receiver, seconds)
        finally:
            source.kill()
    finally:
        sink.kill()


def watch(fabric: Fabric, receiver: str, seconds: float) -> Flow:
    """Measures what a namespace receives, from one frame to another about `seconds` later."""
    stack = fabric.stacks[receiver]
    cpus = Cpus.now()
    first = edge(stack)
    time.sleep(seconds)
    last = edge(stack)
    after = Cpus.now()
    span, whole = last.at - first.at, after.at - cpus.at
    return Flow(
        tcp_wire_bytes(first, last) * 8 / span,
        span,
        (after.busy - cpus.busy) / whole,
        (after.stolen - cpus.stolen) / whole,
    )
