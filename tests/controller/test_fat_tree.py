"""A fat tree of 20 switches: paths across pods, rules as `ovs-ofctl` prints them, a core switch that fails.

```text
 c0 ... c3          16 links up from 8 upper switches, 16 links down to 8 edges, a host at each edge
 a0-0 a0-1 ...      each path is a backup in a fast-failover group where one fits
 e0-0 e0-1 ...
```
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import FlowKey
from tidegate_controller.runtime.kept import Kept

from lab.controlled import DSCP, MBIT, Controller, configuration, run
from lab.fabric import Fabric, fat_tree
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.ovs import COMMANDS
from lab.traffic import Flow

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(name="tree")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    need_commands(*COMMANDS, "ovs-ofctl", "tc", "ethtool")
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Fabric(tmp_path_factory.mktemp("f"), fat_tree()) as running:
        yield running


def pod(host: str) -> int:
    """The pod of a host: two edges each."""
    return (int(host[1:]) - 1) // 2


@pytest.mark.parametrize("protect", [False, True])
def test_paths_across_pods_and_a_core_switch_that_fails(tree: Fabric, protect: bool) -> None:
    """Each pair of hosts in different pods has a path; those by the failed switch go by others.

    LLDP alone tells: on a busy machine, BFD is late at links that work, too.
    """
    config = configuration(tree)
    settings = replace(config.settings, protect=protect, bfd=False)
    config = replace(config, settings=settings, interval=1.0)

    async def test(controller: Controller) -> None:
        engine = controller.runtime.core.engine
        pairs = [pair for pair in permutations(tree.hosts, 2) if pod(pair[0]) != pod(pair[1])]
        wanted = [
            controller.request(f"v{number}", MBIT // 4, 10_000 + number, pair)
            for number, pair in enumerate(pairs)
        ]
        answers = await asyncio.gather(*(controller.runtime.ask(one) for one in wanted))
        assert all(answer.path for answer in answers), [answer.reasons for answer in answers]
        await controller.until("all rules", controller.quiet, 60)
        await controller.as_intended()
        protected = sum(path.backup is not None for path in engine.paths.values())
        assert bool(protected) == protect
        through = {
            core: [
                name
                for name, path in engine.paths.items()
                if any(f">{core}:" in link for link in path.route.links)
            ]
            for core in ("c0", "c1", "c2", "c3")
        }
        core, moving = max(through.items(), key=lambda item: len(item[1]))
        source, target = engine.paths[moving[0]].request.source, engine.paths[moving[0]].request.target
        key = engine.paths[moving[0]].request.key
        assert isinstance(key, FlowKey)
        port = key.source_port
        print(f"{len(pairs)} paths, {protected} with a backup, {len(moving)} by {core}")
        flow = Flow(3000, 2000, dscp=DSCP, source_port=port)
        running = await asyncio.to_thread(tree.flow, source, target, flow)
        await asyncio.sleep(1)
        before, began = controller.kept.decided, controller.runtime.now
        for number in range(1, len(tree.ports[core]) + 1):
            await asyncio.to_thread(tree.cut, f"{core}.{number}")

        def repaired() -> bool:
            ways = (path.route.links for path in engine.paths.values())
            return controller.still() and not any(f">{core}:" in link for way in ways for link in way)

        await controller.until("ways by other switches", repaired, 60)
        took = controller.runtime.now - began
        report = await asyncio.to_thread(running.report)
        after = [one for one in controller.kept.decisions if one.number > before]
        moved = sum(one.verdict == Verdict.MOVED for one in after)
        violated = [one for one in after if one.verdict == Verdict.VIOLATED]
        print(f"{core} silent: {len(moving)} paths on other ways after {took:.2f} s; {report}")
        assert moved >= len(moving)
        assert not violated, violated[0]
        assert report.received > 300
        await controller.as_intended()
        for number in range(1, len(tree.ports[core]) + 1):
            await asyncio.to_thread(tree.mend, f"{core}.{number}")
        await controller.until("all links", controller.quiet, 60)
        await controller.as_intended()

    run(tree, Kept(), test, config, seconds=300, steer=False)
