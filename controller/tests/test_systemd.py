"""What systemd is told, and when nothing is."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tidegate_controller.runtime.systemd import Service, watchdog


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_interval(environment: dict[str, str], interval: float | None) -> None:
    """Only one that is meant for this process, and is a time."""
    assert watchdog(environment, 7) == interval


@pytest.mark.parametrize("abstract", [False, True])
def test_what_is_told(tmp_path: Path, abstract: bool) -> None:
    """That it serves, then that its loop turns, then that it ends; to either kind of address."""
    path = f"@tidegate-{os.getpid()}" if abstract else str(tmp_path / "notify")

    async def told() -> list[str]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(f"\0{path[1:]}" if abstract else path)
            systemd.setblocking(False)
            service = Service({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000"})
            service.ready()
            loop = asyncio.get_running_loop()
            heard = [(await loop.sock_recv(systemd, 100)).decode() for _ in range(4)]
            service.ends()
            while heard[-1] == "WATCHDOG=1":
                heard.append((await loop.sock_recv(systemd, 100)).decode())
            return heard

    heard = asyncio.run(told())
    assert (heard[0], heard[-1]) == ("READY=1", "STOPPING=1")
    assert set(heard[1:-1]) == {"WATCHDOG=1"}


def test_started_by_hand() -> None:
    """Nothing is told, and nothing runs beside the loop."""

    async def tasks() -> int:
        service = Service({"WATCHDOG_USEC": "1000"})
        service.ready()
        service.ends()
        return len(asyncio.all_tasks())

    assert asyncio.run(tasks()) == 1


def test_a_systemd_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The controller goes on, and says so."""

    async def tell() -> None:
        Service({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()

    asyncio.run(tell())
    assert "not told READY=1" in caplog.text
