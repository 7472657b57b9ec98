"""Two QEMUs at one socket: a guest migrates from the one to the other, within one host and behind one vNIC.

The second front end waits for the first one's place; a killed or replaced switch lets it come again.
"""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.migrating import MAC, MigratingGuest, Stream
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_guests
from lab.process import wait_for

PEER = "52:54:00:00:09:01"
CONTRACT = ('tx = { max = "50mbit", min = "40mbit" }', 'to = ["peer"]')
GET_FEATURES = bytes([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
"""vhost-user: request 1, version 1, no payload."""


def waits(host: Host, name: str = "vm") -> bool:
    """Whether a front end waits for the place of the one that is connected."""
    return bool(host.show(name).document["heir"])


def dial(path: Path) -> socket.socket:
    """A front end that has said nothing yet."""
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(20)
    connected.connect(str(path))
    return connected


def is_answered(front_end: socket.socket) -> bool:
    """Whether GET_FEATURES is."""
    front_end.sendall(GET_FEATURES)
    return len(front_end.recv(20, socket.MSG_WAITALL)) == 20


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A vNIC `vm`."""
    with Host(tmp_path / "host") as host:
        host.apply(vhost_user_vnic("vm", host.folder / "vm.sock", MAC))
        yield host


@pytest.mark.parametrize("how", ["replaced", "killed"])
def test_an_heir_comes_again_after_the_switch(host: Host, how: str) -> None:
    """The first goes on in the next process. The one that waits comes again, and is answered."""
    path = host.folder / "vm.sock"
    with closing(dial(path)) as first, closing(dial(path)) as heir:
        assert is_answered(first)
        assert is_answered(heir)
        assert waits(host)
        if how == "replaced":
            host.replace_switch()
        else:
            host.switch.kill()
            host.start_switch()
        assert heir.recv(1) == b""
        wait_for("the first", lambda: host.show("vm").connection == "connected")
        assert is_answered(first)
        with closing(dial(path)) as again:
            assert is_answered(again)
            assert waits(host)
            first.close()
            assert is_answered(again)
            wait_for("its turn", lambda: not waits(host))
            assert host.show("vm").connection == "connected"


def test_a_storm_of_front_ends(host: Host) -> None:
    """Front ends that come again at once are let in slowly, and logged slowly."""
    path = host.folder / "vm.sock"
    with closing(dial(path)) as first, closing(dial(path)) as heir:
        assert is_answered(first)
        assert is_answered(heir)
        came, start, lines = 0, time.monotonic(), len(host.switch.output().splitlines())
        with ExitStack() as others:
            while time.monotonic() - start < 3:
                other = others.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                try:
                    other.connect(str(path))
                    came += 1
                except BlockingIOError:
                    other.close()
                    time.sleep(0.001)
        refused = host.show("vm").document["refused_connections"]
        seconds = time.monotonic() - start
        assert came > 100
        assert 10 < refused < 41 * seconds + 2, f"{refused} of {came} in {seconds:.1f} s"
        lines = len(host.switch.output().splitlines()) - lines
        assert lines < 10, host.switch.output()[-2000:]
        assert is_answered(first)
        assert is_answered(heir)
        first.close()
        assert is_answered(heir)


class Pings:
    """Pings of the guest, a hundred in a second."""

    def __init__(self, stack: Stack) -> None:
        self._process = stack.spawn("ping", "-n", "-i", "0.01", "10.9.0.2")
        self._process.wait_for("an answer", lambda: "icmp_seq" in self._process.output())

    def lost(self) -> tuple[int, int]:
        """How many have no answer, and of how many; of the last second they may come yet."""
        numbers = {int(n) for n in re.findall(r"icmp_seq=(\d+) ttl", self._process.output())}
        return max(numbers) - len(numbers), max(numbers)


@pytest.mark.lab
@pytest.mark.parametrize("meanwhile", ["", "replaced", "killed"])
def test_a_guest_migrates_within_one_host(
    tmp_path: Path, meanwhile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A TCP connection goes on, few pings are lost, and the contract, its counters and its address stay.

    `meanwhile` the switch is replaced or killed, while the target waits.
    """
    need_guests()
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "net") as stack, Host(tmp_path / "host") as host, ExitStack() as guests:
        port = host.folder / "vm.sock"
        host.apply(
            tap_vnic("peer", stack.path, PEER, 'rx = { max = "100mbit" }')
            + vhost_user_vnic("vm", port, MAC, *CONTRACT)
        )
        stack.run("ip addr add 10.9.0.1/24 dev eth0 && ip link set eth0 up")
        guest = guests.enter_context(MigratingGuest(tmp_path / "guest", port))
        wait_for("the guest", lambda: "lab: ready" in guest.console.read_text(errors="replace"), 60)
        stream, pings = Stream(stack), Pings(stack)
        stream.goes_on(100, 30)
        for number in range(1 if meanwhile else 3):
            path = tmp_path / f"migration-{number}.sock"
            folder = tmp_path / f"guest-{number}"
            # It has its answers before the first has left, or its monitor would not answer.
            target = guests.enter_context(MigratingGuest(folder, port, incoming=path))
            wait_for("the target", lambda: waits(host))
            if meanwhile == "replaced":
                host.replace_switch()
            elif meanwhile == "killed":
                host.switch.kill()
                host.start_switch()
            wait_for("the target, again", lambda: waits(host))
            stream.goes_on(50)
            before, frames = stream.lines(), host.show("vm").tx_frames
            lost = pings.lost()[0]
            status = guest.migrate(path)
            # The source is there still, and stopped.
            stream.goes_on(100)
            assert guest.qmp("query-status")["status"] == "postmigrate"
            lost = pings.lost()[0] - lost
            with capsys.disabled():
                print(
                    f"\n  {stream.silence(before) * 1000:.0f} ms of silence, guest stopped for "
                    f"{status['downtime']} ms, {lost} pings lost (one each 10 ms)"
                )
            vnic = host.show("vm")
            assert vnic.tx_frames > frames, "counters begin anew"
            assert vnic.connection == "up"
            assert not vnic.last_error
            # As many as fit in the time that nothing arrived, and those that were under way.
            assert lost <= 100 * stream.silence(before) + 20
            guest.stop()
            guest = target
        assert host.show("vm").in_force["limits"]["tx_bps"] == 50_000_000
        stream.goes_on(50)
        host.check_alive()


def test_the_next_front_end_is_no_surprise(host: Host) -> None:
    """What the command line says of the one that waits."""
    path = host.folder / "vm.sock"
    with closing(dial(path)) as first, closing(dial(path)) as heir:
        assert is_answered(first)
        assert is_answered(heir)
        wait_for("the heir", lambda: "another front end waits" in host.cli("vnic", "show", "vm"))
        heir.close()
        wait_for("its end", lambda: "another front end waits" not in host.cli("vnic", "show", "vm"))
    assert os.path.exists(path)
