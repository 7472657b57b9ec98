"""Tidegate under load from `tidegate-bench`: traffic that no generator with a few fast ports can send.

```text
 contracts ─▶ tidegate apply --prune ─▶ switch (switch_cpu) ══ sockets ══ tidegate-bench (generator_cpu)
     └───────────────────────── the same file ─────────────────────────────────▶┘      └─▶ JSON
```
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from harness.machine import threads
from harness.model import Context, Json, Missing
from lab.host import Host, vhost_user_vnic

PRIORITY = -20
"""Nice value of the worker and the generator: all other programs on the machine yield to both."""
DISTURBED = 0.005
"""Part of a window that may be taken away from generator or worker before the window counts as disturbed."""
TIMEOUT_S = 120.0


def vnic(folder: Path, name: str, number: int, *lines: str) -> str:
    """The contract of guest `number`; `lines` are further TOML lines."""
    mac = f"52:54:00:00:{number >> 8:02x}:{number & 0xFF:02x}"
    return vhost_user_vnic(name, folder / f"{name}.sock", mac, *lines)


def vnics(folder: Path, count: int, *lines: str) -> str:
    """`count` contracts alike, `p0000` and on."""
    return "".join(vnic(folder, f"p{number:04}", number, *lines) for number in range(count))


def disturbed(window: Mapping[str, float]) -> str:
    """The CPU time taken away in a window of `tidegate-bench`; empty if it was little."""
    enough = DISTURBED * window["seconds"] * 1e9
    names = {
        "taken_ns": "generator's core taken away",
        "switch_taken_ns": "switch's core taken away",
        "longest_gap_ns": "generator stood still",
    }
    return "; ".join(
        f"{what} {window[key] / 1e6:.1f} ms" for key, what in names.items() if window.get(key, 0) > enough
    )


class Synthetic:
    """A switch and an agent of its own, and synthetic guests on it. Ends with `context.cleanup`."""

    def __init__(self, context: Context, *, cpus: str = "", placement: str = "fixed") -> None:
        """`cpus`: one for each worker, as in `--cpus`; one worker on the machine's `switch_cpu` without.

        `placement`: as in `--placement`; whether ports may move while they are measured.
        """
        self.binary = context.tidegate.with_name("tidegate-bench")
        if not self.binary.exists():
            raise Missing(f"{self.binary} is missing: cargo build --release")
        self.machine = context.machine
        cpus = cpus or str(self.machine.switch_cpu)
        workers = str(len(cpus.split(",")))
        # Its log tells of moves.
        options = ("-v", "--workers", workers, "--cpus", cpus, "--placement", placement)
        self.host = Host(context.folder, switch_options=options)
        context.cleanup.callback(self.host.stop)
        for thread in threads(self.host.switch.pid):
            # Without the right to it, the windows say what was taken away.
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, thread, PRIORITY)
        self.contracts = Path()

    @property
    def folder(self) -> Path:
        """Where the sockets are."""
        return self.host.folder

    def apply(self, contracts: str) -> None:
        """Put these contracts in force, and no others."""
        self.contracts = self.host.file(contracts)
        self.host.cli("apply", "--prune", "-f", self.contracts)

    def workers(self) -> list[Json]:
        """The switch's figures of each of its workers."""
        workers: list[Json] = json.loads(self.host.get("/v1/host"))["workers"]
        return workers

    def run(self, *arguments: str | float, timeout: float = TIMEOUT_S) -> Json:
        """Run `tidegate-bench ARGUMENTS` on the contracts in force; returns its JSON."""
        command: Iterable[str | Path] = [
            *("setpriv", "--pdeathsig", "KILL", "nice", "-n", str(PRIORITY)),
            *(self.binary, "--json", "--contracts", self.contracts),
            *("--cpu", str(self.machine.generator_cpu), "--switch-pid", str(self.host.switch.pid)),
            *map(str, arguments),
        ]
        done = subprocess.run([*command], capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{done.stderr.strip()}\n{self.host.switch.output()[-1000:]}")
        report: Json = json.loads(done.stdout)
        return report
