"""How much each client may ask: token buckets, and requests that are open.

```text
 identity ─▶ requests/s, bytes/s, open requests ─▶ taken, or s until it may ask again
```

Time is an argument. Unknown clients share one account.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Bucket:
    """Tokens come at a rate, up to a burst."""

    rate: float
    burst: float
    _left: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, count: float, now: float) -> float:
        """Takes tokens. Returns 0, or the s until there are so many; beyond the burst: until it is full."""
        count = min(count, self.burst)
        self._fill(now)
        if self._left >= count:
            self._left -= count
            return 0.0
        return (count - self._left) / self.rate

    def owe(self, count: float, now: float) -> None:
        """Takes tokens for something that is done already, also those that are not there: at most a burst."""
        self._fill(now)
        self._left = max(-self.burst, self._left - count)

    def give(self, count: float) -> None:
        """Gives tokens back."""
        self._left = min(self.burst, self._left + count)

    def _fill(self, now: float) -> None:
        self._left = min(self.burst, self._left + max(0.0, now - self._at) * self.rate)
        self._at = max(self._at, now)


@dataclass(frozen=True)
class Limits:
    """Of one client."""

    rate: float
    """Requests/s."""
    burst: float
    bytes: float = 1 << 20
    """Of bodies, and a part of those of answers, per s."""
    bytes_burst: float = 4 << 20
    open: int = 8
    """Requests at one time, of those that wait for switches or news in places of their own."""


HOST = Limits(50, 200)
OPERATOR = Limits(100, 400, open=32)
UNKNOWN = Limits(20, 100, bytes=16 << 10, bytes_burst=64 << 10, open=16)


@dataclass
class Account:
    """What one client has left."""

    limits: Limits
    time: Callable[[], float] = field(repr=False)
    requests: Bucket = field(init=False)
    bytes: Bucket = field(init=False)
    open: Counter[str] = field(init=False, default_factory=Counter)
    """Requests, by the places that they take."""

    def __post_init__(self) -> None:
        self.requests = Bucket(self.limits.rate, self.limits.burst)
        self.bytes = Bucket(self.limits.bytes, self.limits.bytes_burst)

    def owe(self, tokens: float) -> None:
        """Takes tokens for what a request costs beyond the usual."""
        self.requests.owe(tokens, self.time())
