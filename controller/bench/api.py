"""What requests to the API cost: late frames in batches, and single requests.

```text
 this process: clients ─HTTP on loopback─▶ another one: Api, core, switches that do all at once
```

10,000 records of late frames a second for some seconds, from five hosts with the limits of hosts; then the
sums of all paths are compared with what was sent. Single requests one after the other, and eight at a time.
`python controller/bench/api.py`; ends with 1 if a frame is missing.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "controller/src"), str(ROOT / "controller/tests")]

import aiohttp
from apis import configuration, served, vnic

from tidegate_controller.api import buckets
from tidegate_controller.api.buckets import Limits
from tidegate_controller.api.identity import Kind

HOSTS = 5
"""Senders h1..., and as many receivers after them."""
PATHS = 100
"""Of each sender."""
TICK = 0.25
"""s between two batches of a host."""
WIDE = Limits(1e9, 1e9, 1e12, 1e12, open=100)


async def serve() -> None:
    """The other process: prints the port, and serves until its standard input ends."""
    limits = {Kind.HOST: WIDE, Kind.OPERATOR: WIDE} if "--wide" in sys.argv else {Kind.OPERATOR: WIDE}
    async with served(configuration(lease="600s", hosts=2 * HOSTS), limits=limits) as one:
        print(one.api.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Clients:
    """Hosts and an operator."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session, self._url = session, f"http://127.0.0.1:{port}"
        self._views: dict[int, int] = {}

    async def ask(self, method: str, path: str, token: str, body: object = None) -> Any:  # noqa: ANN401
        """The answer, which has to be good."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer token-{token}"}
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            text = await answer.read()
            if answer.status not in (200, 204):
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
            return json.loads(text) if text else None

    async def begin(self) -> list[list[str]]:
        """Registers all hosts, and asks for all paths. Returns their names, by receiver."""
        await self._register([])
        names = []
        for n in range(1, HOSTS + 1):
            await self._register_one(n + HOSTS, [{"remote": f"a{n}-{p}"} for p in range(PATHS)])
            names.append([f"a{n}-{p}>b{n}" for p in range(PATHS)])
            for p in range(PATHS):
                await self.want(n, p)
        return names

    async def want(self, n: int, p: int) -> Any:  # noqa: ANN401
        """Asks for a path of a sender."""
        return await self.ask("PUT", f"/v1/paths/a{n}-{p}%3Eb{n}", f"h{n}", wanted(n, p))

    async def _register(self, arrivals: list[dict[str, str]]) -> None:
        for n in range(1, 2 * HOSTS + 1):
            await self._register_one(n, arrivals)

    async def _register_one(self, n: int, arrivals: list[dict[str, str]]) -> None:
        body = {**announced(n, arrivals), "view": self._views.get(n, 0)}
        self._views[n] = (await self.ask("PUT", f"/v1/hosts/h{n}", f"h{n}", body))["version"]


def announced(n: int, arrivals: list[dict[str, str]]) -> dict[str, Any]:
    """What a host announces: many vNICs that send, or one that receives."""
    if n <= HOSTS:
        vnics = [vnic(f"a{n}-{p}", (n << 8) + p, to=[f"b{n}"]) for p in range(PATHS)]
    else:
        vnics = [vnic(f"b{n - HOSTS}", n << 8)]
    uplink = {"name": "up", "address": f"10.0.0.{n}", "port": 4789, "arrival_budget": 100_000}
    return {"run": "r1", "uplinks": [uplink], "vnics": vnics, "arrivals": arrivals}


def wanted(n: int, p: int) -> dict[str, Any]:
    """A small path between a sender and its receiver."""
    ends = {"source": f"10.0.0.{n}", "target": f"10.0.0.{n + HOSTS}"}
    return {
        **{"vnic": f"a{n}-{p}", "remote": f"b{n}", "source": f"h{n}", "target": f"h{n + HOSTS}", "dscp": 40},
        "key": {**ends, "source_port": 20_000 + p, "target_port": 4789},
        **{"rate": 10_000, "burst": 200, "smallest_frame": 100, "largest_frame": 200, "budget": 10**9},
    }


def cpu(pid: int) -> float:
    """s that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def batches(rate: int, seconds: float, rounds: int) -> bool:
    """Late frames in batches. Returns whether none is missing."""
    whole, costs, times = True, list[float](), list[float]()
    size = int(rate / HOSTS * TICK)
    with started() as (pid, port):
        async with aiohttp.ClientSession() as session:
            clients = Clients(session, port)
            names = await clients.begin()
            totals = {name: 0 for some in names for name in some}
            for number in range(1, rounds + 1):
                took, before, began = list[float](), cpu(pid), time.monotonic()
                hosts = (
                    report(clients, n, names[n], totals, size, began + seconds, took) for n in range(HOSTS)
                )
                await asyncio.gather(*hosts)
                passed = time.monotonic() - began
                used = (cpu(pid) - before) / passed
                paths = (await clients.ask("GET", "/v1/paths", "operator"))["paths"]
                missing = sum(totals.values()) - sum(one["misses"] for one in paths)
                whole = whole and {one["name"]: one["misses"] for one in paths} == totals
                costs.append(used)
                times += took
                print(
                    f"round {number}: {size * len(took) / passed:,.0f} records/s for {passed:.1f} s,"
                    f" {missing} frames of {sum(totals.values()):,} missing, CPU {used:.0%} of a core"
                )
    print(
        f"late frames: CPU {statistics.median(costs):.0%} of a core (worst {max(costs):.0%}); a batch of"
        f" {size} took {statistics.median(times) * 1e3:.1f} ms (worst {max(times) * 1e3:.0f})"
    )
    return whole


async def report(
    clients: Clients,
    n: int,
    names: list[str],
    totals: dict[str, int],
    size: int,
    end: float,
    took: list[float],
) -> None:
    """The batches of one receiver, until the end; adds the time of each."""
    due, host = time.monotonic(), f"h{n + 1 + HOSTS}"
    while due < end:
        records = []
        for k in range(size):
            name = names[k % PATHS]
            totals[name] += random.randint(1, 5)
            records.append({"name": name, "total": totals[name], "worst": 1000, "last": time.time()})
        at = time.monotonic()
        await clients.ask("POST", f"/v1/hosts/{host}/misses", host, {"run": "r1", "paths": records})
        took.append(time.monotonic() - at)
        due += TICK
        await asyncio.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def started(*words: str) -> Iterator[tuple[int, int]]:
    """The other process; its id, and the port of its API."""
    command = [sys.executable, __file__, "--serve", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


async def single(seconds: float, rounds: int) -> None:
    """Requests one after the other, and eight at a time."""
    with started("--wide") as (pid, port):
        async with aiohttp.ClientSession() as session:
            clients = Clients(session, port)
            names = await clients.begin()
            fresh = iter(range(10**9))

            async def renew() -> None:
                n = next(fresh) % HOSTS + 1
                await clients.ask("PUT", f"/v1/hosts/h{n}", f"h{n}", announced(n, []))

            async def look() -> None:
                await clients.ask("GET", "/v1/hosts/h6", "h6")

            async def late() -> None:
                record = {"name": names[0][0], "total": next(fresh), "worst": 1, "last": 0}
                await clients.ask("POST", "/v1/hosts/h6/misses", "h6", {"run": "r1", "paths": [record]})

            async def same() -> None:
                await clients.want(1, 0)

            async def new() -> None:
                p = next(fresh) % 50
                await clients.ask("DELETE", f"/v1/paths/a2-{p}%3Eb2", "h2")
                await clients.want(2, p)

            for name, work, most in (
                (f"registration of {PATHS} vNICs, unchanged, {(HOSTS - 1) * PATHS} remotes", renew, 8),
                (f"view of {HOSTS * PATHS} remotes", look, 8),
                ("one late frame", late, 8),
                ("path that is there", same, 8),
                ("path released and admitted again", new, 1),
            ):
                for at_a_time in sorted({1, most}):
                    found = [await timed(work, at_a_time, seconds, pid) for _ in range(rounds)]
                    rates, costs = [rate for rate, _ in found], [cost for _, cost in found]
                    print(
                        f"{name}, {at_a_time} at a time: {statistics.median(rates):,.0f}/s (worst"
                        f" {min(rates):,.0f}), CPU {statistics.median(costs) * 1e3:.2f} ms each"
                        f" (worst {max(costs) * 1e3:.2f})"
                    )


async def flood(seconds: float, rounds: int) -> None:
    """What small reports of a host take while another one sends the largest batches without a pause."""
    with started() as (_, port):
        async with aiohttp.ClientSession() as session:
            clients = Clients(session, port)
            names = await clients.begin()
            found: dict[bool, list[list[float]]] = {False: [], True: []}
            for number in range(2 * rounds):
                noisy = bool(number % 2)
                took, end = list[float](), time.monotonic() + seconds
                sender = [batch_after_batch(clients, names[0], end)] if noisy else []
                await asyncio.gather(*sender, quiet(clients, names[1][0], took, end))
                found[noisy].append(sorted(took))
    for noisy, rows in found.items():
        middle, late = (statistics.median(row[int(len(row) * part)] for row in rows) for part in (0.5, 0.95))
        worst = max(row[-1] for row in rows)
        text = "beside a flood" if noisy else "without a flood"
        print(
            f"another host's report {text}: median {middle * 1e3:.1f} ms, p95 {late * 1e3:.1f} ms, worst"
            f" {worst * 1e3:.0f} ms"
        )


async def batch_after_batch(clients: Clients, names: list[str], end: float) -> None:
    """All that a host is served, and more; made before, so that this process has little to do."""
    bodies = [
        json.dumps(
            {
                "run": "r1",
                "paths": [
                    {"name": names[k % PATHS], "total": total + k, "worst": 1, "last": 0} for k in range(4096)
                ],
            }
        ).encode()
        for total in range(1, 5000 * 8, 5000)
    ]
    while time.monotonic() < end:
        for body in bodies:
            with suppress(RuntimeError):
                await clients.ask("POST", "/v1/hosts/h6/misses", "h6", body)


async def quiet(clients: Clients, name: str, took: list[float], end: float) -> None:
    """30 small reports a second."""
    total = int(time.time() * 1000)
    while time.monotonic() < end:
        total += 1
        record = {"name": name, "total": total, "worst": 1, "last": 0}
        at = time.monotonic()
        await clients.ask("POST", "/v1/hosts/h7/misses", "h7", {"run": "r1", "paths": [record]})
        took.append(time.monotonic() - at)
        await asyncio.sleep(1 / 30)


async def timed(
    work: Callable[[], Awaitable[None]], at_a_time: int, seconds: float, pid: int
) -> tuple[float, float]:
    """Returns how often a second, and s of CPU of each."""
    before, began = cpu(pid), time.monotonic()

    async def go() -> int:
        count = 0
        while time.monotonic() < began + seconds:
            await work()
            count += 1
        return count

    count = sum(await asyncio.gather(*(go() for _ in range(at_a_time))))
    return count / (time.monotonic() - began), (cpu(pid) - before) / count


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="What requests to the API cost.")
    parser.add_argument("--rate", type=int, default=10_000, help="records of late frames a second")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    limits = buckets.HOST
    print(f"hosts may ask {limits.rate:g} times/s and send {limits.bytes / 1e6:.1f} MB/s", end="; ")
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    whole = asyncio.run(batches(options.rate, options.seconds, options.rounds))
    asyncio.run(flood(min(3.0, options.seconds), options.rounds))
    asyncio.run(single(min(2.0, options.seconds), options.rounds))
    if not whole:
        print("frames are missing")
    return 0 if whole else 1


if __name__ == "__main__":
    if "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        sys.exit(main())
