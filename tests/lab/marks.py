"""ECN marks and checksums of what passes a device, as tshark dissects it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .namespaces import Stack

MARKED, RIGHT = 3, "1"
"""CE; a checksum that is right."""


class Seen(NamedTuple):
    """A frame; texts, empty where a field is not there."""

    v4: str
    """ECN of IPv4: 0 Not-ECT, 1 and 2 ECT, 3 CE."""
    v6: str
    ip_checksum: str
    """1: right."""
    tcp_checksum: str
    tcp_payload: str
    udp_checksum: str

    @property
    def ecn(self) -> int:
        """Of either IP."""
        return int(self.v4 or self.v6 or 0)


FIELDS = (
    *("ip.dsfield.ecn", "ipv6.tclass.ecn", "ip.checksum.status"),
    *("tcp.checksum.status", "tcp.len", "udp.checksum.status"),
)


def captured(stack: Stack, device: str, way: str, file: Path, work: Callable[[], object]) -> list[Seen]:
    """TCP and UDP that passes a device of a stack, `in` or `out`, while `work` runs."""
    recorder = stack.spawn("tcpdump", "-i", device, "-Q", way, "-s", "0", "-w", str(file), "tcp or udp")
    recorder.wait_for("tcpdump", lambda: "listening" in recorder.output())
    work()
    time.sleep(0.5)
    recorder.stop()
    checks = " ".join(f"-o {what}.check_checksum:TRUE" for what in ("ip", "tcp", "udp"))
    fields = " ".join(f"-e {field}" for field in FIELDS)
    # Of an IPv6 frame the IPv4 fields are empty.
    text = stack.run(f"tshark -r {file} {checks} -T fields -E separator=, {fields}")
    return [Seen(*line.split(",")) for line in text.splitlines()]
