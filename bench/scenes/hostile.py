"""Goodput and delay of neighbours beside hostile front ends on the same worker."""

import json
import signal
import subprocess

from harness.model import Context, Figure, Json, Missing, Result, Sample, Scene

SECONDS = 5.0
"""Length of an attack, and of each measurement of the neighbours alone before and after it."""
ROUNDS = 3


def _attacks(context: Context, seconds: float) -> list[Json]:
    """One run of all attacks, each on a switch and an agent of its own."""
    binary = context.tidegate.with_name("tidegate-bench")
    if not binary.exists():
        raise Missing(f"{binary} is missing: cargo build --release")
    cpus = context.machine
    command = [str(binary), "--json", "--cpu", str(cpus.generator_cpu), "hostile", "--time", str(seconds)]
    command += ["--tidegate", str(context.tidegate), "--switch-cpu", str(cpus.switch_cpu)]
    child = context.cleanup.enter_context(
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    context.cleanup.callback(child.send_signal, signal.SIGTERM)
    output, _ = child.communicate(timeout=600)
    if child.returncode != 0:
        raise RuntimeError(f"tidegate-bench hostile ended with {child.returncode}")
    attacks: list[Json] = json.loads(output)["attacks"]
    return attacks


def figures(runs: list[list[Json]]) -> list[Figure]:
    """Each attack's three figures: one sample from each run."""
    found = []
    for same in zip(*runs, strict=True):
        first = same[0]
        name = first["attack"]
        if any(one["failed"] for one in same):
            reason = next(one["failed"] for one in same if one["failed"])
            found.append(
                Figure(name, "goodput kept", "x", (), note=f"this machine does not let it: {reason}")
            )
            continue
        worst = max(one["beside"]["voice_worst_us"] for one in same) / 1e3
        alone = max(one["alone"]["voice_worst_us"] for one in same) / 1e3
        served = sum(one["served"] for one in same)
        visits = sum(one["visits"] for one in same)
        note = (
            f"{first['alone']['bulk_mbit']:.0f} Mbit/s and {first['alone']['voice_p999_us']:.0f} us alone; "
            f"worst {worst:.1f} ms, alone {alone:.1f} ms; {served} of {visits} others served"
        )
        kept = tuple(Sample(one["goodput"]) for one in same)
        delay = tuple(Sample(one["p999"]) for one in same)
        found.append(Figure(name, "goodput kept", "x", kept, note=note))
        found.append(Figure(name, "p99.9, of that alone", "x", delay))
    return found


def run(context: Context) -> Result:
    """All attacks, three times."""
    seconds = context.seconds(SECONDS)
    runs = []
    for number in range(context.rounds(ROUNDS)):
        runs.append(_attacks(context, seconds))
        for one in runs[-1]:
            context.say(
                f"{number + 1}: {one['attack']}: goodput {one['goodput']:.2f}, p99.9 {one['p999']:.1f} times"
            )
    return Result(figures(runs))


SCENE = Scene(
    name="hostile",
    title="A neighbour beside front ends that do harm",
    about=(
        "`tidegate-bench hostile`: one worker has two pairs of honest guests and a hostile one. The "
        "first pair sends 1514 B frames as fast as it may; of the second, one sends a 200 B frame each "
        "millisecond under a deadline. Shown is what both have during the attack, as a share of the mean of "
        "before and after it."
    ),
    order=95,
    run=run,
)
