"""Short queues inside a vNIC's own limit: pings beside uploads and downloads, on real stacks.

 a ─ iperf3, irtt ─ eth0 (tap │ QEMU guest's virtio-net) ─ tx.max, rx.max: flows │ fifo ─ b
 c ─ irtt ───────── eth0 (tap), a neighbour ─────────────────────────────────────────────┘

Times are compared with those of `queueing = "fifo"`, measured by the same test a moment before.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.model import Json
from lab.marks import MARKED, RIGHT, Seen
from lab.marks import captured as frames_at
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands, need_guests
from scenes.queueing.load import PING_PORT, UP_PORT, Load, bits, ping
from scenes.queueing.places import PEER, InGuest, Place, Tap

RATE = "20mbit"
FIFO = 'queueing = "fifo"'
SECONDS = 2
"""Of probes, 100 a second."""
WARM_UP = 2
"""Seconds of load before them."""
SOONER = 5
"""So many times sooner half of the pings come back. On an idle machine it is 10 to 500 times."""
GOODPUT = 0.9


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tap]:
    """Namespaces a, b and c on taps, with servers at b."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("irtt", "iperf3", "tcpdump", "tshark", "ethtool")
    with ExitStack() as cleanup:
        made = Tap(tmp_path_factory.mktemp("q") / "t", cleanup, others=("c",))
        yield made
        made.fabric.host.check_alive()


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InGuest]:
    """A QEMU guest as a, whose queueing is pfifo_fast: Linux's own, where nothing else is set."""
    need_guests()
    need_commands("irtt", "iperf3")
    with ExitStack() as cleanup:
        made = InGuest(tmp_path_factory.mktemp("q") / "g", cleanup)
        made.queue_by("pfifo_fast", ecn=False)
        yield made
        made.host.check_alive()


def beside(place: Place, flows: str, *more: str) -> Json:
    """One window: pings beside this load, with further lines of the contract."""
    load = Load.of(flows)
    place.limit(load, RATE, more)
    return place.window(load, bits(RATE), SECONDS, warm_up=WARM_UP)


def is_short(place: Place, flows: str, fifo: Json) -> None:
    """Pings beside this load come back, sooner than through a FIFO, and the load has the rate."""
    short = beside(place, flows)
    windows_text = f"fifo: {fifo}\nflows: {short}"
    assert short["p50"] * SOONER < fifo["p50"], windows_text
    assert short["lost"] == 0, windows_text
    assert min(short.get("goodput up", 1), short.get("goodput down", 1)) > GOODPUT, windows_text


def wait_in_why(tap: Tap) -> Json:
    """What `tidegate why` says of the wait for `tx.max`, under the contract in force."""
    wait: Json = json.loads(tap.fabric.host.cli("why", "a", "--last", "1m", "--json"))["tx_wait"]
    return wait


@pytest.fixture(scope="module")
def fifo(tap: Tap) -> Json:
    """Pings through a FIFO beside one upload, which keeps it full; eight lose much, and wait then."""
    found = beside(tap, "1up", FIFO)
    return {**found, "told": wait_in_why(tap)}


@pytest.mark.parametrize("flows", ["1up", pytest.param("8up", marks=pytest.mark.nightly)])
def test_pings_of_a_tap_do_not_wait_behind_its_uploads(tap: Tap, fifo: Json, flows: str) -> None:
    """One connection and eight. What is told of the wait is what a ping meets."""
    is_short(tap, flows, fifo)
    wait = wait_in_why(tap)
    assert wait["sparse"]["count"] > 50 * SECONDS, "half of the pings"
    assert wait["sparse"]["p50"] * SOONER < wait["waited"]["p50"], wait


def test_the_wait_through_a_fifo_is_reported(fifo: Json) -> None:
    """It is that of a ping, there and back without load on the way back."""
    assert 0.5 < fifo["told"]["waited"]["p50"] / 1e6 / fifo["p50"] < 2, fifo
    assert "sparse" not in fifo["told"]


@pytest.mark.parametrize("flows", [pytest.param("1down", marks=pytest.mark.nightly), "8down"])
def test_pings_of_a_tap_do_not_wait_behind_its_downloads(tap: Tap, flows: str) -> None:
    """One connection and eight."""
    is_short(tap, flows, beside(tap, flows, FIFO))


@pytest.mark.lab
@pytest.mark.parametrize("flows", ["8up", pytest.param("8down", marks=pytest.mark.nightly)])
def test_pings_of_a_guest_do_not_wait_behind_its_tcp(guest: InGuest, flows: str) -> None:
    """A guest that was not changed in any way."""
    is_short(guest, flows, beside(guest, flows, FIFO))


def probes(file: Path, seconds: int) -> str:
    """The command that sends probes to b, and leaves what came of them in a file.

    A full FIFO drops most of what comes: the first frame, with which the client opens, is tried often.
    For the last answers it waits for twice the longest round trip.
    """
    tries = ",".join(["1s", "1s", *["2s"] * 8])
    probes = f"-i 10ms -d {seconds}s -l 60 --wait=2x3s -o {file}"
    return f"irtt client -Q {probes} --timeouts={tries} {PEER}:{PING_PORT}"


def test_a_flood_harms_neither_its_own_vnics_pings_nor_a_neighbours(tap: Tap) -> None:
    """UDP that never reacts, five times tx.max: pings beside it pass, of the same vNIC and of another."""
    folder, c = Path(tap.folder), tap.fabric.stacks["c"]
    seen = {}
    for queueing in (FIFO, ""):
        tap.limit(Load(up=1), RATE, [queueing] if queueing else [])
        flood = tap.fabric.stacks["a"].spawn(
            *f"iperf3 --client {PEER} --port {UP_PORT} --udp --bitrate 100M --length 1400 --time 20".split()
        )
        time.sleep(1)
        with ThreadPoolExecutor() as pool:
            own = pool.submit(tap.run, probes(folder / "a.json", SECONDS), 60)
            c.run(probes(folder / "c.json", SECONDS))
            own.result()
        flood.kill()
        # The server notices that its client is gone before the next one comes.
        time.sleep(0.5)
        seen[queueing] = [ping((folder / f"{name}.json").read_text()) for name in "ac"]
    fifo, (short, neighbour) = seen[FIFO][0], seen[""]
    windows_text = f"fifo: {fifo}\nflows: {short}\nneighbour: {neighbour}"
    assert short["lost"] == neighbour["lost"] == 0, windows_text
    assert max(short["p50"], neighbour["p50"]) * SOONER < fifo["p50"], windows_text


def captured(tap: Tap, command: str) -> list[Seen]:
    """What arrives at b while a command runs at a."""
    file = Path(tap.folder) / "marks.pcap"
    return frames_at(tap.fabric.stacks["b"], "eth0", "in", file, lambda: tap.run(command, 60))


@pytest.fixture
def two_stacks(tap: Tap) -> Iterator[dict[str, str]]:
    """IPv6 beside IPv4; addresses of b by version."""
    addresses = {"a": "fd09::1", "b": "fd09::2"}
    for name, address in addresses.items():
        stack = tap.fabric.stacks[name]
        stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0")
        stack.run(f"ip addr add {address}/64 dev eth0 nodad")
    a = tap.fabric.stacks["a"]
    try:
        yield {"4": PEER, "6": addresses["b"]}
    finally:
        a.run("ethtool -K eth0 tx on tso on gso on; sysctl -qw net.ipv4.tcp_ecn=2")
        for name, address in addresses.items():
            stack = tap.fabric.stacks[name]
            stack.run(f"ip addr del {address}/64 dev eth0; sysctl -qw net.ipv6.conf.all.disable_ipv6=1")


@pytest.mark.abreast
@pytest.mark.parametrize("offloads", ["on", "off"])
@pytest.mark.parametrize("version", ["4", "6"])
def test_frames_that_allow_marks_are_marked_with_right_checksums(
    tap: Tap, two_stacks: dict[str, str], version: str, offloads: str
) -> None:
    """TCP with ECN is marked; UDP, pure acknowledgements and SYNs, which are Not-ECT, never.

    With offloads TCP comes as super-frames, whose TCP checksum is b's to make; without, it is a's.
    """
    a = tap.fabric.stacks["a"]
    a.run(f"ethtool -K eth0 tx {offloads} tso {offloads} gso {offloads}; sysctl -qw net.ipv4.tcp_ecn=1")
    tap.limit(Load(up=1), RATE, ())
    before = tap.fabric.host.show("a")
    client = f"timeout 20 iperf3 -{version} --client {two_stacks[version]}"
    frames = captured(
        tap,
        f"{client} --port {UP_PORT} --parallel 4 --time 2 >/dev/null &"
        f"{client} --port {UP_PORT + 1} --udp --bitrate 30M --length 1200 --time 2 >/dev/null; wait",
    )
    marked = [frame for frame in frames if frame.ecn == MARKED]
    windows_text = f"{len(frames)} frames, {len(marked)} marked, such as {marked[:3]}"
    assert marked, windows_text
    assert all(int(frame.tcp_payload or 0) > 0 for frame in marked), windows_text
    assert all(frame.ip_checksum == RIGHT for frame in frames if version == "4" and frame.v4), windows_text
    if offloads == "off":
        wrong = [f for f in frames if RIGHT not in (f.tcp_checksum, f.udp_checksum)]
        assert not wrong, (windows_text, wrong[:3])
    counted = tap.fabric.host.show("a").document["stats"]["tx"]["marked"]
    assert counted - before.document["stats"]["tx"]["marked"] >= len(marked), windows_text


@pytest.mark.abreast
def test_without_ecn_nothing_is_marked(tap: Tap) -> None:
    """Frames are dropped instead, and counted for that reason (`codel`)."""
    tap.limit(Load(up=1), RATE, ())
    before = tap.fabric.host.show("a").dropped("tx").get("codel", 0)
    tap.fabric.stacks["a"].run("sysctl -qw net.ipv4.tcp_ecn=0")
    try:
        command = f"timeout 20 iperf3 --client {PEER} --port {UP_PORT} --parallel 4 --time 2 >/dev/null"
        frames = captured(tap, command)
    finally:
        tap.fabric.stacks["a"].run("sysctl -qw net.ipv4.tcp_ecn=2")
    assert len(frames) > 100
    assert {frame.ecn for frame in frames} == {0}
    after = tap.fabric.host.show("a").dropped("tx")
    assert after.get("codel", 0) > before, (before, after)


def test_rate_and_queueing_change_while_frames_wait(tap: Tap) -> None:
    """Ten times in a row, beside TCP and UDP; then the limit is kept, and pings are short."""
    tap.limit(Load(up=1), RATE, [FIFO])
    a, host, file = tap.fabric.stacks["a"], tap.fabric.host, Path(tap.folder) / "a.json"
    client = f"iperf3 --client {PEER} --time 60"
    load = [
        a.spawn(*f"{client} --port {UP_PORT} --parallel 4".split()),
        a.spawn(*f"{client} --port {UP_PORT + 1} --udp --bitrate 30M --length 1200".split()),
    ]
    time.sleep(1)
    tap.run(probes(file, SECONDS), 60)
    fifo = ping(file.read_text())
    ways = ("", FIFO, 'queueing = { target = "2ms", interval = "40ms", per-host = true }')
    for turn in range(10):
        tap.limit(Load(up=1), ("5mbit", "20mbit", "80mbit")[turn % 3], [ways[turn // 2 % 3]])
        time.sleep(0.15)
    tap.limit(Load(up=1), RATE, ())
    host.keeps_rate("a", bits(RATE))
    tap.run(probes(file, SECONDS), 60)
    short = ping(file.read_text())
    ended = [process.output() for process in load if not process.running]
    for process in load:
        process.kill()
    time.sleep(0.5)
    assert not ended
    assert short["lost"] == 0, short
    assert short["p50"] * SOONER < fifo["p50"], (fifo, short)
