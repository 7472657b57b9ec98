"""The plan of queues, on a small model of a database."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.model.intent import BEST_EFFORT, Queue, queue_of
from tidegate_controller.ovsdb.queues import BFD_INTERVAL, Change, bfd_of, check, plan, remains
from tidegate_controller.ovsdb.rows import MARK, TABLES, Replica, View

PORTS = (1, 2, 3)
RATE = 20_000_000


class Model:
    """Rows of one bridge of three ports, and the operations of RFC 7047, 5.2, that plans use."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, Any]]] = {table: {} for table in TABLES}
        self._next = itertools.count(1)
        self.add("Open_vSwitch", cur_cfg=0)
        ports = []
        for number in PORTS:
            empty = ["map", []]
            interface = self.add(
                "Interface",
                name=f"p{number}",
                ofport=number,
                bfd=empty,
                bfd_status=empty,
                external_ids=["map", [["iface-id", "theirs"]]],
            )
            ports.append(self.add("Port", name=f"p{number}", interfaces=["uuid", interface], qos=["set", []]))
        members = ["set", [["uuid", uuid] for uuid in ports]]
        self.add("Bridge", name="br", datapath_id="0000000000000001", ports=members)
        self.ports = ports

    def add(self, table: str, **row: object) -> str:
        """A new row; its uuid."""
        uuid = f"00000000-0000-0000-0000-{next(self._next):012}"
        self.rows[table][uuid] = dict(row)
        return uuid

    def qos(self, port: int, ours: bool, queues: Iterable[tuple[int, str]], kind: str = "linux-htb") -> str:
        """Give a port a QoS."""
        ids = ["map", [list(pair) for pair in MARK.items()] if ours else []]
        members = ["map", [[number, ["uuid", uuid]] for number, uuid in queues]]
        config = ["map", [["max-rate", "5"]]]
        uuid = self.add("QoS", type=kind, other_config=config, external_ids=ids, queues=members)
        self.rows["Port"][self.ports[port]]["qos"] = ["uuid", uuid]
        return uuid

    def queue(self, ours: bool, **config: str) -> str:
        """A queue that nothing refers to yet."""
        ids = ["map", [list(pair) for pair in MARK.items()] if ours else []]
        pairs = ["map", [[key.replace("_", "-"), value] for key, value in config.items()]]
        return self.add("Queue", other_config=pairs, external_ids=ids)

    def view(self) -> View:
        """As a session sees it."""
        replica = Replica()
        replica.update(
            {table: {uuid: {"new": row} for uuid, row in rows.items()} for table, rows in self.rows.items()}
        )
        return replica.view()

    def perform(self, changes: Iterable[Change]) -> None:
        """Perform a transaction."""
        named: dict[str, str] = {}
        for change in changes:
            for operation in change.operations:
                self._perform(operation, named)

    def _perform(self, operation: dict[str, Any], named: dict[str, str]) -> None:
        rows = self.rows[operation["table"]]
        if operation["op"] == "insert":
            assert operation["uuid-name"] not in named
            named[operation["uuid-name"]] = self.add(operation["table"], **_resolved(operation["row"], named))
            return
        ((_, _, (_, uuid)),) = operation["where"]
        match operation["op"]:
            case "wait":
                assert rows[uuid]["qos"] == operation["rows"][0]["qos"]
            case "update":
                rows[uuid].update(_resolved(operation["row"], named))
            case "delete":
                del rows[uuid]
            case "mutate":
                for column, mutator, value in operation["mutations"]:
                    pairs = dict(rows[uuid][column][1])
                    if mutator == "delete":
                        pairs = {key: text for key, text in pairs.items() if key not in value[1]}
                    else:
                        pairs = dict(value[1]) | pairs
                    rows[uuid][column] = ["map", [list(pair) for pair in pairs.items()]]
            case other:
                raise AssertionError(other)


def _resolved(value: Any, named: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _resolved(inner, named) for key, inner in value.items()}
    if isinstance(value, list):
        if value[:1] == ["named-uuid"]:
            return ["uuid", named[value[1]]]
        return [_resolved(inner, named) for inner in value]
    return value


def queues(levels: int, minimum: int = 1_000_000) -> tuple[Queue, ...]:
    """Best effort, and levels above it."""
    real = [Queue(queue_of(level), minimum, RATE, 8000, level % 8) for level in range(levels)]
    return Queue(BEST_EFFORT if levels < 8 else 0, minimum, RATE, 1600, 7), *real


def planned(
    model: Model, wanted: dict[int, tuple[Queue, ...]], watched: set[int]
) -> tuple[list[Change], dict[int, str]]:
    """Everything that has to change."""
    view = model.view()
    found = plan(wanted, watched, view.bridges[1], view)
    return found.changes, found.left


def settle(model: Model, wanted: dict[int, tuple[Queue, ...]], watched: set[int]) -> dict[int, str]:
    """Change the model until nothing is left to do; what was left alone."""
    changes, left = planned(model, wanted, watched)
    model.perform(changes)
    model.perform(remains(model.view()))
    assert planned(model, wanted, watched) == ([], left)
    assert remains(model.view()) == []
    return left


@st.composite
def _models(draw: st.DrawFn) -> Model:
    """Ports with nothing, with rows of ours that another program has changed, and with others' rows."""
    model = Model()
    all_queues = [
        model.queue(draw(st.booleans()), min_rate=draw(st.sampled_from(["1", "1000000"])))
        for _ in range(draw(st.integers(0, 4)))
    ]
    for port in range(len(PORTS)):
        if draw(st.booleans()):
            members = [(number, uuid) for number, uuid in enumerate(all_queues) if draw(st.booleans())]
            kind = draw(st.sampled_from(["linux-htb", "linux-sfq"]))
            uuid = model.qos(port, draw(st.booleans()), members, kind)
            if draw(st.booleans()):
                # The same row at another port, too.
                model.rows["Port"][model.ports[port - 1]]["qos"] = ["uuid", uuid]
    return model


Wanted = st.dictionaries(
    st.sampled_from([*PORTS, 9]), st.builds(queues, st.integers(0, 3), st.sampled_from([12_000, 1_000_000]))
)


@given(_models(), Wanted, st.sets(st.sampled_from(PORTS)))
def test_a_plan_settles_and_leaves_others_alone(
    model: Model, wanted: dict[int, tuple[Queue, ...]], watched: set[int]
) -> None:
    """One pass reaches what is wanted; rows of others stay as they were."""
    before = model.view()
    foreign = {uuid for uuid, row in before.qos.items() if not row.ours}
    left = settle(model, wanted, watched)
    after = model.view()
    for uuid in foreign:
        assert after.qos[uuid] == before.qos[uuid]
    for uuid, row in before.queues.items():
        if not row.ours:
            assert after.queues[uuid] == row
    for number, port in after.bridges[1].ports.items():
        was = before.bridges[1].ports[number].qos
        if was in foreign:
            assert port.qos == was
            assert (number in left) == bool(wanted.get(number))
        elif queues_wanted := wanted.get(number):
            assert port.qos is not None
            found = after.qos[port.qos]
            assert found.ours
            assert after.uses[port.qos] == 1
            configs = {at: after.queues[uuid].config for at, uuid in found.queues.items()}
            assert configs.keys() == {queue.number for queue in queues_wanted}
            for queue in queues_wanted:
                assert configs[queue.number]["burst"] == str(8 * queue.burst)
        else:
            assert port.qos is None
        assert (bfd_of(BFD_INTERVAL).items() <= port.bfd.items()) == (number in watched)
    assert (9 in left) == (9 in wanted)


def test_many_rows_that_nothing_uses() -> None:
    """They go in parts: a database could mark any number of rows as ours."""
    model = Model()
    for _ in range(450):
        model.queue(ours=True)
    parts = remains(model.view())
    assert [len(part.operations) for part in parts] == [200, 200, 50]
    model.perform(parts)
    assert remains(model.view()) == []


def test_a_raise_changes_a_row_in_place() -> None:
    """The HTB stays, and with it the frames in its queues."""
    model = Model()
    settle(model, {1: queues(2)}, set())
    before = model.view()
    changes, _ = planned(model, {1: queues(2, 2_000_000)}, set())
    assert "queue 1 is min-rate 1000000 for 2000000" in changes[0].text
    settle(model, {1: queues(2, 2_000_000)}, set())
    after = model.view()
    assert before.qos_of_port == after.qos_of_port
    assert before.queues.keys() == after.queues.keys()


def test_bfd_of_others_keys_stays() -> None:
    """Keys that are not ours remain, and ours go when the port is not watched any more."""
    model = Model()
    interface = next(iter(model.rows["Interface"].values()))
    interface["bfd"] = ["map", [["bfd_src_ip", "169.254.7.7"], ["min_rx", "1000"]]]
    settle(model, {}, {1})
    bfd = model.view().bridges[1].ports[1].bfd
    assert bfd == {"bfd_src_ip": "169.254.7.7"} | bfd_of(BFD_INTERVAL)
    settle(model, {}, set())
    assert model.view().bridges[1].ports[1].bfd == {"bfd_src_ip": "169.254.7.7"}
    assert interface["external_ids"] == ["map", [["iface-id", "theirs"]]]


def test_another_interval_of_bfd() -> None:
    """It is set once, and takes the place of the one before."""
    model = Model()
    settle(model, {}, {1})
    view = model.view()
    changes = plan({}, {1}, view.bridges[1], view, 200).changes
    assert [change.text for change in changes] == ["p1: BFD each 200 ms"]
    model.perform(changes)
    view = model.view()
    assert view.bridges[1].ports[1].bfd == {"enable": "true", "min_rx": "200", "min_tx": "200", "mult": "3"}
    assert plan({}, {1}, view.bridges[1], view, 200).changes == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ((Queue(0, 1_000_000, RATE, 1600, 0), Queue(0, 1_000_000, RATE, 1600, 0)), "each number once"),
        ((Queue(0, 2 * RATE, RATE, 1600, 0),), "minimum <= maximum"),
        ((Queue(0, 1, RATE, 1600, 0),), "12000 <= minimum"),
        ((Queue(0, 1_000_000, RATE, 0, 0),), "a burst"),
        ((Queue(0, 1_000_000, RATE, 1600, 8),), "priority 0 to 7"),
        (queues(64, 12_000), "at most 64"),
    ],
)
def test_queues_that_no_port_can_have(wrong: tuple[Queue, ...], why: str) -> None:
    """The numbers are in the reason."""
    with pytest.raises(ValueError, match=why):
        check(wrong)
