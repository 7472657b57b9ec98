"""What switches are to hold while nothing changes, all at once; the core keeps it step by step.

```text
 Topology, Tree, ... ─▶ base, flood ─┐
 Path, ... ───────────▶ place, Loads ┴▶ SwitchIntent of each switch
```
"""

from collections.abc import Iterable, Mapping

from tidegate_controller.decide import base, flood
from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.decide.flood import Tree
from tidegate_controller.decide.intent import place, put
from tidegate_controller.decide.marks import Marks
from tidegate_controller.decide.queues import Loads, port_of, queues_of, watched
from tidegate_controller.model.intent import Queue, SwitchIntent
from tidegate_controller.model.paths import Path
from tidegate_controller.model.topology import Port, Topology


def build(
    topology: Topology,
    paths: Iterable[Path],
    marks: Marks,
    trees: Iterable[Tree],
    terms: Iterable[LinkTerms] = (),
) -> dict[str, SwitchIntent]:
    """Returns all of all switches. Broadcast frames begin on the last tree."""
    intents = {switch: SwitchIntent(held) for switch, held in base.rules(topology, marks).items()}
    trees, paths, terms = list(trees), list(paths), list(terms)
    parts = [flood.carry(tree, topology) for tree in trees]
    parts += [flood.begin(tree, topology) for tree in trees[-1:]]
    for part in parts:
        for switch, held in part.items():
            intents[switch].rules |= held
    for path in paths:
        put(intents, place(path, marks))
    for port, rates in queues(terms, paths, marks).items():
        intents.setdefault(port.switch, SwitchIntent()).queues[port.number] = rates
    for port in watched(link.name for link in terms):
        intents.setdefault(port.switch, SwitchIntent()).watched.add(port.number)
    return intents


def queues(
    terms: Iterable[LinkTerms],
    paths: Iterable[Path],
    marks: Marks,
    raised: Mapping[tuple[str, int], int] | None = None,
) -> dict[Port, tuple[Queue, ...]]:
    """Queues of the ports of all links that begin at a switch."""
    by_name = {link.name: link for link in terms}
    loads = Loads(by_name)
    for path in paths:
        loads.add(path)
    ports = {link.name: port_of(link.name) for link in by_name.values()}
    return {
        port: queues_of(by_name[name], loads, marks, raised or {})
        for name, port in ports.items()
        if port is not None
    }
