"""Parsers of the output of programs that measure round trips. Pure.

Each returns microseconds: `p50`, `p99`, `p99.9`, `max`, of round trips, and how many were `lost`.
"""

import json
import re
import statistics

from harness.model import Json

from .figures import percentile

NUMBER = r"([0-9.]+)"


def sockperf(text: str) -> Json:
    """`sockperf under-load` or `ping-pong`, which halve what they print unless told `--full-rtt`.

    Raises `ValueError` where a figure is missing: it ended early.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    marks = {"p50": "percentile 50.000", "p99": "percentile 99.000", "p99.9": "percentile 99.900"}
    found = {name: _number(rf"---> {re.escape(mark)} += +{NUMBER}", plain) for name, mark in marks.items()}
    sent = _number(r"Valid Duration\].*SentMessages=([0-9]+)", plain)
    received = _number(r"Valid Duration\].*ReceivedMessages=([0-9]+)", plain)
    most = _number(rf"<MAX> observation = +{NUMBER}", plain)
    return found | {"max": most, "lost": max(0.0, sent - received)}


def irtt(text: str) -> Json:
    """`irtt client -o FILE`: every round trip, ns.

    Raises `ValueError` where none came back.
    """
    document = json.loads(text)
    trips = [trip["delay"]["rtt"] / 1e3 for trip in document["round_trips"] if "rtt" in trip.get("delay", {})]
    if not trips:
        raise ValueError("irtt: nothing came back")
    stats = document["stats"]
    return {
        "p50": percentile(trips, 0.5),
        "p99": percentile(trips, 0.99),
        "p99.9": percentile(trips, 0.999),
        "max": max(trips),
        "lost": float(stats["packets_sent"] - stats["packets_received"]),
    }


def ddsperf(text: str) -> Json:
    """`ddsperf ping`: a line each second, of half round trips; the first one, of its start, is left out.

    It tells no p99.9: `p50` and `p99` are medians over the seconds, `max` is the worst. `lost` counts
    pings that timed out.

    Raises `ValueError` with less than two seconds.
    """
    line = rf"size \d+ mean {NUMBER}us .* 50% {NUMBER}us .* 99% {NUMBER}us max {NUMBER}us cnt \d+"
    seconds = [[2 * float(us) for us in seen] for seen in re.findall(line, text)][1:]
    if not seconds:
        raise ValueError(f"ddsperf: less than two seconds of round trips:\n{text[-400:]}")
    timed_out = [int(count) for count in re.findall(r"ping timed out \(total (\d+) times\)", text)]
    return {
        "p50": statistics.median(second[1] for second in seconds),
        "p99": statistics.median(second[2] for second in seconds),
        "max": max(second[3] for second in seconds),
        "lost": float(max(timed_out, default=0)),
    }


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if not found:
        raise ValueError(f"no '{pattern}' in what was printed:\n{text[-400:]}")
    return float(found.group(1))
