"""Two real virtual machines, unchanged, through the switch."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest, vhost_user
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need
from lab.process import wait_for

pytestmark = pytest.mark.lab

MAC = {"a": "52:54:00:00:00:0a", "b": "52:54:00:00:00:0b"}
IP = {"a": "10.0.0.1", "b": "10.0.0.2"}
MBIT = 1e6


def boot(host: Host, name: str, *, queues: int = 1, options: str = "", share: bool = True) -> Guest:
    """A guest on the port `name`, addressed and up."""
    nic = vhost_user(host.folder / f"{name}.sock", MAC[name], queues=queues, options=options)
    guest = Guest(host.folder / f"guest-{name}", [nic], share=share)
    guest.address(f"{IP[name]}/24")
    return guest


@pytest.fixture
def contracts(host: Host) -> Host:
    """Ports a and b, each with a contract."""
    host.apply(
        vhost_user_vnic(
            "a", host.folder / "a.sock", MAC["a"], 'tx = { max = "20mbit" }', 'rx = { max = "100mbit" }'
        )
        + vhost_user_vnic(
            "b", host.folder / "b.sock", MAC["b"], 'tx = { max = "40mbit" }', 'rx = { max = "100mbit" }'
        )
    )
    return host


@pytest.fixture
def pair(contracts: Host) -> Iterator[tuple[Guest, Guest]]:
    """Guests on both ports."""
    with boot(contracts, "a") as a, boot(contracts, "b") as b:
        contracts.wait_up("a", "b")
        yield a, b


def serve(guest: Guest) -> None:
    """An iperf3 server in the background of a guest."""
    guest.run("iperf3 --server --daemon --logfile /tmp/iperf3.log && sleep 0.5 && pidof iperf3")


def stream(guest: Guest, to: str, seconds: int, *options: str) -> None:
    """An iperf3 client in the background of a guest."""
    guest.run(f"iperf3 --client {to} --time {seconds} {' '.join(options)} >/tmp/client.log 2>&1 3>&- &")


def test_ping(contracts: Host, pair: tuple[Guest, Guest]) -> None:
    """Every echo comes back, small and fragmented."""
    a, b = pair
    assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.05 -W 2 {IP['b']}")
    assert " 0% packet loss" in b.run(f"ping -c 5 -i 0.1 -s 4000 -W 2 {IP['a']}")
    assert contracts.show("a").tx_frames >= 25
    assert contracts.show("b").rx_frames >= 25


@pytest.mark.parametrize("options", [(), ("--udp", "--bitrate", "60M")], ids=["tcp", "udp"])
@pytest.mark.parametrize(("sender", "receiver", "limit"), [("a", "b", 20), ("b", "a", 40)])
def test_rate_is_kept(
    contracts: Host,
    pair: tuple[Guest, Guest],
    sender: str,
    receiver: str,
    limit: int,
    options: tuple[str, ...],
) -> None:
    """What a guest sends comes to its tx.max: over it by less than 5 %, short of it by less than 15 %."""
    guests = dict(zip("ab", pair, strict=True))
    serve(guests[receiver])
    stream(guests[sender], IP[receiver], 12, *options)
    time.sleep(2)
    rate = contracts.tx_rate(sender, 6)
    log = guests[sender].run("cat /tmp/client.log")
    assert 0.85 * limit * MBIT <= rate <= 1.05 * limit * MBIT, log


def test_changed_contract_takes_effect_live(contracts: Host, pair: tuple[Guest, Guest]) -> None:
    """`vnic set` changes the rate of a running connection."""
    a, b = pair
    serve(b)
    stream(a, IP["b"], 20)
    time.sleep(2)
    assert contracts.tx_rate("a", 3) <= 1.05 * 20 * MBIT
    contracts.cli("vnic", "set", "a", "tx.max=60mbit")
    time.sleep(2)
    assert 0.8 * 60 * MBIT <= contracts.tx_rate("a", 5) <= 1.05 * 60 * MBIT, a.run("cat /tmp/client.log")


@pytest.mark.parametrize(
    ("queues", "options"),
    [
        (2, ""),
        (1, "mrg_rxbuf=off"),
        (1, "csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off"),
        (1, "guest_csum=off,guest_tso4=off,guest_tso6=off"),
        (1, "indirect_desc=off,event_idx=off"),
        (1, "rx_queue_size=1024"),
    ],
    ids=["multiqueue", "no-mergeable-buffers", "no-offloads", "offloads-one-way", "plain-rings", "long-ring"],
)
def test_driver_features(host: Host, queues: int, options: str) -> None:
    """TCP runs, unharmed, between a guest with these features and one with all of them."""
    host.apply(
        vhost_user_vnic(
            "a", host.folder / "a.sock", MAC["a"], 'tx = { max = "50mbit" }', f"queues = {queues}"
        )
        + vhost_user_vnic("b", host.folder / "b.sock", MAC["b"], 'tx = { max = "50mbit" }')
    )
    with boot(host, "a", queues=queues, options=options) as a, boot(host, "b") as b:
        host.wait_up("a", "b")
        if queues > 1:
            assert len(a.run("ls -d /sys/class/net/eth0/queues/tx-*").split()) == queues
        b.run("head -c 8000000 /dev/urandom >/tmp/data")
        for giver, taker in ((b, a), (a, b)):
            address = IP["b" if giver is b else "a"]
            giver.run("busybox nc -l -p 7000 </tmp/data >/dev/null 2>&1 3>&- &")
            time.sleep(0.5)
            taker.run(f"busybox nc {address} 7000 </dev/null >/tmp/data.new", timeout=30)
            assert taker.run("sha256sum </tmp/data.new") == giver.run("sha256sum </tmp/data")
            taker.run("mv /tmp/data.new /tmp/data")


def test_guest_and_tap(host: Host, tmp_path: Path) -> None:
    """A guest and a kernel stack on a tap exchange TCP, each with its own offloads."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "stack") as stack:
        host.apply(
            vhost_user_vnic("a", host.folder / "a.sock", MAC["a"], 'tx = { max = "50mbit" }')
            + tap_vnic("b", stack.path, MAC["b"], 'tx = { max = "50mbit" }')
        )
        stack.address("eth0", f"{IP['b']}/24")
        with boot(host, "a") as guest:
            host.wait_up("a")
            assert " 0% packet loss" in guest.run(f"ping -c 5 -i 0.1 -W 2 {IP['b']}")
            stack.iperf_server()
            guest.run(f"iperf3 --client {IP['b']} --time 3")
            guest.run(f"iperf3 --client {IP['b']} --time 3 --reverse")


def test_driver_reload_and_new_guest(contracts: Host, pair: tuple[Guest, Guest]) -> None:
    """The port works again after the driver was rebound, and for a guest started in the first one's place."""
    a, b = pair
    ping = f"ping -c 3 -i 0.2 -W 5 {IP['b']}"
    a.run(ping)
    device = a.run("basename $(readlink /sys/class/net/eth0/device)").strip()
    driver = "/sys/bus/virtio/drivers/virtio_net"
    for _ in range(3):
        a.run(f"echo {device} >{driver}/unbind && echo {device} >{driver}/bind")
        a.address(f"{IP['a']}/24")
        assert " 0% packet loss" in a.run(ping)
    a.stop()
    wait_for("the switch to notice", lambda: contracts.show("a").connection != "up")
    (contracts.folder / "guest-a" / "control.sock").unlink()
    with boot(contracts, "a") as again:
        contracts.wait_up("a")
        assert " 0% packet loss" in again.run(ping)
    assert " 0% packet loss" in b.run("ping -c 1 127.0.0.1")


def test_memory_that_is_not_shared(contracts: Host) -> None:
    """A guest with share=off gets no port, and `show` says what to change in the QEMU line."""
    nic = vhost_user(contracts.folder / "a.sock", MAC["a"])
    with Guest(contracts.folder / "guest-a", [nic], share=False):
        wait_for("the reason", lambda: "share=on" in contracts.show("a").last_error)
        assert contracts.show("a").connection != "up"
