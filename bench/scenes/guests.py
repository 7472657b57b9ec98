"""Real-time frames of one virtual machine to another, beside bulk traffic of network namespaces to that one.

```text
 voice (QEMU) ─ 1,000 frames/s ─┐
 bulk1 (tap) ── TCP ────────────┼─ Tidegate ── 300 Mbit/s ─ sink (QEMU)
 bulk2 (tap) ── TCP ────────────┘     └─▶ Tr - Ts of each frame of voice
```
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness.measure import interleave, ratios
from harness.model import Contender, Context, Figure, Json, Missing, Result, Scene, Target, samples
from lab.guest import Guest, vhost_user
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack
from lab.process import wait_for
from scenes.delay import CONTRACT, FIFO, RATE, WORKER_PRIORITY, gained, inner

GUESTS, BULK = ("voice", "sink"), ("bulk1", "bulk2")
NAMES = (*GUESTS, *BULK)
PORTS = {"voice": 5201, "bulk1": 5202, "bulk2": 5203}
"""Ports of the servers in the sink, by sender."""
ROUNDS = 5
CASE = "from guest to guest"
GUEST_RATE = "300mbit"
"""Of the sink: below a guest's rate on a busy machine. No queue holds frames that wait for its buffers."""
CONTRACTS, FIFOS, ALONE = "contracts", "FIFO", "contracts, no bulk"
ROWS = {
    "inside p50": "us",
    "inside p99": "us",
    "inside p99.9": "us",
    "inside max": "us",
    "frames": "",
    "misses": "",
    "bulk": "Mbit/s",
}


class Scenery:
    """A switch, two guests on vhost-user sockets, two namespaces on taps."""

    def __init__(self, context: Context) -> None:
        self.seconds = 2.0 if context.quick else 6.0
        self.folder, self.cleanup = context.folder, context.cleanup
        options = ("--workers", "1", "--fifo-priority", str(WORKER_PRIORITY))
        self.stacks = {name: self.cleanup.enter_context(Stack(self.folder / name)) for name in BULK}
        self.host = self.cleanup.enter_context(Host(self.folder / "h", switch_options=options))
        self.apply(CONTRACT)
        self.guests = {name: self.boot(name) for name in GUESTS}
        for name, stack in self.stacks.items():
            stack.address("eth0", f"{self.address(name)}/24")
        for guest in self.guests.values():
            guest.ready()
        self.host.wait_up(*NAMES)
        for port in PORTS.values():
            self.guests["sink"].run(f"iperf3 --server --daemon --port {port}")

    def address(self, name: str) -> str:
        """An IPv4 address."""
        return f"10.9.0.{NAMES.index(name) + 1}"

    def mac(self, name: str) -> str:
        """A MAC."""
        return f"52:54:00:09:01:{NAMES.index(name) + 1:02x}"

    def socket(self, name: str) -> Path:
        """Where a guest's port listens."""
        return self.folder / "h" / f"{name}.sock"

    def boot(self, name: str) -> Guest:
        """A guest, with memory that is there before it runs, as deadlines ask for."""
        setup = f"ip addr add {self.address(name)}/24 dev eth0 && ip link set eth0 up"
        nic = vhost_user(self.socket(name), self.mac(name))
        return self.cleanup.enter_context(Guest(self.folder / f"g-{name}", [nic], prealloc=True, setup=setup))

    def apply(self, terms: Mapping[str, Sequence[str]]) -> None:
        """Puts contracts in force."""
        guests = (
            vhost_user_vnic(name, self.socket(name), self.mac(name), *slower(terms.get(name, ())))
            for name in GUESTS
        )
        taps = (tap_vnic(name, stack.path, self.mac(name)) for name, stack in self.stacks.items())
        self.host.apply("".join((*guests, *taps)))

    def stats(self, name: str) -> Json:
        """Counters and histogram of a vNIC."""
        stats: Json = self.host.show(name).document["stats"]
        return stats

    def window(self, terms: Mapping[str, Sequence[str]], bulk: bool, case: str) -> Json:
        """Voice for a while, under these contracts."""
        del case
        self.apply(terms)
        voice, sink, length = self.guests["voice"], self.address("sink"), int(self.seconds) + 3
        with ExitStack() as senders:
            for name in BULK if bulk else ():
                words = ("--client", sink, "--port", str(PORTS[name]), "--parallel", "4", "--time", "60")
                sender = self.stacks[name].spawn("iperf3", *words)
                senders.callback(sender.kill)
            options = f"--port {PORTS['voice']} --udp --length 200 --bitrate 1600k --time {length}"
            voice.run(f"iperf3 --client {sink} {options} >/tmp/voice.log 2>&1 &")
            first = int(self.stats("voice")["tx"]["frames"])
            wait_for("voice", lambda: int(self.stats("voice")["tx"]["frames"]) > first + 500)
            before, bytes_before = self.stats("voice"), int(self.stats("sink")["rx"]["wire_bytes"])
            began = time.monotonic()
            time.sleep(self.seconds)
            after, bytes_after = self.stats("voice"), int(self.stats("sink")["rx"]["wire_bytes"])
            took = time.monotonic() - began
        voice.run("while pidof iperf3 >/dev/null; do sleep 0.1; done")
        buckets = gained(before, after)
        if not buckets:
            raise Missing("no frame of voice arrived")
        found = inner(buckets)
        found["frames"] = float(sum(buckets.values()))
        found["misses"] = float(sum(after["misses"].values()) - sum(before["misses"].values()))
        found["bulk"] = 8 * (bytes_after - bytes_before) / took / 1e6
        return found


def slower(terms: Sequence[str]) -> list[str]:
    """The same terms at the sink's rate."""
    return [term.replace(RATE, GUEST_RATE) for term in terms]


def run(context: Context) -> Result:
    """All in turns."""
    scenery = Scenery(context)
    contenders = [
        Contender(CONTRACTS, partial(scenery.window, CONTRACT, True)),
        Contender(FIFOS, partial(scenery.window, FIFO, True)),
        Contender(ALONE, partial(scenery.window, CONTRACT, False)),
    ]
    windows = interleave(None, contenders, (CASE,), context.rounds(ROUNDS))
    result = Result(windows=list(windows))
    for row, unit in ROWS.items():
        result.figures += [
            Figure(row, one.name, unit, samples(windows, one.name, CASE, row)) for one in contenders
        ]
    share = ratios(windows, FIFOS, CONTRACTS, CASE, "inside p99.9")
    result.targets.append(
        Target(
            "inside the switch, p99.9, between guests: a FIFO's against the contract's",
            "at least 100x",
            "x",
            100,
            "more",
            share,
        )
    )
    return result


SCENE = Scene(
    name="guests",
    title="Real-time frames between guests",
    about=(
        "Two QEMU guests on vhost-user sockets and two network namespaces on taps. The guest `voice` sends "
        "1,000 frames of 200 bytes a second (iperf3) to the guest `sink`; both namespaces fill the sink's "
        "300 Mbit/s by TCP. One worker under SCHED_FIFO; all threads of guests and namespaces run on any "
        "CPU. Tr - Ts as the switch counts it."
    ),
    order=62,
    run=run,
)
