"""Paths between plain NICs through real Open vSwitch: told by VLAN, priority and MACs; no frame grows.

```text
 h1 ── frames with a tag ──▶ s1: tag and priority rewritten ══ s2: as they were ──▶ h2
```
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tidegate_controller.model.paths import EthernetKey, PathRequest
from tidegate_controller.runtime.kept import Kept

from lab.controlled import MBIT, Controller, run
from lab.fabric import Fabric, line
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.tagged import Tagged, listening, send

VLAN, PRIORITY = 42, 5
A, B, C = (f"02:00:00:00:0a:{number:02x}" for number in (1, 2, 3))
COUNT = 50


@pytest.fixture(name="fabric")
def _fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path_factory.mktemp("f"), line(2)) as running:
        yield running


def request(vlan: int = VLAN) -> PathRequest:
    """A path from the vNIC A of h1 to B of h2."""
    key = EthernetKey(vlan, PRIORITY, A, B)
    return PathRequest("a>b", "h1", "h2", key, 0, 2 * MBIT, 3000, 64, 1518, 10**9)


def test_a_path_between_plain_nics(fabric: Fabric) -> None:
    """Its frames arrive as they were sent; those of others do not come in."""

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

    run(fabric, Kept(), test)
