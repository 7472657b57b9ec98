"""Frames by RDMA between two switches, in one guest over one device of soft-RoCE.

Each switch and its agent are in a network namespace, joined to the other's. The device is in the first one,
with both addresses: it needs no namespace.

```text
 guest: a ─ switch 1 ─ queue pair ─ rxe0: 192.0.2.1 ═ loop ═ rxe0: 192.0.2.2 ─ queue pair ─ switch 2 ─ b
              └──────── UDP socket ══════════════════════════════ UDP socket ──────────┘  at first
```

Each switch runs as a user without rights, confined. VMs are synthetic front ends.
"""

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest
from lab.guest_host import GuestHost
from lab.host import BINARY
from lab.need import need, need_commands
from lab.roce import MODULES, address, namespaces, setup
from lab.rxe import JUMBO, unlinked

pytestmark = [pytest.mark.lab, pytest.mark.abreast, pytest.mark.timeout(600)]

BENCH = BINARY.with_name("tidegate-bench")
SEGMENT = 42
NAMES = ("a", "b")
KEY = "00112233445566778899aabbccddeeff"
OPTIONS = "--rdma rxe0 --user 65534"
ZERO_COPY = "zero-copy = true\n"
STEADY = 'tx = { max = "2mbit" }\n'
"""Of frames of 1,500 bytes 166 a second: fewer than a host of the emulated guest carries."""
WINDOW = 0.1
"""In which a VM counts frames, s: shorter ones for so long would be more output than the guest returns."""
SECONDS = 120
"""How long it goes on: longer than zero copy needs to begin and to begin again beside other work, s."""
MTU = 4036
"""A frame of 4,050 bytes: with VXLAN's header it fits into the MTU of eth0."""


class Pair:
    """Two hosts in one guest, each with a vNIC."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.hosts = [GuestHost(guest, f"h{number}", OPTIONS, netns=f"h{number}") for number in (1, 2)]
        for number, host in enumerate(self.hosts, 1):
            guest.run(f"umask 077; echo {KEY} >{host.folder}/key")
            self.apply(number)

    def apply(self, number: int, more: str = "") -> None:
        """Put the contracts of host `number` in force, that of its vNIC with `more`."""
        host = self.hosts[number - 1]
        self.guest.run(f"cat >{host.folder}/c.toml <<'EOF'\n{contracts(number, host.folder, more)}\nEOF")
        host.run(f"apply -f {host.folder}/c.toml")

    def bench(self, number: int, words: str) -> str:
        """The command of a VM at host `number`."""
        file = f"{self.hosts[number - 1].folder}/c.toml"
        to = mac(3 - number)
        return f"{BENCH} --json --contracts {file} between {words} --vnic {NAMES[number - 1]} --to {to}"

    def begin(self, number: int, words: str) -> None:
        """Start a VM that goes on."""
        log = f"/tmp/vm{number}"
        self.guest.run(
            f"({self.bench(number, words)} >{log}.log 2>&1 </dev/null & echo $! >{log}.pid); sleep 0.5"
        )

    def end(self, number: int) -> None:
        """End it."""
        self.guest.run(f"kill $(cat /tmp/vm{number}.pid) 2>/dev/null; sleep 0.3; true")

    def send(self, number: int, seconds: float) -> None:
        """Start a VM that sends frames for so long, and counts those that come."""
        windows = int(seconds / WINDOW)
        self.begin(number, f"send --frame 1500 --seconds {WINDOW} --windows {windows}")

    def sent(self, number: int) -> list[dict[str, float]]:
        """Its windows, once it has ended."""
        log = f"/tmp/vm{number}"
        self.guest.run(f"while kill -0 $(cat {log}.pid) 2>/dev/null; do sleep 0.2; done", timeout=2 * SECONDS)
        text = self.guest.run(f"cat {log}.log")
        assert text.startswith("{"), text
        return list(json.loads(text)["windows"])

    def upgrade_switch(self, number: int) -> None:
        """Another switch takes the place of host `number`'s."""
        host = self.hosts[number - 1]
        command = f"{BINARY} switch --replace --detach --socket {host.folder}/switch.sock {OPTIONS}"
        self.guest.run(f"{command} >>{host.folder}/switch.log 2>&1 </dev/null")
        self.guest.run(f"pgrep -n -x tidegate >{host.folder}/switch.pid")

    def restart_switch(self, number: int) -> None:
        """The switch of host `number` is killed, and another one started."""
        self.hosts[number - 1].kill_switch()
        self.hosts[number - 1].start_switch()

    def zero_copied(self, number: int) -> tuple[int, int]:
        """Frames of host `number`'s vNIC that left, and came, without a copy, since its switch started."""
        counts = self.rdma(number).get("counts") or {}
        return counts.get("zero_copied_out", 0), counts.get("zero_copied_in", 0)

    def until_zero_copied(self, number: int, what: str) -> None:
        """Wait until 50 more frames of host `number`'s vNIC have left, and come, without a copy."""
        before = self.zero_copied(number)
        self.hosts[number - 1].wait(
            what,
            lambda: all(now >= then + 50 for now, then in zip(self.zero_copied(number), before, strict=True)),
        )

    def rdma(self, number: int) -> dict[str, Any]:
        """What host `number` says of its uplink's RDMA."""
        uplink = json.loads(self.hosts[number - 1].run("--json uplink net0"))
        # None is known while the switch is away.
        return dict(uplink.get("rdma") or {"pairs": [], "members": []})

    def queue_pair(self, number: int) -> int | None:
        """The queue pair of host `number`'s vNIC."""
        pairs = self.rdma(number)["pairs"]
        return pairs[0].get("queue_pair") if pairs else None

    def settled(self, number: int) -> int:
        """The queue pair of host `number`'s vNIC, once there is one."""
        self.hosts[number - 1].wait("a queue pair", lambda: self.queue_pair(number) is not None)
        return self.queue_pair(number) or 0

    def takes(self, number: int, mtu: int) -> None:
        """Wait until the uplink of host `number` takes datagrams of `mtu` bytes."""
        host = self.hosts[number - 1]
        host.wait(f"datagrams of {mtu} bytes", lambda: self.rdma(number).get("mtu") == mtu)

    def knows(self, number: int) -> bool:
        """Whether host `number` reaches the other's vNIC by RDMA."""
        member = [m for m in self.rdma(number)["members"] if m["mac"] == mac(3 - number)]
        return (
            bool(member)
            and "error" not in member[0]
            and member[0]["queue_pair"] == self.queue_pair(3 - number)
        )

    def exchange(self) -> None:
        """Frames both ways, until they go by RDMA: none is lost, no forbidden system call made."""
        self.begin(2, "answer")
        self.hosts[0].wait("a way by RDMA", lambda: self.knows(1), 90)
        before = [self.rdma(number)["counts"] for number in (1, 2)]
        end = time.monotonic() + 120
        while True:
            report = json.loads(self.guest.run(self.bench(1, "ask --frame 1500 --count 200"), timeout=120))
            after = [self.rdma(number)["counts"] for number in (1, 2)]
            sent = [now["sent"] - then["sent"] for now, then in zip(after, before, strict=True)]
            came = [now["received"] - then["received"] for now, then in zip(after, before, strict=True)]
            # The way there is known; that back only once the asking VM is up.
            if min(sent + came) >= 100:
                break
            assert time.monotonic() < end, (
                f"sent {sent}, received {came}\n{self.hosts[0].log()}\n{self.hosts[1].log()}"
            )
        assert len(report["trips"]) + report["lost"] == 200
        assert report["lost"] == 0, report
        for now, then in zip(after, before, strict=True):
            assert now["lost"] == then["lost"], after
            assert now["spoofed"] == now["malformed"] == 0, after
        for host in self.hosts:
            assert "denied system call" not in self.guest.run(f"cat {host.folder}/switch.log")
        self.end(2)


def mac(number: int) -> str:
    """The MAC of the vNIC of host `number`."""
    return f"52:54:00:0f:00:{number:02x}"


def contracts(number: int, folder: str, more: str = "") -> str:
    """The contracts of host `number`, that of its vNIC with `more`."""
    return (
        f'[uplink.net0]\nlocal = "{address(number)}"\nrate = "10gbit"\nmtu = {JUMBO}\nrdma = "rxe0"\n'
        f'[uplink.net0.peer.far]\naddress = "{address(3 - number)}"\n'
        f'[segment.{SEGMENT}]\nkey-file = "{folder}/key"\n'
        f'[vnic.{NAMES[number - 1]}]\nattach = {{ vhost-user = "{folder}/vm.sock" }}\nmac = "{mac(number)}"\n'
        f'segment = {SEGMENT}\nmtu = {MTU}\ntransport = "rdma"\n{more}'
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both hosts, with contracts in force."""
    need_commands("rdma")
    need(
        "no soft-RoCE for programs: apt install ibverbs-providers",
        Path("/etc/libibverbs.d/rxe.driver").exists(),
    )
    need("no tidegate-bench: cargo build", BENCH.exists())
    folder = tmp_path_factory.mktemp("g")
    prepared = f"{setup(*map(address, (1, 2)))} && {namespaces()}"
    modules = [*MODULES, "veth"]
    with Guest(
        folder, [unlinked("52:54:00:00:0e:01")], cpus=2, memory_mb=1024, modules=modules, setup=prepared
    ) as guest:
        yield Pair(guest)


def test_frames_go_by_rdma(pair: Pair) -> None:
    """Both ways, from switches without rights."""
    pair.exchange()


def test_zero_copy(pair: Pair) -> None:
    """The device reads and writes the payload where guests have it: the switch copies heads alone."""
    for number in (1, 2):
        pair.apply(number, "zero-copy = true\n")
    # Guests' memory is registered after a second or so: until then, copies are made.
    pair.begin(2, "answer --frame 1500")
    end = time.monotonic() + 120
    while True:
        before = [pair.rdma(number)["counts"] for number in (1, 2)]
        # A new queue pair has 256 buffers of the switch at first.
        asked = pair.bench(1, "ask --frame 1500 --count 800")
        report = json.loads(pair.guest.run(asked, timeout=120))
        after = [pair.rdma(number)["counts"] for number in (1, 2)]
        delta = [{key: now[key] - then[key] for key in now} for now, then in zip(after, before, strict=True)]
        if min(one[f"zero_copied_{way}"] for one in delta for way in ("out", "in")) >= 100:
            break
        assert time.monotonic() < end, f"{delta}\n{pair.hosts[0].run('vnic show a')}\n{pair.hosts[0].log()}"
    assert report["lost"] == 0, report
    for one in delta:
        for way, of in (("out", "sent"), ("in", "received")):
            zero = one[f"zero_copied_{way}"]
            assert one[f"zero_copied_{way}_bytes"] >= zero * (1500 - 192)
            assert one[f"copied_{way}"] <= zero * (192 + 32) + (one[of] - zero) * (1500 + 32)
    for host in pair.hosts:
        assert "denied system call" not in pair.guest.run(f"cat {host.folder}/switch.log")
    pair.end(2)
    for number in (1, 2):
        pair.apply(number)


@pytest.mark.nightly
def test_a_killed_switch_gets_new_queue_pairs(pair: Pair) -> None:
    """Its former one ends with it; frames find the new one."""
    former = pair.settled(2)
    pair.hosts[1].kill_switch()
    # Nothing else has a descriptor of the device for it: one switch, one queue pair.
    pair.hosts[1].wait("its queue pair is gone", lambda: len(queue_pairs(pair.guest)) == 1)
    pair.hosts[1].start_switch()
    pair.hosts[1].wait("a queue pair", lambda: pair.queue_pair(2) not in (None, former))
    pair.exchange()


@pytest.mark.nightly
def test_an_uplink_is_made_anew_for_longer_datagrams(pair: Pair) -> None:
    """Made for datagrams of 1,024 bytes, it takes 4,096 once its port does."""
    pair.guest.run("ip link set eth0 mtu 1500")
    for number, host in enumerate(pair.hosts, 1):
        # A new switch: it made no uplink anew yet.
        host.kill_switch()
        host.start_switch()
        pair.takes(number, 1024)
    pair.guest.run(f"ip link set eth0 mtu {JUMBO}")
    for number in (1, 2):
        pair.takes(number, 4096)
    pair.exchange()


@pytest.mark.nightly
def test_an_uplink_is_made_anew_for_an_address(pair: Pair) -> None:
    """Made while its device had no GID, it has RDMA once there is one."""
    host = pair.hosts[1]
    pair.guest.run(f"ip addr del {address(2)}/24 dev eth0")
    host.kill_switch()
    host.start_switch()
    host.wait("no lane", lambda: "no RoCE v2 GID" in (pair.rdma(2).get("error") or ""))
    pair.guest.run(f"ip addr add {address(2)}/24 dev eth0")
    host.wait("a queue pair", lambda: pair.queue_pair(2) is not None)
    pair.exchange()


@pytest.mark.nightly
def test_an_upgrade_makes_new_queue_pairs(pair: Pair) -> None:
    """The successor opens the device anew."""
    former = pair.settled(2)
    pair.upgrade_switch(2)
    pair.hosts[1].wait("a queue pair", lambda: pair.queue_pair(2) not in (None, former))
    pair.exchange()


@pytest.mark.nightly
@pytest.mark.parametrize("renew", [Pair.restart_switch, Pair.upgrade_switch], ids=["a_kill", "an_upgrade"])
def test_zero_copy_goes_on_after(pair: Pair, renew: Callable[[Pair, int], None]) -> None:
    """Frames of both ways are not copied again, by new queue pairs; prints for how long none arrived."""
    for number in (1, 2):
        pair.apply(number, ZERO_COPY + STEADY)
    former = pair.settled(2)
    for number in (1, 2):
        pair.send(number, SECONDS)
    for number in (1, 2):
        pair.until_zero_copied(number, "zero copy")
    domain = protection_domain(pair.guest, pair.hosts[1])
    assert former in in_domain(pair.guest, domain, "qp", "lqpn")
    # Its own buffers, and those of the guest.
    assert len(in_domain(pair.guest, domain, "mr", "mrn")) > 2
    began = time.monotonic()
    renew(pair, 2)
    took = time.monotonic() - began
    pair.hosts[1].wait("a queue pair", lambda: pair.queue_pair(2) not in (None, former))
    pair.hosts[0].wait("a way by RDMA", lambda: pair.knows(1), 90)
    for number in (1, 2):
        pair.until_zero_copied(number, "zero copy again")
    for kind, number_of in (("qp", "lqpn"), ("mr", "mrn"), ("pd", "pdn")):
        left = in_domain(pair.guest, domain, kind, number_of)
        assert not left, f"the kernel has {kind} {left} of the former process"
    silent = []
    for number in (1, 2):
        longest, before, after = silence(pair.sent(number))
        assert min(before, after) >= 50, (
            f"host {number}: {before} frames before {longest:.2f} s, {after} after"
        )
        silent.append(longest)
    print(
        f"no frame arrived from it for {silent[0]:.2f} s, to it for {silent[1]:.2f} s;"
        f" the command took {took:.2f} s"
    )
    for host in pair.hosts:
        assert "denied system call" not in pair.guest.run(f"cat {host.folder}/switch.log")
    for number in (1, 2):
        pair.apply(number)


def silence(windows: list[dict[str, float]]) -> tuple[float, int, int]:
    """The longest time between two windows with frames (s), and frames before and after it.

    The true one is up to two windows longer.
    """
    frames = [int(window["received"]) for window in windows]
    times = [window["seconds"] for window in windows]
    heard = [at for at, count in enumerate(frames) if count]
    if len(heard) < 2:
        return 0.0, sum(frames), 0
    last, first = max(pairwise(heard), key=lambda pair: sum(times[pair[0] + 1 : pair[1]]))
    return sum(times[last + 1 : first]), sum(frames[:first]), sum(frames[first:])


def protection_domain(guest: Guest, host: GuestHost) -> int:
    """The number of the protection domain of a host's switch: all that it has of the device is in it."""
    process = int(guest.run(f"cat {host.folder}/switch.pid"))
    domains = [
        one["pdn"] for one in json.loads(guest.run("rdma -j res show pd")) if one.get("pid") == process
    ]
    assert len(domains) == 1, domains
    return int(domains[0])


def in_domain(guest: Guest, domain: int, kind: str, number_of: str) -> list[int]:
    """The numbers of what the guest's kernel has of this kind in a protection domain.

    Not by process: the kernel names the thread that made each, and none once that has ended.
    """
    shown = json.loads(guest.run(f"rdma -j res show {kind}"))
    return [one[number_of] for one in shown if one.get("pdn") == domain]


def queue_pairs(guest: Guest) -> list[dict[str, Any]]:
    """The queue pairs of unreliable datagrams of the guest's programs, as its kernel has them."""
    return [one for one in json.loads(guest.run("rdma -j res show qp")) if one.get("type") == "UD"]
