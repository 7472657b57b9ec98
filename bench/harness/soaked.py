"""The observations of a soak: processes, folders, the steady traffic, and the report of them."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .flat import SETTLE, Sample, judge, rss_growth

LOW, HIGH = 0.9, 1.05
"""Allowed rates of the steady traffic, as shares of its contract's rate, in undisturbed seconds."""


def process_sample(cycle: int, name: str, life: int, pid: int, kind: str = "") -> Sample:
    """Memory, descriptors and threads of a process now."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    fds = len(os.listdir(f"/proc/{pid}/fd"))
    rss = int(status["VmRSS"].split()[0]) * 1024
    return Sample(cycle, name, life, rss, fds, int(status["Threads"]), kind)


def folder(cycle: int, name: str, path: Path) -> Sample:
    """Files and bytes of a folder now; it has no threads."""
    files = [p for p in path.rglob("*") if p.is_file()]
    return Sample(cycle, name, 0, sum(p.stat().st_size for p in files), len(files), 0)


@dataclass
class Steady:
    """The traffic between the permanent ports, line by line as `tidegate-bench numbered` prints it."""

    limit: float
    """The contract, bit/s."""
    disturbed: float = 0.0
    """Seconds of the run's clock until which traffic may be missing, because the switch was killed."""
    seconds: float = 0.0
    bits: float = 0.0
    quiet: float = 0.0
    silent: float = 0.0
    """The longest time without a frame, s, in undisturbed seconds."""
    last: dict[str, Any] = field(default_factory=dict)

    def take(self, line: dict[str, Any]) -> None:
        """One more second."""
        before = self.last or {"seconds": 0.0, "bytes": 0, "reconnects": 0}
        seconds = line["seconds"] - before["seconds"]
        got = line["bytes"] - before["bytes"]
        if line["seconds"] > self.disturbed and seconds > 0:
            self.seconds += seconds
            self.bits += got * 8
            self.quiet = 0.0 if got else self.quiet + seconds
            self.silent = max(self.silent, self.quiet)
        self.last = line

    @property
    def ratio(self) -> float:
        """The rate in undisturbed seconds, as a share of the contract."""
        return self.bits / self.seconds / self.limit if self.seconds else 0.0


@dataclass
class Soak:
    """A run so far."""

    steady: Steady
    began: float
    cycles: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Number of steps, by kind."""
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Failed steps, as sentences."""

    def did(self, what: str) -> None:
        """Counts a step that succeeded."""
        self.counts[what] = self.counts.get(what, 0) + 1


Row = dict[str, str]


def _row(measure: str, asked: str, seen: str, kept: bool | None) -> Row:
    verdict = "info" if kept is None else "kept" if kept else "missed"
    return {"measure": measure, "asked": asked, "seen": seen, "verdict": verdict}


def rows(soak: Soak, hours: float) -> list[Row]:
    """The table: each demand, and its figure."""
    findings = judge(soak.samples)
    table = [
        _row("soaked", "", f"{hours:.2f} h, {soak.cycles} cycles", None),
        _row("churn", "", ", ".join(f"{n} {what}" for what, n in sorted(soak.counts.items())), None),
    ]
    for process in ("agent", "switch"):
        of_it = [s for s in soak.samples if s.process == process]
        if not of_it:
            continue
        grown = rss_growth(soak.samples, process)
        wrong = {f.what for f in findings if f.process == process}
        last = of_it[-1]
        # As early as it counts, and with as much to hold as at the end.
        first = next((s for s in of_it[SETTLE:] if s.kind == last.kind), of_it[0])
        peak = max(s.rss for s in of_it)
        table += [
            _row(
                f"{process}: memory, growth over one life",
                "flat",
                f"{grown / 1024:.0f} KiB (at most {peak >> 20} MiB resident)",
                "bytes" not in wrong,
            ),
            _row(
                f"{process}: descriptors, an early and the last cycle",
                "the same",
                f"{first.fds}, {last.fds}",
                "descriptors" not in wrong,
            ),
            _row(
                f"{process}: threads, an early and the last cycle",
                "the same",
                f"{first.threads}, {last.threads}",
                "threads" not in wrong,
            ),
        ]
    for name in ("state folder", "temporary folder"):
        of_it = [s for s in soak.samples if s.process == name]
        if of_it:
            seen = f"{of_it[0].fds} files of {of_it[0].rss} B, {of_it[-1].fds} files of {of_it[-1].rss} B"
            table.append(_row(name, "not growing", seen, not any(f.process == name for f in findings)))
    steady = soak.steady
    line = steady.last or {"received": 0, "lost": 0, "duplicates": 0, "reconnects": 0}
    table += [
        _row(
            "steady traffic, share of its contract's rate",
            f"{LOW} to {HIGH}",
            f"{steady.ratio:.3f} over {steady.seconds:.0f} s without a kill of the switch",
            LOW <= steady.ratio <= HIGH,
        ),
        _row(
            "steady traffic, longest pause without a kill of the switch",
            "under 3 s",
            f"{steady.silent:.0f} s",
            steady.silent < 3,
        ),
        _row(
            "steady traffic, frames",
            "",
            f"{line['received']} received, {line['lost']} lost, {line['duplicates']} twice, "
            f"{line['reconnects']} reconnects",
            None,
        ),
        _row("steps that failed", "0", "; ".join(soak.failures[:5]) or "0", not soak.failures),
    ]
    return table


def markdown(table: Sequence[Row]) -> str:
    """For the terminal."""
    lines = ["| | asked | seen | |", "|---|---|---|---|"]
    lines += [f"| {r['measure']} | {r['asked']} | {r['seen']} | {r['verdict']} |" for r in table]
    return "\n".join(lines)


def commit(root: Path) -> str:
    """The commit that is tested, with `+` where files differ from it."""
    git = ["git", "-C", str(root)]
    head = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False)
    return (head.stdout.strip() or "unknown") + ("+" if changed.returncode else "")


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file; a reader sees the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.rename(path)
