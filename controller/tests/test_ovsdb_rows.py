"""Rows of a database, whatever they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.ovsdb.rows import MARK, TABLES, Malformed, Replica

COLUMNS = sorted({column for columns in TABLES.values() for column in columns})
Uuid = st.sampled_from(["a", "b", "c"])
Value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 1 << 70)
    | st.floats()
    | st.sampled_from(["set", "map", "uuid", "true", "00000000000000ff", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(st.just("set"), st.lists(inner, max_size=3)).map(list)
        | st.tuples(st.just("map"), st.lists(st.lists(inner, min_size=2, max_size=2), max_size=3)).map(list)
        | st.tuples(st.just("uuid"), Uuid).map(list)
        | st.dictionaries(st.sampled_from(["new", "old"]), inner, max_size=2)
    ),
    max_leaves=6,
)
Row = st.dictionaries(st.sampled_from(COLUMNS), Value, max_size=len(COLUMNS))
Changes = st.dictionaries(
    st.sampled_from([*TABLES, "Route"]),
    st.dictionaries(Uuid, st.dictionaries(st.sampled_from(["new", "old"]), Row | Value, max_size=2)),
)


@given(st.lists(Changes | Value, max_size=4))
def test_rows_are_a_view_or_malformed(updates: list[Any]) -> None:
    """No other exception, whatever a database says."""
    replica, texts = Replica(), []
    for update in updates:
        try:
            replica.update(update)
            replica.view()
        except Malformed as error:
            texts.append(str(error))
    assert all(len(text) < 200 for text in texts)


def test_rows_become_a_view() -> None:
    """Sets of one and of many, maps, ports without a number, bonds, and the bridge's own port."""
    empty: list[Any] = ["map", []]
    nothing: list[Any] = ["set", []]

    def port(name: str, interfaces: list[Any], qos: list[Any]) -> dict[str, Any]:
        return {"new": {"name": name, "interfaces": interfaces, "qos": qos}}

    def interface(number: int | list[Any]) -> dict[str, Any]:
        row = {"name": "", "ofport": number, "bfd": empty, "external_ids": empty}
        return {"new": {**row, "bfd_status": ["map", [["forwarding", "true"]]]}}

    ports = ["set", [["uuid", uuid] for uuid in ("p1", "bond", "new", "own", "unknown")]]
    bridge = {"name": "br0", "datapath_id": "00000000000000ff", "ports": ports}
    twin = {"name": "br1", "datapath_id": "ff", "ports": nothing}
    qos = {
        "type": "linux-htb",
        "queues": ["map", [[1, ["uuid", "u"]]]],
        "other_config": ["map", [["max-rate", "5"]]],
        "external_ids": ["map", [["else", "where"], *map(list, MARK.items())]],
    }
    replica = Replica()
    replica.update(
        {
            "Open_vSwitch": {"o": {"new": {"cur_cfg": 7}}},
            "Bridge": {"b2": {"new": twin}, "b": {"new": bridge}},
            "Port": {
                "p1": port("eth1", ["uuid", "i1"], ["uuid", "q"]),
                "bond": port("bond0", ["set", [["uuid", "i1"], ["uuid", "i2"]]], nothing),
                "new": port("eth2", ["uuid", "i2"], nothing),
                "own": port("br0", ["uuid", "i3"], nothing),
            },
            "Interface": {"i1": interface(1), "i2": interface(nothing), "i3": interface(65534)},
            "QoS": {"q": {"new": qos}},
            "Queue": {"u": {"new": {"other_config": empty, "external_ids": empty}}},
        }
    )
    view = replica.view()
    assert view.applied == 7
    assert list(view.bridges) == [255]
    assert view.bridges[255].name == "br0"
    assert {number: port.name for number, port in view.bridges[255].ports.items()} == {1: "eth1"}
    assert view.bridges[255].ports[1].forwarding
    assert view.qos["q"].ours
    assert not view.queues["u"].ours
    assert (view.uses["q"], view.uses["u"]) == (1, 1)
    replica.update({"Interface": {"i1": {"old": {}}}})
    assert replica.view().bridges[255].ports == {}


def test_a_replica_has_a_size() -> None:
    """Rows that go make room."""
    replica = Replica()
    row = {"other_config": ["map", [["k", "x" * 500_000]]], "external_ids": ["map", []]}
    for number in range(100):
        replica.update({"Queue": {f"u{number}": {"new": row}}})
        replica.update({"Queue": {f"u{number}": {"old": {}}}})
    many = {f"u{number}": {"new": row} for number in range(100)}
    with pytest.raises(Malformed, match="rows of more than"):
        replica.update({"Queue": many})
