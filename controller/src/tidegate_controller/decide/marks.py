"""Marks of levels, cookies, and the order of rules within a table.

```text
 level of a path ─▶ Marks ─▶ DSCP on every link ─▶ number of the queue
```
"""

from dataclasses import dataclass
from enum import IntEnum

from tidegate_controller.model.intent import MOST_LEVELS, OURS, OURS_MASK, queue_of

IPV4, ARP, IPV6, LLDP = 0x0800, 0x0806, 0x86DD, 0x88CC
"""EtherTypes (IEEE 802 numbers)."""
UDP, ICMPV6 = 17, 58
"""Protocols (IANA)."""
BROADCAST = "ff:ff:ff:ff:ff:ff"


class Priority(IntEnum):
    """Of rules; a higher one is asked first. Values leave room for rules of people."""

    HOST_LLDP = 900
    LLDP = 800
    PATH = 700
    CLEAR = 600
    HOST = 500
    LINK = 400
    UNICAST = 300
    BROADCAST = 230
    ARP = 220
    NEIGHBOUR = 210
    MARK = 200
    DEFAULT = 100


@dataclass(frozen=True)
class Marks:
    """The DSCP of each level, the most urgent first; all different, none 0."""

    levels: tuple[int, ...] = (46, 34)

    def __post_init__(self) -> None:
        if not 0 < len(self.levels) <= MOST_LEVELS:
            raise ValueError(f"marks {self.levels}: there are 1 to {MOST_LEVELS} levels")
        if len(set(self.levels)) != len(self.levels) or not all(0 < mark < 64 for mark in self.levels):
            raise ValueError(f"marks {self.levels}: each level needs a DSCP of its own, 1 to 63")

    def queue(self, level: int) -> int:
        """The number of a level's queue."""
        return queue_of(level)


def cookie(path: int) -> int:
    """The cookie of a path's rules; 0: of rules of no path."""
    return OURS | path


def path_of(cookie: int) -> int | None:
    """The number of the path that a rule belongs to; 0: none. `None` if the rule is not ours."""
    return cookie & ~OURS_MASK if cookie & OURS_MASK == OURS else None


def ethertype(address: str) -> int:
    """Of an address by its text."""
    return IPV6 if ":" in address else IPV4
