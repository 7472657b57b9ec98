"""What all measurements print: the machine, medians with the worst, tables."""

import os
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime


def machine() -> str:
    """When, at which commit, with how many CPUs and how much other work."""
    done = subprocess.run(
        ["git", "-C", os.path.dirname(__file__), "describe", "--always", "--dirty=+"],
        capture_output=True,
        text=True,
        check=False,
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return f"{now}, commit {done.stdout.strip()}, {os.cpu_count()} CPUs, load {load}"


def spread(values: Iterable[float], digits: int = 0, *, least_is_worst: bool = False) -> str:
    """The median and the worst."""
    found = sorted(values)
    if not found:
        return "-"
    worst = found[0] if least_is_worst else found[-1]
    return f"{statistics.median(found):,.{digits}f} ({worst:,.{digits}f})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)
