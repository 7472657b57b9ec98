"""Saves as changes of records, and records as what was kept; the same for a file and for etcd.

```text
 SavePath ─▶ Put path/NAME, Delete change/NAME ─▶ ┌ key ─▶ JSON ┐ ─▶ kept ─▶ Kept
                                                  └─────────────┘     └ a record that does not parse: Wrong
```

| key | record |
|---|---|
| `network` | topology and tree; without the terms, so that a link that goes writes little |
| `terms` | of all links |
| `tagged` | ids of best effort between plain NICs |
| `behind/HOST` | what is behind the plain NIC of a host |
| `path/NAME`, `change/NAME` | paths, and changes under way |
| `decision/NUMBER` | 12 digits; the last 10,000 |
"""

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate_controller import events as ev
from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.decide.flood import Tree
from tidegate_controller.decide.tags import MOST
from tidegate_controller.model.decisions import Decision
from tidegate_controller.model.paths import EthernetKey, Path, PathRequest, Route
from tidegate_controller.model.plain import NOTHING, Behind, Tagged
from tidegate_controller.model.topology import Topology
from tidegate_controller.runtime.kept import MOST_DECISIONS, Kept, Save
from tidegate_controller.state.codec import Wrong, decode, encode

FORMAT = 1
"""Of keys and records; one more for each change that a controller of before would misread."""
NETWORK, TERMS, TAGGED = "network", "terms", "tagged"
MAC = re.compile("[0-9a-f]{2}(:[0-9a-f]{2}){5}")
BEHIND, PATHS, CHANGES, DECISIONS = "behind/", "path/", "change/", "decision/"


@dataclass(frozen=True)
class Put:
    """Write a record, in the place of the one that was there."""

    key: str
    value: str


@dataclass(frozen=True)
class Delete:
    """Remove the records from `first` on that are before `end`."""

    first: str
    end: str


Operation = Put | Delete


@dataclass(frozen=True)
class _Network:
    """`SaveNetwork` without its terms."""

    topology: Topology
    tree: Tree


@dataclass(frozen=True)
class _Terms:
    links: tuple[LinkTerms, ...]


class Writer:
    """Makes operations of saves; remembers which terms are written already."""

    def __init__(self, terms: tuple[LinkTerms, ...] | None = None) -> None:
        self._terms = terms

    def operations(self, saves: Iterable[Save]) -> list[Operation]:
        """Returns what a transaction is to do. Of several writes of a key the last one is left."""
        found: dict[str, Operation] = {}
        for save in saves:
            for one in self._of(save):
                key = one.key if isinstance(one, Put) else one.first
                found.pop(key, None)
                found[key] = one
        return list(found.values())

    def _of(self, save: Save) -> list[Operation]:
        match save:
            case ev.SaveNetwork(topology, terms, tree):
                done: list[Operation] = [_put(NETWORK, _Network(topology, tree))]
                if terms != self._terms:
                    self._terms = terms
                    done.append(_put(TERMS, _Terms(terms)))
            case ev.SaveBehind(host, behind):
                done = [_delete(BEHIND + host) if behind == NOTHING else _put(BEHIND + host, behind)]
            case ev.SaveTagged(tagged):
                done = [_put(TAGGED, tagged)]
            case ev.SavePath(path):
                name = path.request.name
                done = [_put(PATHS + name, path), _delete(CHANGES + name)]
            case ev.DropPath(name):
                done = [_delete(PATHS + name), _delete(CHANGES + name)]
            case ev.SaveChange():
                done = [_put(CHANGES + save.new.request.name, save)]
            case ev.DropChange(name):
                done = [_delete(CHANGES + name)]
            case ev.SaveDecision(decision):
                done = [_put(_decision(decision.number), decision)]
                if decision.number > MOST_DECISIONS:
                    oldest = _decision(decision.number - MOST_DECISIONS + 1)
                    # One key for all such deletions: the last one of a transaction reaches farthest.
                    done.append(Delete(DECISIONS, oldest))
        return done


def kept(records: Mapping[str, str]) -> Kept:
    """Returns what records say. Raises `Wrong`."""
    found = Kept()
    for key in sorted(records):
        if key not in (NETWORK, TERMS):
            _take(found, key, _read(key, records[key]))
    if NETWORK in records and TERMS in records:
        network = decode(_Network, _read(NETWORK, records[NETWORK]), NETWORK)
        terms = decode(_Terms, _read(TERMS, records[TERMS]), TERMS)
        found.network = ev.SaveNetwork(network.topology, terms.links, network.tree)
    elif NETWORK in records or TERMS in records:
        raise Wrong(f"of `{NETWORK}` and `{TERMS}` one is missing")
    elif found.paths or found.changes:
        raise Wrong(f"there are paths, but no `{NETWORK}`")
    return found


def _take(found: Kept, key: str, value: object) -> None:
    if key.startswith(PATHS):
        path = decode(Path, value, key)
        _check(path, key, PATHS)
        found.paths[path.request.name] = path
    elif key.startswith(CHANGES):
        change = decode(ev.SaveChange, value, key)
        for one in (change.old, change.new):
            if one is not None:
                _check(one, key, CHANGES)
        for wanted in (*change.reserved, *change.narrow):
            _check_request(wanted.request, key)
            for route in wanted.routes:
                _check_route(route, key)
        found.changes[change.new.request.name] = change
    elif key.startswith(BEHIND):
        found.behind[key.removeprefix(BEHIND)] = behind = decode(Behind, value, key)
        _check_behind(behind, key)
    elif key == TAGGED:
        found.tagged = decode(Tagged, value, key)
        _check_tagged(found.tagged, key)
    elif key.startswith(DECISIONS):
        decision = decode(Decision, value, key)
        if key != _decision(decision.number):
            raise Wrong(f"{key}: is of decision {decision.number}")
        found.decisions.append(decision)
    else:
        raise Wrong(f"{key[:60]}: no such record is known")


def _put(key: str, value: object) -> Put:
    return Put(key, json.dumps(encode(value), separators=(",", ":"), ensure_ascii=False))


def _delete(key: str) -> Delete:
    return Delete(key, key + "\0")


def _decision(number: int) -> str:
    return f"{DECISIONS}{number:012d}"


def _read(key: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{key[:200]}: {error}") from None


def _check(path: Path, key: str, kind: str) -> None:
    """Raises `Wrong` for values that no controller has written."""
    if kind + path.request.name != key:
        raise Wrong(f"{key}: is of path {path.request.name[:60]!r}")
    _check_request(path.request, key)
    _within(key, "tag", path.tag, 1, MOST)
    _within(key, "generation", path.generation, 1)
    _within(key, "number", path.number, 1, 0xFFFF_FFFF)
    _within(key, "bound", path.bound, 0)
    _within(key, "far_burst", path.far_burst, 0)
    for route in (path.route, path.backup):
        if route is not None:
            _check_route(route, key)


def _check_request(request: PathRequest, key: str) -> None:
    _within(key, "dscp", request.dscp, 0, 63)
    for name in ("rate", "burst", "smallest_frame", "largest_frame"):
        _within(key, name, getattr(request, name), 1)
    _within(key, "budget", request.budget, 0)
    flow = request.key
    if isinstance(flow, EthernetKey):
        _within(key, "vlan", flow.vlan, 1, MOST)
        _within(key, "priority", flow.priority, 1, 7)
        for mac in (flow.source_mac, flow.target_mac):
            _check_mac(mac, key)
        return
    for name in ("source_port", "target_port"):
        _within(key, name, getattr(flow, name), 1, 0xFFFF)
    for address in (flow.source, flow.target):
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise Wrong(f"{key}: {error}") from None


def _check_mac(mac: str, key: str) -> None:
    if MAC.fullmatch(mac) is None:
        raise Wrong(f"{key}: {mac[:60]!r} is no MAC in lower case")


def _check_behind(behind: Behind, key: str) -> None:
    """Raises `Wrong` for what no controller has written."""
    for vlan in behind.vlans:
        _within(key, "vlan", vlan, 1, MOST)
    for place in behind.places:
        _check_mac(place.mac, key)
        if place.vlan not in behind.vlans:
            raise Wrong(f"{key}: a vNIC is in VLAN {place.vlan}, which the host does not have")


def _check_tagged(tagged: Tagged, key: str) -> None:
    ids = [number for one in tagged.hosts for number in (one.number, one.tag)]
    ids += [number for one in tagged.vlans for number in (one.vlan, one.tag)]
    for number in ids:
        _within(key, "id", number, 1, MOST)
    hosts, numbers = {one.host for one in tagged.hosts}, {one.number for one in tagged.hosts}
    alone = len(hosts) == len(numbers) == len(tagged.hosts)
    if not alone or len({one.vlan for one in tagged.vlans}) < len(tagged.vlans):
        raise Wrong(f"{key}: a host, a number or a VLAN is there twice")


def _check_route(route: Route, key: str) -> None:
    _within(key, "level", route.level, 0, 6)
    _within(key, "links", len(route.links), 2)


def _within(key: str, name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        raise Wrong(f"{key}: {name} is {value}; {least} {f'to {most}' if most else 'or more'} was expected")
