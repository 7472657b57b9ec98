"""The soft limit: a guest sees and lowers its own, by a small program and a virtio-serial port."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lab.guest import Guest, vhost_user
from lab.host import GUEST_PROGRAM, Host, tap_vnic, vhost_user_vnic
from lab.limit import LimitPort
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_guests
from lab.process import wait_for

pytestmark = pytest.mark.lab

MAC = {"a": "52:54:00:00:05:0a", "t": "52:54:00:00:05:0b", "b": "52:54:00:00:05:0c"}
IP = {"a": "10.5.0.1", "t": "10.5.0.2", "b": "10.5.0.3"}
HARD = {"a": 8, "t": 40, "b": 40}
"""tx.max, Mbit/s: less than a guest sends in emulation on a busy machine."""
MBIT = 1e6
FLOOD = f"exec dd if=/dev/zero bs=1400 >/dev/udp/{IP['b']}/9"
"""For bash."""
SINK = 'import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(("", 9)); time.sleep(999)'
"""Without anybody on the port a sender would be told so, and end."""


@dataclass
class Lab:
    """A VM with a port of the switch (a) and a tap (t), which is a real guest; and another VM (b)."""

    host: Host
    guest: Guest
    tap: Stack
    other: LimitPort

    def limit(self, words: str = "") -> str:
        """`tidegate limit` in the guest."""
        return self.guest.run(f"tidegate limit {words}")

    def soft(self, name: str) -> str:
        """The soft limit as the host shows it; empty where there is none."""
        return str(self.host.show(name).document.get("soft") or "")

    def hard(self, name: str, value: str) -> None:
        """The operator's word."""
        self.host.cli("vnic", "set", name, f"tx.max={value}")

    def sends(self, **limits: float) -> None:
        """Fail unless what it sends keeps to `limits` (Mbit/s), and reaches a half: it is emulated."""
        for name, limit in limits.items():
            self.host.keeps_rate(name, limit * MBIT, 0.5, seconds=1.5)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Shared by all tests here: each leaves no soft limit behind."""
    need_guests()
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    need(f"{GUEST_PROGRAM}: cargo build", GUEST_PROGRAM.exists())
    folder = tmp_path_factory.mktemp("l")
    ports = {"a": folder / "a.limit", "t": folder / "a.limit", "b": folder / "b.limit"}
    lines = {n: (f'tx = {{ max = "{HARD[n]}mbit" }}', f'guest = "{ports[n]}"') for n in MAC}
    setup = f"ln -s {GUEST_PROGRAM} /usr/local/sbin/tidegate && ip addr add {IP['a']}/24 dev eth0"
    nic = vhost_user(folder / "a.sock", MAC["a"])
    other = LimitPort(ports["b"])
    with Host(folder) as host, Stack(folder / "t") as tap, Stack(folder / "b") as sink:
        host.apply(
            vhost_user_vnic("a", folder / "a.sock", MAC["a"], *lines["a"])
            + tap_vnic("t", tap.path, MAC["t"], *lines["t"])
            + tap_vnic("b", sink.path, MAC["b"], *lines["b"])
        )
        with Guest(folder / "guest", [nic], setup=setup, limit=ports["a"]) as guest:
            tap.address("eth0", f"{IP['t']}/24")
            sink.address("eth0", f"{IP['b']}/24")
            sink.spawn("python3", "-c", SINK)
            guest.ready()
            host.wait_up("a")
            yield Lab(host, guest, tap, other)
        host.check_alive()


def test_as_with_ulimit(lab: Lab) -> None:
    """A guest sees hard and soft, lowers the soft one, and never comes above the hard one."""
    tap = f"{MAC['t']} 40mbit 40mbit\n"
    assert lab.limit() == f"eth0              8mbit 8mbit\n{tap}"
    assert lab.limit("4mbit --nic eth0") == "eth0 8mbit 4mbit\n"
    assert (lab.soft("a"), lab.soft("t")) == ("4mbit", "")
    assert "max 8mbit, the guest asks for 4mbit" in lab.host.cli("vnic", "show", "a")
    assert "8mbit (guest: 4mbit)" in lab.host.cli("vnic", "ls")
    over = lab.guest.try_run("tidegate limit 9mbit --nic eth0")
    assert over.status == 3
    assert "the soft limit 9mbit is above the hard limit 8mbit" in over.stderr
    # Raising the hard limit leaves it; lowering it takes it along, for good.
    lab.hard("a", "20mbit")
    assert lab.soft("a") == "4mbit"
    lab.hard("a", "2mbit")
    lab.hard("a", "8mbit")
    # The agent is killed, and one after it knows.
    lab.host.kill_agent()
    lab.host.start_agent()
    assert lab.soft("a") == "2mbit"
    assert lab.limit() == f"eth0              8mbit 2mbit\n{tap}"
    lab.limit("none")
    assert lab.soft("a") == ""


def test_the_rate_follows(lab: Lab) -> None:
    """What a VM sends comes to its soft limit, by a port of the switch and by a tap; then to its hard one."""
    lab.guest.run(f"bash -c '{FLOOD}' >/dev/null 2>&1 &")
    flood = lab.tap.spawn("bash", "-c", FLOOD)
    wait_for("traffic", lambda: lab.host.tx_rate("a", 0.5) > 2.5 * MBIT)
    lab.limit("2mbit --nic eth0")
    lab.limit(f"5mbit --nic {MAC['t']}")
    lab.sends(a=2, t=5)
    assert "the 5mbit that its guest asks for (its tx.max is 40mbit)" in lab.host.cli("why", "t")
    assert "the soft limit of 5mbit that its guest has set (tx.max = 40mbit)" in lab.host.cli(
        "why", "t", "--json"
    )
    lab.limit("none")
    lab.sends(t=HARD["t"])
    flood.stop()
    lab.guest.run("killall dd")


def test_another_vm_is_out_of_reach(lab: Lab) -> None:
    """Its vNICs are neither shown nor set."""
    other = lab.guest.try_run(f"tidegate limit 1mbit --nic {MAC['b']}")
    assert other.status == 3
    assert "no network interface" in other.stderr
    lab.limit("1mbit")
    assert lab.soft("a") == lab.soft("t") == "1mbit"
    assert lab.other.ask("limit") == [f"vnic b {MAC['b']} 40mbit none 40mbit", "ok"]
    lab.limit("none")


def test_nothing_that_a_guest_writes_does_harm(lab: Lab) -> None:
    """Garbage, lines without an end, floods of requests whose answers the guest does not read."""
    port = "/dev/$(basename $(dirname $(grep -l org.tidegate /sys/class/virtio-ports/*/name)))"
    floods = ["head -c 9000 /dev/urandom; tr '\\0' x </dev/zero", "yes 1 flood set '*' 1mbit"]
    for number, flood in enumerate(floods, 2):
        lab.guest.run(f'timeout 1.5 sh -c "({flood}) >{port}" >/dev/null 2>&1 &')
        # Everybody else goes on meanwhile.
        for step in range(3):
            rate = f"{number}{step}mbit"
            assert lab.other.ask(f"set * {rate}") == ["ok"]
            assert lab.soft("b") == rate
            lab.hard("a", f"{number + step + 5}mbit")
        lab.guest.run("while pidof timeout >/dev/null; do sleep 0.1; done")
    lab.hard("a", "8mbit")
    assert lab.other.ask("set * none") == ["ok"]
    # Itself too, once it is done.
    wait_for("an answer", lambda: lab.guest.try_run("tidegate limit none").status == 0, 60)
    assert lab.limit("--nic eth0") == "eth0 8mbit 8mbit\n"
    assert lab.soft("a") == lab.soft("t") == ""
