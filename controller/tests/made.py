"""Rules and groups for property tests (hypothesis)."""

import ipaddress

from hypothesis import strategies as st

from tidegate_controller.model.intent import (
    ANY_TAG,
    OUR_GROUPS,
    OURS,
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

port_numbers = st.integers(1, 0xFFFFFF00)
maybe_port = st.none() | st.integers(0, 0xFFFF)
cookies = st.integers(0, 0xFFFF_FFFF).map(lambda low: OURS | low)


@st.composite
def matches(draw: st.DrawFn) -> Match:
    """Matches that a switch can be asked for, in the spelling of replies."""
    eth_type = draw(st.sampled_from([None, 0x0800, 0x86DD, 0x0806, 0x88CC]))
    is_ip = eth_type in (0x0800, 0x86DD)
    kind = ipaddress.IPv4Address if eth_type == 0x0800 else ipaddress.IPv6Address
    bits = 32 if eth_type == 0x0800 else 128
    address = st.none() | st.integers(0, 2**bits - 1).map(lambda number: str(kind(number)))
    protocol = draw(st.none() | st.sampled_from([1, 6, 17])) if is_ip else None
    has_ports = protocol in (6, 17)
    macs = st.none() | st.binary(min_size=6, max_size=6).map(lambda mac: mac.hex(":"))
    tag = draw(st.none() | st.integers(0, 4094) | st.just(ANY_TAG))
    return Match(
        in_port=draw(st.none() | port_numbers),
        eth_type=eth_type,
        eth_src=draw(macs),
        eth_dst=draw(macs),
        tag=tag,
        priority=draw(st.none() | st.integers(0, 7)) if tag else None,
        dscp=draw(st.none() | st.integers(0, 63)) if is_ip else None,
        protocol=protocol,
        source=draw(address) if is_ip else None,
        target=draw(address) if is_ip else None,
        source_port=draw(maybe_port) if has_ports else None,
        target_port=draw(maybe_port) if has_ports else None,
    )


actions: st.SearchStrategy[Action] = st.one_of(
    port_numbers.map(Output),
    st.just(ToController()),
    st.sampled_from(OUR_GROUPS).map(ToGroup),
    st.integers(0, 100).map(SetQueue),
    st.integers(0, 63).map(SetDscp),
    st.integers(1, 4094).map(PushTag),
    st.just(PopTag()),
    st.integers(1, 4094).map(SetTag),
    st.integers(0, 7).map(SetPriority),
)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """Rules of ours."""
    table, match = draw(st.sampled_from(Table)), draw(matches())
    done: tuple[Action, ...] = ()
    tagged = bool(match.tag)
    for action in draw(st.lists(actions, max_size=5)):
        # Marks are of IP, and only a tag that is there can be removed.
        if isinstance(action, SetDscp) and match.eth_type not in (0x0800, 0x86DD):
            continue
        if isinstance(action, PushTag | PopTag):
            if isinstance(action, PopTag) and not tagged:
                continue
            tagged = isinstance(action, PushTag)
        if isinstance(action, SetTag | SetPriority) and not tagged:
            continue
        done += (action,)
    later = [Goto(other) for other in Table if other > table]
    if later:
        done += tuple(draw(st.sampled_from([(), *((goto,) for goto in later)])))
    return Rule(table, draw(st.integers(0, 0xFFFF)), match, done, draw(cookies))


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Groups of ours."""
    return Group(draw(st.sampled_from(OUR_GROUPS)), tuple(draw(st.lists(port_numbers, max_size=5))))
