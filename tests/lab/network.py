"""A network that delays, loses, doubles and corrupts frames by rules: `tidegate-bench network`."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .host import BINARY
from .namespaces import Stack
from .process import Process, wait_for

PROGRAM = BINARY.with_name("tidegate-bench")

Rule = dict[str, Any]
"""As `crates/bench/src/network/plan.rs` has it; times in ns."""


class Network:
    """The running network of a namespace, which joins its interfaces."""

    def __init__(self, stack: Stack, interfaces: Iterable[str], *, options: Iterable[str] = ()) -> None:
        self.file = stack.folder / "records.jsonl"
        enter = ("nsenter", f"--net={stack.path}")
        self._log = stack.folder / "network.log"
        self._process = Process(
            [*enter, PROGRAM, "network", *interfaces, "--record", self.file, *options], self._log, stdin=True
        )
        self._process.wait_for("the network", lambda: "ready" in self._process.output())
        self._plans = 0

    def plan(self, *rules: Rule, **more: float) -> None:
        """Replace all rules; `more` are `seed`, `rate_bps`, `queue`. In effect on return."""
        self._plans += 1
        self._process.stdin.write(json.dumps({"rules": rules, **more}).encode() + b"\n")
        self._process.stdin.flush()
        self._process.wait_for(
            "the plan to be taken", lambda: self._process.output().count("plan\n") == self._plans
        )

    def end(self) -> dict[str, int]:
        """End the network; its counts."""
        self._process.stdin.close()
        self._process.popen.wait(10)
        last = self._process.output().splitlines()[-1]
        return dict(json.loads(last))

    def records(self) -> Iterator[dict[str, Any]]:
        """The fate of each frame that a rule chose: all are written at the end, and 20 ms after the last."""
        with self.file.open() as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)

    def wait_for(self, rule: str, count: int = 1, timeout: float = 20.0) -> None:
        """Wait until a rule has chosen so many frames."""
        wait_for(
            f"{count} frames of rule {rule}",
            lambda: sum(record["rule"] == rule for record in self.records()) >= count,
            timeout,
        )

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def has_program() -> bool:
    """Whether `tidegate-bench` is built."""
    return Path(PROGRAM).exists()
