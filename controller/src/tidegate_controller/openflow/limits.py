"""What one switch may take of the controller, and how often an event may happen.

```text
 packet_in ─▶ Allowance of its port ─▶ Allowance of its switch ─▶ event        (else dropped and counted)
```
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one session; sizes in bytes, times in seconds, rates in 1/s."""

    outbox: int = 1 << 20
    """Bytes that may wait for the switch to read them."""
    outstanding: int = 16
    """Barriers that may be without answer; there are at most `CHUNK` changes before each."""
    answer: float = 10.0
    """Time in which the switch has to answer something while answers are due."""
    whole: float = 20.0
    """Time in which all parts of one answer have to come."""
    echo: float = 5.0
    """After so much silence the switch is asked for an echo."""
    handshake: float = 5.0
    """Time from the connection to the description of ports."""
    ports: int = 1024
    reply: int = 16 << 20
    """Bytes of one answer in parts."""
    port_reports: float = 1.0
    """Changes of ports that are told on without delay; ports that come and go cost the network's trees."""
    port_packets: float = 20.0
    """Frames from one port to the controller; as many at once. A flood leaves room for other ports' LLDP."""
    switch_packets: float = 1000.0
    """Frames from all ports of a switch to the controller; as many at once."""


class Allowance:
    """A token bucket of events."""

    def __init__(self, rate: float, burst: float | None = None) -> None:
        """`rate` events a second, and `burst` at once; as many as in a second if not given."""
        self._rate = rate
        self._tokens = self._burst = rate if burst is None else burst
        self._last: float | None = None

    def take(self, now: float) -> bool:
        """Returns whether an event may happen now; `now` never goes back."""
        if self._last is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate)
        self._last = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
