"""Common applications that measure round trips, beside bulk traffic.

```text
 sockperf │ irtt │ ddsperf │ voice ─┐                                   ┌─ its server
 bulk1, bulk2 ─ TCP ────────────────┴─ Tidegate ── egress of 1 Gbit/s ──┴─ sink
 rows: idle (contract, no bulk) │ FIFO with bulk │ contract with bulk
```
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.measure import interleave
from harness.model import Contender, Context, Figure, Json, Missing, Result, Scene, samples
from lab.process import Process
from scenes.delay import BULK_PORT, CONNECTIONS, NAMES, hear, values
from scenes.stacks import reports
from scenes.stacks.fabric import Tidegate

ROUNDS = 3
IDLE, FIFO_BULK, CONTRACT_BULK = "idle", "FIFO with bulk", "contract with bulk"
VOICE = "voice, one way"
MESSAGE = 158
"""Bytes of a datagram's payload: a frame of 200, as voice's."""
# Sockets, discovery and acknowledgements of DDS come in bursts of several frames.
ENVELOPE = 'tx = { max = "8mbit", burst = "8kB" }'
CONTRACT: dict[str, Sequence[str]] = {
    "voice": (ENVELOPE, 'deadline = "1ms"', 'to = ["sink"]'),
    "sink": ('rx = { max = "1gbit" }',),
}
FIFO: dict[str, Sequence[str]] = {
    "voice": (ENVELOPE,),
    "sink": ('rx = { max = "1gbit", discipline = "fifo", queue = "1500kB" }',),
}
TERMS = {IDLE: CONTRACT, FIFO_BULK: FIFO, CONTRACT_BULK: CONTRACT}


@dataclass(frozen=True)
class Application:
    """One application: its programs at both ends, and the parser of its output."""

    name: str
    program: str
    """Of the Debian package `package`."""
    package: str
    server: Callable[[str], Sequence[str]]
    """Words, from the sink's address."""
    client: Callable[[str, int, Path], Sequence[str]]
    """Words, from the sink's address, the seconds, and a file for what it found."""
    parse: Callable[[str], Json]


def dds(own: str, peer: str, *words: str) -> tuple[str, ...]:
    """ddsperf between two addresses, without multicast."""
    uri = (
        f'<CycloneDDS><Domain><General><Interfaces><NetworkInterface address="{own}"/></Interfaces>'
        "<AllowMulticast>false</AllowMulticast></General><Discovery><ParticipantIndex>auto</ParticipantIndex>"
        f'<Peers><Peer address="{peer}"/></Peers></Discovery></Domain></CycloneDDS>'
    )
    return ("env", f"CYCLONEDDS_URI={uri}", "ddsperf", "-u", *words)


def first_address(sink: str) -> str:
    """The address of voice, the first of the fabric."""
    return sink.rpartition(".")[0] + ".1"


APPLICATIONS = (
    Application(
        "sockperf under-load, round trip",
        "sockperf",
        "sockperf",
        lambda sink: ("sockperf", "server", "-i", sink, "-p", "7001"),
        lambda sink, seconds, _: (
            *("sockperf", "under-load", "--full-rtt", "-i", sink, "-p", "7001", "-t", str(seconds)),
            *("--mps", "1000", "--reply-every", "1", "-m", str(MESSAGE)),
        ),
        reports.sockperf,
    ),
    Application(
        "irtt, round trip",
        "irtt",
        "irtt",
        # -i 0: no lower bound of the interval; by default the server allows 10 ms.
        lambda sink: ("irtt", "server", "-i", "0", "-b", f"{sink}:2112"),
        lambda sink, seconds, file: (
            *("irtt", "client", "-Q", "-o", str(file), "-d", f"{seconds}s", "-i", "1ms"),
            *("-l", str(MESSAGE), f"{sink}:2112"),
        ),
        reports.irtt,
    ),
    Application(
        "ddsperf ping, round trip",
        "ddsperf",
        "cyclonedds-tools",
        lambda sink: dds(sink, first_address(sink), "pong"),
        lambda sink, seconds, _: (
            *dds(first_address(sink), sink, "-D", str(seconds + 1)),
            *("ping", "1kHz", "size", str(MESSAGE)),
        ),
        reports.ddsperf,
    ),
)


class Stage:
    """The namespaces, and the results measured in them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        options = ("--workers", "1", "--cpus", str(context.machine.switch_cpu), "--fifo-priority", "2")
        self.fabric = Tidegate(context.folder / "t", NAMES, context.cleanup, switch_options=options)
        self.fabric.start(CONTRACT)
        self.prompt = str(context.machine.switch_cpu)
        self.others = str(context.machine.generator_cpu)
        # sockperf spins until its next datagram is due: beside the worker only where there is no other CPU.
        taken = (context.machine.switch_cpu, context.machine.generator_cpu)
        self.free = ",".join(str(cpu) for cpu in context.machine.cpus if cpu not in taken) or self.prompt

    def under(self, row: str, case: str) -> Json:
        """One window of one application."""
        self.fabric.apply(TERMS[row])
        with ExitStack() as bulk:
            if row != IDLE:
                address = self.fabric.address("sink")
                drain = self.fabric.act("sink", "drain", address, str(BULK_PORT), cpus=self.others)
                bulk.callback(drain.kill)
                for who in ("bulk1", "bulk2"):
                    words = ("bulk", address, str(BULK_PORT), str(CONNECTIONS))
                    bulk.callback(self.fabric.act(who, *words, cpus=self.others).kill)
            time.sleep(1.0)
            seconds = 2 if self.context.quick else 4
            if case == VOICE:
                heard = values(hear(self.fabric, float(seconds), self.prompt))
                return {name: heard[name] for name in ("p50", "p99", "p99.9", "max", "lost")}
            return self.run(next(a for a in APPLICATIONS if a.name == case), seconds)

    def run(self, application: Application, seconds: int) -> Json:
        """Its server at the sink, its client at voice."""
        sink, file = self.fabric.address("sink"), self.fabric.folder / "report.json"
        server = self.spawn("sink", application.server(sink))
        try:
            time.sleep(0.5)
            client = self.spawn("voice", application.client(sink, seconds, file))
            try:
                client.popen.wait(seconds + 20)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{application.program} does not end:\n{client.output()[-400:]}") from None
            text = file.read_text() if file.exists() else client.output()
            file.unlink(missing_ok=True)
            return application.parse(text)
        finally:
            server.kill()

    def spawn(self, where: str, words: Sequence[str]) -> Process:
        """Apart from bulk and, where there are more than two CPUs, from the worker; as ordinary threads."""
        return self.fabric.stacks[where].spawn("taskset", "-c", self.free, *words)


UNITS = {"lost": ""}


def run(context: Context) -> Result:
    """Each application in each row, in turns."""
    there = [a for a in APPLICATIONS if shutil.which(a.program)]
    missing = [f"{a.program} (package {a.package})" for a in APPLICATIONS if a not in there]
    if not there:
        raise Missing(f"none of the applications is installed: {', '.join(missing)}; scripts/setup bench")
    stage = Stage(context)
    cases = [case for case in (*(a.name for a in there), VOICE) if context.wants(case)]
    if not cases:
        raise Missing(f"no application's name contains '{context.only}'")
    rows = (CONTRACT_BULK,) if context.quick else (IDLE, FIFO_BULK, CONTRACT_BULK)
    contenders = [Contender(row, partial(stage.under, row)) for row in rows]
    windows = interleave(None, contenders, cases, context.rounds(ROUNDS))
    result = Result(windows=list(windows))
    for case in cases:
        for value in ("p50", "p99", "p99.9", "max", "lost"):
            of = [window for window in windows if window.case == case and value in window.values]
            result.figures += [
                Figure(f"{case}: {value}", row.name, UNITS.get(value, "us"), taken)
                for row in contenders
                if (taken := samples(of, row.name, case, value))
            ]
    result.notes += [f"Not measured, since it is not installed: {name}." for name in missing]
    return result


SCENE = Scene(
    name="applications",
    title="Applications beside bulk traffic",
    about=(
        "sockperf, irtt and ddsperf (Cyclone DDS), 1,000 datagrams a second with a payload of "
        f"{MESSAGE} bytes and a reply to each, from one kernel stack on a tap to another, and voice as in "
        "`delay`. `idle` is the contract without bulk traffic; with bulk two senders fill the sink's 1 "
        "Gbit/s over TCP. Round trips are whole; only the way towards the sink has bulk in it. ddsperf "
        "prints percentiles for each second and no p99.9: p50 and p99 are medians over the seconds. The "
        "worker and bulk have a CPU each; the applications are ordinary threads on the others, and on the "
        "worker's where there are two. Voice is on the worker's CPU under SCHED_FIFO."
    ),
    order=62,
    run=run,
    has_cases=True,
)
