"""Rules, groups and requests as OpenFlow 1.3 messages, by os-ken's codec.

```text
 Change(rule or group) ─▶ encode() ─▶ flow_mod, group_mod     Match ─▶ canonical() ─▶ as replies have it
 port, frame ─▶ packet_out()          role, generation ─▶ role_request()          ─▶ requests of statistics
```

Each message is bytes with transaction id 0; the session puts its own in. Of os-ken only `os_ken.ofproto` is
used: its application manager, hubs and event loops are not loaded. The other direction is `replies`.
"""

import ipaddress
from dataclasses import replace
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as of
from os_ken.ofproto import ofproto_v1_3_parser as osken

from tidegate_controller.model.intent import (
    ANY_TAG,
    IPV4,
    IPV6,
    OUR_GROUPS,
    OURS,
    OURS_MASK,
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
    ToController,
    ToGroup,
)
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.wire import HEADER


class _Datapath:
    """What os-ken's messages ask of a connection."""

    ofproto = of
    ofproto_parser = osken


_OF13 = _Datapath()


def _bytes(message: Any) -> bytes:  # noqa: ANN401 - os-ken has no types
    message.serialize()
    return bytes(message.buf)


def _plain(kind: int) -> bytes:
    return HEADER.pack(of.OFP_VERSION, kind, HEADER.size, 0)


def hello() -> bytes:
    """Returns a hello that offers version 1.3 alone."""
    offer = osken.OFPHelloElemVersionBitmap(versions=[of.OFP_VERSION])
    return _bytes(osken.OFPHello(_OF13, elements=[offer]))


def hello_failed(reason: str) -> bytes:
    """Returns the error of a switch that does not speak version 1.3."""
    return _bytes(
        osken.OFPErrorMsg(
            _OF13, of.OFPET_HELLO_FAILED, of.OFPHFC_INCOMPATIBLE, reason.encode("ascii", "replace")
        )
    )


FEATURES_REQUEST = _plain(of.OFPT_FEATURES_REQUEST)
BARRIER_REQUEST = _plain(of.OFPT_BARRIER_REQUEST)
ECHO_REQUEST = _plain(of.OFPT_ECHO_REQUEST)


def ports_request() -> bytes:
    """Returns the request of all ports."""
    return _bytes(osken.OFPPortDescStatsRequest(_OF13, 0))


def rules_request() -> bytes:
    """Returns the request of all rules, others' too."""
    return _bytes(
        osken.OFPFlowStatsRequest(_OF13, 0, of.OFPTT_ALL, of.OFPP_ANY, of.OFPG_ANY, 0, 0, osken.OFPMatch())
    )


def groups_request() -> bytes:
    """Returns the request of all groups, others' too."""
    return _bytes(osken.OFPGroupDescStatsRequest(_OF13, 0))


def port_statistics_request() -> bytes:
    """Returns the request of all ports' counters."""
    return _bytes(osken.OFPPortStatsRequest(_OF13, 0, of.OFPP_ANY))


def queue_statistics_request() -> bytes:
    """Returns the request of all queues' counters."""
    return _bytes(osken.OFPQueueStatsRequest(_OF13, 0, of.OFPP_ANY, of.OFPQ_ALL))


def role_request(role: int, generation: int) -> bytes:
    """Returns the request of a role (`OFPCR_ROLE_*`) with the generation of the controllers' election."""
    return _bytes(osken.OFPRoleRequest(_OF13, role, generation))


def packet_out(port: int, frame: bytes) -> bytes:
    """Returns the order to send a frame by a port."""
    actions = [osken.OFPActionOutput(port)]
    return _bytes(osken.OFPPacketOut(_OF13, of.OFP_NO_BUFFER, of.OFPP_CONTROLLER, actions, frame))


def canonical(match: Match) -> Match:
    """Returns the match with addresses spelled as in replies, so that equal matches compare as equal."""
    return replace(
        match,
        eth_src=None if match.eth_src is None else match.eth_src.lower(),
        eth_dst=None if match.eth_dst is None else match.eth_dst.lower(),
        source=None if match.source is None else str(ipaddress.ip_address(match.source)),
        target=None if match.target is None else str(ipaddress.ip_address(match.target)),
    )


def _fields(match: Match) -> dict[str, Any]:
    """Returns os-ken's fields. `ValueError` names what cannot be matched together (OpenFlow 1.3, 7.2.3.8)."""
    fields: dict[str, Any] = {
        "in_port": match.in_port,
        "eth_src": match.eth_src,
        "eth_dst": match.eth_dst,
        "eth_type": match.eth_type,
        "ip_dscp": match.dscp,
        "ip_proto": match.protocol,
    }
    if match.tag == ANY_TAG:
        fields["vlan_vid"] = (of.OFPVID_PRESENT, of.OFPVID_PRESENT)
    elif match.tag is not None:
        _within("tag", match.tag, 0, 4094)
        fields["vlan_vid"] = match.tag | of.OFPVID_PRESENT if match.tag else of.OFPVID_NONE
    if match.priority is not None:
        _within("priority", match.priority, 0, 7)
        if not match.tag:
            raise ValueError(f"{match}: a priority needs a tag")
        fields["vlan_pcp"] = match.priority
    layer3 = (match.dscp, match.protocol, match.source, match.target)
    if match.eth_type not in (IPV4, IPV6) and layer3 != (None,) * 4:
        raise ValueError(f"{match}: marks, protocols and addresses need an eth_type of 0x0800 or 0x86dd")
    if match.dscp is not None:
        _within("dscp", match.dscp, 0, 63)
    family = 4 if match.eth_type == IPV4 else 6
    for address, end in ((match.source, "src"), (match.target, "dst")):
        if address is not None and ipaddress.ip_address(address).version != family:
            raise ValueError(f"{match}: {address} is not of the family that eth_type names")
        fields[f"ipv{family}_{end}"] = address
    layer4 = {TCP: "tcp", UDP: "udp"}.get(match.protocol or 0)
    for port, end in ((match.source_port, "src"), (match.target_port, "dst")):
        if port is not None:
            if layer4 is None:
                raise ValueError(f"{match}: ports need protocol 6 (TCP) or 17 (UDP)")
            _within("port", port, 0, 0xFFFF)
            fields[f"{layer4}_{end}"] = port
    return {name: value for name, value in fields.items() if value is not None}


def _within(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{what} is {value}; {least} to {most} were expected")


def _output(port: int) -> Any:  # noqa: ANN401 - os-ken has no types
    _within("port", port, 1, of.OFPP_ANY - 1)
    if port == of.OFPP_CONTROLLER:
        raise ValueError("the port is the controller's: use ToController")
    return osken.OFPActionOutput(port, 0)


def _actions(action: Action) -> list[Any]:
    made: list[Any]
    match action:
        case Output(port):
            made = [_output(port)]
        case ToController():
            made = [osken.OFPActionOutput(of.OFPP_CONTROLLER, of.OFPCML_NO_BUFFER)]
        case ToGroup(group):
            made = [osken.OFPActionGroup(group)]
        case SetQueue(queue):
            made = [osken.OFPActionSetQueue(queue)]
        case SetDscp(dscp):
            _within("dscp", dscp, 0, 63)
            made = [osken.OFPActionSetField(ip_dscp=dscp)]
        case PushTag(tag):
            _within("tag", tag, 1, 4094)
            field = osken.OFPActionSetField(vlan_vid=of.OFPVID_PRESENT | tag)
            made = [osken.OFPActionPushVlan(TAG_TYPE), field]
        case SetTag(tag):
            _within("tag", tag, 1, 4094)
            made = [osken.OFPActionSetField(vlan_vid=of.OFPVID_PRESENT | tag)]
        case SetPriority(priority):
            _within("priority", priority, 0, 7)
            made = [osken.OFPActionSetField(vlan_pcp=priority)]
        case PopTag():
            made = [osken.OFPActionPopVlan()]
        case Goto(table):
            raise ValueError(f"Goto({int(table)}) is not the last action")
    return made


def _check(rule: Rule) -> None:
    """Raises `ValueError` for actions that need more of the match (OpenFlow 1.3, 7.2.5)."""
    tagged = bool(rule.match.tag)
    for action in rule.actions:
        if isinstance(action, SetDscp) and rule.match.eth_type not in (IPV4, IPV6):
            raise ValueError(f"{action} needs a match with an eth_type of 0x0800 or 0x86dd, not {rule.match}")
        if isinstance(action, PopTag | SetTag | SetPriority) and not tagged:
            raise ValueError(f"{action} needs a match with a tag, not {rule.match}")
        if isinstance(action, PushTag | PopTag):
            tagged = isinstance(action, PushTag)


def _instructions(rule: Rule) -> list[Any]:
    _check(rule)
    actions, after = rule.actions, []
    if actions and isinstance(actions[-1], Goto):
        goto = actions[-1].table
        if goto <= rule.table:
            raise ValueError(
                f"a rule of table {int(rule.table)} goes to table {int(goto)}, which is not later"
            )
        actions, after = actions[:-1], [osken.OFPInstructionGotoTable(int(goto))]
    apply = [made for action in actions for made in _actions(action)]
    return ([osken.OFPInstructionActions(of.OFPIT_APPLY_ACTIONS, apply)] if apply else []) + after


def _flow_mod(command: int, rule: Rule, *, content: bool) -> bytes:
    if rule.cookie & OURS_MASK != OURS:
        raise ValueError(f"cookie 0x{rule.cookie:x} is not one of ours (0x{OURS:x} and up)")
    # An addition takes the cookie; the other commands change nothing that is not ours, even at our key.
    mask = 0 if command == of.OFPFC_ADD else OURS_MASK
    return _bytes(
        osken.OFPFlowMod(
            _OF13,
            cookie=rule.cookie,
            cookie_mask=mask,
            table_id=int(rule.table),
            command=command,
            priority=rule.priority,
            out_port=of.OFPP_ANY,
            out_group=of.OFPG_ANY,
            match=osken.OFPMatch(**_fields(rule.match)),
            instructions=_instructions(rule) if content else [],
        )
    )


def _group_mod(command: int, group: Group) -> bytes:
    if group.number not in OUR_GROUPS:
        raise ValueError(
            f"group {group.number} is not one of ours ({OUR_GROUPS.start} to {OUR_GROUPS.stop - 1})"
        )
    buckets = [
        osken.OFPBucket(watch_port=port, watch_group=of.OFPG_ANY, actions=[_output(port)])
        # Open vSwitch refuses to delete a group that has buckets in the order to do so.
        for port in (() if command == of.OFPGC_DELETE else group.ports)
    ]
    return _bytes(osken.OFPGroupMod(_OF13, command, of.OFPGT_FF, group.number, buckets))


def encode(change: Change) -> bytes:
    """Returns the message of a change. `ValueError` if the switch could not be asked for it."""
    before, after = change.before, change.after
    if isinstance(before, Group) or isinstance(after, Group):
        if after is None and isinstance(before, Group):
            return _group_mod(of.OFPGC_DELETE, before)
        if isinstance(after, Group):
            return _group_mod(of.OFPGC_ADD if before is None else of.OFPGC_MODIFY, after)
    elif after is not None:
        # Only an addition can replace a cookie; a modification keeps the counters.
        kept = before is not None and before.cookie == after.cookie
        return _flow_mod(of.OFPFC_MODIFY_STRICT if kept else of.OFPFC_ADD, after, content=True)
    elif before is not None:
        return _flow_mod(of.OFPFC_DELETE_STRICT, before, content=False)
    raise ValueError(f"no change: {change}")


def delete_by_cookie(table: int, cookie: int) -> bytes:
    """Returns the order to delete all rules of a table with this cookie of ours, whatever they match."""
    if cookie & OURS_MASK != OURS:
        raise ValueError(f"cookie 0x{cookie:x} is not one of ours (0x{OURS:x} and up)")
    return _bytes(
        osken.OFPFlowMod(
            _OF13,
            cookie=cookie,
            cookie_mask=0xFFFF_FFFF_FFFF_FFFF,
            table_id=table,
            command=of.OFPFC_DELETE,
            out_port=of.OFPP_ANY,
            out_group=of.OFPG_ANY,
            match=osken.OFPMatch(),
            instructions=[],
        )
    )
