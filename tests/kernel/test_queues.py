"""Short queues at the kernel place: marks, on real stacks, with what the running kernel has.

vm ─ iperf3 ─ eth0 ═ veth ═ vnet3 ─ tx.max, rx.max: fq_codel, cake, or one short queue ─ peer
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.marks import MARKED, RIGHT, Seen, captured
from lab.namespaces import can_make_namespaces
from lab.need import need, need_commands
from lab.process import wait_for
from scenes.queueing.load import DOWN_PORT, UP_PORT, Load
from scenes.queueing.places import NETDEV, PEER, VM, Kernel

pytestmark = pytest.mark.abreast

RATE = "20mbit"
IFB = "tidegate-tx"
V6 = {"vm": "fd09::1", "outer": "fd09::2"}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A veth pair with IPv4 and IPv6, no checksum left to a device, and servers at its outer end."""
    need("network namespaces: root, or user namespaces", can_make_namespaces())
    need_commands("iperf3", "irtt", "tcpdump", "tshark", "ethtool")
    with ExitStack() as cleanup:
        made = Kernel(tmp_path_factory.mktemp("k") / "k", cleanup)
        for stack, device, address in ((made.vm, "eth0", V6["vm"]), (made.outer, NETDEV, V6["outer"])):
            stack.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=0")
            stack.run(f"sysctl -qw net.ipv6.conf.{device}.disable_ipv6=0")
            stack.run(f"ip addr add {address}/64 dev {device} nodad")
            stack.run(f"ethtool -K {device} tx off tso off gso off")
        yield made
        made.host.check_alive()


def seen(kernel: Kernel, way: str, version: str, ecn: bool) -> list[Seen]:
    """What comes out of the limit while four connections and datagrams want more than it lets pass."""
    kernel.limit(Load.of(f"1{'up' if way == 'tx' else 'down'}"), RATE, ())
    for stack in (kernel.vm, kernel.outer):
        stack.run(f"sysctl -qw net.ipv4.tcp_ecn={1 if ecn else 0}")
    peer = PEER if version == "4" else V6["outer"]
    client = f"timeout 20 iperf3 -{version} --client {peer} --time 2 {'--reverse' if way == 'rx' else ''}"
    command = (
        f"{client} --port {UP_PORT} --parallel 4 >/dev/null &"
        f"{client} --port {DOWN_PORT} --udp --bitrate 15M --length 1200 >/dev/null; wait"
    )
    file = Path(kernel.folder) / "marks.pcap"
    # At the outer end frames pass twice, before they wait and after.
    where = (kernel.outer, IFB, "out") if way == "tx" else (kernel.vm, "eth0", "in")
    frames = captured(*where, file, lambda: kernel.run(command, 60))
    source = {"4": VM, "6": V6["vm"]}[version] if way == "tx" else peer
    assert len(frames) > 100, f"from {source}"
    return frames


def marked(kernel: Kernel, way: str) -> int:
    """What is counted of it."""
    return int(kernel.host.show("vm").document["stats"][way].get("marked", 0))


@pytest.mark.parametrize("version", ["4", "6"])
@pytest.mark.parametrize("way", ["tx", "rx"])
def test_frames_that_allow_marks_are_marked_with_right_checksums(
    kernel: Kernel, way: str, version: str
) -> None:
    """TCP with ECN is marked; UDP, acknowledgements and SYNs, which are Not-ECT, never."""
    kernel.limit(Load(), RATE, ())
    before = marked(kernel, way)
    frames = seen(kernel, way, version, ecn=True)
    ce = [frame for frame in frames if frame.ecn == MARKED]
    marks_text = f"{len(frames)} frames, {len(ce)} marked, such as {ce[:3]}"
    assert ce, marks_text
    assert all(int(frame.tcp_payload or 0) > 0 for frame in ce), marks_text
    assert all(frame.ip_checksum == RIGHT for frame in frames if version == "4"), marks_text
    wrong = [frame for frame in frames if RIGHT not in (frame.tcp_checksum, frame.udp_checksum)]
    assert not wrong, (marks_text, wrong[:3])
    # Looks are twice a second. What is dropped behind the filter may have been marked, too.
    wait_for("the count", lambda: marked(kernel, way) - before >= len(ce))


def test_without_ecn_nothing_is_marked(kernel: Kernel) -> None:
    """Both ways; what does not fit is dropped instead."""
    for way in ("tx", "rx"):
        assert {frame.ecn for frame in seen(kernel, way, "4", ecn=False)} == {0}
        wait_for("the drops", lambda way=way: sum(kernel.host.show("vm").dropped(way).values()) > 0)  # type: ignore[misc]


def test_filters_that_mark_are_restored_and_removed(kernel: Kernel) -> None:
    """Filters that another program deletes are there again, and none is left when the limit goes."""
    kernel.limit(Load(), RATE, ())
    places = {f"{NETDEV} ingress": "congestion", f"{NETDEV} parent 7464:": "congestion"}
    shown = {place: kernel.outer.run(f"tc filter show dev {place}") for place in places}
    if not any("tidegate:congestion:" in text for text in shown.values()):
        # Its queues mark by themselves.
        assert any(kind in kernel.outer.run(f"tc qdisc show dev {NETDEV}") for kind in ("fq_codel", "cake"))
        return
    for place, text in shown.items():
        assert text.count("tidegate:congestion:") == 1, (place, text)
        kernel.outer.run(f"tc filter del dev {place} pref 1")

    def back() -> bool:
        found = [kernel.outer.run(f"tc filter show dev {place}") for place in places]
        return all(text.count("tidegate:congestion:") == 1 for text in found)

    wait_for("the filters", back)
    kernel.limit(Load(up=1), RATE, ('queueing = "fifo"',))
    for place in places:
        text = kernel.outer.try_run(f"tc filter show dev {place}").stdout
        assert "tidegate:congestion:" not in text, (place, text)
