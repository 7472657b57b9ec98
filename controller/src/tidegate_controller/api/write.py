"""From the words of `model` to the API's JSON.

```text
 Path, Surroundings, Decision, Topology ─▶ as the schemas say; texts and numbers within their bounds
```
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tidegate_controller.model.decisions import Decision
from tidegate_controller.model.hosts import NotCounted, Peer, Remote, Vnic
from tidegate_controller.model.paths import Path, PathRequest

MOST_TIME = 10_000_000_000_000
"""ns"""
MOST_COUNT = 2**53 - 1
MOST_BURST = 2**32
"""Bytes."""
LONGEST_REASON = 500
MOST_REASONS = 16


def path(one: Path, state: str, reasons: Iterable[str], misses: int) -> dict[str, Any]:
    """A path as it stands."""
    return {
        "name": one.request.name,
        "request": request(one.request),
        "state": state,
        "level": one.route.level,
        "links": list(one.route.links)[:64],
        "generation": one.generation,
        "tag": one.tag,
        "bound": min(one.bound, MOST_TIME),
        "far_burst": min(one.far_burst, MOST_BURST),
        "misses": min(misses, MOST_COUNT),
        "reasons": [reason[:LONGEST_REASON] for reason in list(reasons)[:MOST_REASONS]],
        "lasting": one.request.lasting,
    }


def request(one: PathRequest) -> dict[str, Any]:
    """What a path was asked for."""
    vnic, _, remote = one.name.partition(">")
    found = asdict(one)
    del found["name"], found["lasting"]
    return {"vnic": vnic, "remote": remote, **found}


def refused(one: NotCounted) -> dict[str, Any]:
    """An announcement that does not count."""
    return {"item": one.item[:100], "reason": one.reason[:LONGEST_REASON]}


def peer(one: Peer) -> dict[str, Any]:
    """Another host."""
    return {
        "host": one.host,
        "address": one.address,
        "port": one.port,
        "segments": list(one.segments[:4096]),
        "arrival_budget": one.arrival_budget,
    }


def remote(one: Remote) -> dict[str, Any]:
    """A vNIC of another host."""
    return {"vnic": vnic(one.vnic), "host": one.host, "plain": one.plain}


def vnic(one: Vnic) -> dict[str, Any]:
    """A vNIC as it was announced."""
    return {
        "name": one.name,
        "mac": one.mac,
        "segment": one.segment,
        "addresses": list(one.addresses),
        "rate": one.rate,
        "burst": one.burst,
        "deadline": one.deadline,
        "to": list(one.to),
    }


def decision(one: Decision) -> dict[str, Any]:
    """A decision."""
    return {
        "number": one.number,
        "time": one.time,
        "path": one.path[:200],
        "cause": one.cause[:500],
        "verdict": one.verdict.value,
        "reasons": [reason[:2000] for reason in one.reasons[:64]],
    }


def levels(delays: Iterable[int], bounds: Iterable[int], rates: Iterable[int]) -> list[Mapping[str, int]]:
    """Levels of a link."""
    return [
        {"delay": min(delay, MOST_TIME), "bound": min(bound, MOST_TIME), "rate": min(rate, MOST_COUNT)}
        for delay, bound, rate in zip(delays, bounds, rates, strict=True)
    ]
