"""The DPDK generator: two guests in one process, measured by commands.

```text
 Generator(sockets, cpu) ──stdin: run size=64 ...──▶ generator (C) ──stdout: a line per window──▶ Traffic
```
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.process import Process

from .machine import build
from .model import Json

STOPPED_US = 100.0
"""A gap in the generator's loop, or a wait of a runnable thread, that counts as a core taken away."""
TOLERATED = 0.01
"""Share of a window that may be taken away before the window counts as disturbed."""


@dataclass(frozen=True)
class Traffic:
    """What one run of the generator saw."""

    windows: list[Json]
    wrong: int
    """Frames that were not as sent; only with verify=1."""
    out_of_order: int

    def _sum(self, key: str) -> float:
        return float(sum(window[key] for window in self.windows))

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self._sum("us") / 1e6

    @property
    def mpps(self) -> float:
        """Received, million frames a second."""
        return self._sum("received") / self._sum("us")

    @property
    def gbps(self) -> float:
        """Received, Gbit/s of Ethernet frames without FCS."""
        return self._sum("bytes") * 8 / self._sum("us") / 1e3

    @property
    def lost(self) -> float:
        """Share of the sent frames that was not received; up to a ring's worth of error."""
        sent = self._sum("sent")
        return 1 - self._sum("received") / sent if sent else 0.0

    @property
    def switch_share(self) -> float:
        """Share of the time that the switch's thread was on its core."""
        return self._sum("switch_ran_us") / self._sum("us")

    def disturbed(self, *, braked: bool = False) -> str:
        """Why this window may be left out; empty where it may not. `braked`: the switch's waiting is meant."""
        reasons = []
        taken = {
            "generator's core": sum(
                max(w["gap_us"], w["own_wait_us"])
                for w in self.windows
                if max(w["gap_us"], w["own_wait_us"]) > STOPPED_US
            ),
            "switch's core": 0.0 if braked else self._sum("switch_wait_us"),
        }
        total = self._sum("us")
        reasons = [
            f"{core} taken away for {us / 1e3:.1f} ms of {total / 1e3:.0f} ms"
            for core, us in taken.items()
            if us > TOLERATED * total
        ]
        return "; ".join(reasons)


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

    def features(self) -> list[str]:
        """What each port negotiated, and which functions of the driver it uses."""
        return re.findall(r"(?:features after negotiate = \S+|using [^\n]* on port \d)", self.process.output())

    def run(self, **options: int) -> Traffic:
        """One measurement; the keys are those of generator.c."""
        before = len(self.process.output())
        words = " ".join(f"{key}={value}" for key, value in options.items())
        self.process.stdin.write(f"run {words}\n".encode())
        self.process.stdin.flush()

        # Looking every few milliseconds would take the cores that are measured.
        time.sleep((options.get("ms", 500) + options.get("warm_ms", 30)) / 1e3)

        def answered() -> bool:
            new = self.process.output()[before:]
            return '"done"' in new or '"error"' in new

        self.process.wait_for(f"the end of 'run {words}'", answered, 20 + options.get("ms", 500) / 1e3)
        lines = [json.loads(line) for line in self.process.output()[before:].splitlines() if line[:1] == "{"]
        last = lines.pop()
        if "error" in last:
            raise ValueError(f"generator: {last['error']}")
        return Traffic(lines, last["wrong"], last["out_of_order"])

    def stop(self) -> None:
        """Disconnect and end."""
        self.process.stop()
