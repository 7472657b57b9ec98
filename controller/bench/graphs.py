"""Networks to measure with: a fat tree, and a graph like that of a carrier."""

from random import Random

from networks import attached

from tidegate_controller.model.topology import Link, Port, Topology


def fat_tree() -> Topology:
    """4 pods, 20 switches (Al-Fares et al., SIGCOMM 2008, 2.2), two hosts at each edge."""
    topology = Topology({f"s{n}" for n in range(20)})
    ports = [0] * 20

    def join(one: int, other: int) -> None:
        ports[one] += 1
        ports[other] += 1
        link = Link(Port(f"s{one}", ports[one]), Port(f"s{other}", ports[other]))
        topology.links |= {link, link.back}

    for pod in range(4):
        for above in range(2):
            upper = 4 + 2 * pod + above
            for core in range(2):
                join(upper, 2 * above + core)
            for edge in range(2):
                join(12 + 2 * pod + edge, upper)
    for host in range(16):
        topology.hosts[f"h{host}"] = attached(host, Port(f"s{12 + host // 2}", 90 + host % 2))
    return topology


def wan(random: Random, count: int = 50) -> list[tuple[int, int]]:
    """Cables between switches at random places: a ring over near ones, and half as many cables more."""
    places = [(random.random(), random.random()) for _ in range(count)]

    def far(a: int, b: int) -> float:
        return (places[a][0] - places[b][0]) ** 2 + (places[a][1] - places[b][1]) ** 2

    tour, left = [0], set(range(1, count))
    while left:
        tour.append(min((far(tour[-1], n), n) for n in left)[1])
        left.discard(tour[-1])
    ring = [(tour[n - 1], tour[n]) for n in range(count)]
    joined = {frozenset(pair) for pair in ring}
    near = sorted(
        (far(a, b), a, b) for a in range(count) for b in range(a) if frozenset((a, b)) not in joined
    )
    return ring + [(a, b) for _, a, b in near[: count // 2]]
