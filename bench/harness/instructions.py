"""Instructions a frame on the hot path, counted by callgrind: the same on every run.

```text
 examples/hot_path ─▶ valgrind, 2 x CASES ─▶ Ir of our own code ─▶ difference / frames
```

What libc does is left out: its memcpy is another one on another CPU.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import report, stages

FEW, MANY = 2_560, 10_240
"""Frames of the two runs; their difference is counted, without the start-up that both have."""
FEATURES = ("--features", "tidegate-switch/test-clock")
BUILD = ("cargo", "build", "--release", "--locked", "--example", "hot_path", *FEATURES)
"""No crate is named: with the features of the whole workspace, cargo reuses the builds of `cargo build`."""
PORTS = {"64B-ports-2": 2, "64B-ports-256": 256}
"""Number of ports by case; each sends 32 frames at a time, in the case with `-single` behind its name one."""
AT_A_TIME = 32


class Failed(Exception):
    """Nothing could be counted; the message says why."""


def build(root: Path) -> Path:
    """Build the benchmark; returns its program."""
    done = subprocess.run(
        [*BUILD, "--message-format=json"], cwd=root, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"the benchmark cannot be built: {' '.join(BUILD)}")
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "hot_path":
            return Path(message["executable"])
    raise Failed(f"no program came out of: {' '.join(BUILD)}")


def compiler() -> str:
    """The compiler that builds here, such as `rustc 1.95.0`."""
    version = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
    return " ".join(version.split()[:2])


def cases(program: Path) -> list[str]:
    """The names of its cases."""
    return subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()


def own(lines: Iterable[str], program: str) -> int:
    """Instructions of the code of `program` itself in a callgrind profile: neither libraries nor callees."""
    names: dict[str, str] = {}
    is_program = callee = False
    total = 0
    for line in lines:
        if match := re.match(r"ob=(\(\d+\))(?: (.*))?", line):
            number, name = match.groups()
            if name:
                names[number] = name.rstrip()
            is_program = names.get(number) == program
        elif match := re.match(r"cob=(\(\d+\)) (.*)", line):
            names[match[1]] = match[2].rstrip()
        elif line.startswith("calls="):
            callee = True
        elif line and line[0] in "0123456789+-*":
            if is_program and not callee:
                total += int(line.split()[-1])
            callee = False
    return total


@dataclass(frozen=True)
class Profile:
    """The callgrind profile of one run."""

    lines: list[str]
    frames: int
    """Carried, in whole rounds: at least as many as asked for."""


def profile(program: Path, case: str, frames: int) -> Profile:
    """A profile, by address, of the workers' loops over so many frames and of their start-up."""
    with tempfile.TemporaryDirectory(prefix="callgrind-") as folder:
        out = Path(folder) / "out"
        command = [
            "valgrind",
            "--tool=callgrind",
            "--dump-instr=yes",
            "--toggle-collect=*worker*Worker*turn*",
        ]
        command += [f"--callgrind-out-file={out}", str(program), "--frames", str(frames), "--case", case]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{case}: not done within {late.timeout:.0f} s: {' '.join(command)}") from late
        if done.returncode or not out.exists():
            raise Failed(f"{case}: {' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return Profile(out.read_text().splitlines(), int(done.stdout.split()[1]))


def both(program: Path, case: str) -> tuple[Profile, Profile]:
    """Runs of few and of many frames."""
    few = profile(program, case, FEW)
    many = profile(program, case, max(MANY, few.frames + 1))
    return few, many


def count(program: Path, case: str) -> float:
    """Instructions of the workers' loops a frame, without those of start-up."""
    few, many = both(program, case)
    instructions = [own(run.lines, str(program)) for run in (few, many)]
    if not all(instructions):
        raise Failed(f"{case}: callgrind saw nothing of Worker::turn; was it renamed or inlined?")
    return round((instructions[1] - instructions[0]) / (many.frames - few.frames), 1)


def per_frame(program: Path, names: list[str]) -> dict[str, float]:
    """Instructions a frame of each case."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(partial(count, program), names), strict=True))


def stages_per_frame(program: Path, case: str) -> dict[str, float]:
    """Instructions a frame of one case by stage, most first."""
    few, many = both(program, case)
    before = stages.by_stage(few.lines, program)
    after = stages.by_stage(many.lines, program)
    frames = many.frames - few.frames
    found = {stage: round((count - before[stage]) / frames, 1) for stage, count in after.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def judge(stored: dict[str, float], seen: dict[str, float], margin: float) -> list[str]:
    """Sentences: cases of `seen` above their stored count by more than the share `margin`, or not stored."""
    wrong = [f"{case}: not in the file" for case in seen if case not in stored]
    wrong += [
        f"{case}: in the file, but the benchmark has no such case" for case in stored if case not in seen
    ]
    for case, now in seen.items():
        then = stored.get(case)
        if then and now > then * (1 + margin):
            wrong.append(
                f"{case}: {now:.0f} instructions a frame, stored are {then:.0f} "
                f"({now / then - 1:+.1%}, allowed {margin:+.0%})"
            )
    return wrong


def table(stored: dict[str, float], seen: dict[str, float]) -> str:
    """The counts beside the stored ones, in Markdown."""
    rows = []
    for case, now in seen.items():
        then = stored.get(case)
        before, change = (f"{then:.1f}", f"{now / then - 1:+.1%}") if then else ("-", "-")
        rows.append((case, before, f"{now:.1f}", change))
    return report.table(("case", "stored", "now", "change"), rows)


def by_port(seen: dict[str, float]) -> list[str]:
    """Cost of a loop for each port that has frames, and for each frame; empty without those cases.

    A frame costs `frame + port / at a time`, and its part of the loop itself, which is small where
    the loop has many frames.
    """
    found = []
    for case, ports in PORTS.items():
        if case not in seen or f"{case}-single" not in seen:
            continue
        many, single = seen[case], seen[f"{case}-single"]
        port = (single - many) * AT_A_TIME / (AT_A_TIME - 1)
        found.append(
            f"{ports} ports: {many - port / AT_A_TIME:.0f} for each frame, {port:.0f} for each port that has "
            f"frames in a loop{' (with half of the loop itself)' if ports == 2 else ''}"
        )
    return found
