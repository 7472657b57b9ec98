"""What `top`, `show`, `why` and the metrics print, beside real traffic: no figure is a 0 that is none.

The host switch and the kernel's place at once, because each is looked at by itself:

 source ─ vhost-user ─▶ sink    a ─ tap ─▶ b    voice ─ tap ─▶ b       (switch)
 k1 ─ veth ─▶ k2                k3 ─ veth ─▶ k2                        (kernel: bridge br0 of namespace `net`)

NICs: ../nic/test_contracts.py, in a guest that has one.
"""

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_commands
from lab.testpmd import Testpmd, virtio_user

MBIT = 1e6
LIMIT = 20 * MBIT
MAC = {
    name: f"52:54:00:00:0f:{number:02x}"
    for number, name in enumerate(["source", "sink", "a", "b", "voice", "k1", "k2", "k3"], 1)
}
SENDERS = {"source": "sink", "a": "b", "k1": "k2"}
"""Those that fill their tx.max, each with its receiver."""
KERNEL = {"k1", "k2", "k3"}
"""vNICs of the kernel's place."""
REAL_TIME = {"voice", "k3"}


@dataclass
class Scene:
    """All of it, with traffic."""

    host: Host
    why_no_kernel: str
    """Why the kernel's part is missing; empty where it is not."""

    def needs(self, *names: str) -> None:
        """Skip where one of these vNICs cannot be had on this machine."""
        if KERNEL & set(names):
            need(self.why_no_kernel, not self.why_no_kernel)

    def names(self) -> set[str]:
        """The vNICs there are."""
        return set(MAC) - (KERNEL if self.why_no_kernel else set())

    def rows(self) -> dict[str, dict[str, Any]]:
        """`top --json`, by vNIC."""
        return {row["name"]: row for row in json.loads(self.host.cli("top", "--json"))}

    def document(self, name: str) -> dict[str, Any]:
        """`vnic show NAME --json`."""
        return self.host.show(name).document


def why_no_kernel() -> str:
    """Why contracts cannot be kept on netdevs here; empty where they can."""
    own_users = Path("/proc/self/uid_map").read_text().split()[2] != str(2**32 - 1)
    is_root = os.geteuid() == 0 and not own_users
    return "" if is_root else "eBPF programs of the kernel's place: root, not in a user namespace"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One for all tests here: each only looks."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need_commands("dpdk-testpmd", "iperf3", "ping")
    folder = tmp_path_factory.mktemp("f")
    with ExitStack() as stack:
        net, *guests = (stack.enter_context(Stack(folder / n)) for n in ("net", "a", "b", "v", "1", "2", "3"))
        switched, behind = guests[:3], guests[3:]
        host = stack.enter_context(Host(folder / "h", agent_wrapper=["nsenter", f"--net={net.path}"]))
        running = Scene(host, why_no_kernel())
        contracts = of_the_switch(host, switched)
        if not running.why_no_kernel:
            contracts += of_the_kernel(net, behind)
        host.apply(contracts)
        for number, guest in enumerate(switched, 1):
            guest.address("eth0", f"10.15.0.{number}/24")
        load(switched, "10.15.0")
        if not running.why_no_kernel:
            load(behind, "10.15.1", "--udp", "--bitrate", "40M")
        for name, forward in (("sink", "rxonly"), ("source", "txonly")):
            device = virtio_user(host.folder / f"{name}.sock", MAC[name])
            options = ("--txpkts=1000",)
            end = Testpmd(folder / name, [device], forward=forward, peers={0: MAC["sink"]}, options=options)
            stack.enter_context(end)
            host.wait_up(name)
            end.start()
        time.sleep(3)
        yield running
        host.check_alive()


LIMITED = 'tx = { max = "20mbit" }'
RECEIVES = 'rx = { max = "100mbit" }'
ENVELOPE = 'tx = { max = "2mbit", burst = "4kB" }'


def of_the_switch(host: Host, stacks: Sequence[Stack]) -> str:
    """The contracts of source and sink, and of the stacks a, b and voice."""
    a, b, voice = (stack.path for stack in stacks)
    return (
        vhost_user_vnic("source", host.folder / "source.sock", MAC["source"], LIMITED)
        + vhost_user_vnic("sink", host.folder / "sink.sock", MAC["sink"])
        + tap_vnic("a", a, MAC["a"], LIMITED)
        + tap_vnic("b", b, MAC["b"], RECEIVES)
        + tap_vnic("voice", voice, MAC["voice"], ENVELOPE, 'deadline = "50ms"', 'to = ["b"]')
    )


def of_the_kernel(net: Stack, stacks: Sequence[Stack]) -> str:
    """Veths of the stacks on a bridge of `net`, and the contracts of their ends there."""
    net.run("ip link add br0 type bridge && ip link set br0 up")
    for number, guest in enumerate(stacks, 1):
        net.run(f"ip link add k{number} type veth peer name eth0 netns {guest.path.parts[2]}")
        net.run(f"ip link set k{number} master br0 up")
        guest.address("eth0", f"10.15.1.{number}/24")
    return (
        netdev_vnic("k1", LIMITED)
        + netdev_vnic("k2", RECEIVES)
        + netdev_vnic("k3", ENVELOPE, 'deadline = "50ms"', 'to = ["k2"]')
    )


def netdev_vnic(name: str, *lines: str) -> str:
    """The contract of a vNIC on the device of its name."""
    more = "".join(f"{line}\n" for line in lines)
    return f'[vnic.{name}]\nattach = {{ netdev = "{name}" }}\nmac = "{MAC[name]}"\nsegment = 0\n{more}\n'


def load(stacks: Sequence[Stack], network: str, *options: str) -> None:
    """The first stack fills its limit towards the second; the third pings it."""
    stacks[1].iperf_server()
    stacks[0].spawn("iperf3", "--client", f"{network}.2", "--time", "600", *options)
    stacks[2].spawn("ping", "-i", "0.02", f"{network}.2")


@pytest.mark.parametrize("sender", SENDERS)
def test_rates_are_those_of_the_traffic(scene: Scene, sender: str) -> None:
    """In `top`, as text and as JSON, and in the API: what the counters have grown by, both ways."""
    scene.needs(sender)
    receiver = SENDERS[sender]
    before = scene.host.show(sender).tx_bytes, scene.host.show(receiver).rx_bytes
    began = time.monotonic()
    rows = scene.rows()
    shown = [rows[sender]["tx_rate"], rows[receiver]["rx_rate"]]
    shown += [scene.document(sender)["tx_rate_bps"], scene.document(receiver)["rx_rate_bps"]]
    after = scene.host.show(sender).tx_bytes, scene.host.show(receiver).rx_bytes
    passed = time.monotonic() - began
    sent, received = ((now - then) * 8 / passed for now, then in zip(after, before, strict=True))
    assert sent > 0.3 * LIMIT
    for rate, grown in zip(shown, [sent, received] * 2, strict=True):
        assert rate is not None
        # A rate is of the last second, the growth of two: the machine may be taken away in between.
        assert 0.3 < rate / grown < 3, (shown, sent, received)
    rows_of_text = re.findall(rf"^{sender} +up +(\S+ \S+)  ", scene.host.cli("top", "--once"), re.MULTILINE)
    assert len(rows_of_text) == 1
    assert rows_of_text[0] != "0 bit/s"


def zeros(document: object, at: str = "") -> set[str]:
    """The paths of all figures that are 0, or lists of figures that are empty."""
    if isinstance(document, dict):
        return {path for key, value in document.items() for path in zeros(value, f"{at}.{key}".lstrip("."))}
    is_zero = document == 0 and not isinstance(document, bool)
    return {at} if is_zero or document in ([], None) else set()


def about(path: str) -> set[str]:
    """The parts of `unknown` that a figure of `stats` belongs to."""
    way, _, key = path.partition(".")
    return {
        "tx": {"tx", "super-frames"} if key == "frames" else {"tx", "drops"} if key == "dropped" else {"tx"},
        "rx": {"rx", "super-frames"} if key == "frames" else {"rx", "drops"} if key == "dropped" else {"rx"},
        "delay": {"delay"},
        "delay_least": {"delay"},
        "tokens_tx": set[str](),
        "tokens_rx": set[str](),
        "sparse_tx": set[str](),
        "sparse_rx": set[str](),
        "throttled": {"throttled"},
        "throttled_ns": {"throttled"},
        "realtime_delivered": {"deadline"},
        "realtime_worst_ns": {"deadline"},
        "realtime_worst_least_ns": {"deadline"},
        "misses_possible": {"deadline"},
        "misses_asleep": {"deadline"},
        "work": set[str](),
    }[way]


def expected_zeros(name: str) -> set[str]:
    """What a vNIC of this scene truly has nothing of."""
    none = {"index", "work.buffers_ns"}
    # Where nothing waited, nothing was queued; a driver that need not kick does not.
    none |= {"work.deliver_ns", "work.delivered", "work.kicks_ns"}
    # No sender here understands marks. At a receiver, or at this moment, nothing may wait.
    none |= {f"{way}.{key}" for way in ("tx", "rx") for key in ("marked", "flows_now")} | {"rx.flows_most"}
    few = ("tokens_rx", "sparse_tx", "sparse_rx")
    none |= {f"{waits}.{key}" for waits in few for key in ("p50", "p99", "p999", "max")}
    if name not in SENDERS or name in KERNEL:
        none |= {"tx.flows_most"} | {f"tokens_tx.{key}" for key in ("p50", "p99", "p999", "max")}
    # No deadline need be missed here.
    none |= {"misses_possible", "misses_asleep"}
    if name == "sink":
        none |= {"work.take_ns"}
    if name not in SENDERS:
        none |= {"throttled_ns"}
    if name not in REAL_TIME:
        none |= {"realtime_delivered", "realtime_worst_ns", "realtime_worst_least_ns"}
    if name == "sink":
        for end in ("delay", "delay_least"):
            none |= {f"{end}.{key}" for key in ("count", "p50", "p99", "p999", "max", "buckets")}
        none |= {f"tx.{key}" for key in ("frames", "wire_frames", "wire_bytes")}
    return none


def test_no_figure_is_a_zero_that_is_none(scene: Scene) -> None:
    """Of each vNIC what is 0 or missing under traffic is truly so, or is said to be unknown, with why."""
    rows = scene.rows()
    for name in sorted(scene.names()):
        document = scene.document(name)
        unknown = document.get("unknown", {})
        assert all(unknown.values()), (name, "a reason for each")
        wrong = {p for p in zeros(document["stats"]) - expected_zeros(name) if not about(p) & unknown.keys()}
        assert not wrong, (name, wrong, document["stats"], unknown)
        for way in ("tx", "rx"):
            # A rate that is not known is missing, and no other is.
            assert (f"{way}_rate_bps" in document) == (way not in unknown), (name, document)
            assert (rows[name][f"{way}_rate"] is None) == (way in unknown), (name, rows[name])
        assert (rows[name]["throttled"] is None) == ("throttled" in unknown), rows[name]
        if name in SENDERS:
            assert rows[name]["throttled"] > 0, rows[name]
            assert rows[name]["delay_p99"] > 0, rows[name]
        if name in REAL_TIME:
            (promise,) = document["promises"]
            assert not zeros(promise) - {"host_latency_violations"}, promise
        for figure in document["figures"]:
            # A figure that is not counted has no value and says why.
            whole, _, part = figure["name"].partition(".")
            is_unknown = whole in unknown or (part == "frames" and "super-frames" in unknown)
            assert ("value" not in figure) == is_unknown, (name, figure, unknown)
            assert figure["source"]


def test_uncounted_values_are_in_no_metric(scene: Scene) -> None:
    """And is said in words, not to be nothing."""
    scene.needs("k1")
    assert set(scene.document("k1")["unknown"]) == {"rx", "super-frames"}
    assert set(scene.document("k2")["unknown"]) >= {"tx", "delay"}
    text = metrics(scene.host)
    served = set(re.findall(r'^(tidegate_vnic_\w+)\{vnic="(k\d)"(?:,direction="(\w+)")?', text, re.MULTILINE))
    assert ("tidegate_vnic_wire_bytes_total", "k1", "tx") in served
    assert ("tidegate_vnic_wire_bytes_total", "k1", "rx") not in served
    assert ("tidegate_vnic_frames_total", "k1", "tx") not in served
    assert ("tidegate_vnic_delay_seconds_count", "k2", "") not in served
    assert "No frame that it sent was dropped" in scene.host.cli("why", "k3")
    assert "sent traffic: not limited, and so not counted" in scene.host.cli("why", "k2")
    assert "None of its frames" not in scene.host.cli("why", "k2")


def metrics(host: Host) -> str:
    """`GET /metrics`."""
    connection = HTTPConnection("tidegate", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(host.api))
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text
