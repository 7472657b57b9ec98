"""The DPDK generator: two guests in one process, measured by commands.

```text
 Generator(sockets, cpu) ──stdin: run size=64 ...──▶ generator (C) ──stdout: a line per 10 ms──▶ Traffic
 brake(cpu): a tenth of the switch's core is taken away: a run is valid if a tenth of the frames is lost
```
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.process import Process

from .machine import build
from .model import Json

PART_MS = 10
"""Length of a part of a run; disturbed parts are left out as a whole."""
TAKEN_US = 100.0
"""A part is disturbed when the generator's loop stood still for so long, or when its thread or the switch's
was runnable and waited for a core for so long."""
ENOUGH = 0.3
"""A run with a smaller undisturbed share than this is disturbed as a whole."""


@dataclass(frozen=True)
class Traffic:
    """The counts of one run of the generator."""

    parts: list[Json]
    """PART_MS each: us, sent, received, bytes, gap_us, own_wait_us, switch_ran_us, switch_wait_us."""
    wrong: int
    """Frames that arrived changed; only with verify=1."""
    out_of_order: int
    ring_full: float = 0.0
    """Share of guest A's turns in which its ring had no room: it waited for the switch."""

    def values(self, *, braked: bool = False) -> Json:
        """Mpps, Gbit/s and lost frames, over all parts and (`kept`) over the undisturbed ones.

        `braked`: the switch is kept from its core on purpose, so that its waiting says nothing.
        """
        undisturbed = [part for part in self.parts if not _taken(part, braked=braked)]
        if len(undisturbed) < ENOUGH * len(self.parts):
            taken, parts = len(self.parts) - len(undisturbed), len(self.parts)
            return {
                **_rates(self.parts),
                "ring full": self.ring_full,
                "disturbed": f"cores taken away in {taken} of {parts} parts of {PART_MS} ms",
            }
        whole = _rates(self.parts) | {"ring full": self.ring_full}
        return whole | {f"{name} kept": value for name, value in _rates(undisturbed).items()}


def _taken(part: Json, *, braked: bool) -> bool:
    waits = (part["gap_us"], part["own_wait_us"], 0.0 if braked else part["switch_wait_us"])
    return bool(max(waits) > TAKEN_US)


def _rates(parts: list[Json]) -> Json:
    total = {key: float(sum(part[key] for part in parts)) for key in ("us", "sent", "received", "bytes")}
    return {
        "Mpps": total["received"] / total["us"],
        "Gbit/s": total["bytes"] * 8 / total["us"] / 1e3,
        "lost": 1 - total["received"] / total["sent"] if total["sent"] else 0.0,
        "parts": len(parts),
    }


@contextmanager
def brake(cpu: int) -> Iterator[Callable[[], float]]:
    """Takes a tenth of a CPU while it is open; yields a function that returns, once, the share taken."""
    period_us, burn_us = 200, 20
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", build("brake"), str(cpu), str(period_us), str(burn_us)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            time.sleep(0.02)
            yield lambda: float(child.communicate(timeout=10)[0])
        finally:
            if child.poll() is None:
                child.kill()


class Generator:
    """A running generator on two sockets."""

    def __init__(
        self,
        sockets: Sequence[Path],
        macs: Sequence[str],
        cpu: int,
        folder: Path,
        *,
        packed: bool = False,
        listens: bool = False,
        options: str = "",
    ) -> None:
        """`listens`: it makes the sockets and the switch connects. `options`: further virtio_user devargs."""
        devargs = ",queue_size=1024,queues=1" + (",packed_vq=1" if packed else "")
        devargs += (",server=1" if listens else "") + (f",{options}" if options else "")
        vdevs: list[str] = []
        for number, (socket, mac) in enumerate(zip(sockets, macs, strict=True)):
            if listens:
                socket.unlink(missing_ok=True)  # of a generator before this one
            vdevs += ["--vdev", f"net_virtio_user{number},path={socket},mac={mac}{devargs}"]
        folder.mkdir(parents=True, exist_ok=True)
        self.process = Process(
            [
                *(build("generator"), "--lcores", f"0@{cpu}", "-m", "96", "--no-pci", "--no-telemetry"),
                *("--iova-mode=va", "--single-file-segments", "--in-memory"),
                *("--force-max-simd-bitwidth=512", "--log-level=pmd.net.virtio.*:info"),
                *("--log-level=pmd.net.virtio.init:debug", *vdevs),
            ],
            folder / "generator.log",
            stdin=True,
            env={"RUNTIME_DIRECTORY": str(folder)},
        )

    def wait_ready(self) -> None:
        """Wait until both ports are connected to the switch."""
        self.process.wait_for("both ports", lambda: '{"ready": true}' in self.process.output(), 30)

    def functions(self) -> list[str]:
        """The driver's functions in use, by port and direction: they depend on the accepted features."""
        found = re.findall(r"using ([^\n]*?) path on port (\d)", self.process.output())
        return [f"{function} ({'AB'[int(port)]})" for function, port in found]

    @property
    def packed(self) -> bool:
        """Whether the switch accepted packed rings."""
        return "using packed ring" in self.process.output()

    def run(self, **options: int) -> Traffic:
        """One measurement; the keys are those of generator.c."""
        before = len(self.process.output())
        options = {"ms": 500, "warm_ms": 30, "window_ms": PART_MS, **options}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        self.process.stdin.write(f"run {words}\n".encode())
        self.process.stdin.flush()

        # Looking every few milliseconds would take the cores that are measured.
        time.sleep((options["ms"] + options["warm_ms"]) / 1e3)

        def answered() -> bool:
            new = self.process.output()[before:]
            return '"done"' in new or '"error"' in new

        self.process.wait_for(f"the end of 'run {words}'", answered, 20)
        lines = [json.loads(line) for line in self.process.output()[before:].splitlines() if line[:1] == "{"]
        last = lines.pop()
        if "error" in last:
            raise ValueError(f"generator: {last['error']}")
        return Traffic(lines, last["wrong"], last["out_of_order"], last["ring_full"])

    def stop(self) -> None:
        """Disconnect and end."""
        self.process.stop()
