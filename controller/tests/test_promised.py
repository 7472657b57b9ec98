"""Requests against announcements: those of agents are within, and the least more is not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate_controller.decide.promised import beyond
from tidegate_controller.model.hosts import Vnic
from tidegate_controller.model.paths import EthernetKey, FlowKey, PathRequest

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("promised.json").read_text())
"""What agents ask, from crates/contract/src/network_paths/tests.rs, which compares them, too."""


def asked(case: dict[str, Any]) -> tuple[Vnic, PathRequest]:
    """An announcement and its request."""
    vnic = Vnic("plc1", "02:00:00:00:00:01", 1, to=("plc8", "plc9"), **case["announced"])
    mac = "02:00:00:00:00:02"
    plain = case["source"] is None
    key = EthernetKey(1, 5, mac, mac) if plain else FlowKey(case["source"], case["source"], 50_000)
    sizes = (case["rate"], case["burst"], case["smallest_frame"], case["largest_frame"], case["budget"])
    return vnic, PathRequest(f"plc1>{case['remote']}", "h1", "h2", key, 46, *sizes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_requests_of_agents(case: dict[str, Any]) -> None:
    """They are within what is announced; with more of anything they are not."""
    vnic, request = asked(case)
    remote, arrival = case["remote"], case["arrival"]
    assert beyond(vnic, remote, request, arrival) == ""
    rest = vnic.deadline - request.budget - arrival if vnic.deadline else 0
    for more, reason in (
        (replace(request, rate=request.rate + 1), "its rate is"),
        (replace(request, burst=2 * request.burst + rest), "its burst is"),
        (replace(request, budget=request.budget + rest + 1), "more than the deadline"),
        (replace(request, smallest_frame=59), "its smallest frame"),
        (replace(request, smallest_frame=60 + 103), "its smallest frame"),
        (replace(request, largest_frame=request.largest_frame + 10_000), "its largest frame"),
    ):
        assert reason in beyond(vnic, remote, more, arrival)
    assert "announces no deadline to x" in beyond(vnic, "x", request, arrival)
    assert "announces no deadline" in beyond(replace(vnic, deadline=None), remote, request, arrival)
    assert "without rate and burst" in beyond(replace(vnic, rate=None), remote, request, arrival)


def test_the_longest_way_is_met_exactly() -> None:
    """One byte more than the sender's part of the deadline lets it send is refused."""
    exact = 0
    for case in CASES:
        vnic, request = asked(case)
        more = replace(request, burst=request.burst + 1)
        exact += beyond(vnic, case["remote"], more, case["arrival"]) != ""
    assert exact > 5
