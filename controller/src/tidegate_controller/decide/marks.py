"""Marks of levels, cookies, and the order of rules within a table.

```text
 level of a path ─┬▶ Marks ─▶ DSCP on every link ─────────────────┬▶ number of the queue
                  └▶ of plain NICs: priority in the tag (PCP) ────┘
```

A path of a plain NIC is marked in the tag, which all of its frames have: the DSCP is the guest's, and not all
frames are IP.
"""

from dataclasses import dataclass
from enum import IntEnum

from tidegate_controller.model.intent import IPV4, IPV6, MOST_LEVELS, OURS, queue_of

ICMPV6 = 58
"""Protocol (IANA)."""
BROADCAST = "ff:ff:ff:ff:ff:ff"
RESERVED = tuple(f"01:80:c2:00:00:{last:02x}" for last in range(16))
"""Groups of frames that no bridge forwards (IEEE 802.1Q, 8.6.3)."""


class Priority(IntEnum):
    """Of rules; a higher one is asked first. Values leave room for rules of people."""

    HOST_LLDP = 900
    LLDP = 800
    PATH = 700
    CLEAR = 600
    HOST = 500
    LINK = 400
    RESERVED = 310
    UNICAST = 300
    BROADCAST = 230
    ARP = 220
    NEIGHBOUR = 210
    TAG_MARK = 205
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
        """Returns the number of a level's queue."""
        return queue_of(level)


def priority_of(level: int) -> int:
    """Returns the priority in the tag (PCP) of a level, 7 for the most urgent one; 0 is of no level."""
    return MOST_LEVELS - level


def cookie(path: int) -> int:
    """Returns the cookie of a path's rules; 0: of rules of no path."""
    return OURS | path


def ethertype(address: str) -> int:
    """Returns the EtherType of frames with this address."""
    return IPV6 if ":" in address else IPV4
