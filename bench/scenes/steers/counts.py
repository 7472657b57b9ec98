"""Where frames were lost: the counters of each stage of the way, from sender to receiver. Pure.

```text
 sender ─▶ vx0 ─▶ up0 ═ veth's ring ═ up0 ─▶ XDP, cpumap ─▶ input queue of a CPU ─▶ vx0 ─▶ socket ─▶ receiver
 sent      tx dropped  tx dropped     xdp drops  dropped    softnet dropped         rx      errors   received
```
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model import Json

STAGES = (
    "sender's tunnel",
    "veth's ring",
    "XDP",
    "cpumap",
    "a CPU's input queue",
    "receiver's tunnel",
    "socket",
)
"""Stages that can lose frames, in the order of the way."""


@dataclass(frozen=True)
class Counts:
    """Frames that each stage has dropped so far, and the CPUs' input queues have taken."""

    dropped: Mapping[str, int]


def links(text: str) -> dict[str, tuple[int, int]]:
    """Frames dropped at sending and at receiving by interface, from `ip -s -j link show`."""
    found = {}
    for link in json.loads(text):
        stats = link.get("stats64", link.get("stats", {}))
        sent, received = stats.get("tx", {}), stats.get("rx", {})
        found[link["ifname"]] = (
            sent.get("dropped", 0) + sent.get("errors", 0) + sent.get("carrier_errors", 0),
            received.get("dropped", 0) + received.get("errors", 0),
        )
    return found


def xdp_drops(text: str) -> int:
    """Frames that XDP dropped or could not redirect, of all queues, from `ethtool -S`."""
    wanted = re.findall(r"rx_queue_\d+_xdp_(?:drops|redirect_errors|tx_errors): (\d+)", text)
    return sum(map(int, wanted))


def softnet_drops(text: str) -> int:
    """Frames for which CPUs' input queues had no room, from `/proc/net/softnet_stat`."""
    return sum(int(line.split()[1], 16) for line in text.splitlines() if line.strip())


def socket_errors(text: str) -> int:
    """UDP datagrams that did not reach a socket's reader, from `/proc/net/snmp`."""
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Udp:"))
    counts = dict(zip(names, map(int, values), strict=True))
    return counts["InErrors"] + counts["NoPorts"]


def gained(before: Counts, after: Counts) -> dict[str, int]:
    """Frames that each stage dropped in between."""
    return {stage: after.dropped.get(stage, 0) - before.dropped.get(stage, 0) for stage in STAGES}


def account(flows: Sequence[Json], dropped: Mapping[str, int]) -> dict[str, int]:
    """Sent, received, dropped by stage, and what no counter explains: it has to be 0."""
    sent = sum(flow["sent"] for flow in flows)
    received = sum(flow["received"] for flow in flows)
    lost = sum(dropped.values())
    return {
        "sent": sent,
        "received": received,
        **dropped,
        "unexplained": sent - received - lost,
    }


def first_limit(dropped: Mapping[str, int]) -> str:
    """The stage that lost most; empty if none lost a frame."""
    stage = max(STAGES, key=lambda stage: dropped.get(stage, 0))
    return stage if dropped.get(stage, 0) else ""
