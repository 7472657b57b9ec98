"""Voice beside bulk between two hosts over 1 Gbit/s: everything off, and with a contract.

```text
 voice a ─ 142 B each ms ─┐                                      ┌─▶ voice b, echoes
                          ├─ host 1 ═══ 1 Gbit/s ═══ host 2 ───────┤
 bulk a ── TCP, UDP ──────┘     ▲ when it is on the wire          └─▶ bulk b
```

*Off*: the kernel's bridge, vxlan, and at 1 Gbit/s a FIFO of 1,514,000 bytes, which are 1,000 frames.
*Tidegate*: an uplink of `rate = "1gbit"`, voice with a deadline; and the same without.
"""

import array
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from harness.measure import interleave
from harness.model import Contender, Context, Json, Result, Sample, Target, Window
from harness.report import table
from lab.host import tap_vnic
from lab.process import Process
from scenes.uplinks.hosts import MTU, VNI, Guest, Network, Pair, uplink_of

CALLS = Path(__file__).with_name("calls.py")
OFF, PLAIN, ON = "FIFO of 1,000 frames", "tidegate, no deadline", "tidegate, deadline"
CASE = "voice beside TCP and UDP"
FIFO = "tbf rate 1gbit burst 16kb limit 1514000"
STAMPED = 1418
"""MTU of a guest whose frames get a stamp."""
DEADLINE, LATENCY = "10ms", "1ms"
SETTLE = 1.5
"""From the beginning of bulk to the first call (s)."""
PERCENTILES = ((50, "p50"), (99, "p99"), (99.9, "p99.9"), (100, "worst"))
PARTS = {"wire": "in the sending host", "trip": "round trip"}
FACTORS = {"wire": 58.0, "trip": 37.0}
"""Asked of off / on at p99: five times the original's ratios, 6,800 to 590 us and 120 to 16 ms."""


class Side:
    """Two hosts with a guest for voice and one for bulk on each."""

    def __init__(self, network: Network, name: str, voice: Pair, bulk: Pair) -> None:
        self.network, self.name, self.voice, self.bulk = network, name, voice, bulk
        echo = self.act(voice.b, "echo", voice.b.address)
        assert echo.running
        for port in (5201, 5202):
            server = bulk.b.spawn("iperf3", "--server", "--port", str(port), "--forceflush")
            server.wait_for("iperf3", lambda server=server: "listening" in server.output())  # type: ignore[misc]

    def act(self, guest: Guest, *words: str) -> Process:
        """Starts an end of voice in a guest."""
        process = guest.spawn(sys.executable, "-E", "-S", str(CALLS), *words)
        process.wait_for(words[0], lambda: "ready" in process.output())
        return process

    def window(self, seconds: float, case: str) -> Json:
        """Delays of a call beside bulk, in us."""
        del case
        folder, stack = self.network.folder, self.network.underlay.two
        whole = f"{seconds + SETTLE + 1:.0f}"
        to = ("--client", self.bulk.b.address, "--time", whole)
        load = [
            self.bulk.a.spawn("iperf3", *to, "--parallel", "4"),
            self.bulk.a.spawn(
                "iperf3",
                *to,
                "--port",
                "5202",
                "--udp",
                "--bitrate",
                "100M",
                "--length",
                "1300",
            ),
        ]
        try:
            time.sleep(SETTLE)
            files = [folder / f"{part}-{time.monotonic_ns()}" for part in PARTS]
            words = ("wire", self.voice.a.mac, str(seconds + 1), str(files[0]))
            ear = stack.spawn(sys.executable, "-E", "-S", str(CALLS), *words)
            ear.wait_for("the ear", lambda: "ready" in ear.output())
            began, first = time.monotonic(), received(self.network)
            caller = self.act(self.voice.a, "call", self.voice.b.address, str(seconds), str(files[1]))
            caller.popen.wait(seconds + 20)
            rate = (received(self.network) - first) * 8 / (time.monotonic() - began) / 1e6
            ear.popen.wait(20)
            assert files[0].exists(), ear.output()
            assert files[1].exists(), caller.output()
        finally:
            for process in load:
                process.stop()
        return {**judged(*map(numbers, files)), "Mbit/s": rate}


def received(network: Network) -> int:
    """Bytes that host 2 has received."""
    text = (network.underlay.two.path.parent.parent / "net/dev").read_text()
    line = next(line for line in text.splitlines() if line.strip().startswith("eth0:"))
    return int(line.split(":")[1].split()[0])


def numbers(path: Path) -> "array.array[int]":
    """The values of a file."""
    values: array.array[int] = array.array("q")
    values.frombytes(path.read_bytes())
    return values


def judged(wire: "array.array[int]", call: "array.array[int]") -> Json:
    """Percentiles of the delay in the sending host and of round trips (us), and lost frames."""
    sent = call[::2]
    on_wire = sorted(at - sent[number] for number, at in zip(wire[::2], wire[1::2], strict=True))
    trips = sorted(trip for trip in call[1::2] if trip)
    found: Json = {
        "lost": 1 - len(trips) / len(sent),
        "lost before the wire": 1 - len(on_wire) / len(sent),
    }
    for part, values in (("wire", on_wire), ("trip", trips)):
        for percent, name in PERCENTILES:
            at = min(len(values) - 1, int(len(values) * percent / 100))
            found[f"{part} {name}"] = values[at] / 1000 if values else float("nan")
    return found


def pairs(network: Network, name: str, voice_mtu: int) -> tuple[Pair, Pair]:
    """Guests for voice and for bulk."""
    short = name[:2].replace(",", "")
    voice = Pair(name, network.guest(short, 1, 1), network.guest(short, 2, 1), mtu=voice_mtu)
    return voice, Pair(name, network.guest(short, 1, 2), network.guest(short, 2, 2))


def off(context: Context, cpus: tuple[int, int]) -> Side:
    """The kernel's bridge and vxlan, and a FIFO."""
    network = Network(context, "fifo", cpus)
    voice, bulk = pairs(network, "of", MTU)
    for number, stack in enumerate((network.underlay.one, network.underlay.two)):
        network.bridge(number, "f")
        for pair in (voice, bulk):
            network.veth(number, "f", (pair.a, pair.b)[number])
        stack.run(f"tc qdisc add dev eth0 root {FIFO}")
    voice.settle()
    bulk.settle()
    return Side(network, OFF, voice, bulk)


def tidegate(context: Context, cpus: tuple[int, int], name: str) -> Side:
    """Two switches, with or without a deadline."""
    promised = name == ON
    network = Network(context, "on" if promised else "plain", cpus)
    voice, bulk = pairs(network, "on" if promised else "pl", STAMPED if promised else MTU)
    key = network.folder / "key"
    key.touch(0o600)
    key.write_text("00112233445566778899aabbccddeef0\n")
    keys = f'[segment.{VNI}]\nkey-file = "{key}"\n\n' if promised else ""
    limit = 'tx = { max = "4mbit", burst = "4kB" }'
    for number in (1, 2):
        host = network.host(number, network.folder / f"h{number}", "--fifo-priority", "1")
        (own, far), (ours, theirs) = (
            (("a", "b"), (voice.a, voice.b)) if number == 1 else (("b", "a"), (voice.b, voice.a))
        )
        promise = (limit, f'deadline = "{DEADLINE}"', f'to = ["{far}"]') if promised else ()
        rx = 'rx = { max = "10gbit" }'
        text = uplink_of("vxlan", number, f'latency = "{LATENCY}"').replace("100gbit", "1gbit")
        text += tap_vnic(
            own,
            ours.stack.path,
            ours.mac,
            f"mtu = {voice.mtu}",
            rx,
            *promise,
            segment=VNI,
        )
        other = (bulk.a, bulk.b)[number - 1]
        text += tap_vnic("bulk", other.stack.path, other.mac, f"mtu = {MTU}", segment=VNI)
        if promised:
            text += (
                f'[remote.{far}]\nmac = "{theirs.mac}"\nsegment = {VNI}\npeer = "far"\n'
                f'{limit}\ndeadline = "{DEADLINE}"\nto = ["{own}"]\n\n'
            )
        host.apply(text + keys)
        host.wait_up(own, "bulk")
    voice.settle()
    bulk.settle()
    return Side(network, name, voice, bulk)


def measure(context: Context, rounds: int, seconds: float) -> Result:
    """All contenders, some rounds, in turns."""
    cpus = (context.machine.generator_cpu, context.machine.switch_cpu)
    sides = [
        off(context, cpus),
        tidegate(context, cpus, PLAIN),
        tidegate(context, cpus, ON),
    ]
    everyone = [Contender(side.name, partial(side.window, seconds)) for side in sides]
    result = Result()
    for done in range(rounds):
        order = everyone if done % 2 == 0 else everyone[::-1]
        if not context.is_late():
            result.windows += interleave(None, order, [CASE], 1)
        context.say(f"voice, round {done + 1} of {rounds}")
    judge(result)
    return result


def judge(result: Result) -> None:
    """A table of delays, and the targets."""
    of = {name: [w for w in result.windows if w.contender == name] for name in (OFF, PLAIN, ON)}

    def median(windows: list[Window], key: str) -> float:
        return statistics.median(window.values[key] for window in windows)

    for part, title in PARTS.items():
        rows = []
        for name, windows in of.items():
            if not windows:
                continue
            worst = max(window.values[f"{part} worst"] for window in windows)
            cells = [f"{median(windows, f'{part} {key}'):,.0f}" for _, key in PERCENTILES[:-1]]
            lost = max(window.values["lost"] for window in windows)
            rate = median(windows, "Mbit/s")
            rows.append([name, *cells, f"{worst:,.0f}", f"{lost:.2%}", f"{rate:,.0f}"])
        head = (
            f"voice, {title} [us]",
            *(name for _, name in PERCENTILES),
            "lost, at most",
            "to host 2 [Mbit/s]",
        )
        result.tables.append(table(head, rows))
        for _, key in PERCENTILES[1:]:
            ratios = tuple(
                Sample(a.values[f"{part} {key}"] / b.values[f"{part} {key}"])
                for a, b in zip(of[OFF], of[ON], strict=False)
            )
            limit = FACTORS[part]
            asked = f"at least {limit:g}x" if key == "p99" else "beside it"
            result.targets.append(
                Target(
                    f"voice, {title}, {key}: {OFF} / {ON}",
                    *(asked, "x", limit if key == "p99" else 0.0, "more", ratios),
                )
            )
