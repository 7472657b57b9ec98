"""Web pages beside uploads of the same vNIC, as a user sees them.

```text
 a ─ 8 uploads ───────┐                          ┌─▶ b
 a ─ a page a second ─┴─ tap, 20 Mbit/s each way ┴─▶ its server: seconds from the name to the last object
```
"""

import json
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness import plot
from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Plot, Result, Scene, samples
from scenes.queueing import web
from scenes.queueing.load import Load
from scenes.queueing.places import PEER, Tap
from scenes.stacks.figures import percentile

RATE = "20mbit"
UPLOADS, PORT = 8, 5001
SECONDS = 20.0
WARM_UP = 3.0
ROUNDS = 3
BEFORE = "TIDEGATE_BEFORE"
"""Environment: another `tidegate`, measured beside this one as the contender `before`."""
ALONE, FLOWS, FIFO, EARLIER = "no uploads", "flows", 'queueing = "fifo"', "before"
CASE = f"{RATE}, {UPLOADS} uploads"
UNITS = {"p50": "s", "p90": "s", "max": "s", "pages": ""}


class Stage:
    """Taps of this `tidegate`, and of the one that TIDEGATE_BEFORE names; times of the pages by contender."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.seconds = 4.0 if context.quick else SECONDS
        before = os.environ.get(BEFORE)
        self.taps = {name: self.tap("t") for name in (FLOWS,)}
        self.taps |= {name: self.taps[FLOWS] for name in (ALONE, FIFO)}
        if before:
            self.taps[EARLIER] = self.tap("b", Path(before))
        self.pages: dict[str, list[float]] = {}

    def tap(self, folder: str, binary: Path | None = None) -> Tap:
        """Two namespaces, and the server of the pages."""
        tap = Tap(self.context.folder / folder, self.context.cleanup, binary=binary)
        server = tap.fabric.stacks["b"].spawn(sys.executable, "-E", "-S", web.__file__, "serve", PEER)
        server.wait_for("the server of pages", lambda: "ready" in server.output())
        return tap

    def window(self, name: str, case: str) -> Json:
        """Loads pages for a while, beside uploads unless the contender has none."""
        del case
        tap = self.taps[name]
        tap.limit(Load(1, 1), RATE, [FIFO] if name == FIFO else [])
        with ExitStack() as uploads:
            if name != ALONE:
                sink = tap.fabric.act("b", "drain", PEER, str(PORT))
                uploads.callback(sink.kill)
                uploads.callback(tap.fabric.act("a", "bulk", PEER, str(PORT), str(UPLOADS)).kill)
            words = f"sleep {WARM_UP}; {sys.executable} -E -S {web.__file__} load {PEER} {self.seconds}"
            took: list[float] = json.loads(tap.run(words, WARM_UP + self.seconds + 4 * web.PATIENCE))
        self.pages.setdefault(name, []).extend(took)
        return {
            "p50": percentile(took, 0.5),
            "p90": percentile(took, 0.9),
            "max": max(took),
            "pages": float(len(took)),
        }


def drawn(pages: dict[str, list[float]]) -> Plot:
    """A line for each contender: the share of its pages loaded within a number of seconds."""
    series = tuple(plot.cdf(name, times) for name, times in pages.items())
    title = f"Web pages beside {UPLOADS} uploads, {RATE.replace('mbit', ' Mbit/s')} each way"
    return Plot("pages", title, "seconds until a page is there", "share of pages", series, log_x=True)


def run(context: Context) -> Result:
    """All in turns."""
    stage = Stage(context)
    contenders = [Contender(name, partial(stage.window, name)) for name in sorted(stage.taps)]
    windows = interleave(None, contenders, (CASE,), context.rounds(ROUNDS))
    result = Result(windows=windows, plots=[drawn(stage.pages)])
    for value, unit in UNITS.items():
        result.figures += [
            Figure(
                f"page, {value}" if unit else value, one.name, unit, samples(windows, one.name, CASE, value)
            )
            for one in contenders
        ]
    return result


SCENE = Scene(
    name="pages",
    title="Web pages beside uploads",
    about=(
        f"A vNIC on a tap has 20 Mbit/s each way. {UPLOADS} TCP connections upload; beside them a client "
        "loads a page a second: it looks the name up (UDP, asked again after "
        f"{web.RESOLVER:g} s), fetches {web.PAGE // 1000} kB, then {web.CONNECTIONS * web.OBJECTS} objects "
        f"of {web.OBJECT // 1000} kB over {web.CONNECTIONS} connections. Its time is from the name to the "
        "last object."
    ),
    order=65,
    run=run,
)
