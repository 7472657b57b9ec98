"""Two QEMUs at one socket: a guest migrates from the one to the other, within one host and behind one vNIC.

The second front end waits for the first one's place; a killed or replaced switch lets it come again.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
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


@pytest.mark.abreast
@pytest.mark.parametrize("how", ["replaced", "killed"])
def test_an_heir_reconnects_after_a_restart_of_the_switch(host: Host, how: str) -> None:
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

    def lost(self) -> int:
        """How many before the last answered one have no answer."""
        numbers = {int(n) for n in re.findall(r"icmp_seq=(\d+) ttl", self._process.output())}
        return max(numbers) - len(numbers)


class Journey:
    """A guest behind one vNIC, a stream and pings to it, and a new QEMU each time."""

    def __init__(self, folder: Path, stack: Stack, host: Host, guests: ExitStack) -> None:
        """`guests` ends the QEMUs."""
        self.folder, self.host, self.guests = folder, host, guests
        self.port = host.folder / "vm.sock"
        self.number = 0
        self.guest = self._qemu(None)
        console = self.guest.console
        wait_for("the guest", lambda: "lab: ready" in console.read_text(errors="replace"), 60)
        self.stream, self.pings = Stream(stack), Pings(stack)
        self.stream.goes_on(100, 30)

    def _qemu(self, incoming: Path | None, *, paused: bool = False) -> MigratingGuest:
        self.number += 1
        guest = MigratingGuest(self.folder / f"{self.number}", self.port, incoming=incoming, paused=paused)
        return self.guests.enter_context(guest)

    def target(self, *, paused: bool = False) -> tuple[MigratingGuest, Path]:
        """A QEMU that waits for the guest. It has its answers, or its monitor would not answer."""
        path = self.folder / f"{self.number}.sock"
        target = self._qemu(path, paused=paused)
        wait_for("the target", lambda: waits(self.host))
        return target, path

    def move(self, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Migrate to another QEMU, with `meanwhile` while it waits; what came of it."""
        target, path = self.target()
        meanwhile()
        wait_for("the target, again", lambda: waits(self.host))
        self.stream.goes_on(50)
        before, frames = self.stream.lines(), self.host.show("vm").tx_frames
        lost = self.pings.lost()
        status = self.guest.migrate(path)
        # The source is there still, and stopped.
        self.stream.goes_on(100)
        assert self.guest.qmp("query-status")["status"] == "postmigrate"
        lost, silence = self.pings.lost() - lost, self.stream.silence(before)
        vnic = self.host.show("vm")
        assert vnic.tx_frames > frames, "counters begin anew"
        assert vnic.connection == "up"
        assert not vnic.last_error
        # As many as fit in the time that nothing arrived, and those that were under way.
        assert lost <= 100 * silence + 20
        self.guest.stop()
        self.guest = target
        stopped = status["downtime"]
        return f"{silence * 1000:.0f} ms of silence, guest stopped for {stopped} ms, {lost} pings lost"

    def come_to_nothing(self) -> None:
        """The guest has left the source and goes on there again: the target never ran."""
        target, path = self.target(paused=True)
        self.guest.migrate(path)
        wait_for("the target", lambda: target.qmp("query-status")["status"] == "paused")
        assert waits(self.host)
        self.guest.qmp("cont")
        self.stream.goes_on(100)
        assert waits(self.host)
        target.stop()
        wait_for("its end", lambda: not waits(self.host))
        self.stream.goes_on(50)


@pytest.mark.abreast
@pytest.mark.lab
def test_a_guest_migrates_within_one_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A TCP connection goes on, few pings are lost, and the contract, its counters and its address stay.

    Also where the switch is replaced or killed while the target waits, or the migration comes to nothing.
    """
    need_guests()
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with Stack(tmp_path / "net") as stack, Host(tmp_path / "host") as host, ExitStack() as guests:
        host.apply(
            tap_vnic("peer", stack.path, PEER, 'rx = { max = "100mbit" }')
            + vhost_user_vnic("vm", host.folder / "vm.sock", MAC, *CONTRACT)
        )
        stack.run("ip addr add 10.9.0.1/24 dev eth0 && ip link set eth0 up")
        journey = Journey(tmp_path / "guests", stack, host, guests)

        def kill() -> None:
            host.switch.kill()
            host.start_switch()

        seen = [journey.move(), journey.move()]
        journey.come_to_nothing()
        seen += [journey.move(host.replace_switch), journey.move(kill)]
        with capsys.disabled():
            print("\n  " + "\n  ".join(seen))
        assert host.show("vm").in_force["limits"]["tx_bps"] == 50_000_000
        host.check_alive()


@pytest.mark.abreast
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
