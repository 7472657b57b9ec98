"""How fast changes become durable: `python controller/bench/state.py FOLDER [ETCD-URL...]`.

```text
 saves of a path and its decision ─▶ one transaction each, then 25 changes in each (group commit) ─▶ changes/s
```

FOLDER is on the disk that is measured. All keys of an etcd are below /bench/.
"""

import asyncio
import sys
import time
from pathlib import Path

from tidegate_controller import events as ev
from tidegate_controller.config.state import State, StateEtcd, StateFile
from tidegate_controller.decide.flood import Tree
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import FlowKey, PathRequest, PathState, Route
from tidegate_controller.model.paths import Path as NetworkPath
from tidegate_controller.model.topology import Topology
from tidegate_controller.runtime.kept import Save
from tidegate_controller.state.opening import opened

GROUP = 25
"""Changes whose saves fit into one transaction."""


def change(number: int) -> list[Save]:
    """What one path's change keeps."""
    key = FlowKey("10.0.0.1", "10.0.0.2", 9000)
    request = PathRequest(f"v{number % 1000}>h2", "h1", "h2", key, 40, 10**6, 3000, 100, 1500, 10**6)
    links = ("h1>s1:1", "s1:2>s2:1", "s2:2>s3:1", "s3:2>h2")
    path = NetworkPath(request, Route(links, 0), 1, 7, 10**6, 4000, PathState.ACTIVE, 1)
    reasons = ("level 0 over h1>s1:1, s1:2>s2:1, s2:2>s3:1, s3:2>h2: at most 600000 ns, burst 4000 bytes",)
    decision = Decision(number, time.time(), request.name, "request", Verdict.ADMITTED, reasons)
    return [ev.SavePath(path), ev.SaveDecision(decision)]


async def measure(where: State, seconds: float) -> None:
    """Print the rates of a store."""
    store, election = opened(where, forget=True)
    holding = None
    if election is not None:
        await election.campaign()
        holding = asyncio.create_task(election.hold())
    await store.load()
    await store.write([ev.SaveNetwork(Topology(), (), Tree(1, frozenset()))])
    number = 0
    for group in (1, GROUP):
        began, done = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            saves: list[Save] = []
            for _ in range(group):
                number += 1
                saves += change(number)
            await store.write(saves)
            done += group
        took = time.monotonic() - began
        rates = f"{done / took:.0f} changes/s, {took / done * group * 1e3:.1f} ms each"
        print(f"{store.where}: {group} in each transaction: {rates}")
    began = time.monotonic()
    await store.close()
    if holding is not None:
        holding.cancel()
    again, election = opened(where)
    if election is not None:
        await election.campaign()
    began = time.monotonic()
    kept = await again.load()
    print(
        f"read: {len(kept.paths)} paths, {len(kept.decisions)} decisions in {time.monotonic() - began:.2f} s"
    )
    await again.close()


async def main(words: list[str]) -> None:
    """The program."""
    await measure(StateFile(Path(words[0]).resolve() / "bench.sqlite"), 5.0)
    if words[1:]:
        await measure(StateEtcd(tuple(words[1:]), "/bench/", 10.0), 5.0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
