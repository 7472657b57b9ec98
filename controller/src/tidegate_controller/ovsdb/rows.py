"""What a database has: a replica of the tables that matter here, and the switches that they tell of.

```text
 answer to `monitor`, `update` ─▶ Replica (rows as they came, bounded) ─▶ View: Bridge, Port, Qos, Queue
```

In rows (RFC 7047, 5.1), a set is `["set", [...]]` or its one element, a map `["map", [[key, value], ...]]`.
Rows that are not as the schema says are `Malformed`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

TABLES = {
    "Open_vSwitch": ("cur_cfg",),
    "Bridge": ("name", "datapath_id", "ports"),
    "Port": ("name", "interfaces", "qos"),
    "Interface": ("name", "ofport", "bfd", "bfd_status", "external_ids"),
    "QoS": ("type", "queues", "other_config", "external_ids"),
    "Queue": ("other_config", "external_ids"),
}
"""Tables and columns of the replica."""
MOST_TEXT = 8 << 20
"""Characters of all rows of a database together."""
LAST_PORT = 0xFEFF
"""Open vSwitch's own last number of a port; the bridge itself is above it."""
MARK = {"tidegate": "queues"}
"""In `external_ids` of the QoS and Queue rows that are ours."""
BFD_MARK = {"tidegate-bfd": "true"}
"""In `external_ids` of an Interface whose BFD is ours."""


def shown(text: object, most: int = 80) -> str:
    """Returns the beginning of a text of the database's, fit for a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:most])


class Malformed(Exception):
    """The database says something that its schema does not allow."""


@dataclass(frozen=True)
class QueueRow:
    """A row of Queue."""

    config: Mapping[str, str]
    ours: bool


@dataclass(frozen=True)
class QosRow:
    """A row of QoS; queues by number."""

    type: str
    config: Mapping[str, str]
    queues: Mapping[int, str]
    ours: bool


@dataclass(frozen=True)
class PortRow:
    """A row of Port with its one Interface."""

    uuid: str
    name: str
    interface: str
    qos: str | None
    bfd: Mapping[str, str]
    bfd_status: Mapping[str, str]
    bfd_ours: bool

    @property
    def forwarding(self) -> bool | None:
        """Whether BFD says that frames arrive in both directions; `None` while it says nothing."""
        said = self.bfd_status.get("forwarding")
        return None if said is None else said == "true"


@dataclass(frozen=True)
class BridgeRow:
    """A row of Bridge."""

    name: str
    ports: Mapping[int, PortRow]
    """By OpenFlow port number; a port without a number, or with several interfaces, is left out."""


@dataclass
class View:
    """All of a database."""

    bridges: dict[int, BridgeRow] = field(default_factory=dict)
    """By datapath id; of two bridges that claim one, the first by name."""
    qos: dict[str, QosRow] = field(default_factory=dict)
    """By uuid."""
    queues: dict[str, QueueRow] = field(default_factory=dict)
    qos_of_port: dict[str, str] = field(default_factory=dict)
    """All ports with a QoS, by uuid, whether they have a number or not."""
    uses: Counter[str] = field(default_factory=Counter)
    """How many ports have a QoS row, and how many QoS rows a Queue row; by uuid."""
    applied: int = 0
    """The configuration that ovs-vswitchd has applied (`cur_cfg`)."""


def requests() -> dict[str, Any]:
    """Returns what `monitor` asks for."""
    return {table: {"columns": list(columns)} for table, columns in TABLES.items()}


class Replica:
    """Rows by table and uuid."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, dict[str, Any]]] = {table: {} for table in TABLES}
        self._made: dict[tuple[str, str], Any] = {}
        """What was read of rows that have not changed since: most of a database stays as it is."""
        self._sizes: dict[tuple[str, str], int] = {}
        self._size = 0

    def update(self, changes: object) -> None:
        """Takes table updates (RFC 7047, 4.1.6). Raises `Malformed`."""
        for table, rows in _object(changes).items():
            known = self._tables.get(table)
            if known is None:
                raise Malformed(f"an update of the table {shown(table, 40)!r}, which was not asked for")
            for uuid, change in _object(rows).items():
                new = _object(change).get("new")
                self._size -= self._sizes.pop((table, uuid), 0)
                self._made.pop((table, uuid), None)
                if new is None:
                    known.pop(uuid, None)
                else:
                    known[uuid] = _object(new)
                    # A row costs more than its text.
                    self._sizes[table, uuid] = size = 100 + len(str(new))
                    self._size += size
        if self._size > MOST_TEXT:
            raise Malformed(f"rows of more than {MOST_TEXT} characters")

    def view(self) -> View:
        """Returns what the rows tell. Raises `Malformed`."""
        tables, view = self._tables, View()
        view.queues = {uuid: self._read("Queue", uuid, _queue) for uuid in tables["Queue"]}
        view.qos = {uuid: self._read("QoS", uuid, _qos) for uuid in tables["QoS"]}
        for row in tables["Open_vSwitch"].values():
            view.applied = _integer(row.get("cur_cfg"))
        for uuid, row in tables["Port"].items():
            if qos := _set(row, "qos", _uuid):
                view.qos_of_port[uuid] = qos[0]
        view.uses.update(view.qos_of_port.values())
        view.uses.update(queue for qos in view.qos.values() for queue in qos.queues.values())
        self._add_bridges(view)
        return view

    def _read(self, table: str, uuid: str, read: Callable[[dict[str, Any]], T]) -> T:
        made: T | None = self._made.get((table, uuid))
        if made is None:
            made = self._made[table, uuid] = read(self._tables[table][uuid])
        return made

    def _add_bridges(self, view: View) -> None:
        bridges = [(shown(_string(row.get("name"))), row) for row in self._tables["Bridge"].values()]
        for name, row in sorted(bridges, key=lambda bridge: bridge[0]):
            datapath = _set(row, "datapath_id", _datapath)
            if not datapath or datapath[0] in view.bridges:
                continue
            numbered = (self._port(uuid, view) for uuid in _set(row, "ports", _uuid))
            view.bridges[datapath[0]] = BridgeRow(name, dict(port for port in numbered if port))

    def _port(self, uuid: str, view: View) -> tuple[int, PortRow] | None:
        row = self._tables["Port"].get(uuid)
        interfaces = _set(row, "interfaces", _uuid) if row else []
        if row is None or len(interfaces) != 1:
            return None
        if interfaces[0] not in self._tables["Interface"]:
            return None
        interface = self._read("Interface", interfaces[0], _interface)
        if interface is None:
            return None
        number, bfd, status, ours = interface
        name, qos = shown(_string(row.get("name"))), view.qos_of_port.get(uuid)
        return number, PortRow(uuid, name, interfaces[0], qos, bfd, status, ours)


def _queue(row: dict[str, Any]) -> QueueRow:
    ids = _map(row, "external_ids", _string, _string)
    return QueueRow(_map(row, "other_config", _string, _string), _has(ids, MARK))


def _qos(row: dict[str, Any]) -> QosRow:
    return QosRow(
        _string(row.get("type")),
        _map(row, "other_config", _string, _string),
        _map(row, "queues", _integer, _uuid),
        _has(_map(row, "external_ids", _string, _string), MARK),
    )


def _interface(row: dict[str, Any]) -> tuple[int, dict[str, str], dict[str, str], bool] | None:
    """Returns number, BFD, its status and whether it is ours; `None` for an interface that is no port."""
    number = _set(row, "ofport", _integer)
    if not number or not 1 <= number[0] <= LAST_PORT:
        return None
    bfd, status = (_map(row, column, _string, _string) for column in ("bfd", "bfd_status"))
    return number[0], bfd, status, _has(_map(row, "external_ids", _string, _string), BFD_MARK)


def _has(ids: Mapping[str, str], mark: Mapping[str, str]) -> bool:
    return mark.items() <= ids.items()


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{shown(value, 40)!r} where an object belongs")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{shown(value, 40)!r} where a string belongs")
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise Malformed(f"{shown(value, 40)!r} where an integer belongs")
    return value


def _uuid(value: object) -> str:
    match value:
        case ["uuid", str(uuid)]:
            return uuid
    raise Malformed(f"{shown(value, 40)!r} where a uuid belongs")


def _datapath(value: object) -> int:
    try:
        return int(_string(value), 16)
    except ValueError:
        raise Malformed(f"{shown(value, 40)!r} where a datapath id belongs") from None


def _set(row: Mapping[str, Any], column: str, element: Callable[[object], T]) -> list[T]:
    match row.get(column):
        case ["set", list(elements)]:
            return [element(one) for one in elements]
        case None:
            raise Malformed(f"a row without {column}")
        case one:
            return [element(one)]


def _map(
    row: Mapping[str, Any], column: str, key: Callable[[object], K], value: Callable[[object], V]
) -> dict[K, V]:
    match row.get(column):
        case ["map", list(pairs)] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {key(pair[0]): value(pair[1]) for pair in pairs}
    raise Malformed(f"{column} is not a map")
