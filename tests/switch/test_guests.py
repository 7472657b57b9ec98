"""Two real virtual machines, unchanged, through the switch."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest, transfer, vhost_user
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_guests
from lab.process import wait_for

pytestmark = pytest.mark.lab

MAC = {"a": "52:54:00:00:00:0a", "b": "52:54:00:00:00:0b"}
IP = {"a": "10.0.0.1", "b": "10.0.0.2"}
LIMIT = {"a": 4, "b": 8}
"""tx.max, Mbit/s: less than a guest sends in emulation on a busy machine."""
MBIT = 1e6
WINDOW = 4.0
"""Seconds in which a burst of 64 KiB is 3 % of what the slower guest may send."""


def boot(
    host: Host,
    name: str,
    *,
    queues: int = 1,
    options: str = "",
    share: bool = True,
    prealloc: bool = False,
    mtu: int | None = 1500,
    may_reboot: bool = False,
) -> Guest:
    """A guest on the port `name`, with its address once it is ready."""
    nic = vhost_user(host.folder / f"{name}.sock", MAC[name], queues=queues, options=options)
    own_mtu = "" if mtu is None else f"mtu {mtu}"
    setup = f"ip addr add {IP[name]}/24 dev eth0 && ip link set eth0 {own_mtu} up"
    return Guest(
        host.folder / f"guest-{name}",
        [nic],
        cpus=queues,
        share=share,
        prealloc=prealloc,
        may_reboot=may_reboot,
        setup=setup,
    )


def contracts(host: Host) -> None:
    """Ports a and b, each with a contract."""
    host.apply(
        "".join(
            vhost_user_vnic(
                name,
                host.folder / f"{name}.sock",
                MAC[name],
                f'tx = {{ max = "{limit}mbit" }}',
                'rx = { max = "100mbit" }',
            )
            for name, limit in LIMIT.items()
        )
    )


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Guest, Guest]]:
    """Guests on both ports, shared by the tests that leave them as they were."""
    need_guests()
    with Host(tmp_path_factory.mktemp("g")) as host:
        contracts(host)
        with boot(host, "a") as a, boot(host, "b") as b:
            for guest in (a, b):
                guest.run("iperf3 --server --daemon && sleep 0.5 && pidof iperf3")
            host.wait_up("a", "b")
            yield host, a, b
        host.check_alive()


def ready(host: Host, a: Guest, b: Guest) -> None:
    """Wait until both guests have their address and both ports are up."""
    a.ready()
    b.ready()
    host.wait_up("a", "b")


def unlimited(host: Host, *lines: str) -> None:
    """Ports a and b without limits."""
    host.apply(
        "".join(vhost_user_vnic(name, host.folder / f"{name}.sock", MAC[name], *lines) for name in MAC)
    )


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Guest]]:
    """A guest on port b alone, for tests that boot others on port a; booting is most of what they take."""
    need_guests()
    with Host(tmp_path_factory.mktemp("p")) as host:
        unlimited(host)
        with boot(host, "b") as b:
            host.wait_up("b")
            yield host, b
        host.check_alive()


@pytest.mark.abreast
def test_a_guest_is_told_its_mtu(tmp_path: Path) -> None:
    """QEMU's host_mtu: Linux sets the MTU of the contract by itself."""
    need_guests()
    with Host(tmp_path / "h") as host:
        unlimited(host, "mtu = 1450")
        with boot(host, "a", options="host_mtu=1450", mtu=None) as a:
            a.ready()
            assert a.run("cat /sys/class/net/eth0/mtu").strip() == "1450"
        host.check_alive()


def checksum_errors(guest: Guest) -> int:
    """Segments and datagrams the guest's kernel has thrown away for their checksums, since it started."""
    text = guest.run("nstat -asz TcpInCsumErrors UdpInCsumErrors Udp6InCsumErrors IcmpInCsumErrors")
    return sum(int(line.split()[1]) for line in text.splitlines() if not line.startswith("#"))


def stream(guest: Guest, to: str, seconds: int, options: str = "") -> None:
    """An iperf3 client in the background of a guest."""
    guest.run(
        f"iperf3 --client {to} --time {seconds} {options} >/tmp/client.log 2>&1 & echo $! >/tmp/client.pid"
    )


def end_stream(guest: Guest) -> None:
    """Stop the client, which must still be at it; its server is ready for the next one."""
    guest.run("kill -INT $(cat /tmp/client.pid)")
    guest.run("while kill -0 $(cat /tmp/client.pid) 2>/dev/null; do sleep 0.1; done")


def test_ping(lasting: tuple[Host, Guest, Guest]) -> None:
    """Every echo comes back, small and fragmented."""
    host, a, b = lasting
    assert " 0% packet loss" in a.run(f"ping -c 20 -i 0.05 -W 2 {IP['b']}")
    assert " 0% packet loss" in b.run(f"ping -c 5 -i 0.1 -s 4000 -W 2 {IP['a']}")
    assert host.show("a").tx_frames >= 25
    assert host.show("b").rx_frames >= 25


@pytest.mark.parametrize("options", ["", "--udp --bitrate 16M"], ids=["tcp", "udp"])
@pytest.mark.parametrize(("sender", "receiver"), ["ab", pytest.param(*"ba", marks=pytest.mark.nightly)])
def test_rate_is_kept(lasting: tuple[Host, Guest, Guest], sender: str, receiver: str, options: str) -> None:
    """What a guest sends comes to its tx.max and not over it; how far it gets is also up to the emulation."""
    host, *guests = lasting
    guest = guests["ab".index(sender)]
    stream(guest, IP[receiver], 60, options)
    wait_for("traffic", lambda: host.tx_rate(sender, 0.5) > 0.5 * MBIT)
    throttled = host.show(sender).throttled_ns
    host.keeps_rate(sender, LIMIT[sender] * MBIT, 0.5, seconds=WINDOW)
    assert host.show(sender).throttled_ns > throttled
    end_stream(guest)


def test_changed_contract_takes_effect_live(lasting: tuple[Host, Guest, Guest]) -> None:
    """`vnic set` changes the rate of a running connection."""
    host, a, _ = lasting
    stream(a, IP["b"], 60)
    wait_for("traffic", lambda: host.tx_rate("a", 0.5) > 0.5 * MBIT)
    host.keeps_rate("a", LIMIT["a"] * MBIT, 0.5, seconds=WINDOW)
    try:
        host.cli("vnic", "set", "a", f"tx.max={3 * LIMIT['a']}mbit")
        host.keeps_rate("a", 3 * LIMIT["a"] * MBIT, 0.5, seconds=WINDOW)
    finally:
        host.cli("vnic", "set", "a", f"tx.max={LIMIT['a']}mbit")
    end_stream(a)


@pytest.mark.abreast
@pytest.mark.parametrize(
    ("queues", "options"),
    [
        (2, ""),
        (1, "mrg_rxbuf=off"),
        (1, "csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off"),
        (1, "guest_csum=off,guest_tso4=off,guest_tso6=off"),
        (1, "indirect_desc=off,event_idx=off"),
        (1, "rx_queue_size=1024"),
        (2, "packed=on"),
        (1, "packed=on,indirect_desc=off,event_idx=off"),
    ],
    ids=[
        "multiqueue",
        "no-mergeable-buffers",
        "no-offloads",
        "offloads-one-way",
        "plain-rings",
        "long-ring",
        "packed-rings",
        "plain-packed-rings",
    ],
)
def test_driver_features(peer: tuple[Host, Guest], queues: int, options: str) -> None:
    """A file comes through whole, both ways, between a guest with these features and one with all."""
    host, b = peer
    host.apply(
        vhost_user_vnic("a", host.folder / "a.sock", MAC["a"], f"queues = {queues}")
        + vhost_user_vnic("b", host.folder / "b.sock", MAC["b"])
    )
    with boot(host, "a", queues=queues, options=options) as a:
        ready(host, a, b)
        if queues > 1:
            assert len(a.run("ls -d /sys/class/net/eth0/queues/tx-*").split()) == queues
        # Bit 34, first to last: VIRTIO_F_RING_PACKED.
        negotiated = a.run("cat /sys/class/net/eth0/device/features")
        assert negotiated[34] == ("1" if "packed=on" in options else "0")
        transfer(a, b, IP["a"])
        transfer(b, a, IP["b"])
        assert checksum_errors(a) == checksum_errors(b) == 0


@pytest.mark.abreast
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


@pytest.mark.abreast
def test_driver_reload_and_new_guest(peer: tuple[Host, Guest]) -> None:
    """The port works again after the driver was rebound, and for a guest started in the first one's place."""
    host, b = peer
    contracts(host)
    ping = f"ping -c 3 -i 0.2 -W 5 {IP['b']}"
    with boot(host, "a") as a:
        ready(host, a, b)
        a.run(ping)
        device = a.run("basename $(readlink /sys/class/net/eth0/device)").strip()
        driver = "/sys/bus/virtio/drivers/virtio_net"
        for _ in range(3):
            a.run(f"echo {device} >{driver}/unbind && echo {device} >{driver}/bind")
            a.address(f"{IP['a']}/24")
            assert " 0% packet loss" in a.run(ping)
    wait_for("the switch to notice", lambda: host.show("a").connection != "up")
    with boot(host, "a") as again:
        host.wait_up("a")
        assert " 0% packet loss" in again.run(ping)


@pytest.mark.abreast
def test_guest_reboots_under_traffic(peer: tuple[Host, Guest]) -> None:
    """A guest that is reset while it sends and receives is on its port again, without a new connection."""
    host, b = peer
    contracts(host)
    with boot(host, "a", may_reboot=True) as a:
        ready(host, a, b)
        b.run("iperf3 --server --daemon && sleep 0.5 && pidof iperf3")
        stream(a, IP["b"], 60, "--udp --bitrate 30M --bidir")
        wait_for("traffic", lambda: host.tx_rate("a", 0.5) > 1e6)
        a.reboot()
        host.wait_up("a", "b")
        assert " 0% packet loss" in a.run(f"ping -c 5 -i 0.1 -W 5 {IP['b']}")
        # Its server still sends to the guest that was reset.
        b.run("kill -9 $(pidof iperf3)")
        transfer(a, b, IP["a"], 2_000_000)
        assert host.show("a").last_error == ""


@pytest.mark.abreast
def test_memory_that_is_not_shared(host: Host) -> None:
    """A guest with share=off gets no port, and `show` says what to change in the QEMU line."""
    contracts(host)
    with boot(host, "a", share=False) as guest:
        guest.ready()
        wait_for("the reason", lambda: "share=on" in host.show("a").last_error)
        assert host.show("a").connection != "up"


@pytest.mark.abreast
def test_super_frames_pass_whole(peer: tuple[Host, Guest]) -> None:
    """Between guests with all offloads, TCP goes as super-frames in both directions, with checksums right."""
    host, b = peer
    unlimited(host)
    with boot(host, "a") as a:
        ready(host, a, b)
        for giver, taker, name in ((a, b, "a"), (b, a, "b")):
            before = host.show(name)
            transfer(giver, taker, IP[name], 10_000_000)
            after = host.show(name)
            frames = after.tx_frames - before.tx_frames
            # How many segments one has is the guest's: it sends as soon as it can, so a quick one fills few.
            segments = after.tx_wire_frames - before.tx_wire_frames
            assert segments - frames > 50, f"{frames} frames, {segments} segments"
        assert checksum_errors(a) == checksum_errors(b) == 0


@pytest.mark.abreast
def test_jumbo_frames(host: Host) -> None:
    """With mtu = 9000 frames of 9000 bytes pass, over several buffers of the receiver."""
    unlimited(host, "mtu = 9000")
    with boot(host, "a", mtu=9000) as a, boot(host, "b", mtu=9000) as b:
        ready(host, a, b)
        whole = 9000 - 20 - 8
        assert " 0% packet loss" in a.run(f"ping -c 5 -i 0.1 -M do -s {whole} -W 2 {IP['b']}")
        assert " 0% packet loss" in b.run(f"ping -c 5 -i 0.1 -M do -s {whole} -W 2 {IP['a']}")
        transfer(a, b, IP["a"])
        a.run("ethtool -K eth0 tso off gso off")
        transfer(a, b, IP["a"])
        host.cli("vnic", "set", "a", "mtu=1500")
        assert "100% packet loss" in a.try_run(f"ping -c 2 -i 0.1 -M do -s {whole} -W 1 {IP['b']}").stdout
        assert host.show("a").dropped("tx").get("too_long", 0) >= 2
        assert checksum_errors(a) == checksum_errors(b) == 0


@pytest.mark.abreast
def test_offloads_toggled_in_the_guest(peer: tuple[Host, Guest]) -> None:
    """Whatever `ethtool -K` switches off and on while the port is up, files come through whole."""
    host, b = peer
    unlimited(host)
    with boot(host, "a") as a:
        ready(host, a, b)
        for change in (
            "tso off",
            "gso off",
            "tx off",
            "rx off",
            "gro off",
            "tx on rx on tso on gso on gro on",
        ):
            # Not every driver can switch every offload: then it says so, and nothing changes.
            done = a.try_run(f"ethtool -K eth0 {change}")
            assert done.status == 0 or "Could not change" in done.stderr, done
            transfer(a, b, IP["a"], 2_000_000)
            transfer(b, a, IP["b"], 2_000_000)
        assert checksum_errors(a) == checksum_errors(b) == 0
        assert host.show("a").connection == host.show("b").connection == "up"


def deadline(host: Host) -> None:
    """Port a with a deadline towards b."""
    envelope = 'tx = { max = "10mbit", burst = "4kB" }'
    host.apply(
        vhost_user_vnic("a", host.folder / "a.sock", MAC["a"], envelope, 'deadline = "50ms"', 'to = ["b"]')
        + vhost_user_vnic("b", host.folder / "b.sock", MAC["b"], 'rx = { max = "100mbit" }')
    )


def test_deadline(host: Host) -> None:
    """A guest with a deadline: bound, worst delay seen and margin are shown."""
    deadline(host)
    with boot(host, "a", prealloc=True) as a, boot(host, "b", prealloc=True) as b:
        ready(host, a, b)
        assert " 0% packet loss" in a.run(f"ping -c 100 -i 0.02 -W 2 {IP['b']}")
        (promise,) = host.show("a").promises
        assert promise["egress"] == "b"
        assert promise["deadline_ns"] == 50_000_000
        assert 0 < promise["bound_ns"] <= 50_000_000
        assert promise["margin_ns"] == promise["deadline_ns"] - promise["bound_ns"]
        assert promise["worst_seen_ns"] > 0
        text = host.cli("vnic", "show", "a")
        for words in ("delay bound", "worst seen", "margin"):
            assert words in text


@pytest.mark.abreast
def test_a_deadline_needs_preallocated_memory(host: Host) -> None:
    """Without prealloc=on the deadline is suspended, frames pass, and all say so: nothing is promised."""
    deadline(host)
    with boot(host, "a") as a, boot(host, "b") as b:
        ready(host, a, b)
        wait_for("the reason", lambda: "prealloc=on" in host.cli("vnic", "show", "a"))
        assert " 0% packet loss" in a.run(f"ping -c 5 -i 0.1 -W 2 {IP['b']}")
        assert "50ms, not promised right now: guest memory is not preallocated" in host.cli(
            "vnic", "show", "a"
        )
        assert "deadline towards b: not promised right now" in host.cli("vnic", "show", "a")
        assert "50ms (not promised)" in host.cli("vnic", "ls")
        assert "not promised" in host.cli("top", "--once")
        said = host.cli("why", "a")
        assert "Its deadline of 50ms is not promised right now: guest memory is not preallocated" in said
        assert "kept" not in said
        status = host.try_cli("status")
        assert status.returncode == 1
        assert "deadline not promised: a\n  guest memory is not preallocated" in status.stdout
        assert "run: tidegate why a" in status.stdout


@pytest.mark.nightly
def test_killed_under_traffic(host: Host, tmp_path: Path) -> None:
    """QEMU killed while it sends and receives: its port waits again, no other port loses a frame."""
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "stack") as stack:
        host.apply(
            vhost_user_vnic("a", host.folder / "a.sock", MAC["a"], 'tx = { max = "20mbit" }')
            + vhost_user_vnic("b", host.folder / "b.sock", MAC["b"], 'tx = { max = "20mbit" }')
            + tap_vnic("c", stack.path, "52:54:00:00:00:0c")
        )
        stack.address("eth0", "10.0.0.3/24")
        with boot(host, "b") as b:
            b.run("iperf3 --server --daemon && sleep 0.5 && pidof iperf3")
            with boot(host, "a") as a:
                a.ready()
                host.wait_up("a", "b")
                stream(a, IP["b"], 30, "--udp --bitrate 30M --bidir")
                wait_for("traffic", lambda: host.tx_rate("a", 0.5) > 1e6)
                ping = stack.spawn("ping", "-i", "0.05", "-c", "60", "-W", "5", IP["b"])
                time.sleep(1)
                a.process.kill()
                wait_for("the switch to notice", lambda: host.show("a").connection == "waiting")
                assert ping.popen.wait(30) == 0, ping.output()
                assert " 0% packet loss" in ping.output()
            # The server knows one client at a time, and this one will never say goodbye.
            b.run("kill -9 $(pidof iperf3); sleep 0.2; iperf3 --server --daemon")
            with boot(host, "a") as a:
                host.wait_up("a")
                assert " 0% packet loss" in a.run(f"ping -c 5 -i 0.1 -W 5 {IP['b']}")
                transfer(a, b, IP["a"])


@pytest.mark.abreast
def test_switch_restarted_under_running_guests(host: Host) -> None:
    """After kill -9 of the switch, guests with reconnect=1 come back and go on, under contract."""
    contracts(host)
    with boot(host, "a") as a, boot(host, "b") as b:
        ready(host, a, b)
        assert " 0% packet loss" in a.run(f"ping -c 3 -i 0.1 -W 5 {IP['b']}")
        for _ in range(2):
            b.run("pidof iperf3 || iperf3 --server --daemon")
            stream(a, IP["b"], 60)
            wait_for("traffic", lambda: host.tx_rate("a", 0.5) > 1e6)
            host.switch.kill()
            host.start_switch()
            ready(host, a, b)
            # The same connection goes on.
            wait_for("traffic", lambda: host.tx_rate("a", 1) > 1e6, 30)
            host.keeps_rate("a", LIMIT["a"] * MBIT, 0, seconds=WINDOW)
            a.run("kill -9 $(cat /tmp/client.pid); sleep 1")
            assert " 0% packet loss" in a.run(f"ping -c 5 -i 0.1 -W 5 {IP['b']}")
        assert checksum_errors(a) == checksum_errors(b) == 0
