"""The soak's judge sees what grows, and nothing else."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from harness.flat import Sample, judge, rss_growth
from harness.soaked import process_sample

MIB = 1 << 20


def _samples(
    rss: list[int], *, fds: int = 20, threads: int = 4, life: int = 0, begin: int = 0
) -> list[Sample]:
    return [Sample(begin + n, "switch", life, size, fds, threads) for n, size in enumerate(rss)]


def test_noise_is_flat() -> None:
    """Memory that goes up and down by less than the slack is flat."""
    noise = random.Random(1)
    samples = _samples([50 * MIB + noise.randrange(MIB) for _ in range(40)])
    assert judge(samples) == []


def test_a_start_counts_for_nothing() -> None:
    """What a process takes at its start is not compared."""
    assert judge(_samples([MIB, 20 * MIB] + [50 * MIB] * 10)) == []


def test_a_slow_leak_is_seen() -> None:
    """A quarter of a MiB each cycle is seen within half an hour of cycles."""
    samples = _samples([50 * MIB + n * MIB // 4 for n in range(60)])
    (finding,) = judge(samples)
    assert finding.what == "bytes"
    assert rss_growth(samples, "switch") > 6 * MIB


def test_one_descriptor_is_seen() -> None:
    """Counts are exact, also from one process to the next of its name."""
    flat = _samples([50 * MIB] * 10)
    more = [*flat[:-1], Sample(9, "switch", 0, 50 * MIB, 21, 4)]
    assert [f.what for f in judge(more)] == ["descriptors"]
    next_life = _samples([50 * MIB] * 10, threads=5, life=1, begin=10)
    assert [f.what for f in judge(flat + next_life)] == ["threads"]
    assert judge(flat + _samples([70 * MIB] * 10, life=1, begin=10)) == []
    other_kind = [replace(s, life=1, kind="more", fds=22) for s in _samples([50 * MIB] * 10, begin=10)]
    assert judge(flat + other_kind) == []


def test_a_process_that_leaks_on_purpose(tmp_path: Path) -> None:
    """The whole way: a real process that keeps a file and half a MiB every time it is asked."""
    leak = """kept = []
for line in iter(input, "end"):
    kept.append((open("/dev/null"), bytearray(b"x") * 524288))
    print(flush=True)
"""
    program = tmp_path / "leak.py"
    program.write_text(leak)
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        samples = []
        for cycle in range(30):
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            samples.append(process_sample(cycle, "fake", 0, process.pid))
        process.stdin.write("end\n")
        process.stdin.close()
    found = {finding.what for finding in judge(samples)}
    assert found == {"bytes", "descriptors"}
