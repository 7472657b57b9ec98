"""Which links of the configuration work, from what the edges tell.

```text
 ports, sessions ─▶ ┌──────┐
 LLDP frames ─────▶ │ Seen │ ─▶ Topology of this moment
 BFD ─────────────▶ └──────┘
```

A link works if LLDP frames have crossed it in both directions, both its ports are up, and BFD did not lose
the other end. LLDP frames go through the controller and both switches: on busy machines they are late, though
the link carries all. So a link whose two ends hear each other by BFD stays, as long as no LLDP frame shows
another cable there; and time counts as silence only while this process listened (`listening.py`). BFD
that has never heard the other end tells nothing: of a link that became silent in one direction while no
controller ran, LLDP tells. A switch without a session goes on to forward, so its links count as before: its
neighbours' BFD tells when they do not. After a restart, links are as they were kept until LLDP had its time
to confirm them. Links that come and go are damped (`damping.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set

from tidegate_controller.decide.leases import Clock
from tidegate_controller.model.topology import Attachment, Link, Port, Topology
from tidegate_controller.openflow.lldp import CONFIRMATIONS, Discovery, is_lldp
from tidegate_controller.runtime.damping import Damping


class Seen:
    """What is known of switches, ports and links. Times are in s."""

    def __init__(
        self,
        switches: Iterable[str],
        links: Iterable[Link],
        hosts: Mapping[str, Attachment],
        discovery: Discovery,
        before: Topology,
    ) -> None:
        """All that is configured, `links` in both directions; `before` is what was kept.

        What is not configured any more is no part of the network, whatever was kept of it.
        """
        self.discovery = discovery
        self.unknown = 0
        """LLDP frames over links that are not configured."""
        self._links = frozenset(links)
        self._ends: dict[str, set[Port]] = defaultdict(set)
        """Ports with links, by switch."""
        for link in self._links:
            self._ends[link.source.switch].add(link.source)
        self._hosts = dict(hosts)
        self._closed = {host.port for host in hosts.values()}
        self._there: dict[str, set[Port]] = {}
        """Ports of each switch that are up."""
        self._switches = set(before.switches) & set(switches)
        self._crossed = set(before.links) & self._links
        self._listened = Clock(0.0, discovery.interval / 2)
        self._since: dict[str, float] = {}
        """When the session of a switch began, by the time that this process listened."""
        self._down: set[Port] = set()
        self._silent: set[Port] = set()
        self._damping = Damping()
        self._fresh = True

    def changed(self, now: float) -> bool:
        """Whether the topology may be another one than the last time that it was asked for."""
        due = self._damping.due
        return self._fresh or (due is not None and now >= due)

    def topology(self, now: float) -> Topology:
        """What works, and counts by now."""
        self._fresh = False
        broken = self._down | self._silent
        up = {
            link
            for link in self._crossed
            if link.back in self._crossed and link.source not in broken and link.target not in broken
        }
        return Topology(set(self._switches), self._damping.take(up, now), dict(self._hosts))

    def attach(self, hosts: Mapping[str, Attachment], now: float) -> None:
        """Takes hosts that are new in the configuration: no LLDP goes to their ports any more."""
        self._fresh = True
        self._hosts |= hosts
        self._closed |= {host.port for host in hosts.values()}
        for switch in {host.port.switch for host in hosts.values()}:
            self._open(switch, now)

    def session(self, switch: str, now: float) -> None:
        """A switch has a session."""
        self._fresh |= switch not in self._switches
        self._switches.add(switch)
        self._since[switch] = self._listened.look(now)

    def no_session(self, switch: str) -> None:
        """A switch has none any more."""
        self._since.pop(switch, None)

    def ports(self, switch: str, up: Mapping[int, bool], now: float) -> None:
        """All ports of a switch, and whether they are up."""
        there = {Port(switch, number) for number, works in up.items() if works}
        others = {port for port in self._down if port.switch != switch}
        down = others | (self._ends.get(switch, set()) - there)
        self._fresh |= down != self._down
        self._down = down
        self._there[switch] = there
        self._open(switch, now)

    def _open(self, switch: str, now: float) -> None:
        """Serves ports with LLDP."""
        open_ports = self._there.get(switch, set()) - self._closed
        self.discovery.set_ports(switch, [port.number for port in open_ports], now)

    def bfd(self, port: Port, hears: bool) -> None:
        """BFD of a port hears the other end, or lost it."""
        if hears == (port in self._silent):
            self._fresh = True
            self._silent ^= {port}

    def frame(self, port: Port, frame: bytes, now: float) -> None:
        """A frame that a switch has sent to the controller."""
        if not is_lldp(frame):
            return
        link = self.discovery.received(port, frame, self._listened.look(now))
        if link is None:
            return
        if link in self._links:
            self._fresh |= link not in self._crossed
            self._crossed.add(link)
        else:
            self.unknown += 1

    def expire(self, now: float, heard: Callable[[], Set[Port]] = frozenset) -> None:
        """Forgets links over which no frame comes, though both switches could send and receive it.

        `heard` are ports where BFD hears the other end now.
        """
        listened = self._listened.look(now)
        self.discovery.expire(listened)
        since = listened - self.discovery.interval * (CONFIRMATIONS + 1)
        able = {switch for switch, began in self._since.items() if began < since}
        confirmed = self.discovery.links
        missing = self._crossed - confirmed
        if not missing:
            return
        ends = heard()
        sources, targets = {link.source for link in confirmed}, {link.target for link in confirmed}

        def stays(link: Link) -> bool:
            if not {link.source.switch, link.target.switch} <= able:
                return True
            replugged = link.source in sources or link.target in targets
            return {link.source, link.target} <= ends and not replugged

        gone = {link for link in missing if not stays(link)}
        self._fresh |= bool(gone)
        self._crossed -= gone
