"""Which refusals have a record of their own, so that one host's pushes no other decision out.

```text
 refusal ─▶ the same one within the hold time? ─▶ counted
         ─▶ of a host: has it a token? ─ no ────▶ counted
                                       └ yes ──▶ a decision, with the number of those that were counted
```

A host has tokens for a burst of refusals, then one per hold time. An operator's are all recorded, but for
equal ones. Time is an argument.
"""

from collections import OrderedDict
from dataclasses import dataclass

BURST = 20
"""Refusals of one host that are recorded at once."""
MOST = 4096
"""Refusals that are remembered; beyond, the oldest is forgotten."""

Refusal = tuple[str, str, str, tuple[str, ...]]
"""Host, path, cause, reasons."""


@dataclass
class _Host:
    left: float = BURST
    at: float = 0.0
    counted: int = 0


class Refusals:
    """Of all hosts."""

    def __init__(self, hold: float) -> None:
        """`hold` in s."""
        self._hold = hold
        self._seen: OrderedDict[Refusal, float] = OrderedDict()
        self._hosts: dict[str, _Host] = {}
        self.counted = 0
        """All that have no record."""

    def tell(self, host: str, path: str, cause: str, reasons: tuple[str, ...], now: float) -> int | None:
        """Takes a refusal; `host` is empty for one of an operator.

        Returns how many of the host were counted since its last record, or `None`: it is counted, too.
        """
        one = self._hosts.setdefault(host, _Host(at=now))
        refusal = (host, path, cause, reasons)
        before = self._seen.get(refusal)
        equal = before is not None and now < before + self._hold
        if host:
            one.left = min(BURST, one.left + max(0.0, now - one.at) / self._hold)
            one.at = max(one.at, now)
        if equal or one.left < 1:
            one.counted += 1
            self.counted += 1
            return None
        if host:
            one.left -= 1
        self._seen[refusal] = now
        self._seen.move_to_end(refusal)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)
        found, one.counted = one.counted, 0
        return found
