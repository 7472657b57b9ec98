"""64 KB super-frames from guest to guest, against this machine's memcpy between the same buffers."""

from harness.model import Context, Figure, Json, Result, Sample, Scene, Target
from peers.synthetic import Synthetic, disturbed, vnics

CASES: dict[str, tuple[str, ...]] = {
    "buffers of 64 KB": ("--ring", "256"),
    "mergeable buffers of 4 KB": ("--ring", "1024", "--buffer", "4096"),
    "buffers of 64 KB, 4 MB walked": ("--ring", "64"),
}


def _samples(report: Json, value: str) -> tuple[Sample, ...]:
    found = []
    for pair in report["windows"]:
        window = pair["switch"]
        switch = window["bytes"] / window["seconds"] / 1e9
        memcpy = pair["memcpy_bytes"] / pair["memcpy_seconds"] / 1e9
        values = {"switch": switch, "memcpy": memcpy, "ratio": switch / memcpy}
        found.append(Sample(values[value], disturbed(window)))
    return tuple(found)


def run(context: Context) -> Result:
    """Windows of the switch and of memcpy by turns."""
    load = Synthetic(context)
    load.apply(vnics(load.folder, 2, 'tx = { max = "400gbit" }', 'rx = { max = "400gbit" }'))
    result = Result()
    for case, arguments in list(CASES.items())[: 1 if context.quick else None]:
        context.say(case)
        windows = ("--windows", context.rounds(7), "--window", context.seconds(1.0), "--warm-up", 0.3)
        cpu = ("--memcpy-cpu", context.machine.switch_cpu)
        report = load.run("superframes", *cpu, *arguments, *windows)
        for who, value in (("tidegate", "switch"), ("memcpy", "memcpy")):
            samples = _samples(report, value)
            result.figures.append(Figure(f"super-frames, {case}", who, "GB/s", samples, filterable=True))
        result.targets.append(
            Target(
                *(f"64 KB super-frames against memcpy, {case}", "at least 0.7x", "x", 0.7, "more"),
                _samples(report, "ratio"),
                filterable=True,
            )
        )
    return result


SCENE = Scene(
    name="superframes",
    title="64 KB super-frames against memcpy",
    about=(
        "One guest sends TCP super-frames of 64,294 bytes (44 segments) to another that takes them "
        "whole. Compared with `memcpy` on the switch's core, in windows by turns: of the same bytes, "
        "from the same frames in the sender's memory to the same buffers in the receiver's, in the same "
        "order, beside a core that polls. In both, no other core writes or reads a payload. A ring of "
        "256 walks 16 MB of frames and 16 MB of buffers, more than a core's own caches hold."
    ),
    order=20,
    run=run,
)
