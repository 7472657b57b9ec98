"""Rules and groups through os-ken's codec and back; bytes that no switch should send."""

import contextlib
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from fake_switch import error, message, multipart, packet_in, port
from hypothesis import given
from hypothesis import strategies as st
from made import groups, matches, rules
from os_ken.ofproto import ofproto_v1_3 as of

from tidegate_controller.model.intent import (
    OURS,
    Goto,
    Group,
    Match,
    Output,
    PopTag,
    PushTag,
    Rule,
    SetDscp,
    Table,
)
from tidegate_controller.openflow import codec, replies
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.wire import Framer, Malformed, Message


def as_statistics(rule: Rule) -> bytes:
    """Returns the entry of statistics in which a switch reports a rule."""
    order = codec.encode(Change(None, rule))
    content = order[48:]
    head = (int(rule.table), 1, 2, rule.priority, 0, 0, 0, rule.cookie, 3, 4)
    return struct.pack(of.OFP_FLOW_STATS_0_PACK_STR, 48 + len(content), *head) + content


def as_description(group: Group) -> bytes:
    """Returns the entry in which a switch describes a group."""
    content = codec.encode(Change(None, group))[16:]
    return (
        struct.pack(of.OFP_GROUP_DESC_STATS_PACK_STR, 8 + len(content), of.OFPGT_FF, group.number) + content
    )


@given(st.lists(rules(), max_size=5))
def test_rules_go_to_a_switch_and_come_back(sent: list[Rule]) -> None:
    """What is read is what was written, whatever the rules are."""
    data = multipart(of.OFPMP_FLOW, 1, b"".join(map(as_statistics, sent)))
    found = list(replies.rules(data))
    assert [entry.rule for entry in found] == sent
    assert [entry.match for entry in found] == [rule.match for rule in sent]
    assert all((entry.packets, entry.bytes) == (3, 4) for entry in found)


@given(st.lists(groups(), max_size=5))
def test_groups_go_to_a_switch_and_come_back(sent: list[Group]) -> None:
    """What is read is what was written."""
    data = multipart(of.OFPMP_GROUP_DESC, 1, b"".join(map(as_description, sent)))
    assert [entry.group for entry in replies.groups(data)] == sent


@given(matches())
def test_canonical_matches_stay(match: Match) -> None:
    """Replies have the canonical spelling."""
    assert codec.canonical(match) == match


def test_spelling_does_not_matter() -> None:
    """Addresses are compared by value."""
    match = Match(eth_type=0x86DD, source="2001:DB8::0:1", eth_dst="AA:00:00:00:00:01")
    assert codec.canonical(match) == replace(match, source="2001:db8::1", eth_dst="aa:00:00:00:00:01")


@pytest.mark.parametrize(
    "rule",
    [
        Rule(Table.EDGE, 1, Match(dscp=46), (), OURS),
        Rule(Table.EDGE, 1, Match(eth_type=0x0800, source="::1"), (), OURS),
        Rule(Table.EDGE, 1, Match(eth_type=0x0800, source_port=1), (), OURS),
        Rule(Table.EDGE, 1, Match(tag=4095), (), OURS),
        Rule(Table.WAY, 1, Match(), (Goto(Table.QUEUE),), OURS),
        Rule(Table.EDGE, 1, Match(), (Goto(Table.WAY), Output(1)), OURS),
        Rule(Table.EDGE, 1, Match(eth_type=0x0800), (SetDscp(64),), OURS),
        Rule(Table.EDGE, 1, Match(), (SetDscp(1),), OURS),
        Rule(Table.EDGE, 1, Match(tag=0), (PopTag(),), OURS),
        Rule(Table.EDGE, 1, Match(tag=1), (PopTag(), PopTag()), OURS),
        Rule(Table.EDGE, 1, Match(), (PushTag(0),), OURS),
        Rule(Table.EDGE, 1, Match(), (Output(of.OFPP_CONTROLLER),), OURS),
        Rule(Table.EDGE, 1, Match(), (), 5),
    ],
)
def test_what_cannot_be_asked_for_is_said_before(rule: Rule) -> None:
    """A rule that the switch would refuse, or that is not marked as ours, is a `ValueError`."""
    with pytest.raises(ValueError):
        codec.encode(Change(None, rule))


def test_changes_have_the_right_orders() -> None:
    """A modification keeps counters, but only an addition takes another cookie; deletions need our cookie."""
    rule = Rule(Table.EDGE, 7, Match(in_port=1), (Output(2),), OURS | 1)
    other = replace(rule, cookie=OURS | 2)

    def order(before: Rule | None, after: Rule | None) -> tuple[int, int]:
        data = codec.encode(Change(before, after))
        return data[25], int.from_bytes(data[16:24])

    mask = 0xFFFF_FFFF_0000_0000
    assert order(None, rule) == (of.OFPFC_ADD, 0)
    assert order(rule, replace(rule, actions=())) == (of.OFPFC_MODIFY_STRICT, mask)
    assert order(rule, other) == (of.OFPFC_ADD, 0)
    assert order(rule, None) == (of.OFPFC_DELETE_STRICT, mask)
    with pytest.raises(ValueError):
        codec.encode(Change(None, None))


def hello(data: bytes) -> list[bytes]:
    """Checks a hello."""
    replies.check_hello(Message(0, 0, data))
    return [data]


FLOW = as_statistics(Rule(Table.EDGE, 1, Match(in_port=1, eth_type=0x0800), (SetDscp(1), Output(2)), OURS))
GROUP = as_description(Group(77, (1, 2)))
VALID: list[tuple[Callable[[bytes], Iterable[object]], bytes]] = [
    (replies.rules, multipart(of.OFPMP_FLOW, 1, FLOW * 2)),
    (replies.groups, multipart(of.OFPMP_GROUP_DESC, 1, GROUP * 2)),
    (replies.ports, multipart(of.OFPMP_PORT_DESC, 1, port(1) + port(2))),
    (replies.port_counters, multipart(of.OFPMP_PORT_STATS, 1, bytes(224))),
    (replies.queue_counters, multipart(of.OFPMP_QUEUE, 1, bytes(80))),
    (lambda data: [replies.packet_in(Message(10, 0, data))], packet_in(3, b"frame")),
    (lambda data: [replies.error(Message(1, 0, data))], error(1, 5, 1)),
    (lambda data: [replies.role(Message(25, 0, data))], message(25, 1, bytes(16))),
    (lambda data: [replies.features(Message(6, 0, data))], message(6, 1, bytes(24))),
    (lambda data: [replies.port_status(Message(12, 0, data))], message(12, 1, bytes(8) + port(1))),
    (hello, codec.hello()),
]


@pytest.mark.parametrize("read_data", VALID)
def test_valid_answers_are_read(read_data: tuple[Callable[[bytes], Iterable[object]], bytes]) -> None:
    """None of the cases that are spoilt below is wrong by itself."""
    read, data = read_data
    assert len(list(read(data))) in (1, 2)


@given(st.sampled_from(VALID), st.data())
def test_spoilt_answers_are_malformed_or_read(
    read_data: tuple[Callable[[bytes], Iterable[object]], bytes], data: st.DataObject
) -> None:
    """Cut, longer, and with other bytes: no other error, and always an end."""
    read, valid = read_data
    spoilt = bytearray(valid[: data.draw(st.integers(8, len(valid)))])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(8, max(8, len(spoilt) - 1)))
        spoilt[at : at + 1] = data.draw(st.binary(min_size=1, max_size=2))
    with contextlib.suppress(Malformed):
        list(read(bytes(spoilt)))


@pytest.mark.parametrize("length", [0, 1, 65535])
def test_lengths_within_answers(length: int) -> None:
    """os-ken's parser would never end with an instruction, an action or an entry of length 0."""
    for at in (0, 48 + 2 + 24, 48 + 8 + 24 + 2):
        flow = bytearray(FLOW)
        flow[at : at + 2] = length.to_bytes(2)
        with pytest.raises(Malformed):
            list(replies.rules(multipart(of.OFPMP_FLOW, 1, bytes(flow))))
    for at in (0, 8, 8 + 16 + 2):
        group = bytearray(GROUP)
        group[at : at + 2] = length.to_bytes(2)
        with pytest.raises(Malformed):
            list(replies.groups(multipart(of.OFPMP_GROUP_DESC, 1, bytes(group))))


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), min_size=1))
def test_messages_are_cut_the_same_however_they_arrive(bodies: list[bytes], sizes: list[int]) -> None:
    """The pieces in which the bytes come make no difference."""
    sent = [message(2, number, body) for number, body in enumerate(bodies)]
    stream, framer, found, at = b"".join(sent), Framer(), [], 0
    while at < len(stream):
        size = sizes[at % len(sizes)]
        found += framer.feed(stream[at : at + size])
        at += size
    assert [one.data for one in found] == sent


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_waits(garbage: bytes) -> None:
    """Nothing else is raised, and not more is held than came."""
    with contextlib.suppress(Malformed):
        Framer().feed(garbage)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (message(2, 1, version=1), "version 1"),
        (message(2, 1, version=6), "version 6"),
        (message(0, 1, version=3), "version 3"),
        (message(2, 1, length=0), "says that it has 0 bytes"),
        (message(2, 1, length=7), "says that it has 7 bytes"),
    ],
)
def test_wrong_headers(data: bytes, words: str) -> None:
    """The error names what was wrong."""
    with pytest.raises(Malformed, match=words):
        Framer().feed(data)


def test_errors_have_names() -> None:
    """As in the specification."""
    assert str(replies.SwitchError(5, 1)) == "flow-mod-failed: table-full"
    assert replies.SwitchError(5, 1).table_full
    assert str(replies.SwitchError(99, 98)) == "type 99: code 98"


def test_os_ken_brings_no_event_loop() -> None:
    """Its codec is used without its hubs, applications and NETCONF."""
    names = "server, sync, lldp"
    check = f"""
import sys
from tidegate_controller.openflow import {names}
print([name for name in sys.modules if name.startswith(
    ("eventlet", "ncclient", "greenlet", "os_ken.base", "os_ken.controller", "os_ken.lib.hub"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "src"},
        cwd=codec.__file__.rsplit("/src/", 1)[0],
    )
    assert done.stdout == "[]\n"
