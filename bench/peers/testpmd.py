"""DPDK's testpmd, io mode, between two `net_vhost` ports: the cost of DPDK's vhost alone."""

from pathlib import Path

from lab.process import Process

from .base import Peer, need


class Testpmd(Peer):
    """Forwards every frame from one port to the other without looking at it."""

    name = "testpmd io"
    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, folder: Path, cpu: int) -> None:
        need("dpdk-testpmd", "dpdk-dev")
        folder.mkdir(exist_ok=True)
        self.sockets = (folder / "a.sock", folder / "b.sock")
        vdevs = [f"net_vhost{i},iface={socket}" for i, socket in enumerate(self.sockets)]
        self.process = Process(
            [
                *("stdbuf", "-oL", "dpdk-testpmd", "--lcores", f"0@{cpu},1@{cpu}", "-m", "256"),
                *("--no-pci", "--no-telemetry", "--iova-mode=va", "--single-file-segments", "--in-memory"),
                *("--vdev", vdevs[0], "--vdev", vdevs[1]),
                *("--", "-i", "--no-mlockall", "--total-num-mbufs=16384", "--forward-mode=io"),
                *("--txd=1024", "--rxd=1024"),
            ],
            folder / "testpmd.log",
            stdin=True,
            env={"RUNTIME_DIRECTORY": str(folder)},
        )
        self._wait_for("testpmd> ")

    def _wait_for(self, text: str) -> None:
        self.process.wait_for(f"'{text}'", lambda: text in self.process.output(), 30)

    def connected(self) -> None:
        """Begin to forward."""
        self.process.stdin.write(b"start\n")
        self.process.stdin.flush()
        self._wait_for("io packet forwarding")

    def forwarding_thread(self) -> int:
        """The lcore that forwards; the other one reads commands."""
        return self.thread_named("rte-worker", "lcore-worker")

    def stop(self) -> None:
        """End it."""
        self.resume()
        self.process.stop()
