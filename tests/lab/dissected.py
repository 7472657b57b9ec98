"""Frames of a network as tshark understands them."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from .namespaces import Stack

GOOD = "1"
"""A checksum's status: 0 is bad, 2 not checked, 3 not there."""
FIELDS = (
    *("frame.len", "ip.dsfield.dscp", "ip.dsfield.ecn", "ipv6.tclass.dscp", "ipv6.tclass.ecn", "vxlan.vni"),
    *("ip.checksum.status", "udp.checksum.status", "tcp.checksum.status", "icmp.checksum.status"),
    *("icmpv6.checksum.status", "udp.dstport", "udp.srcport", "eth.trailer", "eth.padding", "_ws.malformed"),
)
"""Each may stand in both headers: the outer one comes first."""
CHECKS = ("ip.check_checksum", "udp.check_checksum", "tcp.check_checksum")


@dataclass(frozen=True)
class Frame:
    """The fields of one frame, each with its values from the outside to the inside."""

    fields: dict[str, list[str]]

    def __getitem__(self, name: str) -> list[str]:
        return self.fields[name]

    def marks(self, kind: str) -> list[int]:
        """`dscp` or `ecn` of the outer and the inner header; where both are of one version of IP."""
        return [int(value) for value in (*self[f"ip.dsfield.{kind}"], *self[f"ipv6.tclass.{kind}"])]

    @property
    def wrong(self) -> dict[str, list[str]]:
        """Checksums that are not right, and what tshark cannot read."""
        checksums = {name: self[name] for name in FIELDS if name.endswith("checksum.status")}
        bad = {name: values for name, values in checksums.items() if any(value != GOOD for value in values)}
        return {**bad, **({"malformed": self["_ws.malformed"]} if self["_ws.malformed"] else {})}


class Capture:
    """What passes the `eth0` of a stack, from now to `stop`."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._file = folder / "underlay.pcap"
        self._tcpdump = stack.spawn(
            *(
                "tcpdump",
                "-i",
                "eth0",
                "--immediate-mode",
                "-U",
                "-s",
                "0",
                "-B",
                "8192",
                "-w",
                str(self._file),
            )
        )
        self._tcpdump.wait_for("tcpdump", lambda: "listening" in self._tcpdump.output())

    def stop(self, only: str) -> list[Frame]:
        """The frames of a display filter; also those that the kernel has not yet handed over."""
        self._tcpdump.stop()
        asked = [word for field in FIELDS for word in ("-e", field)]
        checks = [word for check in CHECKS for word in ("-o", f"{check}:TRUE")]
        done = subprocess.run(
            ["tshark", "-r", self._file, "-Y", only, *checks, "-T", "fields", "-E", "occurrence=a", *asked],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        split = [[value.split(",") if value else [] for value in line] for line in lines]
        return [Frame(dict(zip(FIELDS, values, strict=True))) for values in split]
