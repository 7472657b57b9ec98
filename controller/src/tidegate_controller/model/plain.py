"""Plain NICs as the network's rules have them: what is behind each one, and tags of best effort.

```text
 registration of a host ─▶ Behind ─┐
 free VLAN ids ──────────▶ Tagged ─┴▶ rules of best effort
```
"""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Place:
    """A vNIC by what its frames show."""

    vlan: int
    """Its segment, 1 to 4094."""
    mac: str
    """In lower case."""


@dataclass(frozen=True)
class Behind:
    """What is behind the plain NIC of a host."""

    vlans: frozenset[int] = frozenset()
    """VLANs that it carries: the host gets their broadcasts."""
    places: frozenset[Place] = frozenset()
    """vNICs that may send and receive there, in these VLANs."""


NOTHING = Behind()
"""Behind a host without a plain NIC."""


@dataclass(frozen=True, order=True)
class HostTag:
    """What tells frames to a host."""

    host: str
    number: int
    """In the pipeline of the switch by which they come in, 1 to 4094; no frame leaves with it."""
    tag: int
    """VLAN id between switches."""


@dataclass(frozen=True, order=True)
class VlanTag:
    """What tells broadcasts of a VLAN."""

    vlan: int
    tag: int
    """VLAN id between switches."""


@dataclass(frozen=True)
class Tagged:
    """All ids of best effort between plain NICs, each in order."""

    hosts: tuple[HostTag, ...] = ()
    vlans: tuple[VlanTag, ...] = ()

    @property
    def tags(self) -> frozenset[int]:
        """Returns the VLAN ids between switches."""
        return frozenset(one.tag for one in self.hosts) | frozenset(one.tag for one in self.vlans)


NO_TAGS = Tagged()
"""Where there are no plain NICs."""
