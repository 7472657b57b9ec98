"""The kernel's datapath by the rate of a link and the load of best effort; run with python3 in a guest.

kernel_sweep.py FOLDER RATES LOADS SECONDS: rates in Mbit/s and loads as parts of the rate, both with commas.
Prints a line of JSON for each pair: `rate`, `load`; what best effort `offered` and the link `carried` of it
(Mbit/s); of the real-time flow `count`, `lost`, `dropped` (by its queue), `delays` (us: median, p99, p99.9,
worst).

Queues are chosen by `set_queue`, with linux-htb as the controller sets it, and nothing of the lab in between.

An emulated machine passes on about two thousand frames a second, so a fast link is full with long ones alone:
best effort has frames that take the link a millisecond (links of the lab take up to 64 KiB). So real time may
wait as long for the frame that is being sent at each rate, as it would for 1,250 bytes at 10 Mbit/s.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from tidegate_controller.model.intent import BEST_EFFORT, Queue, SwitchIntent, control_queue, queue_of
from tidegate_controller.ovsdb.session import Database

from .fabric import Fabric, address, line
from .kernel_queues import rules
from .traffic import Flow

MBIT = 1_000_000
REAL_RATE = 1_500_000
INTERVAL = 4000
LEAD = 0.5
"""s of the flow until the load is there."""
LEAST_SIZE = 1442
"""Bytes of a frame of best effort, at least."""
BLOCKING = 1e-3
"""s that the link takes for one."""
MTU = 65_000
PATIENCE = 15
"""s: Python starts slowly in a guest, beside another flow above all."""


def size_of(rate: int) -> int:
    """Bytes of a frame of best effort on a link with this rate (bit/s)."""
    return min(max(LEAST_SIZE, int(rate / 8 * BLOCKING)), MTU)


def queues(rate: int) -> tuple[Queue, ...]:
    """Of a link with this rate (bit/s): what is reserved for real time, and the rest."""
    left = rate - REAL_RATE - control_queue(1).minimum
    return (
        control_queue(1),
        Queue(queue_of(0), REAL_RATE, rate, 10_000, 0),
        Queue(BEST_EFFORT, left, rate, 2_000, 1),
    )


def sent(fabric: Fabric) -> int:
    """Bytes that the first host has sent."""
    (link,) = json.loads(fabric.hosts["h1"].run("ip -j -s link show dev eth0"))
    return int(link["stats64"]["tx"]["bytes"])


def pktgen(fabric: Fabric, file: str, *words: str) -> None:
    """Commands for the kernel's generator of frames, on the first host."""
    fabric.hosts["h1"].run("; ".join(f"echo '{word}' > /proc/net/pktgen/{file}" for word in words))


def prepare(fabric: Fabric, rate: int, load: float) -> None:
    """Best effort: frames at even intervals, from `start` to `stop`."""
    size = size_of(rate)
    interval = int(size * 8e9 / (rate * load))
    pktgen(fabric, "kpktgend_0", "rem_device_all", "add_device eth0")
    frames = ("count 0", "clone_skb 0", f"pkt_size {size}", f"delay {interval}")
    target = (f"dst {address(2)}", "dst_mac 02:00:00:00:00:02", "udp_dst_min 9", "udp_dst_max 9")
    pktgen(fabric, "eth0", *frames, *target)


async def measured(fabric: Fabric, rate: int, load: float, seconds: float) -> dict[str, object]:
    """One pair. The flow begins first: beside a full load, programs start slowly."""
    count = int((seconds + LEAD) * 1e6 / INTERVAL)
    flow = Flow(count, INTERVAL, dscp=46)
    if load:
        prepare(fabric, rate, load)
    running = await asyncio.to_thread(fabric.flow, "h1", "h2", flow, PATIENCE)
    end = time.monotonic() + flow.seconds
    if load:
        # The command returns when the last frame was sent.
        fabric.hosts["h1"].spawn("sh", "-c", "echo start > /proc/net/pktgen/pgctrl")
    before, began = sent(fabric), time.monotonic()
    carried = fabric.queue_statistics("s1.1")
    read = time.monotonic()
    await asyncio.sleep(max(1.0, end - read))
    offered = (sent(fabric) - before) * 8 / (time.monotonic() - began) / MBIT
    after = fabric.queue_statistics("s1.1")
    took = time.monotonic() - read
    if load:
        pktgen(fabric, "pgctrl", "stop")
    through = after[BEST_EFFORT][0] - carried[BEST_EFFORT][0]
    report = await asyncio.to_thread(running.report)
    return {
        "rate": rate // MBIT,
        "load": load,
        "offered": round(offered, 1),
        "carried": round(through * size_of(rate) * 8 / took / MBIT, 1) if load else 0.0,
        "count": count,
        "lost": report.lost,
        "dropped": fabric.queue_statistics("s1.1")[queue_of(0)][1] - carried[queue_of(0)][1],
        "delays": [report.delay(percent) for percent in (50, 99, 99.9, 100)],
    }


async def swept(fabric: Fabric, rates: list[int], loads: list[float], seconds: float) -> None:
    """All pairs."""
    names = {fabric.datapath(switch): switch for switch in fabric.ports}
    database = Database(fabric.ovs.remote, lambda _: None, names)
    task = asyncio.create_task(database.run())
    for rate in rates:
        for switch in fabric.ports:
            database.want(switch, SwitchIntent(queues={1: queues(rate)}))
        for switch in fabric.ports:
            assert await database.settled(switch, 30) == {}
        for load in loads:
            print(json.dumps(await measured(fabric, rate, load, seconds)), flush=True)
    task.cancel()


def main() -> None:
    """Makes the fabric, and measures."""
    folder, rates, loads, seconds = sys.argv[1:]
    # A slow machine falls behind on what its veths hand over; a link's queue is what is measured.
    Path("/proc/sys/net/core/netdev_max_backlog").write_text("20000")
    with Fabric(Path(folder), line(2), "system", mtu=MTU) as fabric:
        rules(fabric, BEST_EFFORT)
        for host in fabric.hosts.values():
            # The first one may come before the switches have begun.
            host.run("for n in 1 2 3 4 5; do ping -c 1 -W 5 10.0.0.2 && exit; done; exit 1", timeout=90)
        numbers = [int(float(rate) * MBIT) for rate in rates.split(",")]
        asyncio.run(swept(fabric, numbers, [float(load) for load in loads.split(",")], float(seconds)))


if __name__ == "__main__":
    main()
