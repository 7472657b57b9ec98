"""DPDK's testpmd: a virtio front end (and, for the lab's own test, a vhost back end) that is not ours.

Testpmd(folder, [virtio_user(sock, mac)], forward="txonly")
pmd.start(); pmd.stop(); pmd.stats()[0].tx_packets
"""

import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .process import Process

_PROMPT = "testpmd> "
_PORT = re.compile(
    r"NIC statistics for port (\d+).*?"
    r"RX-packets:\s*(\d+).*?RX-bytes:\s*(\d+).*?"
    r"TX-packets:\s*(\d+).*?TX-bytes:\s*(\d+)",
    re.DOTALL,
)
_NEGOTIATED = re.compile(r"features after negotiate = ([0-9a-f]+)")

RING_PACKED = 1 << 34
"""VIRTIO_F_RING_PACKED."""


@dataclass(frozen=True)
class PortStats:
    """What testpmd counted on one port since it started."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int


def virtio_user(path: Path, mac: str, *, queue_size: int = 256, server: bool = False, more: str = "") -> str:
    """A virtio front end on the vhost-user socket at `path`; `server` makes testpmd listen.

    `more` are further device arguments, such as "packed_vq=1".
    """
    arguments = ["net_virtio_user", f"path={path}", f"mac={mac}", f"queue_size={queue_size}"]
    arguments += ["server=1"] if server else []
    return ",".join(arguments + ([more] if more else []))


def vhost(path: Path) -> str:
    """A vhost-user back end that listens on `path`."""
    return f"net_vhost,iface={path}"


class Testpmd:
    """A running testpmd with the given devices; nothing is forwarded before `start`."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(
        self,
        folder: Path,
        devices: list[str],
        *,
        forward: str = "io",
        peers: dict[int, str] | None = None,
        options: tuple[str, ...] = (),
        cpu: int = 0,
    ) -> None:
        """`forward` is testpmd's forward mode; `peers` the destination MAC that each port sends to."""
        folder.mkdir(parents=True, exist_ok=True)
        vdevs = []
        for number, device in enumerate(devices):
            driver, _, arguments = device.partition(",")
            vdevs += ["--vdev", f"{driver}{number},{arguments}"]
        # Both lcores on one CPU, ordinary pages: runs next to everything else, without set-up.
        # --no-huge memory is one shared file, which virtio_user can pass to the back end.
        self.process = Process(
            [
                *("stdbuf", "-oL", "dpdk-testpmd"),
                *("--lcores", f"0@{cpu},1@{cpu}", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry"),
                *("--iova-mode=va", f"--file-prefix=lab{folder.stat().st_ino}", *vdevs),
                "--log-level=pmd.net.virtio.init:debug",
                *("--", "-i", "--no-mlockall", "--total-num-mbufs=8192", f"--forward-mode={forward}"),
                *(f"--eth-peer={port},{mac}" for port, mac in (peers or {}).items()),
                *options,
            ],
            folder / "testpmd.log",
            stdin=True,
            # DPDK's own files; otherwise in /var/run, where a user namespace's root may not write.
            env={"RUNTIME_DIRECTORY": str(folder)},
        )
        self.process.wait_for("testpmd's prompt", lambda: _PROMPT in self.process.output(), 30)

    def command(self, line: str, timeout: float = 10) -> str:
        """One command of testpmd; what it printed."""
        before = self.process.output()
        seen = before.count(_PROMPT)
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        self.process.wait_for(
            f"the end of '{line}'", lambda: self.process.output().count(_PROMPT) > seen, timeout
        )
        return self.process.output()[len(before) :]

    def start(self) -> None:
        """Begin to forward."""
        self.command("start")

    def stop(self) -> None:
        """Stop forwarding; the devices stay connected."""
        self.command("stop")

    def stats(self) -> list[PortStats]:
        """The counters, per port."""
        found = _PORT.findall(self.command("show port stats all"))
        return [PortStats(*map(int, numbers)) for _, *numbers in found]

    def negotiated(self) -> list[int]:
        """The virtio features each front end negotiated, in the order they did."""
        return [int(features, 16) for features in _NEGOTIATED.findall(self.process.output())]

    def quit(self) -> None:
        """Disconnect and end."""
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.quit()
