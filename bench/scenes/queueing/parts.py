"""Groups of windows, in the order of measurement.

```text
 --part all ─▶ limit ─▶ variants ─▶ fast ─▶ synthetic ─▶ slow ─▶ rates ─▶ fifo
   each: rounds x (rates x loads) x places, in turns; a run that is cut short has the first of them
```
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scenes.queueing.ways import CAKE, WAYS

IDLE = "idle"
UPLOADS, DOWNLOADS, BOTH = ("1up", "8up", "64up"), ("8down",), ("8both",)
LOADS = (*UPLOADS, *DOWNLOADS, *BOTH)
SYNTHETIC = ("synthetic", "synthetic-full")
FIFO = ("tap-fifo", "guest-fifo")
MAIN = ("tap", "kernel", "guest-pfifo_fast", "guest-fq_codel", "kernel-cake", "htb+fq_codel", CAKE)
VARIANTS = tuple(name for name in WAYS if name not in (*MAIN, *FIFO, *SYNTHETIC))
ALL = "all"


@dataclass(frozen=True)
class Part:
    """Places, each under each load at each rate, so many times."""

    attach: Sequence[str]
    rates: Sequence[str]
    flows: Sequence[str]
    rounds: int = 1
    warm_up: float = 2.5
    """Seconds of load before the first probe."""

    def cases(self) -> list[str]:
        """Of one round."""
        return [f"{rate}, {flows}" for rate in self.rates for flows in self.flows]


PARTS = {
    "limit": Part(MAIN, ("20mbit",), (IDLE, *LOADS), rounds=3),
    "variants": Part((*VARIANTS, CAKE), ("20mbit",), ("1up", "8up", "8down"), rounds=3),
    "fast": Part(("tap",), ("500mbit", "5gbit"), (IDLE, *LOADS)),
    "synthetic": Part(
        SYNTHETIC, ("20mbit", "200mbit", "500mbit", "5gbit"), (IDLE, *UPLOADS, *DOWNLOADS), warm_up=1
    ),
    "slow": Part(MAIN, ("5mbit",), LOADS, warm_up=3.5),
    "rates": Part(MAIN, ("50mbit", "200mbit"), LOADS, warm_up=1.5),
    # A queue of seconds takes seconds to fill, and to drain.
    "fifo": Part(FIFO, ("20mbit",), LOADS, warm_up=3.5),
}
SECONDS = 2.1
"""Of probes, in a window of a part: 200 of them, of which p99 is the third longest."""


def named(names: Sequence[str]) -> Iterator[Part]:
    """Those parts, in the order in which they are measured."""
    for name, part in PARTS.items():
        if name in names or ALL in names:
            yield part
