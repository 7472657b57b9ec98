"""Frames with a VLAN tag, as a plain NIC sends and receives them: bytes in and out of a device.

```text
 Tagged ─▶ send ─▶ packet socket ─▶ device ... device ─▶ packet socket, tag beside it ─▶ heard ─▶ Tagged
```
"""

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from .namespaces import Stack

PORT = 9321
"""UDP port, by which frames of these tests are known."""
ALL, AUXDATA, SOL_PACKET, RCVBUFFORCE = 3, 8, 263, 33
IPV4, TAG = 0x0800, 0x8100


@dataclass(frozen=True, order=True)
class Tagged:
    """A UDP datagram over IPv4, in a frame with a tag."""

    vlan: int
    priority: int
    source: str
    """MAC."""
    target: str
    dscp: int = 0
    number: int = 0
    """Its payload."""

    def encode(self) -> bytes:
        """The frame."""
        addresses = bytes.fromhex((self.target + self.source).replace(":", ""))
        payload = self.number.to_bytes(32)
        udp = struct.pack("!HHHH", PORT, PORT, 8 + len(payload), 0) + payload
        head = struct.pack(
            "!BBHHHBBH4s4s",
            0x45,
            self.dscp << 2,
            20 + len(udp),
            0,
            0,
            64,
            17,
            0,
            bytes([10, 9, 0, 1]),
            bytes([10, 9, 0, 2]),
        )
        total = sum(struct.unpack("!10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
        head = head[:10] + struct.pack("!H", check) + head[12:]
        return addresses + struct.pack("!HHH", TAG, self.priority << 13 | self.vlan, IPV4) + head + udp


def send(stack: Stack, device: str, frames: Iterable[Tagged]) -> None:
    """Send by a device."""

    def sending() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.bind((device, 0))
            for frame in frames:
                sock.send(frame.encode())

    stack.call(sending)


@contextmanager
def listening(stack: Stack, device: str) -> Iterator[Callable[[], list[Tagged]]]:
    """Gives all such frames that came in at a device since; those without a tag have VLAN 0."""

    def opened() -> socket.socket:
        found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
        found.setsockopt(SOL_PACKET, AUXDATA, 1)
        # A test may be away for a while before it reads. Some kernels refuse it in a user namespace.
        with suppress(PermissionError):
            found.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, 8 << 20)
        found.bind((device, 0))
        found.setblocking(False)
        return found

    def heard() -> list[Tagged]:
        found: list[Tagged] = []
        while True:
            try:
                data, auxiliary, _, come_from = sock.recvmsg(2048, 256)
            except BlockingIOError:
                return found
            status, _, _, _, _, tci, _ = struct.unpack("IIIHHHH", auxiliary[0][2])
            is_ours = data[12:14] == IPV4.to_bytes(2) and data[36:38] == PORT.to_bytes(2)
            if come_from[2] == socket.PACKET_OUTGOING or not is_ours:
                continue
            tci = tci if status & 0x10 else 0
            ends = data[6:12].hex(":"), data[:6].hex(":")
            found.append(Tagged(tci & 0xFFF, tci >> 13, *ends, data[15] >> 2, int.from_bytes(data[42:74])))

    sock = stack.call(opened)
    with sock:
        yield heard
