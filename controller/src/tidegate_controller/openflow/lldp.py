"""Which ports are joined by a link: LLDP frames (IEEE 802.1AB) that only this process can make.

```text
 due(now) ─▶ (port, frame), ... ─ sent by the caller, out of each port ─▶ switch ══ link ══ switch ─ packet_in
                                                                                                        │
 links: confirmed within 3 intervals ◀── Link(source, target) ◀── received(port, frame, now) ◀──────────┘
```

Guests can send LLDP frames, too. Ours end with a tag (HMAC-SHA-256, RFC 2104) over all that is before it, so
a frame without this process's key is told by its tag, and its content is not read. The frames have a number,
and only the last few of a port count, so one that was recorded is of no use later.

A tag does not tell where a frame was carried: a guest that *receives* our frames could have another guest
send them at once. So frames are not sent out of ports that the caller knows to be hosts', and a second
target of one port does not replace a link as long as that is confirmed.
"""

import hmac
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from heapq import heappop, heappush

from tidegate_controller.model.intent import LLDP
from tidegate_controller.model.topology import Link, Port

MULTICAST = bytes.fromhex("0180c200000e")
"""Nearest bridge: standard switches do not forward frames to it."""
OUR_OUI = bytes.fromhex("027467")
"""Locally administered: no organisation has it."""
TAG = 32
CONFIRMATIONS = 3
"""Intervals after which a link without a confirmation is gone, and numbers of a port that count."""
LONGEST_NAME = 200

_ETHERNET = struct.Struct("!6s6sH")
_TLV = struct.Struct("!H")
_CHASSIS, _PORT, _TTL, _ORGANISATION = 1, 2, 3, 127
_LOCALLY_ASSIGNED = b"\x07"
_NUMBERED = struct.Struct("!3sBQ")


def is_lldp(frame: bytes) -> bool:
    """Returns whether a frame is LLDP, ours or another's."""
    return frame[12:14] == LLDP.to_bytes(2)


def _tlv(kind: int, content: bytes) -> bytes:
    return _TLV.pack(kind << 9 | len(content)) + content


@dataclass(order=True)
class _Sender:
    """A port out of which frames are sent; one that came back may be due together with the one before."""

    sequence: int = 0


@dataclass
class _Confirmed:
    """A link, and when a frame last came over it."""

    link: Link
    when: float


class Discovery:
    """Makes and checks frames, and keeps the links that they show. The caller has clock (s) and sockets."""

    def __init__(self, interval: float = 1.0, key: bytes | None = None) -> None:
        self.interval = interval
        self.forged = 0
        """LLDP frames without our tag, or with an old number."""
        self.contested = 0
        """Frames over which a port would have had a second link."""
        self._key = key or secrets.token_bytes(32)
        self._senders: dict[Port, _Sender] = {}
        self._due: list[tuple[float, Port, _Sender]] = []
        self._confirmed: dict[Port, _Confirmed] = {}
        """By the source."""

    @property
    def links(self) -> set[Link]:
        """The links that are confirmed."""
        return {confirmed.link for confirmed in self._confirmed.values()}

    def set_ports(self, switch: str, ports: Iterable[int], now: float) -> set[Link]:
        """Names all ports of a switch that are up and not hosts'; returns links that end with the others."""
        if len(switch.encode()) > LONGEST_NAME:
            raise ValueError(f"the name {switch} has more than {LONGEST_NAME} bytes")
        wanted = {Port(switch, number) for number in ports}
        known = {port for port in self._senders if port.switch == switch}
        for port in known - wanted:
            del self._senders[port]
        for port in sorted(wanted - known):
            self._senders[port] = sender = _Sender()
            heappush(self._due, (now, port, sender))
        gone = {link for link in self.links if {link.source, link.target} & (known - wanted)}
        for link in gone:
            del self._confirmed[link.source]
        return gone

    def due(self, now: float) -> list[tuple[Port, bytes]]:
        """Returns the frames that are to be sent now, and out of which ports."""
        frames = []
        while self._due and self._due[0][0] <= now:
            _, port, sender = heappop(self._due)
            # A port that went and came back has another sender.
            if self._senders.get(port) is sender:
                sender.sequence += 1
                frames.append((port, self._frame(port, sender.sequence)))
                heappush(self._due, (now + self.interval, port, sender))
        return frames

    def _frame(self, port: Port, sequence: int) -> bytes:
        body = _ETHERNET.pack(MULTICAST, OUR_OUI + port.number.to_bytes(4)[1:], LLDP)
        body += _tlv(_CHASSIS, _LOCALLY_ASSIGNED + port.switch.encode())
        body += _tlv(_PORT, _LOCALLY_ASSIGNED + str(port.number).encode())
        body += _tlv(_TTL, max(1, round(self.interval * CONFIRMATIONS)).to_bytes(2))
        numbered = _NUMBERED.pack(OUR_OUI, 1, sequence)
        body += _TLV.pack(_ORGANISATION << 9 | len(numbered) + TAG) + numbered
        return body + self._tag(body) + _tlv(0, b"")

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, sha256)

    def received(self, target: Port, frame: bytes, now: float) -> Link | None:
        """Takes in an LLDP frame that came in at a port; returns the link that it shows."""
        source = self._source(frame)
        if source is None or target not in self._senders or source == target:
            self.forged += 1
            return None
        link = Link(source, target)
        known = self._confirmed.get(source)
        if known is not None and known.link != link and now - known.when <= self.interval * CONFIRMATIONS:
            self.contested += 1
            return None
        self._confirmed[source] = _Confirmed(link, now)
        return link

    def _source(self, frame: bytes) -> Port | None:
        """Returns the port out of which this process sent the frame lately."""
        # Switches may pad frames; ours are longer than the least of Ethernet, so nothing is added to them.
        body, tag = frame[: -TAG - 2], frame[-TAG - 2 : -2]
        if not is_lldp(frame) or not hmac.compare_digest(self._tag(body), tag):
            return None
        at, found = _ETHERNET.size, []
        for _ in range(4):
            size = _TLV.unpack_from(body, at)[0] & 0x1FF
            found.append(body[at + 2 : at + 2 + size])
            at += 2 + size
        chassis, number, _, numbered = found
        port = Port(chassis[1:].decode(), int(number[1:]))
        sender = self._senders.get(port)
        _, _, sequence = _NUMBERED.unpack(numbered[: _NUMBERED.size])
        if sender is None or not sender.sequence - CONFIRMATIONS < sequence <= sender.sequence:
            return None
        return port

    def expire(self, now: float) -> set[Link]:
        """Returns the links without a confirmation for 3 intervals, and forgets them."""
        latest = now - self.interval * CONFIRMATIONS
        gone = {confirmed.link for confirmed in self._confirmed.values() if confirmed.when < latest}
        for link in gone:
            del self._confirmed[link.source]
        return gone
