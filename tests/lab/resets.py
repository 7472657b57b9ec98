#!/usr/bin/env python3
"""In the place of a VM, at the tap of its first argument: a virtual CPU that takes all CPUs back, always."""

import fcntl
import os
import struct
import sys
import threading
import time
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TAP_NO_PI = 0x1002


def virtual_cpu() -> None:
    """Runs on all CPUs, and never for long where it was put."""
    number = threading.get_native_id()
    Path(f"/proc/self/task/{number}/comm").write_text("CPU 0/TCG")
    everywhere = os.sched_getaffinity(0)
    while True:
        os.sched_setaffinity(0, everywhere)
        time.sleep(0.5)


def main() -> None:
    """Hold the tap."""
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", sys.argv[1].encode(), _IFF_TAP_NO_PI))
    virtual_cpu_thread = threading.Thread(target=virtual_cpu)
    virtual_cpu_thread.start()
    virtual_cpu_thread.join()


if __name__ == "__main__":
    main()
