"""Networks for tests: topologies, terms of their links, requests."""

from hypothesis import strategies as st

from tidegate_controller.decide.admission import Level, LinkTerms
from tidegate_controller.model.paths import FlowKey, PathRequest
from tidegate_controller.model.topology import Attachment, Link, Port, Topology

MBIT = 1_000_000
LEVELS = (Level(200_000, 5000), Level(2_000_000, 5000))


def network(count: int, cables: list[tuple[int, int]]) -> Topology:
    """Switches `s0`... with a host `h0`... each at port 99, and cables between them, parallel ones too."""
    topology = Topology({f"s{n}" for n in range(count)})
    ports = [0] * count
    for a, b in cables:
        ports[a] += 1
        ports[b] += 1
        link = Link(Port(f"s{a}", ports[a]), Port(f"s{b}", ports[b]))
        topology.links |= {link, link.back}
    for n in range(count):
        topology.hosts[f"h{n}"] = attached(n, Port(f"s{n}", 99))
    return topology


def attached(n: int, port: Port) -> Attachment:
    """Host number `n` at a port."""
    return Attachment(f"h{n}", port, f"10.0.0.{n}", f"52:54:00:00:00:{n:02x}")


def ring(count: int) -> Topology:
    """A ring of switches; host N at switch N."""
    return network(count, [(n, (n + 1) % count) for n in range(count)])


@st.composite
def networks(draw: st.DrawFn, least: int = 2) -> Topology:
    """A connected network of up to 6 switches, with circles and parallel cables."""
    count = draw(st.integers(least, 6))
    cables = [(draw(st.integers(0, n - 1)), n) for n in range(1, count)]
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(
        lambda pair: pair[0] != pair[1]
    )
    return network(count, cables + draw(st.lists(ends, max_size=5)))


def terms(topology: Topology, levels: tuple[Level, ...] = LEVELS) -> list[LinkTerms]:
    """Two levels; 1 Gbit/s between switches, 4 Gbit/s to hosts."""
    between = [
        LinkTerms(link.name, link.source.switch, link.target.switch, 1000 * MBIT, 500 * MBIT, levels)
        for link in sorted(topology.links)
    ]
    for host in topology.hosts.values():
        ends = (host.to_switch, host.host, host.port.switch), (host.to_host, host.port.switch, host.host)
        between += [LinkTerms(*end, 4000 * MBIT, 2000 * MBIT, levels) for end in ends]
    return between


def request(
    name: str = "v",
    source: int = 0,
    target: int = 2,
    rate: int = MBIT,
    budget: int = 10**9,
    port: int = 50_000,
) -> PathRequest:
    """A path between hosts by number."""
    key = FlowKey(f"10.0.0.{source}", f"10.0.0.{target}", port)
    return PathRequest(
        f"h{source}/{name}>r", f"h{source}", f"h{target}", key, 40, rate, 4000, 110, 1000, budget
    )
