"""Switches, ports, links and hosts, as seen.

```text
 host a ─(uplink)─ port 1 ┌ s1 ┐ port 2 ══ link ══ port 1 ┌ s2 ┐ port 2 ─ host b
```

A link has two directions, each with its own capacity and state. A switch has the name of its configuration,
else its datapath id in hexadecimal.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Port:
    """A port of a switch."""

    switch: str
    number: int

    def __str__(self) -> str:
        return f"{self.switch}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Port":
        """Reads the text of a port. Raises `ValueError`."""
        switch, _, number = text.rpartition(":")
        return cls(switch, int(number))


@dataclass(frozen=True, order=True)
class Link:
    """One direction between two ports; its name is that of the arithmetic, too."""

    source: Port
    target: Port

    @property
    def name(self) -> str:
        """Such as `s1:2>s2:1`."""
        return f"{self.source}>{self.target}"

    @property
    def back(self) -> "Link":
        """The other direction."""
        return Link(self.target, self.source)


@dataclass(frozen=True, order=True)
class Attachment:
    """Where a host's uplink is plugged in, and the address of its outer frames."""

    host: str
    port: Port
    address: str
    mac: str

    @property
    def to_host(self) -> str:
        """The name of the direction towards the host, in the arithmetic."""
        return f"{self.port}>{self.host}"

    @property
    def to_switch(self) -> str:
        """The name of the direction from the host."""
        return f"{self.host}>{self.port}"


@dataclass
class Topology:
    """Switches, links and hosts of this moment."""

    switches: set[str] = field(default_factory=set)
    links: set[Link] = field(default_factory=set)
    """Directions that work."""
    hosts: dict[str, Attachment] = field(default_factory=dict)

    def leaving(self, switch: str) -> list[Link]:
        """Directions that begin at a switch, in order."""
        return sorted(link for link in self.links if link.source.switch == switch)
