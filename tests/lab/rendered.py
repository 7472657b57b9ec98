"""Rules and groups of an intent as `ovs-ofctl` prints them, made from its manual: another reading of both.

```text
 Rule ─▶ rule ─▶ Line (table, priority, cookie, match, actions) ◀─ lines ◀─ ovs-ofctl dump-flows --no-stats
```
"""

import re
from collections.abc import Iterable

from tidegate_controller.model import intent

IPV4, ARP, IPV6, LLDP = 0x0800, 0x0806, 0x86DD, 0x88CC
Line = tuple[int, int, int, frozenset[str], tuple[str, ...]]
"""Table, priority, cookie, fields, actions."""


def rule(one: intent.Rule) -> Line:
    """A rule as a switch prints it."""
    match = one.match
    protocols = {
        IPV4: {17: "udp", 6: "tcp", 1: "icmp", None: "ip"},
        IPV6: {17: "udp6", 58: "icmp6", None: "ipv6"},
    }
    fields: set[str] = set()
    if match.eth_type in protocols:
        fields.add(protocols[match.eth_type][match.protocol])
    elif match.eth_type == ARP:
        fields.add("arp")
    elif match.eth_type is not None:
        fields.add(f"dl_type={match.eth_type:#06x}")
    if match.in_port is not None:
        fields.add(f"in_port={match.in_port}")
    fields |= {
        f"{name}={value}"
        for name, value in (
            ("dl_src", match.eth_src),
            ("dl_dst", match.eth_dst),
            ("dl_vlan_pcp", match.priority),
        )
        if value is not None
    }
    # A priority says that there is a tag.
    if match.tag is not None and match.tag != intent.ANY_TAG:
        fields.add("vlan_tci=0x0000/0x1fff" if match.tag == 0 else f"dl_vlan={match.tag}")
    if match.dscp is not None:
        fields.add(f"nw_tos={match.dscp << 2}")
    ends = ("nw_src", "nw_dst") if match.eth_type == IPV4 else ("ipv6_src", "ipv6_dst")
    numbered = [*zip(ends, (match.source, match.target), strict=True)]
    numbered += [("tp_src", match.source_port), ("tp_dst", match.target_port)]  # type: ignore[list-item]
    fields |= {f"{name}={value}" for name, value in numbered if value is not None}
    return (int(one.table), one.priority, one.cookie, frozenset(fields), actions(one.actions))


def actions(wanted: Iterable[intent.Action]) -> tuple[str, ...]:
    """Actions as a switch prints them."""
    found: list[str] = []
    for action in wanted:
        match action:
            case intent.Output(port):
                found.append(f"output:{port}")
            case intent.ToController():
                found.append("CONTROLLER:65535")
            case intent.ToGroup(group):
                found.append(f"group:{group}")
            case intent.SetQueue(queue):
                found.append(f"set_queue:{queue}")
            case intent.SetDscp(dscp):
                found.append(f"set_field:{dscp}->ip_dscp")
            case intent.PushTag(tag):
                found += ["push_vlan:0x8100", f"set_field:{0x1000 | tag}->vlan_vid"]
            case intent.SetTag(tag):
                found.append(f"set_field:{0x1000 | tag}->vlan_vid")
            case intent.SetPriority(priority):
                found.append(f"set_field:{priority}->vlan_pcp")
            case intent.PopTag():
                found.append("pop_vlan")
            case intent.Goto(table):
                found.append(f"goto_table:{int(table)}")
    return tuple(found or ["drop"])


def lines(text: Iterable[str]) -> set[Line]:
    """What `ovs-ofctl --no-stats --no-names dump-flows` printed."""
    found = set()
    for line in text:
        head, _, tail = line.partition(" actions=")
        words = [word for word in re.split(r",\s*|\s+", head) if word]
        named = {name: value for name, _, value in (word.partition("=") for word in words)}
        fields = frozenset(
            word for word in words if word.partition("=")[0] not in ("cookie", "table", "priority")
        )
        key = int(named.get("table", "0")), int(named.get("priority", "32768")), int(named["cookie"], 16)
        found.add((*key, fields, tuple(tail.strip().split(","))))
    return found


def group(one: intent.Group) -> str:
    """A group as a switch prints it."""
    buckets = ",".join(f"bucket=watch_port:{port},actions=output:{port}" for port in one.ports)
    return f"group_id={one.number},type=ff,{buckets}"


def groups(text: Iterable[str]) -> set[str]:
    """What `ovs-ofctl --no-names dump-groups` printed, without the numbers of buckets."""
    return {re.sub(r"bucket_id:\d+,", "", line.strip()) for line in text}
