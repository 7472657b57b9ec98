"""A set rate against the rate that arrives, in wire bytes, and how far a burst goes beyond its bucket."""

from dataclasses import dataclass

from harness.model import Context, Figure, Json, Plot, Result, Sample, Scene, Series, Target
from peers.synthetic import Synthetic, disturbed, vnic

RATES = {
    "1mbit": 1e6,
    "8mbit": 8e6,
    "37mbit": 37e6,
    "313mbit": 313e6,
    "733mbit": 733e6,
    "2700mbit": 2.7e9,
    "7300mbit": 7.3e9,
    "10gbit": 10e9,
}
MIX = ",".join(["64"] * 7 + ["594"] * 4 + ["1518"])
"""The usual mix of the Internet's packet sizes."""
SIZES = {"64": "64 B", "1518": "1518 B", MIX: "64 to 1518 B mixed", "super": "64 KB super-frames"}
DIRECTIONS = ("tx", "rx")
QUICK = (("1518", "733mbit"), ("super", "733mbit"))
OF_UNSHAPED = 1 / 1.5
"""Rates above this share of the unlimited rate are left out."""


@dataclass(frozen=True)
class Point:
    """One rate, in one direction, with one size of frame."""

    size: str
    rate: str
    direction: str
    report: Json

    @property
    def error(self) -> float:
        """Of the whole time, %."""
        return float(self.report["error_percent"])

    @property
    def undisturbed(self) -> float | None:
        """Of the seconds in which the host took no core away, together, %; `None` if there were none."""
        good = [window for window in self.report["windows"] if not disturbed(window)]
        seconds = sum(window["seconds"] for window in good)
        if not seconds:
            return None
        bits = sum(window["bytes"] for window in good) * 8
        return float((bits / seconds / self.report["set_bits_per_second"] - 1) * 100)

    @property
    def frames_over(self) -> float:
        """Frames that were certainly beyond rate and burst in the worst interval."""
        return float(self.report["over_certain_bytes"] / self.report["wire_bytes"])

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{SIZES[self.size]}, {self.direction}.max {self.rate}"


def _contracts(load: Synthetic, direction: str, rate: str, size: str) -> str:
    limit = f'{direction} = {{ max = "{rate}" }}' if rate else ""
    if size == "super":
        # By flow they leave in parts, and it is whole frames that are counted.
        limit += '\nqueueing = "fifo"'
    sender, receiver = (limit, "") if direction == "tx" else ("", limit)
    return vnic(load.folder, "a", 1, sender) + vnic(load.folder, "b", 2, receiver)


def _unshaped(load: Synthetic, size: str) -> float:
    """Bits per second without a limit."""
    load.apply(_contracts(load, "tx", "400gbit", size))
    report = load.run(
        "rates", "--from", "a", "--to", "b", "--frame", size, "--seconds", "1", "--warm-up", "0.3"
    )
    return float(report["bits_per_second"])


def _targets(points: list[Point], what: str, limit: float) -> list[Target]:
    if not points:
        return []
    worst = max(points, key=lambda point: abs(point.error))
    clean = [error for point in points if (error := point.undisturbed) is not None]
    alone = f"{max(map(abs, clean)):.3f} %" if clean else "unknown: there were none"
    over = max(points, key=lambda point: point.frames_over)
    return [
        Target(
            *(
                f"set rate, {what}: the largest error of {len(points)}",
                f"at most {limit:g} %",
                "%",
                limit,
                "less",
            ),
            (Sample(abs(worst.error)),),
            note=f"{worst.name}; of undisturbed seconds alone {alone}",
        ),
        Target(
            *(
                f"beyond the burst, {what}: the most of {len(points)}",
                "at most one frame",
                "frames",
                1.0,
                "less",
            ),
            (Sample(over.frames_over),),
            note=over.name,
        ),
    ]


def run(context: Context) -> Result:
    """Every size, rate and direction: the rate after the burst; the worst interval, the burst included."""
    load = Synthetic(context)
    seconds = 3 if context.quick else 10
    points: list[Point] = []
    result = Result()
    for size, name in SIZES.items():
        if context.quick and size not in {size for size, _ in QUICK}:
            continue
        most = _unshaped(load, size)
        result.figures.append(Figure(f"{name}, no limit", "tidegate", "Mbit/s", (Sample(most / 1e6),)))
        for rate, bits in RATES.items():
            if bits > OF_UNSHAPED * most or (context.quick and (size, rate) not in QUICK):
                continue
            for direction in DIRECTIONS:
                context.say(f"{name}, {direction}.max {rate}")
                load.apply(_contracts(load, direction, rate, size))
                options = (
                    "--from",
                    "a",
                    "--to",
                    "b",
                    "--limit",
                    direction,
                    "--frame",
                    size,
                    "--ring",
                    "1024",
                )
                report = load.run("rates", *options, "--seconds", seconds)
                points.append(Point(size, rate, direction, report))
    for point in points:
        errors = tuple(Sample(w["error_percent"], disturbed(w)) for w in point.report["windows"])
        result.figures += [
            Figure(f"{point.name}, error by second", "tidegate", "%", errors, filterable=True),
            Figure(f"{point.name}, error", "tidegate", "%", (Sample(point.error),)),
            Figure(f"{point.name}, beyond the burst", "tidegate", "frames", (Sample(point.frames_over),)),
        ]
    result.targets += _targets([point for point in points if point.size != "super"], "single frames", 0.2)
    result.targets += _targets(
        [point for point in points if point.size == "super"], "64 KB super-frames", 1.0
    )
    series = [
        Series(
            f"{SIZES[size]}, {direction}.max",
            tuple(
                (RATES[p.rate] / 1e6, p.error) for p in points if (p.size, p.direction) == (size, direction)
            ),
        )
        for size in SIZES
        for direction in DIRECTIONS
    ]
    drawn = tuple(line for line in series if line.points)
    title = "Error of the rate that arrives"
    result.plots.append(Plot("rates-synthetic", title, "set rate [Mbit/s]", "error [%]", drawn, log_x=True))
    return result


SCENE = Scene(
    name="rates_synthetic",
    title="Set rates, exactly",
    about=(
        "One guest's ring is always full, another guest receives all frames; `tx.max` of the one or "
        "`rx.max` of the other is set, with the default burst. The rate is counted at the receiver in "
        "wire bytes (every segment with its headers), from an arrival to an arrival, a second after the "
        "burst. Beyond the burst: the most bytes, over all intervals since the first frame, that are "
        "more than rate x time + burst. A frame came between two polls of the ring; the longest interval "
        "that they allow counts."
    ),
    order=40,
    run=run,
)
