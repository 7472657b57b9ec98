"""RDMA between two emulated hosts, beside perftest and VXLAN.

```text
 host 1 (QEMU)                                     host 2 (QEMU)
 guest ring ─ switch ─ queue pair ─ rxe0 ══ link ══ rxe0 ─ queue pair ─ switch ─ guest ring    rdma, zero-copy
 guest ring ─ switch ─ UDP socket ─ eth0 ══ link ══ eth0 ─ UDP socket ─ switch ─ guest ring    vxlan
 ib_send_bw, ib_send_lat -c UD ─── rxe0 ══ link ══ rxe0 ─── the same                           perftest
```

Emulated CPUs are slow, and `host-latency` says so: with its default of 250 us each turn of a worker has one
frame. Guests are synthetic front ends, which sleep while they have nothing to do. `ib_send_lat` stays awake;
with `-e` it sleeps, too (perftest, asleep): round trips alone. Rounds take the contenders in turn, in the
order of one round and then in the other one. perftest's size is that of the datagram: a frame and its header
of 32 bytes. As root; forty minutes.

With `--counted` both hosts are in one guest, whose clock counts instructions: figures are the same on a busy
machine. A perftest that stays awake would take that one CPU from its own receiver, so perftest sleeps there.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from harness.model import Context, Figure, Misused, OptionGroup, Result, Sample, Scene, Target
from lab.guest import Guest
from lab.guest_host import GuestHost
from lab.roce import OneRoceGuest, TwoRoceHosts, address
from lab.rxe import JUMBO

HEADER = 32
SEGMENT = 42
KEY = "00112233445566778899aabbccddeeff"
RDMA, ZERO_COPY, VXLAN, PERFTEST, ASLEEP = "rdma", "zero-copy", "vxlan", "perftest", "perftest, asleep"
CONTENDERS = (PERFTEST, ASLEEP, RDMA, ZERO_COPY, VXLAN)
WAYS = {RDMA: 'transport = "rdma"\n', ZERO_COPY: 'transport = "rdma"\nzero-copy = true\n', VXLAN: ""}
"""vNICs, and what their contracts say of the way."""
COUNTED = (ASLEEP, RDMA, ZERO_COPY, VXLAN)
"""Contenders in one guest of one CPU."""
MESSAGES = 20_000
"""Of perftest there, which cannot sleep and go by time. Its receiver would wait for one that is lost."""
MTU = 4036
"""Of vNICs: a frame of 4,050 bytes, and 4,082 with the header; VXLAN's 4,100 fit into 4,200."""


def mac(number: int, by: str) -> str:
    """The MAC of the vNIC of host `number` that sends this way."""
    return f"52:54:00:0f:{CONTENDERS.index(by):02x}:{number:02x}"


def contracts(number: int, folder: str, host_latency: str) -> str:
    """The contracts of host `number`: a vNIC for each way."""
    other = 3 - number
    text = (
        f'[host]\nhost-latency = "{host_latency}"\n'
        f'[uplink.net0]\nlocal = "{address(number)}"\nrate = "10gbit"\nmtu = {JUMBO}\nrdma = "rxe0"\n'
        f'[uplink.net0.peer.far]\naddress = "{address(other)}"\n'
        f'[segment.{SEGMENT}]\nkey-file = "{folder}/key"\n'
    )
    for by, way in WAYS.items():
        text += (
            f'[vnic.{by}]\nattach = {{ vhost-user = "{folder}/{by}.sock" }}\nmac = "{mac(number, by)}"\n'
            f"segment = {SEGMENT}\nmtu = {MTU}\n{way}"
        )
    return text


class Ends:
    """Both hosts with Tidegate, and the programs that send and receive."""

    def __init__(self, context: Context, lab: TwoRoceHosts | OneRoceGuest) -> None:
        self.context = context
        self.lab = lab
        self.hosts: list[Guest] = lab.hosts
        self.bench = context.root / "target/release/tidegate-bench"
        self.tidegate = [self._host(number) for number in (1, 2)]

    def _host(self, number: int) -> GuestHost:
        guest = self.hosts[number - 1]
        guest.run("ulimit -l unlimited")
        host = GuestHost(guest, f"h{number}", "--rdma rxe0", netns=self.lab.netns[number - 1])
        guest.run(f"umask 077; echo {KEY} >{host.folder}/key")
        text = contracts(number, host.folder, self.context.options.host_latency)
        guest.run(f"cat >{host.folder}/c.toml <<'EOF'\n{text}\nEOF")
        host.run(f"apply -f {host.folder}/c.toml")
        return host

    def command(self, number: int, by: str, words: str) -> str:
        """A command of tidegate-bench at one end."""
        folder = self.tidegate[number - 1].folder
        other = mac(3 - number, by)
        return f"{self.bench} --json --contracts {folder}/c.toml between {words} --vnic {by} --to {other}"

    def perftest(self, program: str, words: str) -> tuple[str, str]:
        """A program of perftest at host 2, which waits, and at host 1."""
        receiver, sender = (f"{program} -c UD -d rxe0 -x {gid} {words}" for gid in reversed(self.lab.gids))
        return receiver, f"{sender} {address(2)}"

    def settle(self) -> None:
        """Wait until RDMA is the way from each host to the other."""
        for (number, host), by in product(enumerate(self.tidegate, 1), (RDMA, ZERO_COPY)):
            far = mac(3 - number, by)
            self.begin(3 - number, self.command(3 - number, by, "answer"))

            def by_rdma(host: GuestHost = host, by: str = by, far: str = far) -> bool:
                ways = host.vnic(by).get("rdma", {}).get("ways", [])
                return any(way["mac"] == far and "vxlan_because" not in way for way in ways)

            host.wait("a way by RDMA", by_rdma)
            self.end(3 - number)

    def begin(self, number: int, command: str) -> None:
        """Start a program at one end, which goes on."""
        self.hosts[number - 1].run(
            f"({command} >/tmp/far.log 2>&1 </dev/null & echo $! >/tmp/far.pid); sleep 0.5"
        )

    def end(self, number: int) -> str:
        """Wait for it, or end it; what it printed."""
        return self.hosts[number - 1].run("kill $(cat /tmp/far.pid) 2>/dev/null; sleep 0.2; cat /tmp/far.log")

    def sent(self) -> tuple[int, int]:
        """Frames that host 1 has sent so far, and those of them by RDMA."""
        uplink = json.loads(self.tidegate[0].run("--json uplink net0"))
        return uplink["stats"]["sent"]["frames"], uplink["rdma"]["counts"]["sent"]

    def busy(self) -> float:
        """Seconds that the CPUs of both hosts were busy so far."""
        total = 0.0
        for guest in self.lab.guests:
            words = guest.run("head -1 /proc/stat").split()[1:9]
            user, nice, system, _, _, irq, softirq, _ = map(int, words)
            total += (user + nice + system + irq + softirq) / 100
        return total


def number(pattern: str, text: str) -> float:
    """The first group, as a number."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no {pattern} in:\n{text}")
    return float(found.group(1))


@dataclass(frozen=True)
class Rate:
    """Datagrams a second that arrive, CPU time of both hosts for each (us), and which part left by RDMA."""

    per_second: float
    cpu_us: float
    by_rdma: float = 1.0


def rate(ends: Ends, by: str, frame: int, seconds: int) -> Rate:
    """One way, as fast as it goes."""
    one = ends.hosts[0]
    if by in (PERFTEST, ASLEEP):
        how = f"-D {seconds} -f 1" if by == PERFTEST else f"-n {MESSAGES} -e"
        receiver, sender = ends.perftest("ib_send_bw", f"-s {frame + HEADER} {how}")
        ends.begin(2, receiver)
        before = ends.busy()
        one.run(sender, timeout=seconds + 120)
        busy = ends.busy() - before
        # The receiver's: the sender counts what it has sent.
        printed = ends.hosts[1].run("sleep 1; cat /tmp/far.log")
        got = number(r"^ *\d+ +\d+ +[\d.]+ +[\d.]+\s+([\d.]+)", printed) * 1e6
        return Rate(got, busy / (got * seconds if by == PERFTEST else MESSAGES) * 1e6)
    sent = ends.sent()
    # The receiver goes on longer than the sender: frames to one that is gone leave by VXLAN.
    ends.begin(2, ends.command(2, by, f"receive --frame {frame} --seconds {seconds} --windows 4"))
    before = ends.busy()
    one.run(
        ends.command(1, by, f"send --frame {frame} --seconds {seconds} --windows 2"), timeout=seconds * 3 + 60
    )
    busy = ends.busy() - before
    printed = ends.hosts[1].run(
        "while kill -0 $(cat /tmp/far.pid) 2>/dev/null; do sleep 0.2; done; cat /tmp/far.log",
        timeout=seconds * 5 + 60,
    )
    window = json.loads(printed)["windows"][0]
    got = window["received"] / window["seconds"]
    frames, by_rdma = (now - then for now, then in zip(ends.sent(), sent, strict=True))
    # The sender's windows, after one that does not count.
    return Rate(got, busy / (3 * seconds) / got * 1e6, by_rdma / frames)


def round_trip(ends: Ends, by: str, frame: int, count: int) -> float:
    """The median round trip, us."""
    one = ends.hosts[0]
    if by in (PERFTEST, ASLEEP):
        events = " -e" if by == ASLEEP else ""
        receiver, sender = ends.perftest("ib_send_lat", f"-s {frame + HEADER} -n {count}{events}")
        ends.begin(2, receiver)
        printed = one.run(sender, timeout=count // 10 + 60)
        # Half of a round trip: t_typical, the fifth column.
        return 2 * number(r"^ *\d+ +\d+ +[\d.]+ +[\d.]+\s+([\d.]+)", printed)
    ends.begin(2, ends.command(2, by, f"answer --frame {frame}"))
    printed = one.run(ends.command(1, by, f"ask --frame {frame} --count {count}"), timeout=count // 10 + 60)
    ends.end(2)
    trips: list[int] = json.loads(printed)["trips"]
    return statistics.median(trips) / 1e3


def add_options(group: OptionGroup) -> None:
    """Declare this scene's options."""
    group.add_argument("--frames", default="480,992,4050", metavar="N,N,...", help="bytes; 480,992,4050")
    group.add_argument("--turns", type=int, default=10, metavar="N", help="of each contender; 10")
    group.add_argument("--seconds", type=int, default=3, metavar="N", help="of a window; 3")
    group.add_argument("--trips", type=int, default=300, metavar="N", help="round trips of a window; 300")
    group.add_argument("--counted", action="store_true", help="one guest, whose clock counts instructions")
    group.add_argument("--host-latency", default="10ms", metavar="TIME", help="of the contracts; 10ms")
    group.add_argument("--host-cpus", type=int, default=1, metavar="N", help="CPUs of each emulated host; 1")


def run(context: Context) -> Result:
    """All windows on one pair of emulated hosts."""
    options = context.options
    if options.counted and options.host_cpus != 1:
        raise Misused("--counted has one CPU for both hosts: leave out --host-cpus")
    sizes = [int(size) for size in options.frames.split(",")]
    turns = context.rounds(options.turns)
    rates: dict[tuple[int, str], list[Rate]] = {}
    trips: dict[tuple[int, str], list[float]] = {}
    contenders = COUNTED if options.counted else CONTENDERS
    lab = (
        OneRoceGuest(context.folder)
        if options.counted
        else TwoRoceHosts(context.folder, cpus=options.host_cpus)
    )
    with lab:
        ends = Ends(context, lab)
        ends.settle()
        for turn in range(turns):
            order = contenders if turn % 2 == 0 else contenders[::-1]
            for frame in sizes:
                for by in order:
                    trip = round_trip(ends, by, frame, options.trips)
                    trips.setdefault((frame, by), []).append(trip)
                    said = f"{turn + 1}/{turns}, {frame} B, {by}: round trip {trip:,.0f} us"
                    if by != ASLEEP or options.counted:
                        got = rate(ends, by, frame, options.seconds)
                        rates.setdefault((frame, by), []).append(got)
                        said += f", {got.per_second:,.0f}/s, {got.cpu_us:.0f} us of CPU each"
                        said += f", {got.by_rdma:.0%} by RDMA" if by in (RDMA, ZERO_COPY) else ""
                    context.say(said)
    return report(sizes, contenders, rates, trips)


def report(
    sizes: Iterable[int],
    contenders: tuple[str, ...],
    rates: dict[tuple[int, str], list[Rate]],
    trips: dict[tuple[int, str], list[float]],
) -> Result:
    """Figures, and targets from neighbouring windows, beside the first contender."""
    yardstick = contenders[0]
    result = Result()

    def add(name: str, by: str, unit: str, values: Iterable[float]) -> None:
        result.figures.append(Figure(name, by, unit, tuple(map(Sample, values))))

    def aim(
        measure: str, asked: str, limit: float, pairs: Iterable[tuple[float, float]], *, more: bool
    ) -> None:
        ratios = tuple(Sample(ours / theirs) for ours, theirs in pairs)
        result.targets.append(Target(measure, asked, "x", limit, "more" if more else "less", ratios))

    for frame in sizes:
        for by in contenders:
            if (frame, by) in rates:
                add(f"{frame} B: arrived [1/s]", by, "1/s", (one.per_second for one in rates[frame, by]))
                add(f"{frame} B: CPU time of both hosts", by, "us", (one.cpu_us for one in rates[frame, by]))
            if by in (RDMA, ZERO_COPY):
                add(f"{frame} B: left by RDMA", by, "%", (one.by_rdma * 100 for one in rates[frame, by]))
            add(f"{frame} B: round trip", by, "us", trips[frame, by])

        def beside(
            of: Callable[[Rate], float], by: str, other: str, frame: int = frame
        ) -> Iterable[tuple[float, float]]:
            return zip(map(of, rates[frame, by]), map(of, rates[frame, other]), strict=True)

        for by in (RDMA, ZERO_COPY):
            for other, asked, limit in ((yardstick, "at least 0.8x", 0.8), (VXLAN, "beside it", 0.0)):
                measure = f"{frame} B: messages a second, {by} / {other}"
                aim(measure, asked, limit, beside(lambda one: one.per_second, by, other), more=True)
            aim(
                f"{frame} B: CPU time of a frame, {by} / {yardstick}",
                "beside it",
                1e9,
                beside(lambda one: one.cpu_us, by, yardstick),
                more=False,
            )
            for other in contenders:
                if other in (RDMA, ZERO_COPY):
                    continue
                asked, limit = ("at most 1.3x", 1.3) if other == yardstick else ("beside it", 1e9)
                pairs = zip(trips[frame, by], trips[frame, other], strict=True)
                aim(f"{frame} B: round trip, {by} / {other}", asked, limit, pairs, more=False)
    return result


SCENE = Scene(
    name="rdma",
    title="RDMA between hosts, emulated",
    about=(
        "Two emulated hosts with soft-RoCE and an MTU of 4200: two QEMU guests on one link, or with "
        "`--counted` one guest whose clock counts instructions. Synthetic guests by RDMA and by VXLAN, "
        "beside perftest's `ib_send_bw` and `ib_send_lat` in turns. Emulated CPUs are many times slower than "
        "real ones: ratios count; the original's rates cannot be shown here."
    ),
    order=958,
    run=run,
    default=False,
    add_options=add_options,
)
