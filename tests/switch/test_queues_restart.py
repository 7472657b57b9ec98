"""A switch is replaced, then killed, while frames of a tap wait for its limits: TCP both ways, and UDP.

a ─ iperf3, irtt ─ tap ─ tx.max, rx.max ─ b
c ─ irtt ───────── tap ─ a neighbour ────┘
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.model import Json
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from scenes.queueing.load import DOWN_PORT, PING_PORT, UP_PORT, Load, ping
from scenes.queueing.places import PEER, Tap

RATE = "20mbit"
SECONDS = 1
"""Of probes, 100 a second."""
SOONER = 5
"""So many times sooner than through a FIFO half of the pings come back."""


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[Tap]:
    """Namespaces a, b and c on taps, with servers at b."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("irtt", "iperf3", "ethtool")
    with ExitStack() as cleanup:
        made = Tap(tmp_path / "t", cleanup, others=("c",))
        # Without super-frames each frame that is read from the tap is one of the switch's counters.
        made.fabric.stacks["a"].run("ethtool -K eth0 tso off gso off")
        yield made
        made.fabric.host.check_alive()


@contextmanager
def loaded(tap: Tap) -> Iterator[None]:
    """More than both limits. The connections outlast what is done meanwhile."""
    client = f"iperf3 --client {PEER} --time 60"
    a = tap.fabric.stacks["a"]
    processes = [
        a.spawn(*f"{client} --port {UP_PORT} --parallel 2 --bidir".split()),
        a.spawn(*f"{client} --port {DOWN_PORT} --udp --bitrate 30M --length 1200".split()),
    ]
    time.sleep(1)
    yield
    ended = [process.output() for process in processes if not process.running]
    for process in processes:
        process.kill()
    assert not ended
    # The servers notice, and what waits is sent.
    time.sleep(0.5)


def probed(stack: Stack, file: Path) -> Json:
    """Pings to b. A full FIFO drops most of what comes: the first frame is tried often."""
    tries = ",".join(["1s", "1s", *["2s"] * 8])
    probes = f"-i 10ms -d {SECONDS}s -l 60 --wait=2x3s -o {file}"
    stack.run(f"irtt client -Q {probes} --timeouts={tries} {PEER}:{PING_PORT}")
    return ping(file.read_text())


@pytest.mark.nightly
def test_frames_that_wait_in_front_of_a_taps_limit(tap: Tap) -> None:
    """Each is counted once, a neighbour loses none by an upgrade, and pings are short again."""
    fabric, host, folder = tap.fabric, tap.fabric.host, Path(tap.folder)
    a, c = fabric.stacks["a"], fabric.stacks["c"]

    def limit(*more: str) -> None:
        tap.limit(Load(up=1, down=1), RATE, more)

    def read() -> int:
        # What the tap's reader took, as the kernel counts it.
        links = json.loads(a.run("ip -s -j link show eth0"))
        packets: int = links[0]["stats64"]["tx"]["packets"]
        return packets

    def counted() -> int:
        tx = host.show("a").document["stats"]["tx"]
        return sum([int(tx["frames"]), *map(int, tx["dropped"].values())])

    limit('queueing = "fifo"')
    with loaded(tap):
        fifo = probed(a, folder / "fifo.json")
    limit()
    with loaded(tap):
        with ThreadPoolExecutor() as pool:
            neighbour = pool.submit(probed, c, folder / "c.json")
            time.sleep(SECONDS / 3)
            host.replace_switch()
        replaced = probed(a, folder / "replaced.json")
    assert neighbour.result()["lost"] == 0, neighbour.result()
    assert read() == counted(), host.show("a").document["stats"]["tx"]
    with loaded(tap):
        host.switch.kill()
        host.start_switch()
        time.sleep(1)
        killed = probed(a, folder / "killed.json")
    for short in (replaced, killed):
        assert short["p50"] * SOONER < fifo["p50"], (fifo, replaced, killed)
        assert short["lost"] == 0, (fifo, replaced, killed)
