"""What has to change in a database, so that the ports of a switch have the queues that are wanted. Pure.

```text
 wanted: Queue, ... by port ─┐
                             ├─▶ plan ─▶ Change (operations of RFC 7047, 5.2), and what is left alone
 View: rows as they are ─────┘
```

Rows that are nearly right are changed in place: with a new QoS row, Open vSwitch would make the HTB anew and
drop all frames in its queues. A QoS that another program has given to a port is left alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate_controller.model.intent import Queue

from .rows import BFD_MARK, MARK, BridgeRow, PortRow, View, shown

KIND = "linux-htb"
"""The type of our QoS rows."""
BFD_INTERVAL = 50
"""ms between two frames, where nothing else is said."""
MOST_QUEUES = 64
"""Queues of one port."""
MOST_DELETED = 200
"""Rows that one change deletes."""
LAST_PRIORITY = 7
"""Linux gives a higher number this one (TC_HTB_NUMPRIO)."""
LEAST_RATE = 12_000
"""bit/s: Open vSwitch sets no lower minimum."""

Operation = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """Operations that belong together, and what they do, for people."""

    text: str
    operations: tuple[Operation, ...]


@dataclass
class Plan:
    """Changes, and ports that do not get their queues."""

    changes: list[Change] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    """Why, by port."""


def bfd_of(interval: int) -> dict[str, str]:
    """Returns the columns of BFD: a frame each `interval` ms in both directions.

    Three that are missing are a failure (RFC 5880, 6.8.4).
    """
    return {"enable": "true", "min_rx": str(interval), "min_tx": str(interval), "mult": "3"}


def check(queues: Iterable[Queue]) -> None:
    """Raises `ValueError` for queues that no port can have.

    Minima beyond the rate of the port are allowed: the last priorities lack what is too much.
    """
    numbers = [queue.number for queue in queues]
    if len(numbers) > MOST_QUEUES or len(set(numbers)) < len(numbers):
        raise ValueError(f"queues {numbers}: at most {MOST_QUEUES}, each number once")
    for queue in queues:
        rates = LEAST_RATE <= queue.minimum <= queue.maximum
        if not rates or queue.burst < 1 or not 0 <= queue.priority <= LAST_PRIORITY:
            raise ValueError(
                f"{queue}: {LEAST_RATE} <= minimum <= maximum, a burst, priority 0 to {LAST_PRIORITY}"
            )


def rate_of(queues: Iterable[Queue]) -> int:
    """Returns the rate of the port, bit/s."""
    return max((queue.maximum for queue in queues), default=0)


def plan(
    wanted: Mapping[int, tuple[Queue, ...]],
    watched: Iterable[int],
    bridge: BridgeRow,
    view: View,
    interval: int = BFD_INTERVAL,
) -> Plan:
    """Returns what has to change at a switch; queues and BFD of ours that are not wanted are removed.

    `interval` is that of BFD at watched ports, ms.
    """
    found, watch, bfd = Plan(), set(watched), bfd_of(interval)
    for number in sorted(wanted.keys() - bridge.ports.keys()):
        found.left[number] = f"{bridge.name} has no port {number}"
    for number, port in sorted(bridge.ports.items()):
        if queues := wanted.get(number, ()):
            _give(number, port, queues, view, found)
        elif port.qos and _is_ours(port.qos, view):
            point = {"qos": ["set", []]}
            found.changes.append(
                Change(f"{port.name}: no queues", (*_seen(port), _set("Port", port.uuid, point)))
            )
        if number in watch and not (bfd.items() <= port.bfd.items() and port.bfd_ours):
            found.changes.append(Change(f"{port.name}: BFD each {interval} ms", tuple(_watch(port, bfd))))
        elif number not in watch and port.bfd_ours:
            found.changes.append(Change(f"{port.name}: no BFD", tuple(_unwatch(port))))
    return found


def remains(view: View) -> list[Change]:
    """Returns changes that delete rows of ours which nothing refers to, to be made one after the other."""
    idle = {uuid for uuid, row in view.qos.items() if row.ours and not view.uses[uuid]}
    # A QoS row that goes now does not keep its queues.
    held = {queue for uuid, row in view.qos.items() if uuid not in idle for queue in row.queues.values()}
    loose = [uuid for uuid, row in view.queues.items() if row.ours and uuid not in held]
    operations = [_delete("QoS", uuid) for uuid in sorted(idle)] + [
        _delete("Queue", uuid) for uuid in sorted(loose)
    ]
    parts = (operations[start : start + MOST_DELETED] for start in range(0, len(operations), MOST_DELETED))
    return [Change(f"{len(part)} rows that nothing uses", tuple(part)) for part in parts]


def _give(number: int, port: PortRow, queues: tuple[Queue, ...], view: View, found: Plan) -> None:
    if port.qos is None:
        found.changes.append(Change(f"{port.name}: {len(queues)} queues", tuple(_create(port, queues))))
        return
    row = view.qos.get(port.qos)
    if row is None or not row.ours:
        kind = f"{shown(row.type, 20) if row else 'unknown'}, {shown(port.qos, 36)}"
        found.left[number] = f"{port.name} has a QoS of another program ({kind}); remove it there"
        return
    if view.uses[port.qos] > 1:
        # Another port was given our row: what is right for one of them need not be for the other.
        found.changes.append(Change(f"{port.name}: a QoS of its own", tuple(_create(port, queues))))
        return
    operations, told, members = [], [], {}
    for queue in queues:
        uuid = row.queues.get(queue.number)
        there = view.queues.get(uuid) if uuid else None
        if uuid and there and there.ours and view.uses[uuid] == 1:
            members[queue.number] = ["uuid", uuid]
            if there.config != _config(queue):
                told.append(f"queue {queue.number} is {_differs(there.config, _config(queue))}")
                operations.append(_set("Queue", uuid, {"other_config": _map(_config(queue))}))
        else:
            told.append(f"queue {queue.number} is new")
            operations.append(_new_queue(port, queue))
            members[queue.number] = ["named-uuid", _name(port, queue.number)]
    config = {"max-rate": str(rate_of(queues))}
    if (row.type, row.config) != (KIND, config):
        told.append(f"the QoS is {shown(row.type, 20)} with {_differs(row.config, config) or 'its rate'}")
    if gone := sorted(row.queues.keys() - members.keys()):
        told.append(f"queues {gone} are not wanted")
    if told:
        columns = {"type": KIND, "other_config": _map(config), "queues": _pairs(members)}
        operations.append(_set("QoS", port.qos, columns))
        found.changes.append(Change(f"{port.name}: {'; '.join(told)}", (*_seen(port), *operations)))


def _create(port: PortRow, queues: tuple[Queue, ...]) -> Iterable[Operation]:
    yield from _seen(port)
    for queue in queues:
        yield _new_queue(port, queue)
    members = {queue.number: ["named-uuid", _name(port, queue.number)] for queue in queues}
    row = {
        "type": KIND,
        "other_config": _map({"max-rate": str(rate_of(queues))}),
        "external_ids": _map(MARK),
        "queues": _pairs(members),
    }
    yield {"op": "insert", "table": "QoS", "row": row, "uuid-name": _name(port)}
    yield _set("Port", port.uuid, {"qos": ["named-uuid", _name(port)]})


def _new_queue(port: PortRow, queue: Queue) -> Operation:
    row = {"other_config": _map(_config(queue)), "external_ids": _map(MARK)}
    return {"op": "insert", "table": "Queue", "row": row, "uuid-name": _name(port, queue.number)}


def _config(queue: Queue) -> dict[str, str]:
    return {
        "min-rate": str(queue.minimum),
        "max-rate": str(queue.maximum),
        # In bits (ovs-vswitchd.conf.db(5)).
        "burst": str(8 * queue.burst),
        "priority": str(queue.priority),
    }


def _seen(port: PortRow) -> Iterable[Operation]:
    """The transaction fails if the port has got another QoS since it was looked at, or is gone."""
    qos = ["uuid", port.qos] if port.qos else ["set", []]
    yield {
        "op": "wait",
        "timeout": 0,
        "table": "Port",
        "where": _where(port.uuid),
        "columns": ["qos"],
        "until": "==",
        "rows": [{"qos": qos}],
    }


def _watch(port: PortRow, bfd: Mapping[str, str]) -> Iterable[Operation]:
    yield _change("Interface", port.interface, "bfd", bfd, bfd)
    yield _change("Interface", port.interface, "external_ids", BFD_MARK, BFD_MARK)


def _unwatch(port: PortRow) -> Iterable[Operation]:
    yield _change("Interface", port.interface, "bfd", bfd_of(0), {})
    yield _change("Interface", port.interface, "external_ids", BFD_MARK, {})


def _change(table: str, uuid: str, column: str, old: Iterable[str], new: Mapping[str, str]) -> Operation:
    """Replaces some keys of a map, and leaves the others, which are not ours."""
    mutations = [[column, "delete", ["set", list(old)]], [column, "insert", _map(new)]]
    return {"op": "mutate", "table": table, "where": _where(uuid), "mutations": mutations}


def _set(table: str, uuid: str, row: Mapping[str, object]) -> Operation:
    return {"op": "update", "table": table, "where": _where(uuid), "row": dict(row)}


def _delete(table: str, uuid: str) -> Operation:
    return {"op": "delete", "table": table, "where": _where(uuid)}


def _where(uuid: str) -> list[list[object]]:
    return [["_uuid", "==", ["uuid", uuid]]]


def _name(port: PortRow, queue: int | None = None) -> str:
    """Returns a name for a new row within the transaction: letters, digits and underscores."""
    row = "row" + port.uuid.replace("-", "_")
    return row if queue is None else f"{row}_{queue}"


def _map(values: Mapping[str, str]) -> list[object]:
    return ["map", [[key, value] for key, value in sorted(values.items())]]


def _pairs(members: Mapping[int, list[str]]) -> list[object]:
    return ["map", [[number, row] for number, row in sorted(members.items())]]


def _differs(there: Mapping[str, str], right: Mapping[str, str]) -> str:
    keys = sorted(key for key in there.keys() | right.keys() if there.get(key) != right.get(key))
    return ", ".join(
        f"{shown(key, 20)} {shown(there.get(key, 'unset'), 20)} for {right.get(key, 'unset')}" for key in keys
    )


def _is_ours(qos: str, view: View) -> bool:
    row = view.qos.get(qos)
    return row is not None and row.ours
