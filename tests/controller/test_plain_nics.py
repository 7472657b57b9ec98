"""Frames of plain NICs through real Open vSwitch: on a path by VLAN, priority and MACs, else best effort.

```text
 h1 ── frames with a tag ──▶ s1: tag and priority rewritten ══ s2: as they were ──▶ h2
```
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate_controller import events as ev
from tidegate_controller.model.hosts import Allowed, MacRange
from tidegate_controller.model.paths import EthernetKey, PathRequest
from tidegate_controller.model.plain import Behind, Place
from tidegate_controller.runtime.kept import Kept

from lab.controlled import MBIT, Controller, configuration, run
from lab.fabric import Fabric, line, ring
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.tagged import Tagged, listening, send
from lab.vlan_switch import VlanSwitch

pytestmark = pytest.mark.abreast

VLAN, PRIORITY = 42, 5
A, B, C = (f"02:00:00:00:0a:{number:02x}" for number in (1, 2, 3))
COUNT = 50


@pytest.fixture(name="fabric")
def _fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path_factory.mktemp("f"), line(2)) as running:
        yield running


@pytest.fixture(name="circle")
def _circle(tmp_path: Path) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool", "ping")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path / "f", ring(4)) as running:
        yield running


def behind(*places: tuple[int, str], vlans: tuple[int, ...] = ()) -> Behind:
    """What a host has behind its plain NIC."""
    return Behind(
        frozenset({*vlans, *(vlan for vlan, _ in places)}), frozenset(Place(*one) for one in places)
    )


def request(vlan: int = VLAN) -> PathRequest:
    """A path from the vNIC A of h1 to B of h2."""
    key = EthernetKey(vlan, PRIORITY, A, B)
    return PathRequest("a>b", "h1", "h2", key, 0, 2 * MBIT, 3000, 64, 1518, 10**9)


async def full_table(controller: Controller) -> None:
    """Too little room for vNICs: paths have theirs, and with more room all is as it is to be."""
    fabric, core = controller.fabric, controller.runtime.core
    full = "--id=@t create Flow_Table flow_limit=10 overflow_policy=refuse -- set bridge s1 flow_tables:3=@t"
    many = tuple((VLAN, f"02:00:00:00:0c:{number:02x}") for number in range(40))
    await asyncio.to_thread(fabric.ovs.vsctl, full)
    controller.runtime.happened(ev.PlainNics({"h1": behind((VLAN, A)), "h2": behind((VLAN, B), *many)}))
    await controller.until("a refusal", lambda: "s1" in core.stale)
    answer = await controller.ask(request())
    assert answer.path is not None, answer.reasons
    with listening(fabric.hosts["h2"], "eth0") as arrived:
        frames = [Tagged(VLAN, PRIORITY, A, B, 0, number) for number in range(COUNT)]
        await asyncio.to_thread(send, fabric.hosts["h1"], "eth0", frames)
        found: list[Tagged] = []

        def all_there() -> bool:
            found.extend(arrived())
            return len(found) >= COUNT

        await controller.until("frames of the path", all_there)
        assert found == frames
    await asyncio.to_thread(fabric.ovs.vsctl, "clear bridge s1 flow_tables")
    await controller.until("all rules", controller.still)
    await controller.as_intended()


def test_a_path_between_plain_nics(fabric: Fabric) -> None:
    """Its frames arrive as they were sent; those of others do not come in. Also where vNICs fill a table."""

    async def test(controller: Controller) -> None:
        answer = await controller.ask(request())
        path = answer.path
        assert path is not None, answer.reasons
        assert path.tag != VLAN
        await controller.as_intended()
        flows = await asyncio.to_thread(fabric.dump_flows, "s1")
        (edge,) = [flow for flow in flows if f"dl_src={A}" in flow]
        print(edge)
        assert f"dl_vlan={VLAN},dl_vlan_pcp={PRIORITY},dl_src={A},dl_dst={B}" in edge
        level = 7 - path.route.level
        assert f"set_field:{0x1000 | path.tag}->vlan_vid,set_field:{level}->vlan_pcp,goto_table:1" in edge
        # Marks of guests stay: also that of a level, and the longest way round.
        sent = [Tagged(VLAN, PRIORITY, A, B, dscp, number) for number in range(COUNT) for dscp in (0, 10, 46)]
        one = sent[0]
        strangers = [
            *(replace(one, vlan=vlan, number=1000) for vlan in (VLAN + 1, path.tag)),
            *(replace(one, priority=priority, number=1001) for priority in (0, level)),
            replace(one, source=C, number=1002),
            replace(one, target=C, number=1003),
        ]
        inside, end = listening(fabric.net, "s2.1"), listening(fabric.hosts["h2"], "eth0")
        with inside as passed, end as arrived:
            await asyncio.to_thread(send, fabric.hosts["h1"], "eth0", [*strangers, *sent])
            # The same frames from another host are none of the path.
            await asyncio.to_thread(send, fabric.hosts["h2"], "eth0", [replace(one, number=1004)])
            found: list[Tagged] = []

            def all_there() -> bool:
                found.extend(arrived())
                return len(found) >= len(sent)

            await controller.until("all frames", all_there)
            await asyncio.sleep(0.2)
            assert sorted([*found, *arrived()]) == sorted(sent)
            on_the_way = {(frame.vlan, frame.priority) for frame in passed()}
            assert on_the_way == {(path.tag, level)}
        # Its VLAN is no tag of a path, and a tag no VLAN of one.
        refused = await controller.ask(replace(request(path.tag), name="a>c"))
        print(refused.reasons)
        assert "of its frames is the tag of a>b#1 between switches" in refused.reasons[0]
        released = await controller.runtime.release("a>b")
        assert released.path is not None
        await controller.until("the end of the change", controller.quiet)
        await controller.as_intended()
        await full_table(controller)

    run(fabric, Kept(), test)


OTHER, BROADCAST, GROUP, UNKNOWN = 43, "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "02:00:00:00:0b:01"
HOSTS = {
    "h1": behind((VLAN, A)),
    "h2": behind((VLAN, B), (OTHER, B)),
    "h3": behind(vlans=(VLAN,)),
    "h4": behind((OTHER, C)),
}
"""Of the ring. The MAC B is in both VLANs, so frames for it are broadcast between switches."""


class Heard:
    """What arrives at all hosts of a fabric."""

    def __init__(self, fabric: Fabric, stack: ExitStack) -> None:
        self._heard: dict[str, Callable[[], list[Tagged]]] = {
            host: stack.enter_context(listening(at, "eth0")) for host, at in fabric.hosts.items()
        }
        self.frames: dict[str, list[Tagged]] = {host: [] for host in self._heard}

    def count(self) -> int:
        """How many there are until now."""
        for host, heard in self._heard.items():
            self.frames[host] += heard()
        return sum(map(len, self.frames.values()))


async def floods(controller: Controller, number: int) -> None:
    """A host sends to all, to a group, and to an unknown MAC: each host of the VLAN gets each frame once.

    Frames with a VLAN or a MAC of another host do not come in.
    """
    fabric = controller.fabric
    good = [Tagged(VLAN, PRIORITY, A, to, 0, number + n) for n, to in enumerate([BROADCAST, GROUP, UNKNOWN])]
    good.append(Tagged(VLAN, 0, A, B, 0, number + 9))
    bad = [Tagged(vlan, 0, source, BROADCAST, 0, 9) for vlan, source in [(OTHER, A), (VLAN, B), (OTHER, B)]]
    bad += [Tagged(tag, 0, A, B, 0, 8) for tag in controller.runtime.core.engine.plain_tags]
    with ExitStack() as stack:
        heard = Heard(fabric, stack)
        await asyncio.to_thread(send, fabric.hosts["h1"], "eth0", [*bad, *good])
        await controller.until("all frames", lambda: heard.count() >= 2 * len(good))
        await asyncio.sleep(0.2)
        heard.count()
        as_sent = sorted(replace(one, priority=0) for one in good)
        assert {host: sorted(frames) for host, frames in heard.frames.items()} == {
            "h1": [],
            "h2": as_sent,
            "h3": as_sent,
            "h4": [],
        }


async def reached(controller: Controller) -> None:
    """h1 asks for the MAC of h2 (ARP), and hears the answer."""
    told = await asyncio.to_thread(
        controller.fabric.hosts["h1"].try_run, "ip neigh flush dev vlan42; ping -c 2 -i 0.2 -W 2 10.42.0.2"
    )
    assert "2 received" in told.stdout, told.stdout


async def released_under_traffic(controller: Controller) -> None:
    """Frames on a path, at their priority; on after its end, as best effort."""
    fabric = controller.fabric
    source, target = "02:00:00:00:0a:01", "02:00:00:00:0a:04"
    controller.runtime.happened(ev.PlainNics({"h3": behind((VLAN, target))}))
    key = EthernetKey(VLAN, PRIORITY, source, target)
    answer = await controller.ask(replace(request(), name="a>d", target="h3", key=key))
    assert answer.path is not None, answer.reasons
    await controller.until("the end of the change", controller.still)
    sent, ended = 0, False

    def keep_sending() -> None:
        nonlocal sent
        while not ended:
            send(fabric.hosts["h1"], "eth0", [Tagged(VLAN, PRIORITY, source, target, 0, sent)])
            sent += 1
            time.sleep(0.001)

    with ExitStack() as stack:
        heard = Heard(fabric, stack)
        sending = asyncio.create_task(asyncio.to_thread(keep_sending))
        await controller.until("frames on the path", lambda: heard.count() >= 50)
        await controller.runtime.release("a>d")
        count = heard.count()
        await controller.until("frames without a path", lambda: heard.count() >= count + 50)
        ended = True
        await sending
        await controller.until("the last frames", lambda: heard.count() >= sent)
        priorities = Counter(frame.priority for frame in heard.frames["h3"])
        print(f"{sent} frames, {sent - len(heard.frames['h3'])} lost; by priority: {dict(priorities)}")
        assert [frame.number for frame in heard.frames["h3"]] == list(range(sent))
        assert min(priorities[PRIORITY], priorities[0]) >= 50
        assert heard.count() == sent


def test_best_effort_without_a_path(circle: Fabric, tmp_path: Path) -> None:
    """ARP, ping and floods in a ring, also when a link is gone; a path that ends under traffic loses none."""
    with ExitStack() as stack:
        for host, number, mac in (("h1", 1, A), ("h2", 2, B)):
            stack.enter_context(VlanSwitch(circle.hosts[host], tmp_path / host, "eth0", [VLAN]))
            address = f"ip addr add 10.42.0.{number}/24 dev vlan42"
            circle.hosts[host].run(f"ip link set vlan42 address {mac} up && {address}")
        _best_effort_without_a_path(circle)


def _best_effort_without_a_path(circle: Fabric) -> None:
    async def test(controller: Controller) -> None:
        controller.runtime.happened(ev.PlainNics(HOSTS))
        await controller.until("rules of plain NICs", controller.still)
        await controller.as_intended()
        await reached(controller)
        await floods(controller, 100)
        (end, _) = circle.links[0]
        circle.net.run(f"ip link set {end} down")
        links = controller.runtime.core.engine
        await controller.until(
            "the loss of the link", lambda: len(links.newest.links) < len(circle.links) * 2
        )
        await controller.until("rules without it", controller.still)
        await reached(controller)
        await floods(controller, 200)
        await released_under_traffic(controller)
        await controller.as_intended()

    run(circle, Kept(), test, steer=False)


@pytest.mark.nightly
def test_a_successor_changes_no_rule(circle: Fabric) -> None:
    """It begins with what was kept, before any host has registered; the part that hosts may not have goes."""
    config, kept = configuration(circle), Kept()
    every = Allowed("10.0.0.1", frozenset({VLAN, OTHER}), (MacRange(0x02 << 40, 8),))
    allowed = dict.fromkeys(HOSTS, every)
    before = replace(config, api=replace(config.api, allowed=allowed))

    async def first(controller: Controller) -> None:
        controller.runtime.happened(ev.PlainNics(HOSTS))
        await controller.until("rules of plain NICs", controller.still)

    async def second(controller: Controller) -> None:
        await controller.as_intended()
        assert {one.changed for one in controller.runtime.switches.values()} == {0}
        await floods(controller, 100)

    async def third(controller: Controller) -> None:
        await controller.as_intended()
        assert controller.runtime.core.best_effort.places.behind("h1") == behind()

    run(circle, kept, first, before, steer=False)
    run(circle, kept, second, before, steer=False)
    after = {**allowed, "h1": replace(every, segments=frozenset())}
    run(circle, kept, third, replace(config, api=replace(config.api, allowed=after)), steer=False)
