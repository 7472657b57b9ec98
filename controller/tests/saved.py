"""Saves for property tests (hypothesis), as a core may make them, and as it never would."""

from hypothesis import strategies as st

from tidegate_controller import events as ev
from tidegate_controller.decide.admission import Level, LinkTerms, Wanted
from tidegate_controller.decide.flood import Tree
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import EthernetKey, FlowKey, Path, PathRequest, PathState, Route
from tidegate_controller.model.plain import Behind, HostTag, Place, Tagged, VlanTag
from tidegate_controller.model.topology import Attachment, Link, Port, Topology
from tidegate_controller.runtime.kept import Save

names = st.sampled_from(["v>h1", "w>h2", "a/b>c", "é>\x00'", "%"])
sizes = st.integers(1, 10**12)
times = st.integers(0, 10**15)
ports = st.integers(1, 0xFFFF)
labels = st.sampled_from(["s1:1>s2:1", "h1>s1:2", "s2:2>h2"])
macs = st.sampled_from(["02:00:00:00:00:0a", "02:00:00:00:00:0b"])
keys = st.builds(
    FlowKey, st.just("10.0.0.1"), st.sampled_from(["10.0.0.2", "fd00::2"]), ports, ports
) | st.builds(EthernetKey, st.integers(1, 4094), st.integers(1, 7), macs, macs)
requests = st.builds(
    PathRequest, names, labels, labels, keys, st.integers(0, 63), sizes, sizes, sizes, sizes, times
)
routes = st.builds(Route, st.lists(labels, min_size=2, max_size=4).map(tuple), st.integers(0, 6))
paths = st.builds(
    Path,
    requests,
    routes,
    st.integers(1, 1000),
    st.integers(1, 4094),
    times,
    sizes,
    st.sampled_from(PathState),
    st.integers(1, 0xFFFF_FFFF),
    st.none() | routes,
)
wanted = st.builds(Wanted, names, requests, st.lists(routes, max_size=2))
many_wanted = st.lists(wanted, max_size=2).map(tuple)
switch_ports = st.builds(Port, st.sampled_from(["s1", "s2"]), st.integers(1, 9))
links = st.frozensets(st.builds(Link, switch_ports, switch_ports), max_size=4)
hosts = st.dictionaries(
    st.sampled_from(["h1", "h2"]),
    st.builds(Attachment, st.just("h1"), switch_ports, st.just("10.0.0.1"), st.just("02:00:00:00:00:01")),
)
topologies = st.builds(Topology, st.sets(st.sampled_from(["s1", "s2"])), links.map(set), hosts)
levels = st.lists(st.builds(Level, times, sizes, st.booleans()), max_size=2).map(tuple)
terms = st.builds(LinkTerms, labels, labels, labels, sizes, sizes, levels, sizes, times)
trees = st.builds(Tree, st.integers(1, 4094), links)
vlan_ids = st.integers(1, 4094)
places = st.frozensets(st.builds(Place, vlan_ids, macs), max_size=3)
behind = places.map(lambda found: Behind(frozenset(place.vlan for place in found), found))
tagged = st.builds(
    Tagged,
    st.lists(vlan_ids, max_size=2, unique=True).map(
        lambda found: tuple(HostTag(f"h{number}", number, number) for number in found)
    ),
    st.lists(vlan_ids, max_size=2, unique=True).map(
        lambda found: tuple(VlanTag(number, number) for number in found)
    ),
)
networks = st.builds(ev.SaveNetwork, topologies, st.lists(terms, max_size=2).map(tuple), trees)
changes = st.builds(ev.SaveChange, st.none() | paths, paths, many_wanted, many_wanted, st.frozensets(names))
texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3).map(tuple)
decisions = st.builds(
    Decision,
    st.just(0),
    st.floats(0, 1e12),
    names,
    st.just("a miss"),
    st.sampled_from(Verdict),
    texts,
)


@st.composite
def sequences(draw: st.DrawFn) -> list[Save]:
    """Saves in a row: the network first, decisions with numbers that count."""
    found: list[Save] = [draw(networks)]
    number = draw(st.sampled_from([0, 9_990, 123_456]))
    for _ in range(draw(st.integers(0, 12))):
        one: Save | Decision = draw(
            st.one_of(
                paths.map(ev.SavePath),
                names.map(ev.DropPath),
                changes.map(_of_one_path),
                names.map(ev.DropChange),
                networks,
                st.builds(ev.SaveBehind, labels.map(lambda label: label[:2]), behind),
                tagged.map(ev.SaveTagged),
                decisions,
            )
        )
        if isinstance(one, Decision):
            number += 1
            one = ev.SaveDecision(Decision(number, one.time, one.path, one.cause, one.verdict, one.reasons))
        found.append(one)
    return found


def _of_one_path(change: ev.SaveChange) -> ev.SaveChange:
    """Old and new are generations of the same path."""
    if change.old is None:
        return change
    return ev.SaveChange(change.new, change.new, change.reserved, change.narrow, change.freed)
