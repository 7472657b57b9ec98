"""The controller's edge to switches, with Open vSwitch: userspace datapath, in a namespace.

```text
 test ─ Server ─TCP─ Open vSwitch: bridges br1 ══ br2, fail_mode=secure
```
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
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
    SetQueue,
    SwitchIntent,
    Table,
    ToController,
    ToGroup,
)
from tidegate_controller.model.topology import Link, Port
from tidegate_controller.openflow import codec, sync
from tidegate_controller.openflow.change import Change
from tidegate_controller.openflow.lldp import Discovery
from tidegate_controller.openflow.requests import RequestRefused
from tidegate_controller.openflow.server import Event, PacketIn, PortsChanged, Server, SwitchDown, SwitchUp
from tidegate_controller.openflow.session import Role, Session, SessionLost

from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS, OpenVswitch

pytestmark = pytest.mark.abreast

BR1, BR2 = f"{1:016x}", f"{2:016x}"


@pytest.fixture(scope="module")
def ovs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenVswitch]:
    """Two bridges, joined, that look for a controller."""
    need_commands(*COMMANDS, "ovs-ofctl")
    need("no network namespaces", can_make_namespaces())
    folder = tmp_path_factory.mktemp("o")
    with Stack(folder / "stack") as stack, OpenVswitch(folder / "ovs", stack) as running:
        for number, name in enumerate(("br1", "br2"), 1):
            running.bridge(name, number)
            # The first controller of a bridge empties it: others' rules come later.
            running.controller(name, "tcp:127.0.0.1:9")
        running.patch("br1", "br2")
        yield running


class Controller:
    """A server with its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.server = Server(self.events.append)

    async def switch(self, name: str = BR1) -> Session:
        """The session of a switch, once it is there."""
        while name not in self.server.sessions:
            await asyncio.sleep(0.01)
        return self.server.sessions[name]

    async def until(self, what: Callable[[], object]) -> None:
        """Waits until something is true."""
        while not what():
            await asyncio.sleep(0.01)


def run(ovs: OpenVswitch, test: Callable[[Controller], Awaitable[None]]) -> Controller:
    """Runs a test with a controller of its own; it has 60 s."""

    async def limited() -> Controller:
        controller = Controller()
        async with asyncio.timeout(60):
            await controller.server.start("127.0.0.1", 0)
            for bridge in ("br1", "br2"):
                target = f"tcp:127.0.0.1:{controller.server.port}"
                await asyncio.to_thread(ovs.controller, bridge, target)
            try:
                await test(controller)
            finally:
                await controller.server.stop()
        return controller

    return ovs.stack.call(lambda: asyncio.run(limited()))


def ofctl(ovs: OpenVswitch, words: str) -> str:
    """`ovs-ofctl` with OpenFlow 1.3."""
    command, bridge, *rest = words.split(" ", 2)
    return ovs.stack.run(["ovs-ofctl", "-OOpenFlow13", command, f"unix:{ovs.folder}/{bridge}.mgmt", *rest])


def some_of_all(number: int) -> SwitchIntent:
    """All kinds of matches and actions, over three tables."""
    key = Match(eth_type=0x0800, dscp=46, protocol=17, source="10.0.0.1", target="10.0.0.2", target_port=4789)
    queues = (SetQueue(1), Goto(Table.WAY))
    rules = {
        Rule(Table.EDGE, 0, Match(), (), OURS),
        Rule(Table.EDGE, 900, Match(eth_type=0x88CC), (ToController(),), OURS),
        Rule(Table.EDGE, 100, Match(in_port=1, eth_type=0x0806), (Goto(Table.WAY),), OURS),
        Rule(
            Table.EDGE, 100, Match(eth_type=0x86DD, protocol=6, target="fd00::2", source_port=7), (), OURS | 3
        ),
        Rule(
            Table.EDGE, 90, Match(eth_type=0x86DD, source="FD00:0::1"), (SetDscp(0), Goto(Table.QUEUE)), OURS
        ),
        Rule(Table.QUEUE, 10, Match(eth_type=0x0800, dscp=46), queues, OURS),
        Rule(Table.QUEUE, 10, Match(eth_type=0x86DD, dscp=46), queues, OURS),
        Rule(Table.WAY, 10, Match(tag=0, eth_dst="02:00:00:00:00:01"), (Output(1),), OURS),
        Rule(Table.WAY, 11, Match(tag=70), (ToGroup(70),), OURS | 4),
        Rule(Table.WAY, 10, Match(tag=71, in_port=1), (PopTag(), Output(1), Output(2)), OURS | 5),
    }
    for port in range(1, number + 1):
        marked = (SetDscp(34), PushTag(port % 4000 + 1), Goto(Table.QUEUE))
        rules.add(Rule(Table.EDGE, 700, replace(key, source_port=port), marked, OURS | port))
    return SwitchIntent(rules, {Group(70, (1, 2)), Group(71, (2,))})


def canonical(rules: set[Rule]) -> set[Rule]:
    """In the spelling of replies."""
    return {replace(rule, match=codec.canonical(rule.match)) for rule in rules}


def test_a_switch_holds_what_it_is_to_hold(ovs: OpenVswitch) -> None:
    """All kinds of rules come back as they went; another's stay; a new controller disturbs nothing."""
    intent = some_of_all(1000)
    ofctl(ovs, "del-flows br1")
    ofctl(
        ovs, "add-flow br1 table=0,priority=5,cookie=0xbeef,tcp,tp_dst=22,nw_src=10.0.0.0/8,actions=output:1"
    )
    ofctl(ovs, "add-group br1 group_id=5000,type=all,bucket=output:1")

    async def first(controller: Controller) -> None:
        session = await controller.switch()
        report = await sync.synchronise(session, intent)
        assert report.complete
        assert (report.others, report.other_groups) == (1, 1)
        held = await sync.read(session)
        assert set(held.rules.values()) == canonical(intent.rules)
        assert set(held.groups.values()) == intent.groups
        assert session.counts.stray == 0

    run(ovs, first)
    flows = ofctl(ovs, "dump-flows br1")
    assert flows.count("cookie=0x7469") == len(intent.rules)
    assert flows.count("set_field:34->ip_dscp,push_vlan:0x8100,set_field:") == 1000
    assert "cookie=0xbeef" in flows

    changed = SwitchIntent(set(intent.rules), {Group(70, (2, 1))})
    gone = next(rule for rule in changed.rules if rule.match.source_port == 5)
    other = next(rule for rule in changed.rules if rule.match.source_port == 6)
    changed.rules -= {gone, other}
    changed.rules |= {replace(other, actions=(Goto(Table.WAY),))}

    async def second(controller: Controller) -> None:
        session = await controller.switch()
        report = await sync.synchronise(session, intent)
        assert report.done == ()
        before = {(entry.cookie, entry.match) for entry in await session.rules()}
        report = await sync.synchronise(session, changed)
        assert report.complete
        assert sum(map(len, report.done)) == 4
        held = await sync.read(session)
        assert set(held.rules.values()) == canonical(changed.rules)
        assert set(held.groups.values()) == changed.groups
        assert (await sync.take_back(session, report)).complete
        assert {(entry.cookie, entry.match) for entry in await session.rules()} == before
        assert (await sync.synchronise(session, SwitchIntent())).complete

    run(ovs, second)
    assert "0x7469" not in ofctl(ovs, "dump-flows br1")
    assert "0xbeef" in ofctl(ovs, "dump-flows br1")
    assert re.findall("group_id=([0-9]+)", ofctl(ovs, "dump-groups br1")) == ["5000"]


def test_a_rule_of_ours_that_another_has_changed(ovs: OpenVswitch) -> None:
    """A form that is none of ours is replaced; another's rule in our place stays, and is named."""
    ofctl(ovs, "del-flows br1")
    mine = Rule(Table.EDGE, 7, Match(in_port=1), (Output(2),), OURS | 1)
    place = Rule(Table.EDGE, 8, Match(in_port=1), (Output(2),), OURS | 1)
    ofctl(
        ovs, f"add-flow br1 cookie={mine.cookie},table=0,priority=7,in_port=1,idle_timeout=999,actions=normal"
    )
    ofctl(ovs, "add-flow br1 cookie=7,table=0,priority=8,in_port=1,actions=normal")

    async def test(controller: Controller) -> None:
        session = await controller.switch()
        report = await sync.synchronise(session, SwitchIntent({mine, place}))
        assert (report.refused, report.conflicts) == ((), (place,))
        held = await sync.read(session)
        assert set(held.rules.values()) == {mine}
        assert held.others == 1

    run(ovs, test)


def test_a_full_table(ovs: OpenVswitch) -> None:
    """The errors name the rules; all is taken back."""
    ofctl(ovs, "del-flows br1")
    ovs.vsctl(
        "--id=@t create Flow_Table flow_limit=10 overflow_policy=refuse -- set bridge br1 flow_tables:2=@t"
    )
    rules = {Rule(Table.WAY, number, Match(), (), OURS) for number in range(100)}

    async def test(controller: Controller) -> None:
        session = await controller.switch()
        report = await sync.synchronise(session, SwitchIntent(rules))
        assert not report.complete
        assert len(report.refused) == 90
        assert all(refused.error.table_full for refused in report.refused)
        assert "flow-mod-failed: table-full: add Rule" in str(report.refused[0])
        assert (await sync.take_back(session, report)).complete
        assert not (await sync.read(session)).rules

    try:
        run(ovs, test)
    finally:
        ovs.vsctl("clear bridge br1 flow_tables")


def test_errors_belong_to_their_changes(ovs: OpenVswitch) -> None:
    """A group that is not there, among rules that are fine."""
    ofctl(ovs, "del-flows br1")
    rules = [Rule(Table.WAY, number, Match(), (), OURS) for number in range(200)]
    rules[123] = Rule(Table.WAY, 123, Match(), (ToGroup(4000),), OURS)

    async def test(controller: Controller) -> None:
        session = await controller.switch()
        refusals = await session.apply(codec.encode(Change(None, rule)) for rule in rules)
        assert [refusal.index for refusal in refusals] == [123]
        assert "bad-action: bad-out-group" in str(refusals[0].error)

    run(ovs, test)


def test_counters_and_roles(ovs: OpenVswitch) -> None:
    """Ports have counters; an old generation gets no role."""

    async def test(controller: Controller) -> None:
        session = await controller.switch()
        assert [port.name for port in session.ports.values()] == ["br1-br2"]
        assert [counters.port for counters in await session.port_counters() if counters.port < 1000] == [1]
        await session.queue_counters()
        assert await session.role(Role.MASTER, 10) is Role.MASTER
        with pytest.raises(RequestRefused, match="role-request-failed: stale"):
            await session.role(Role.SLAVE, 9)
        assert await session.alive(10)

    run(ovs, test)


def test_links_are_discovered(ovs: OpenVswitch) -> None:
    """Both directions; a port that is deleted takes its links along."""
    found = Discovery(interval=0.2)
    lldp = Rule(Table.EDGE, 900, Match(eth_type=0x88CC), (ToController(),), OURS)

    async def test(controller: Controller) -> None:
        loop = asyncio.get_running_loop()
        for name in (BR1, BR2):
            session = await controller.switch(name)
            assert (await sync.synchronise(session, SwitchIntent({lldp}))).complete
            found.set_ports(name, session.ports, loop.time())
        seen = 0
        while len(found.links) < 2:
            for port, frame in found.due(loop.time()):
                assert controller.server.sessions[port.switch].send(codec.packet_out(port.number, frame))
            await asyncio.sleep(0.02)
            for event in controller.events[seen:]:
                if isinstance(event, PacketIn):
                    found.received(Port(event.switch, event.port), event.frame, loop.time())
            seen = len(controller.events)
        link = Link(Port(BR1, 1), Port(BR2, 1))
        assert found.links == {link, link.back}
        assert (found.forged, found.contested) == (0, 0)
        await asyncio.to_thread(ovs.vsctl, "del-port br1 br1-br2")
        await controller.until(lambda: any(isinstance(event, PortsChanged) for event in controller.events))
        changed = next(event for event in controller.events if isinstance(event, PortsChanged))
        assert found.set_ports(changed.switch, changed.ports, loop.time()) == {link, link.back}

    try:
        run(ovs, test)
    finally:
        ovs.vsctl("--if-exists del-port br1 br1-br2 -- --if-exists del-port br2 br2-br1")
        ovs.patch("br1", "br2")


def test_a_switch_that_crashes_amid_changes(ovs: OpenVswitch) -> None:
    """The update ends with the reason; when the switch is back, it is made whole."""
    intent = some_of_all(3000)

    async def test(controller: Controller) -> None:
        session = await controller.switch()
        updating = asyncio.create_task(sync.synchronise(session, intent))
        while not session._barriers:
            await asyncio.sleep(0)
        restarting = asyncio.create_task(asyncio.to_thread(ovs.restart))
        with suppress(SessionLost):
            while True:
                await updating
                updating = asyncio.create_task(sync.synchronise(session, SwitchIntent()))
                await updating
                updating = asyncio.create_task(sync.synchronise(session, intent))
        await restarting
        await controller.until(lambda: any(isinstance(event, SwitchDown) for event in controller.events))
        await controller.until(
            lambda: (
                sum(isinstance(event, SwitchUp) and event.switch == BR1 for event in controller.events) > 1
            )
        )
        session = await controller.switch()
        assert (await sync.synchronise(session, intent)).complete
        held = await sync.read(session)
        assert set(held.rules.values()) == canonical(intent.rules)

    run(ovs, test)
