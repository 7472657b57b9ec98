"""DPDK's own virtio driver as the front end at both ends."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.host import Host, vhost_user_vnic
from lab.need import need_commands
from lab.process import wait_for
from lab.testpmd import RING_PACKED, Testpmd, virtio_user

RINGS = {
    "split": "",
    "packed": "packed_vq=1",
    # Every frame in one buffer: another receive path of the driver.
    "packed, not mergeable": "packed_vq=1,mrg_rxbuf=0",
}
MAC = {"source": "52:54:00:00:01:01", "sink": "52:54:00:00:01:02"}


@pytest.fixture
def ports(host: Host) -> Host:
    """A source of 20 Mbit/s, whose ring lasts while it is not scheduled, and an unlimited sink.

    The source sends more than that, and by flow would lose frames to CoDel: here its limit is to cost none.
    """
    need_commands("dpdk-testpmd")
    limit = ('tx = { max = "20mbit" }', 'queueing = "fifo"')
    host.apply(
        vhost_user_vnic("source", host.folder / "source.sock", MAC["source"], *limit)
        + vhost_user_vnic("sink", host.folder / "sink.sock", MAC["sink"])
    )
    return host


@pytest.fixture(params=RINGS)
def rings(request: pytest.FixtureRequest) -> str:
    """The device arguments for each layout of rings."""
    return RINGS[request.param]


def front_end(host: Host, name: str, tmp_path: Path, forward: str, rings: str, *options: str) -> Testpmd:
    """A testpmd on the port `name`; it sends to the sink."""
    device = virtio_user(host.folder / f"{name}.sock", MAC[name], more=rings)
    return Testpmd(tmp_path / name, [device], forward=forward, peers={0: MAC["sink"]}, options=options)


@pytest.fixture
def running(ports: Host, tmp_path: Path, rings: str) -> Iterator[tuple[Testpmd, Testpmd]]:
    """Source and sink, connected, not yet started."""
    with (
        front_end(ports, "sink", tmp_path, "rxonly", rings) as sink,
        front_end(ports, "source", tmp_path, "txonly", rings, "--txpkts=1000") as source,
    ):
        ports.wait_up("source", "sink")
        for end in (sink, source):
            assert [bool(features & RING_PACKED) for features in end.negotiated()] == ["packed" in rings]
        sink.start()
        yield source, sink


def test_counters_agree(ports: Host, running: tuple[Testpmd, Testpmd]) -> None:
    """Every frame testpmd counts as sent is received or counted as dropped, and which side's loss it was."""
    source, sink = running
    source.start()
    wait_for("frames", lambda: sink.stats()[0].rx_packets > 5_000, 60)
    source.stop()
    wait_for("the ring to drain", lambda: ports.show("source").tx_frames == source.stats()[0].tx_packets)
    sent = source.stats()[0]

    def accounted() -> int:
        return ports.show("sink").rx_frames + sum(ports.show("source").dropped("tx").values())

    wait_for("every frame to be accounted for", lambda: accounted() >= sent.tx_packets)
    assert accounted() == sent.tx_packets
    received = ports.show("sink")
    assert received.rx_frames == sink.stats()[0].rx_packets
    assert received.rx_bytes == sink.stats()[0].rx_bytes == received.rx_frames * 1000
    dropped = ports.show("source").dropped("tx")
    # A sink that is not scheduled for 10 ms loses frames; on a busy machine many.
    assert set(dropped) <= {"held_too_long", "ring_share"}
    assert received.rx_frames >= 0.8 * sent.tx_packets, dropped
    # A full share of its own ring is the sender's loss alone.
    assert sum(received.dropped("rx").values()) == dropped.get("held_too_long", 0)
    assert ports.show("source").tx_bytes == sent.tx_packets * 1000


def test_rate_is_kept(ports: Host, running: tuple[Testpmd, Testpmd]) -> None:
    """A front end that sends as fast as it can is held to its tx.max, and is told so by its own ring."""
    source, _ = running
    source.start()
    time.sleep(1)
    ports.keeps_rate("source", 20e6, 0.95)
    vnic = ports.show("source")
    # A sink that is not scheduled for 10 ms loses frames; the limit itself costs none.
    assert set(vnic.dropped("tx")) <= {"held_too_long", "ring_share"}
    assert sum(vnic.dropped("tx").values()) < 0.2 * vnic.tx_frames


def test_reconnect(ports: Host, running: tuple[Testpmd, Testpmd], tmp_path: Path, rings: str) -> None:
    """A source that is killed in mid-flight harms nothing, and its successor sends."""
    source, sink = running
    source.start()
    wait_for("frames", lambda: sink.stats()[0].rx_packets > 1000, 60)
    source.process.kill()
    wait_for("the switch to notice", lambda: ports.show("source").connection != "up")
    before = sink.stats()[0].rx_packets
    with front_end(ports, "source", tmp_path / "again", "txonly", rings) as again:
        ports.wait_up("source")
        again.start()
        wait_for("frames of the successor", lambda: sink.stats()[0].rx_packets > before + 1000, 60)
