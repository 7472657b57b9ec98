"""Which links of the configuration work, from what the edges tell.

```text
 ports, sessions ─▶ ┌──────┐
 LLDP frames ─────▶ │ Seen │ ─▶ Topology of this moment
 BFD ─────────────▶ └──────┘
```

A link works if LLDP frames have crossed it in both directions, both its ports are up, and BFD did not lose
the other end. BFD that has never heard the other end tells nothing: of a link that became silent in one
direction while no controller ran, LLDP tells. A switch without a session goes on to forward, so its links
count as before: its neighbours' BFD tells when they do not. After a restart, links are as they were kept
until LLDP had its time to confirm them.
"""

from collections.abc import Iterable, Mapping

from tidegate_controller.model.topology import Attachment, Link, Port, Topology
from tidegate_controller.openflow.lldp import CONFIRMATIONS, Discovery, is_lldp


class Seen:
    """What is known of switches, ports and links. Times are in s."""

    def __init__(
        self, links: Iterable[Link], hosts: Mapping[str, Attachment], discovery: Discovery, before: Topology
    ) -> None:
        """`links` are both directions of all that are configured; `before` is what was kept."""
        self.discovery = discovery
        self.unknown = 0
        """LLDP frames over links that are not configured."""
        self._links = frozenset(links)
        self._hosts = dict(hosts)
        self._closed = {host.port for host in hosts.values()}
        self._there: dict[str, set[Port]] = {}
        """Ports of each switch that are up."""
        self._switches = set(before.switches)
        self._crossed = set(before.links) & self._links
        self._since: dict[str, float] = {}
        """When the session of a switch began."""
        self._down: set[Port] = set()
        self._silent: set[Port] = set()

    def topology(self) -> Topology:
        """What works."""
        broken = self._down | self._silent
        up = {
            link
            for link in self._crossed
            if link.back in self._crossed and broken.isdisjoint((link.source, link.target))
        }
        return Topology(set(self._switches), up, dict(self._hosts))

    def attach(self, hosts: Mapping[str, Attachment], now: float) -> None:
        """Takes hosts that are new in the configuration: no LLDP goes to their ports any more."""
        self._hosts |= hosts
        self._closed |= {host.port for host in hosts.values()}
        for switch in {host.port.switch for host in hosts.values()}:
            self._open(switch, now)

    def session(self, switch: str, now: float) -> None:
        """A switch has a session."""
        self._switches.add(switch)
        self._since[switch] = now

    def no_session(self, switch: str) -> None:
        """A switch has none any more."""
        self._since.pop(switch, None)

    def ports(self, switch: str, up: Mapping[int, bool], now: float) -> None:
        """All ports of a switch, and whether they are up."""
        known = {end for link in self._links for end in (link.source, link.target) if end.switch == switch}
        there = {Port(switch, number) for number, works in up.items() if works}
        self._down = {port for port in self._down if port.switch != switch} | (known - there)
        self._there[switch] = there
        self._open(switch, now)

    def _open(self, switch: str, now: float) -> None:
        """Serves ports with LLDP."""
        open_ports = self._there.get(switch, set()) - self._closed
        self.discovery.set_ports(switch, [port.number for port in open_ports], now)

    def bfd(self, port: Port, hears: bool) -> None:
        """BFD of a port hears the other end, or lost it."""
        if hears:
            self._silent.discard(port)
        else:
            self._silent.add(port)

    def frame(self, port: Port, frame: bytes, now: float) -> None:
        """A frame that a switch has sent to the controller."""
        if not is_lldp(frame):
            return
        link = self.discovery.received(port, frame, now)
        if link is None:
            return
        if link in self._links:
            self._crossed.add(link)
        else:
            self.unknown += 1

    def expire(self, now: float) -> None:
        """Forgets links over which no frame comes, though both switches could send and receive it."""
        self.discovery.expire(now)
        since = now - self.discovery.interval * (CONFIRMATIONS + 1)
        able = {switch for switch, began in self._since.items() if began < since}
        self._crossed = {
            link
            for link in self._crossed
            if link in self.discovery.links or not {link.source.switch, link.target.switch} <= able
        }
