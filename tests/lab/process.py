"""Child processes that keep their output and never outlive their test."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


def wait_for(what: str, ready: Callable[[], object], timeout: float = 20.0) -> None:
    """Poll `ready` until it is true; `TimeoutError` naming `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.02)


class Process:
    """A long-running child whose stdout and stderr go to `log`."""

    def __init__(
        self,
        args: Sequence[str | Path],
        log: Path,
        *,
        stdin: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.args = [str(a) for a in args]
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                # setpriv becomes the program: same process, but it dies with this one.
                ["setpriv", "--pdeathsig", "KILL", *self.args],
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.popen.pid

    @property
    def stdin(self) -> IO[bytes]:
        """The child's standard input; only with `stdin=True`."""
        assert self.popen.stdin is not None
        return self.popen.stdin

    @property
    def running(self) -> bool:
        """Whether it has not exited yet."""
        return self.popen.poll() is None

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, what: str, ready: Callable[[], object], timeout: float = 20.0) -> None:
        """`wait_for`, but fails at once, with the output, when the process exits meanwhile."""

        def ready_or_dead() -> bool:
            done = bool(ready())
            if not done and not self.running:
                status = self.popen.returncode
                raise RuntimeError(f"{self.args[0]} ended ({status}) before {what}:\n{self.output()[-4000:]}")
            return done

        try:
            wait_for(what, ready_or_dead, timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.args[0]} said:\n{self.output()[-4000:]}") from None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self.popen.kill()
        self.popen.wait()

    def stop(self, timeout: float = 5.0) -> int:
        """Ask it to end, insist after `timeout` seconds; the exit status."""
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.close()
        if self.running:
            self.popen.terminate()
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        return self.popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
