"""Switches that fail, with the whole controller: full tables, a crash amid a change, a return with old rules.

```text
 h1 ─ s1 ─ s4 ─ s3 ─ h3     one ovs-vswitchd: when it is killed, all four switches vanish at once
       └── s2 ──┘
```
"""

import asyncio
from collections.abc import Iterator

import pytest
from tidegate_controller import events as ev
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import PathState
from tidegate_controller.runtime.kept import Kept

from lab.controlled import DSCP, HOLD, MBIT, Controller, run
from lab.fabric import Fabric, ring
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.traffic import Flow

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture(name="circle")
def _circle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path_factory.mktemp("f"), ring(4)) as running:
        yield running


def limit(fabric: Fabric, switch: str, most: int | None) -> None:
    """The table of ways of a switch takes no more rules than this; `None`: as many as come."""
    made = f"-- --id=@t create Flow_Table flow_limit={most} -- set bridge {switch} flow_tables:2=@t"
    fabric.ovs.vsctl(f"clear bridge {switch} flow_tables" if most is None else made)


def rules_of(fabric: Fabric, switch: str) -> int:
    """Rules in that table."""
    return sum("table=2," in line for line in fabric.dump_flows(switch))


def test_a_full_table_refuses_a_path_and_a_move(circle: Fabric) -> None:
    """What was installed elsewhere goes again, the path that is there stays; with room, both succeed."""

    async def test(controller: Controller) -> None:
        path = (await controller.path()).path
        assert path is not None
        used = [end.partition(":")[0] for end in path.route.links[1:]]
        free = next(switch for switch in ("s2", "s4") if switch not in used)
        await asyncio.to_thread(limit, circle, free, rules_of(circle, free))
        flow = await asyncio.to_thread(circle.flow, "h1", "h3", Flow(1000, 2000, dscp=DSCP))
        await controller.missed(path.request.name, Verdict.LEVEL_RAISED)
        await controller.missed(path.request.name, Verdict.KEPT)
        kept = controller.kept.decisions[-1]
        print(f"full: {kept.reasons[0]}")
        assert any("table" in reason.lower() for reason in kept.reasons), kept
        report = await asyncio.to_thread(flow.report)
        assert (report.received, report.lost) == (1000, 0)
        assert controller.there(path.request.name).route.links == path.route.links
        await controller.as_intended()
        # The edge of all ways, full: a new path is refused, and nothing of it is left.
        await asyncio.to_thread(limit, circle, "s3", rules_of(circle, "s3"))
        refused = await controller.path("w", port=9002)
        assert refused.path is None
        assert any("s3" in reason for reason in refused.reasons), refused.reasons
        await controller.until("the end of the change", controller.quiet)
        await controller.as_intended()
        for switch in (free, "s3"):
            await asyncio.to_thread(limit, circle, switch, None)
        assert (await controller.path("w", port=9002)).path is not None
        await controller.missed(path.request.name, Verdict.MOVED)
        await controller.as_intended()

    run(circle, Kept(), test)


@pytest.mark.parametrize("after", [0.0, 0.002, 0.01, 0.03, 0.06])
def test_switches_that_crash_amid_a_move(circle: Fabric, after: float) -> None:
    """Killed that long after the move began, and started anew, empty: all is as intended afterwards."""

    async def test(controller: Controller) -> None:
        path = (await controller.path()).path
        assert path is not None
        name = path.request.name
        await controller.missed(name, Verdict.LEVEL_RAISED)
        await asyncio.sleep(HOLD * 1.5)
        controller.runtime.happened(ev.Missed(name, 3, 1000, controller.runtime.now))
        assert name in controller.runtime.core.engine.running
        await asyncio.sleep(after)
        sessions = controller.runtime.server.sessions
        old = dict(sessions)
        await asyncio.to_thread(circle.ovs.restart)
        again = lambda: all(sessions.get(one) not in (None, old[one]) for one in old)  # noqa: E731
        await controller.until("all sessions anew", again)
        whole = lambda: controller.quiet() and controller.there(name).state == PathState.ACTIVE  # noqa: E731
        await controller.until("the path", whole, 60)
        await controller.as_intended()
        flow = await asyncio.to_thread(circle.flow, "h1", "h3", Flow(300, 1000, dscp=DSCP))
        report = await asyncio.to_thread(flow.report)
        print(f"killed after {after * 1000:.0f} ms: {controller.there(name).route.links}; {report}")
        assert (report.received, report.duplicates) == (300, 0)

    run(circle, Kept(), test, seconds=120)


def test_a_switch_that_comes_back_with_old_rules(circle: Fabric) -> None:
    """It was away while its path moved and another one ended: what is old goes, others' rules stay."""

    async def test(controller: Controller) -> None:
        path, other = (await controller.path()).path, (await controller.path("w", MBIT, 9002)).path
        assert path is not None
        assert other is not None
        middle = path.route.links[1].partition(">")[2].partition(":")[0]
        strange = "'cookie=0x5,table=2,priority=1,dl_vlan=77,actions=drop'"
        await asyncio.to_thread(circle.ofctl, "add-flow", middle, strange)
        before = await asyncio.to_thread(circle.dump_flows, middle)
        sessions = controller.runtime.server.sessions
        # It cannot reach the controller, and goes on to forward.
        circle.ovs.vsctl(f"set-controller {middle} tcp:127.0.0.1:9")
        await controller.until("its session to end", lambda: middle not in sessions)
        # Its ports' silence moves the paths: nothing is told to it.
        for port in circle.ports[middle][:2]:
            await asyncio.to_thread(circle.cut, port)

        def away() -> bool:
            return not any(middle in link for link in controller.there(path.request.name).route.links)

        await controller.until("another way", away)
        await controller.runtime.release(other.request.name)
        await controller.until("the end of the changes", lambda: not controller.runtime.core.engine.running)
        circle.ovs.vsctl(f"set-controller {middle} tcp:127.0.0.1:{controller.runtime.server.port}")
        for port in circle.ports[middle][:2]:
            await asyncio.to_thread(circle.mend, port)
        await controller.until("its session", lambda: middle in sessions)
        await controller.until("the end of the changes", controller.quiet, 60)
        after = await asyncio.to_thread(circle.dump_flows, middle)
        tags = {f"dl_vlan={one.tag}" for one in (path, other)}
        held = [line for line in before if any(tag in line for tag in tags)]
        left = [line for line in after if any(f"{tag} " in f"{line} " for tag in tags)]
        print(f"{middle}: {len(before)} rules, then {len(after)}; of the paths {len(held)}, then {len(left)}")
        assert held
        assert not left
        assert any("cookie=0x5," in line for line in after)
        await asyncio.to_thread(circle.ofctl, "del-flows", middle, "cookie=0x5/-1")
        await controller.as_intended()

    run(circle, Kept(), test, seconds=120)
