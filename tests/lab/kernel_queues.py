"""Two bridges of the kernel's datapath, whose link best effort overloads; run with python3 in a guest.

kernel_queues.py FOLDER [best-effort-in-queue-0]: prints, as JSON, the real-time flow's `received`, `lost` and
`delay` (p99, us), how often an end of the link seemed `down`, and frames `sent` and `dropped` by queue.

Queues are chosen by `set_queue`, with nothing of the lab in between.
"""

import asyncio
import json
import sys
from pathlib import Path

from tidegate_controller.model.intent import (
    BEST_EFFORT,
    CONTROL,
    Queue,
    SwitchIntent,
    control_queue,
    queue_of,
)
from tidegate_controller.ovsdb.events import Event, LinkDown, LinkUp
from tidegate_controller.ovsdb.session import Database

from .fabric import Fabric, line
from .traffic import Flow

RATE = 5_000_000
REAL = Flow(count=400, interval=5_000, dscp=46)
OTHER = Flow.of_rate(3 * RATE, REAL.seconds + 5, port=9100)
PATIENCE = 6
"""s: Python starts slowly in a guest."""
SEPARATE = (
    control_queue(1),
    Queue(queue_of(0), 1_500_000, RATE, 10_000, 0),
    Queue(BEST_EFFORT, 500_000, RATE, 2_000, 1),
)
TOGETHER = (
    Queue(CONTROL, 500_000, RATE, 2_000, 1),
    Queue(queue_of(0), 1_500_000, RATE, 10_000, 0),
)


def rules(fabric: Fabric, best_effort: int) -> None:
    """Port 1 is the link, port 2 the host."""
    for switch in fabric.ports:
        for match, action in (
            ("priority=2,in_port=2,ip,nw_tos=184", f"set_queue:{queue_of(0)},output:1"),
            ("priority=1,in_port=2", f"set_queue:{best_effort},output:1"),
            ("priority=1,in_port=1", "output:2"),
        ):
            fabric.ofctl("add-flow", switch, f"{match},actions={action}")


async def measured(fabric: Fabric, queues: tuple[Queue, ...]) -> dict[str, object]:
    """What the flow and BFD go through."""
    up, downs = set(), 0

    def tell(event: Event) -> None:
        nonlocal downs
        if isinstance(event, LinkUp):
            up.add(event.port)
        elif isinstance(event, LinkDown):
            up.discard(event.port)
            downs += 1

    names = {fabric.datapath(switch): switch for switch in fabric.ports}
    database = Database(fabric.ovs.remote, tell, names)
    task = asyncio.create_task(database.run())
    for switch in fabric.ports:
        database.want(switch, SwitchIntent(queues={1: queues}, watched={1}))
    for switch in fabric.ports:
        assert await database.settled(switch, 30) == {}
    while len(up) < 2:
        await asyncio.sleep(0.05)
    # Both ends agree on 50 ms.
    await asyncio.sleep(3)
    downs = 0
    other = fabric.flow("h1", "h2", OTHER, PATIENCE)
    await asyncio.sleep(1)
    report = await asyncio.to_thread(fabric.flow("h1", "h2", REAL, PATIENCE).report)
    seen = downs
    await asyncio.to_thread(other.report)
    task.cancel()
    counted = fabric.queue_statistics("s1.1")
    return {
        "received": report.received,
        "lost": report.lost,
        "delay": report.delay(99),
        "down": seen,
        "sent": {queue: sent for queue, (sent, _) in counted.items()},
        "dropped": {queue: dropped for queue, (_, dropped) in counted.items()},
    }


def main() -> None:
    """Make the fabric, measure, print."""
    together = len(sys.argv) > 2
    with Fabric(Path(sys.argv[1]), line(2), "system") as fabric:
        rules(fabric, CONTROL if together else BEST_EFFORT)
        for host in fabric.hosts.values():
            host.run("ping -c 1 -W 5 10.0.0.2")
        print(json.dumps(asyncio.run(measured(fabric, TOGETHER if together else SEPARATE))))


if __name__ == "__main__":
    main()
