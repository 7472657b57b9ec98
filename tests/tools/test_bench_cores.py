"""Scenes about CPUs: the account of each frame, and what examples print."""

import json

import pytest

from harness.model import Json, Missing, Misused
from scenes import cores_lookup, cores_pairings, cores_planner, cores_tail, steering
from scenes.placing import page
from scenes.steers import counts

SOFTNET = "0000a1b2 00000003 00000000 0\n00000010 0000000a 00000000 0\n"
SNMP = """Ip: Forwarding DefaultTTL
Ip: 2 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors
Udp: 100 2 5 90 5
UdpLite: InDatagrams
UdpLite: 0
"""
ETHTOOL = """NIC statistics:
     peer_ifindex: 2
     rx_queue_0_xdp_packets: 100
     rx_queue_0_drops: 0
     rx_queue_0_xdp_redirect: 90
     rx_queue_0_xdp_drops: 3
     rx_queue_0_xdp_redirect_errors: 4
     rx_queue_1_xdp_drops: 1
"""


def test_counters_of_the_kernel_are_read() -> None:
    """As the kernel of this lab prints them."""
    assert counts.softnet_drops(SOFTNET) == 13
    assert counts.socket_errors(SNMP) == 7
    assert counts.xdp_drops(ETHTOOL) == 8
    stats = {"rx": {"dropped": 3, "errors": 1}, "tx": {"dropped": 2, "errors": 0, "carrier_errors": 1}}
    text = json.dumps([{"ifname": "up0", "stats64": stats}, {"ifname": "lo"}])
    assert counts.links(text) == {"up0": (3, 4), "lo": (0, 0)}


def test_every_frame_is_accounted_for() -> None:
    """Those that no counter explains are named."""
    before = counts.Counts({"veth's ring": 5, "socket": 1})
    after = counts.Counts({"veth's ring": 15, "socket": 2})
    dropped = counts.gained(before, after)
    assert (dropped["veth's ring"], dropped["socket"], dropped["XDP"]) == (10, 1, 0)
    flows = [{"sent": 100, "received": 90}, {"sent": 50, "received": 47}]
    found = counts.account(flows, dropped)
    assert (found["sent"], found["received"], found["unexplained"]) == (150, 137, 2)
    assert counts.first_limit(dropped) == "veth's ring"
    assert counts.first_limit(counts.gained(before, before)) == ""


def test_seats_are_different_where_there_are_cpus() -> None:
    """Two CPUs have the senders on one of them; four have all apart."""
    four = steering.Seats.of([0, 1, 2, 3])
    assert len({four.sender, four.other_senders, four.background, four.own}) == 4
    three = steering.Seats.of([4, 5, 6])
    assert len({three.sender, three.background, three.own}) == 3
    assert steering.Seats.of([0, 1]).background == 1
    with pytest.raises(Missing):
        steering.Seats.of([0])


def test_windows_of_all_flows_fit_into_a_ring() -> None:
    """So that no frame is lost for want of room."""
    seats = steering.Seats.of([0, 1, 2, 3])
    for background in (0, 1, 6, 30):
        closed = steering.flows(seats, steering.PLACED, background, steering.CLOSED)
        assert sum(flow[3] for flow in closed) <= steering.RING
        assert all(flow[3] == 0 for flow in steering.flows(seats, "RPS", background, steering.OPEN))
    assert closed[0][:3] == ("priority", 0, 3)


def test_drops_of_cpumap_are_those_of_the_last_line() -> None:
    """Counters that were printed before are older."""
    log = 'attached\n{"dropped": {"1": 4}}\n{"dropped": {"1": 5, "2": 1}}\n'
    assert steering.cpumap_drops(log) == 6
    assert steering.cpumap_drops('attached\n{"dropped": null}\n') == 0
    assert steering.cpumap_drops("") == 0


def one(contender: str, priority: float, unexplained: int = 0) -> Json:
    """A window."""
    zero = dict.fromkeys(counts.STAGES, 0)
    frames = {"sent": 10, "received": 10 - unexplained, **zero, "unexplained": unexplained}
    case = {"contender": contender, "case": steering.CLOSED}
    return {**case, "priority": priority, "background": 50.0, "frames": frames, "limit": ""}


def test_two_cpus_decide_nothing() -> None:
    """The same windows on four CPUs do."""
    windows = [one("default", 10.0), one("placed", 20.0), one("default", 30.0), one("placed", 21.0)]
    few, enough = steering.result(windows, 2), steering.result(windows, 4)
    assert {target.verdict for target in few.targets} == {"not decided"}
    assert {target.verdict for target in enough.targets} == {"met"}
    assert not enough.failures
    assert steering.result([one("RPS", 1.0, 3)], 4).failures == [
        "RPS, closed loop: no counter explains 3 frames"
    ]


def test_cases_of_the_look_up_are_read() -> None:
    """Words between them are left out; another form is an error."""
    time = {"min": 1.0, "median": 60.4, "worst": 99.6}
    case = {"entries": 1_000, "masks": 0, "parse": time, "look_up": time, "whole": time}
    (found,) = cores_lookup.cases(["warning: x\n", json.dumps(case) + "\n"])
    assert cores_lookup.rows([found, {**case, "masks": 8}]) == [
        ["1,000", "exact", "60 (100)", "60 (100)", "60 (100)"],
        ["1,000", "8", "60 (100)", "60 (100)", "60 (100)"],
    ]
    with pytest.raises(ValueError, match="no case"):
        cores_lookup.cases(['{"entries": 1}'])


def test_planned_hosts_are_read() -> None:
    """Medians, and the worst."""
    host = {"cpus": 4, "vnics": 4, "stages": 20, "time_ms": 1.5, "again_ms": 1.0, "moved_again": 0}
    host |= {"cost_ns": 50, "present_ns": 100, "gap_percent": 0.0, "exact": True}
    worse = {**host, "time_ms": 3.5, "gap_percent": 9.0, "exact": False}
    hosts = cores_planner.parsed(["Compiling", *map(json.dumps, (host, worse, host))])
    found = dict(zip(cores_planner.HEAD, cores_planner.line(hosts), strict=True))
    assert (found["time [ms]"], found["gap [%]"], found["exact"]) == ("1.5 (3.5)", "0.0 (9.0)", "2 of 3")
    assert found["of the spread [%]"] == "50 (50)"
    assert cores_planner.sizes("2x2,128x500") == [(2, 2), (128, 500)]
    with pytest.raises(Misused):
        cores_planner.sizes("2x2,x")


def pairing(told: bool, measured: Json | None = None) -> Json:
    """A row of `tidegate cores calibrate --json`."""
    judged = {"together": 90.0, "apart": 40.0, "difference": 50.0, "spread": 4.0, "told_apart": told}
    row = {
        "pair": "softirq and vCPU",
        "distance": "cache",
        "finding": "slower",
        "judged": judged,
        "lost": 1.0,
    }
    return {**row, **({"measured": measured} if measured else {})}


def test_pairs_stand_beside_the_findings() -> None:
    """And those that some calibrations cannot tell apart are named."""
    reports: list[Json] = [
        {"rows": [pairing(True, {"handover": [0, 40]})], "not_measured": [], "busy": 0.1},
        {
            "rows": [pairing(False)],
            "not_measured": [{"pair": "vhost-net", "reason": "no device"}],
            "busy": 0.62,
        },
    ]
    first, second = cores_pairings.rows(reports)
    assert first[-2:] == ["40 ns to hand over", "slower"]
    assert second[-2:] == ["cannot tell apart", "slower"]
    notes = " ".join(cores_pairings.notes(reports))
    assert "vhost-net: no device" in notes
    assert "up to 62 %" in notes
    assert "in some calibrations only" in notes
    assert cores_pairings.verdict(pairing(True, {"sharing": 76})) == "7.6 % lost"
    assert cores_pairings.verdict(pairing(True)) == "apart is better"


def test_the_plan_is_told() -> None:
    """What it placed, and what it could not do."""
    report = {"stages": [{"stage": "port a", "planned": [1], "missing": "x"}, {"planned": []}], "plan": None}
    plan = cores_tail.summary(report)
    assert (plan["stages"], plan["placed"], plan["not there"]) == (2, 1, ["port a: x"])
    case = {"contender": "plan", "case": "the demo", "unmet": ["voice"]}
    (placed, away, unmet) = cores_tail.notes([{**plan, **case}])
    assert "placed 1 of 2 stages" in placed
    assert "port a: x" in away
    assert "voice" in unmet
    assert cores_tail.missed({"misses": {"host": 2, "network": 1}}) == 3


def test_the_page_has_all_scenes_in_their_order() -> None:
    """Those that were measured before stay."""
    one: Json = {"title": "One", "about": "a", "command": "c", "measured": "d", "commit": "e", "error": ""}
    one |= {
        "targets": [],
        "figures": [],
        "plots": [],
        "notes": ["n"],
        "tables": ["| t |"],
        "machine": {"cpus": 2},
    }
    text = page.text({"b": {**one, "title": "Two", "order": 2}, "a": {**one, "order": 1}})
    assert text.index("## One") < text.index("## Two")
    assert "### Figures" in text
    assert "Measured on: cpus 2." in text
    assert text.count("do not edit") == 1
