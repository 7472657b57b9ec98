"""What switches answer and report, as plain data: every length and value is checked first.

```text
 data of a message ─▶ features, port, rules, groups, counters, packet_in, error, role ─▶ plain data
                        └ lengths that do not fit: Malformed    └ a rule that is not of our form: its key
```

Numbers of types and formats are os-ken's; its parsers are not used (see `wire`).
"""

import ipaddress
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as of

from tidegate_controller.model.intent import (
    ANY_TAG,
    IPV4,
    TAG_TYPE,
    TCP,
    UDP,
    Action,
    Goto,
    Group,
    Match,
    Output,
    PopTag,
    PushTag,
    Rule,
    SetDscp,
    SetPriority,
    SetQueue,
    SetTag,
    Table,
    ToController,
    ToGroup,
)
from tidegate_controller.openflow.wire import HEADER, Malformed, Message, items, need, records

BODY = HEADER.size
MULTIPART_BODY = of.OFP_MULTIPART_REPLY_SIZE

_FEATURES = struct.Struct(of.OFP_SWITCH_FEATURES_PACK_STR)
_PORT = struct.Struct(of.OFP_PORT_PACK_STR)
_PORT_STATISTICS = struct.Struct(of.OFP_PORT_STATS_PACK_STR)
_QUEUE_STATISTICS = struct.Struct(of.OFP_QUEUE_STATS_PACK_STR)
_RULE = struct.Struct(of.OFP_FLOW_STATS_0_PACK_STR)
_GROUP = struct.Struct(of.OFP_GROUP_DESC_STATS_PACK_STR)
_BUCKET = struct.Struct(of.OFP_BUCKET_PACK_STR)
_PACKET_IN = struct.Struct(of.OFP_PACKET_IN_PACK_STR)
_ROLE = struct.Struct(of.OFP_ROLE_REQUEST_PACK_STR)
_PAIR = struct.Struct("!HH")
_WORD = struct.Struct("!I")
_QUAD = struct.Struct("!HHI")

_TABLES = {int(table): table for table in Table}


class _Foreign(Exception):
    """Well formed, but nothing that we would install."""


@dataclass(frozen=True)
class Features:
    """The answer to the request of features."""

    datapath: int
    auxiliary: int
    """0 for the main connection (OpenFlow 1.3, 6.3.5)."""


@dataclass(frozen=True)
class PortState:
    """A port as the switch describes it."""

    number: int
    mac: str
    name: str
    up: bool
    speed: int
    """Current, kbit/s; 0 if unknown."""


@dataclass(frozen=True)
class PortCounters:
    """Counters of a port since its start."""

    port: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int
    rx_errors: int
    tx_errors: int


@dataclass(frozen=True)
class QueueCounters:
    """Counters of a queue since its start."""

    port: int
    queue: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int


@dataclass(frozen=True)
class RuleEntry:
    """A rule that a switch holds."""

    table: int
    priority: int
    cookie: int
    match: Match | None
    """None: it has fields that no rule of ours has."""
    rule: Rule | None
    """None: it is of a form that no rule of ours has."""
    packets: int
    bytes: int


@dataclass(frozen=True)
class GroupEntry:
    """A group that a switch holds."""

    number: int
    group: Group | None
    """None: it is of a form that no group of ours has."""


@dataclass(frozen=True)
class Frame:
    """A frame that a switch sent to the controller."""

    port: int
    data: bytes


@dataclass(frozen=True)
class SwitchError:
    """An error that a switch answered (OpenFlow 1.3, 7.4.4)."""

    type: int
    code: int

    def __str__(self) -> str:
        kind, codes = _ERRORS.get(self.type, (f"type {self.type}", {}))
        return f"{kind}: {codes.get(self.code, f'code {self.code}')}"

    @property
    def table_full(self) -> bool:
        """Whether a table or the groups have no room."""
        return (self.type, self.code) in (
            (of.OFPET_FLOW_MOD_FAILED, of.OFPFMFC_TABLE_FULL),
            (of.OFPET_GROUP_MOD_FAILED, of.OFPGMFC_OUT_OF_GROUPS),
        )


def _names(prefix: str) -> dict[int, str]:
    found = {name.removeprefix(prefix): value for name, value in vars(of).items() if name.startswith(prefix)}
    return {value: name.lower().replace("_", "-") for name, value in found.items() if isinstance(value, int)}


_ERRORS = {
    number: (name, _names(prefix))
    for number, name, prefix in (
        (of.OFPET_HELLO_FAILED, "hello-failed", "OFPHFC_"),
        (of.OFPET_BAD_REQUEST, "bad-request", "OFPBRC_"),
        (of.OFPET_BAD_ACTION, "bad-action", "OFPBAC_"),
        (of.OFPET_BAD_INSTRUCTION, "bad-instruction", "OFPBIC_"),
        (of.OFPET_BAD_MATCH, "bad-match", "OFPBMC_"),
        (of.OFPET_FLOW_MOD_FAILED, "flow-mod-failed", "OFPFMFC_"),
        (of.OFPET_GROUP_MOD_FAILED, "group-mod-failed", "OFPGMFC_"),
        (of.OFPET_ROLE_REQUEST_FAILED, "role-request-failed", "OFPRRFC_"),
    )
}


def check_hello(message: Message) -> None:
    """Raises `Malformed` unless the switch speaks version 1.3 (OpenFlow 1.3, 7.5.1)."""
    data = message.data
    for start, end in items(data, BODY, len(data), length_at=2, smallest=4, what="an element of the hello"):
        if _PAIR.unpack_from(data, start)[0] == of.OFPHET_VERSIONBITMAP and end - start >= 8:
            (versions,) = _WORD.unpack_from(data, start + 4)
            if not versions >> of.OFP_VERSION & 1:
                raise Malformed("the switch does not offer OpenFlow 1.3: set its protocols to OpenFlow13")


def features(message: Message) -> Features:
    """Reads the answer to the request of features."""
    need(message.data, BODY, _FEATURES.size, what="the answer about features")
    datapath, _buffers, _tables, auxiliary, _capabilities, _ = _FEATURES.unpack_from(message.data, BODY)
    return Features(datapath, auxiliary)


def multipart(message: Message) -> tuple[int, bool]:
    """Returns the type of a part of a long answer, and whether more follow."""
    need(message.data, BODY, MULTIPART_BODY - BODY, what="a part of an answer")
    kind, flags = _PAIR.unpack_from(message.data, BODY)
    return kind, bool(flags & of.OFPMPF_REPLY_MORE)


def _port(fields: tuple[Any, ...]) -> PortState:
    number, mac, name, config, state, _curr, _advertised, _supported, _peer, speed, _max = fields
    text = name.split(b"\0")[0].decode("ascii", "replace")
    return PortState(
        number=number,
        mac=mac.hex(":"),
        name="".join(c if c.isprintable() else "?" for c in text),
        up=not config & of.OFPPC_PORT_DOWN and not state & of.OFPPS_LINK_DOWN,
        speed=speed,
    )


def ports(data: bytes) -> Iterator[PortState]:
    """Reads a part of the description of ports; the switch's own (local) port is left out."""
    for fields in records(data, MULTIPART_BODY, _PORT, what="the description of ports"):
        if 0 < fields[0] <= of.OFPP_MAX:
            yield _port(fields)


def port_status(message: Message) -> tuple[bool, PortState]:
    """Reads a report about a port: whether it is still there, and how."""
    need(message.data, BODY, 8 + _PORT.size, what="a report about a port")
    return message.data[BODY] != of.OFPPR_DELETE, _port(_PORT.unpack_from(message.data, BODY + 8))


def port_counters(data: bytes) -> Iterator[PortCounters]:
    """Reads a part of the counters of ports."""
    for fields in records(data, MULTIPART_BODY, _PORT_STATISTICS, what="counters of ports"):
        yield PortCounters(*fields[:9])


def queue_counters(data: bytes) -> Iterator[QueueCounters]:
    """Reads a part of the counters of queues."""
    for fields in records(data, MULTIPART_BODY, _QUEUE_STATISTICS, what="counters of queues"):
        yield QueueCounters(*fields[:5])


def error(message: Message) -> SwitchError:
    """Reads an error."""
    need(message.data, BODY, _PAIR.size, what="an error")
    return SwitchError(*_PAIR.unpack_from(message.data, BODY))


def role(message: Message) -> tuple[int, int]:
    """Reads the answer about a role: the role, and the generation."""
    need(message.data, BODY, _ROLE.size, what="the answer about a role")
    number, generation = _ROLE.unpack_from(message.data, BODY)
    return number, generation


def packet_in(message: Message) -> Frame:
    """Reads a frame that a rule sent here, with the port at which it arrived; 0 if none is named."""
    data = message.data
    need(data, BODY, _PACKET_IN.size, what="a packet_in")
    fields, start = _oxms(data, BODY + _PACKET_IN.size, len(data))
    port = next((_WORD.unpack(value)[0] for header, value in fields if header == of.OXM_OF_IN_PORT), 0)
    # Two bytes of padding follow the match (OpenFlow 1.3, 7.4.1).
    return Frame(port, data[start + 2 :])


def rules(data: bytes) -> Iterator[RuleEntry]:
    """Reads a part of the list of rules."""
    end = len(data)
    for start, stop in items(data, MULTIPART_BODY, end, length_at=0, smallest=56, what="a rule"):
        yield _rule(data, start, stop)


def _rule(data: bytes, start: int, end: int) -> RuleEntry:
    _, table, _, _, priority, idle, hard, _flags, cookie, packets, size = _RULE.unpack_from(data, start)
    fields, offset = _oxms(data, start + _RULE.size, end)
    found: Match | None = None
    rule: Rule | None = None
    try:
        found = _match(fields)
        actions = tuple(_instructions(data, offset, end))
        if not idle and not hard and table in _TABLES:
            rule = Rule(_TABLES[table], priority, found, actions, cookie)
    except _Foreign:
        # The lengths that were read are checked; nothing else of it is used.
        pass
    return RuleEntry(table, priority, cookie, found, rule, packets, size)


def groups(data: bytes) -> Iterator[GroupEntry]:
    """Reads a part of the list of groups."""
    for start, end in items(data, MULTIPART_BODY, len(data), length_at=0, smallest=8, what="a group"):
        _, kind, number = _GROUP.unpack_from(data, start)
        try:
            if kind != of.OFPGT_FF:
                raise _Foreign
            yield GroupEntry(number, Group(number, tuple(_buckets(data, start + _GROUP.size, end))))
        except _Foreign:
            yield GroupEntry(number, None)


def _buckets(data: bytes, offset: int, end: int) -> Iterator[int]:
    for start, stop in items(data, offset, end, length_at=0, smallest=_BUCKET.size, what="a bucket"):
        _, _weight, watched, group = _BUCKET.unpack_from(data, start)
        actions = list(_actions(data, start + _BUCKET.size, stop))
        if actions != [Output(watched)] or group != of.OFPG_ANY:
            raise _Foreign
        yield watched


def _oxms(data: bytes, offset: int, end: int) -> tuple[list[tuple[int, bytes]], int]:
    """Reads the fields of a match: (header, value with mask) of each, and where the padded match ends."""
    need(data, offset, 8, end, what="a match")
    kind, length = _PAIR.unpack_from(data, offset)
    padded = offset + (length + 7) // 8 * 8
    if kind != of.OFPMT_OXM or length < 4 or padded > end:
        raise Malformed(f"a match of type {kind} has a length of {length}; {end - offset} bytes are left")
    fields, stop = [], offset + length
    offset += 4
    while offset < stop:
        field, offset = _oxm(data, offset, stop)
        fields.append(field)
    return fields, padded


def _oxm(data: bytes, offset: int, end: int) -> tuple[tuple[int, bytes], int]:
    need(data, offset, 4, end, what="a field")
    (header,) = _WORD.unpack_from(data, offset)
    size = header & 0xFF
    need(data, offset + 4, max(size, 1), end, what=f"the value of field 0x{header:08x}")
    return (header, data[offset + 4 : offset + 4 + size]), offset + 4 + size


def _number(value: bytes) -> int:
    return int.from_bytes(value)


def _tag(value: bytes) -> int:
    number = _number(value)
    if number == of.OFPVID_NONE:
        return 0
    if not of.OFPVID_PRESENT < number < of.OFPVID_PRESENT | 0xFFF:
        raise _Foreign
    return number & 0xFFF


def _any_tag(value: bytes) -> int:
    """Reads a value and its mask."""
    if value != of.OFPVID_PRESENT.to_bytes(2) * 2:
        raise _Foreign
    return ANY_TAG


def _address(value: bytes) -> str:
    return str(ipaddress.ip_address(value))


_FIELDS: dict[int, tuple[str, Callable[[bytes], Any], dict[str, int]]] = {
    # A header is class, number and size of a field without mask; what else the match has to have comes last.
    of.OXM_OF_IN_PORT: ("in_port", _number, {}),
    of.OXM_OF_ETH_SRC: ("eth_src", lambda value: value.hex(":"), {}),
    of.OXM_OF_ETH_DST: ("eth_dst", lambda value: value.hex(":"), {}),
    of.OXM_OF_ETH_TYPE: ("eth_type", _number, {}),
    of.OXM_OF_VLAN_VID: ("tag", _tag, {}),
    of.OXM_OF_VLAN_VID_W: ("tag", _any_tag, {}),
    of.OXM_OF_VLAN_PCP: ("priority", _number, {}),
    of.OXM_OF_IP_DSCP: ("dscp", _number, {}),
    of.OXM_OF_IP_PROTO: ("protocol", _number, {}),
    of.OXM_OF_IPV4_SRC: ("source", _address, {"eth_type": IPV4}),
    of.OXM_OF_IPV4_DST: ("target", _address, {"eth_type": IPV4}),
    of.OXM_OF_IPV6_SRC: ("source", _address, {}),
    of.OXM_OF_IPV6_DST: ("target", _address, {}),
    of.OXM_OF_TCP_SRC: ("source_port", _number, {"protocol": TCP}),
    of.OXM_OF_TCP_DST: ("target_port", _number, {"protocol": TCP}),
    of.OXM_OF_UDP_SRC: ("source_port", _number, {"protocol": UDP}),
    of.OXM_OF_UDP_DST: ("target_port", _number, {"protocol": UDP}),
}


def _match(fields: list[tuple[int, bytes]]) -> Match:
    found: dict[str, Any] = {}
    needed: dict[str, int] = {}
    for header, value in fields:
        known = _FIELDS.get(header)
        if known is None or known[0] in found:
            raise _Foreign
        name, read, needs = known
        found[name] = read(value)
        needed.update(needs)
    if any(found.get(name) != value for name, value in needed.items()):
        raise _Foreign
    return Match(**found)


def _instructions(data: bytes, offset: int, end: int) -> Iterator[Action]:
    """Reads instructions in the one order that ours have: actions, then the next table."""
    last = 0
    for start, stop in items(data, offset, end, length_at=2, smallest=8, what="an instruction"):
        (kind, _) = _PAIR.unpack_from(data, start)
        if last in (of.OFPIT_GOTO_TABLE, kind):
            raise _Foreign
        last = kind
        if kind == of.OFPIT_APPLY_ACTIONS:
            yield from _actions(data, start + 8, stop)
        elif kind == of.OFPIT_GOTO_TABLE and data[start + 4] in _TABLES:
            yield Goto(_TABLES[data[start + 4]])
        else:
            raise _Foreign


def _actions(data: bytes, offset: int, end: int) -> Iterator[Action]:  # noqa: PLR0912 - one case each
    pushed = False
    for start, stop in items(data, offset, end, length_at=2, smallest=8, what="an action"):
        kind, size, word = _QUAD.unpack_from(data, start)
        field = None
        if kind == of.OFPAT_SET_FIELD:
            field, _ = _oxm(data, start + 4, stop)
        if pushed:
            # A tag without an id of its own is none of ours.
            if field is None or field[0] != of.OXM_OF_VLAN_VID:
                raise _Foreign
            pushed = False
            yield PushTag(_tag(field[1]))
        elif kind == of.OFPAT_PUSH_VLAN and word >> 16 == TAG_TYPE:
            pushed = True
        elif field is not None and field[0] == of.OXM_OF_IP_DSCP:
            yield SetDscp(field[1][0])
        elif field is not None and field[0] == of.OXM_OF_VLAN_VID:
            yield SetTag(_tag(field[1]))
        elif field is not None and field[0] == of.OXM_OF_VLAN_PCP:
            yield SetPriority(field[1][0])
        elif kind == of.OFPAT_OUTPUT and size == 16:
            yield ToController() if word == of.OFPP_CONTROLLER else Output(word)
        elif kind == of.OFPAT_GROUP:
            yield ToGroup(word)
        elif kind == of.OFPAT_SET_QUEUE:
            yield SetQueue(word)
        elif kind == of.OFPAT_POP_VLAN:
            yield PopTag()
        else:
            raise _Foreign
    if pushed:
        raise _Foreign
