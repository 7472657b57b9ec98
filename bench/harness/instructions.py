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
from pathlib import Path

from . import stages

FEW, MANY = 2_560, 10_240
"""Frames of the two runs of which the difference is taken: start-up is in both."""
BUILD = ("cargo", "build", "--release", "--locked", "--example", "hot_path")
"""No crate is named: with the features of all for dependencies, what `cargo build` made serves here too."""


class Failed(Exception):
    """Nothing could be counted, and why."""


def build(root: Path) -> Path:
    """Build the benchmark; its program."""
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


TIMED = {"64B-queued"}
"""Frames that wait are given up after some real milliseconds, so these do not repeat under valgrind."""


def cases(program: Path) -> list[str]:
    """The names of its cases that can be counted."""
    names = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if name not in TIMED]


def own(lines: Iterable[str], program: str) -> int:
    """Instructions of the code of `program` itself in a callgrind profile: neither libraries nor callees."""
    names: dict[str, str] = {}
    ours = callee = False
    total = 0
    for line in lines:
        if match := re.match(r"ob=(\(\d+\))(?: (.*))?", line):
            number, name = match.groups()
            if name:
                names[number] = name.rstrip()
            ours = names.get(number) == program
        elif match := re.match(r"cob=(\(\d+\)) (.*)", line):
            names[match[1]] = match[2].rstrip()
        elif line.startswith("calls="):
            callee = True
        elif line and line[0] in "0123456789+-*":
            if ours and not callee:
                total += int(line.split()[-1])
            callee = False
    return total


def profile(program: Path, case: str, frames: int) -> list[str]:
    """A callgrind profile, by address, of the worker's loop over so many frames and its start-up."""
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
        return out.read_text().splitlines()


def count(program: Path, case: str, frames: int) -> int:
    """Instructions of the worker's loop over so many frames, with those of start-up."""
    total = own(profile(program, case, frames), str(program))
    if not total:
        raise Failed(f"{case}: callgrind saw nothing of Worker::turn; was it renamed or inlined?")
    return total


def per_frame(program: Path, names: list[str]) -> dict[str, float]:
    """Instructions a frame of each case."""

    def one(case: str) -> float:
        return round((count(program, case, MANY) - count(program, case, FEW)) / (MANY - FEW), 1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def stages_per_frame(program: Path, case: str) -> dict[str, float]:
    """Instructions a frame of one case by stage, most first."""
    few, many = (stages.by_stage(profile(program, case, frames), program) for frames in (FEW, MANY))
    found = {stage: round((count - few[stage]) / (MANY - FEW), 1) for stage, count in many.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def judge(stored: dict[str, float], seen: dict[str, float], margin: float) -> list[str]:
    """What is wrong with `seen`: cases above what is stored by more than `margin` (a share), or unknown."""
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
    """The counts beside the stored ones."""
    rows = [f"{'case':14} {'stored':>8} {'now':>8} {'change':>8}"]
    for case, now in seen.items():
        then = stored.get(case)
        before, change = (f"{then:.1f}", f"{now / then - 1:+.1%}") if then else ("-", "-")
        rows.append(f"{case:14} {before:>8} {now:8.1f} {change:>8}")
    return "\n".join(rows)
