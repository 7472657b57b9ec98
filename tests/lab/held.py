"""A thread that stands still, as one that waits for ever: it is traced (ptrace(2)), and stopped.

with stopped_thread(process, "worker-0"):
    ...                                 the other threads go on
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000


def thread(process: int, name: str) -> int:
    """The thread of that name, of a process by its number here."""
    for task in Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise LookupError(f"process {process} has no thread {name}")


@contextlib.contextmanager
def stopped_thread(process: int, name: str) -> Iterator[None]:
    """Keep one thread from running; the process may be ended meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    stopped = thread(process, name)

    def trace(request: int) -> None:
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(stopped), None, None) != 0:
            raise OSError(ctypes.get_errno(), f"cannot trace {name}")

    trace(_SEIZE)
    trace(_INTERRUPT)
    os.waitpid(stopped, _WALL)
    over = threading.Event()

    def see_its_end() -> None:
        # A process whose thread is traced has not ended before its tracer has seen that of the thread.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(stopped, _WALL | os.WNOHANG)[0] == 0 and not over.wait(0.01):
                pass

    seer = threading.Thread(target=see_its_end)
    seer.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            trace(_DETACH)
        over.set()
        seer.join()
