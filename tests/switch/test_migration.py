"""A guest moves from one switch to another while a TCP stream runs, and its contract with it.

TIDEGATE_REPORT=FILE writes what was seen (`make reliability` takes it).
"""

import json
import os
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.guest import ACCEL
from lab.host import Host, tap_vnic, vhost_user_vnic
from lab.initramfs import ROOT
from lab.migrating import MAC, MigratingGuest, Stream
from lab.namespaces import Stack, can_make_namespaces
from lab.need import need, need_guests
from lab.process import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.abreast]

BRIDGE = "52:54:00:00:09:01"
CONTRACT = ('tx = { max = "50mbit", min = "40mbit" }', 'to = ["peer"]')
MOVES = 6


@dataclass
class Seen:
    """What came of the migrations."""

    gaps: list[float] = field(default_factory=list)
    """Seconds without a byte of the stream."""
    stopped: list[int] = field(default_factory=list)
    """Milliseconds in which neither QEMU ran the guest, as QEMU says."""
    took: list[int] = field(default_factory=list)
    """Milliseconds from begin to end, as QEMU says."""
    blocks: int = 0
    pages: int = 0


def contracts(host: Host, stack: Stack, device: str, *more: str, vm: bool = True) -> str:
    """The bridge's tap, and the guest's vNIC."""
    peer = tap_vnic(
        *("peer", stack.path, BRIDGE, 'rx = { max = "100mbit" }', 'allowed = { macs = "any" }'), device=device
    )
    guest = vhost_user_vnic("vm", host.folder / "vm.sock", MAC, *CONTRACT) if vm else ""
    return peer + guest + "".join(more)


def checksum(stack: Stack) -> str:
    """Of a file in the guest's memory, as the guest tells it."""
    return stack.run(
        "python3 -c \"import socket; s = socket.create_connection(('10.9.0.2', 8), 20); "
        'print(s.makefile().readline())"'
    ).strip()


def where(stack: Stack) -> str:
    """The bridge's port behind which the guest's address was learned."""
    lines = stack.run("bridge fdb show br br0").splitlines()
    learned = next((line for line in lines if line.startswith(MAC) and "master" in line), "")
    return learned.split()[2] if learned else ""


# All protocols: what a bridge's port takes in, no socket of one protocol sees.
RARP = """
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print("listening")
while True:
    frame, (device, *_) = s.recvfrom(2000)
    if frame[12:14] == bytes([0x80, 0x35]):
        print(device, frame[6:12].hex(":"))
"""


class Journey:
    """A guest on the first of two hosts, a stream to it, and what came of its migrations."""

    def __init__(self, stack: Stack, hosts: list[tuple[Host, str]], guest: MigratingGuest) -> None:
        """`hosts` are two, each with its port of the bridge; the guest is on the first."""
        self.stack = stack
        self.hosts = hosts
        self.guest = guest
        self.stream = Stream(stack)
        self.stream.goes_on(100, 30)
        self._rarp = stack.spawn("python3", "-u", "-c", RARP)
        self._rarp.wait_for("the listener", lambda: "listening" in self._rarp.output())
        self.seen = Seen()

    def announcements(self, device: str) -> int:
        """How often the guest's address was announced behind that port of the bridge."""
        return self._rarp.output().splitlines().count(f"{device} {MAC}")

    def move(self, folder: Path, *, compare: bool = False) -> None:
        """Migrate to the other host, with the contract; at last the vNIC here is removed.

        With `compare` the target waits until its memory was found to be that of the source.
        """
        (here, _), (there, device) = self.hosts
        there.apply(contracts(there, self.stack, device))
        vnic, announced = there.show("vm"), self.announcements(device)
        assert vnic.in_force
        assert vnic.in_force == here.show("vm").in_force
        path = folder / "migration.sock"
        source = self.guest
        target = MigratingGuest(folder, there.folder / "vm.sock", incoming=path, paused=compare)
        self.guest = target
        try:
            wait_for("the target", path.exists)
            before = self.stream.lines()
            status = source.migrate(path)
            if compare:
                wait_for("the target", lambda: target.qmp("query-status")["status"] == "paused")
                self.seen.pages = same_pages(source, target)
                target.qmp("cont")
            self.stream.goes_on(100)
        finally:
            source.stop()
        if not compare:
            self.seen.gaps.append(self.stream.silence(before))
            self.seen.stopped.append(status["downtime"])
            self.seen.took.append(status["total-time"])
        self._rarp.wait_for("the announcement", lambda: self.announcements(device) > announced)
        assert where(self.stack) == device
        # It is served there, and given up here.
        assert there.show("vm").tx_frames > vnic.tx_frames
        here.cli("vnic", "rm", "vm")
        self.hosts.reverse()


def same_pages(source: MigratingGuest, target: MigratingGuest) -> int:
    """How many pages of memory both have; fails where one is not the same."""
    here, there = source.memory(), target.memory()
    assert len(here) == len(there), (len(here), len(there))
    pages = range(0, len(here), 4096)
    differ = [hex(at) for at in pages if here[at : at + 4096] != there[at : at + 4096]]
    assert not differ, f"pages that are not as they were at the source: {differ}"
    return len(pages)


def test_a_guest_migrates_while_a_stream_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There and back: one connection goes on, no byte is lost, and the bridge learns where the guest is."""
    need_guests()
    need("network namespaces and /dev/net/tun: root, or user namespaces", can_make_namespaces())
    with (
        Stack(tmp_path / "net") as stack,
        Host(tmp_path / "source") as source,
        Host(tmp_path / "target") as target,
    ):
        source.apply(contracts(source, stack, "t-source"))
        target.apply(contracts(target, stack, "t-target", resident(target), vm=False))
        stack.run(
            f"ip link add br0 address {BRIDGE} type bridge && ip addr add 10.9.0.1/24 dev br0"
            " && for t in t-source t-target; do ip link set $t master br0 up; done && ip link set br0 up"
        )
        with MigratingGuest(tmp_path / "guest", source.folder / "vm.sock") as guest:
            refused_for_want_of_room(target, stack)
            wait_for("the guest", lambda: "lab: ready" in guest.console.read_text(errors="replace"), 60)
            before = checksum(stack)
            journey = Journey(stack, [(source, "t-source"), (target, "t-target")], guest)
            assert where(stack) == "t-source"
            try:
                for number in range(1, MOVES + 1):
                    journey.move(tmp_path / f"guest-{number}", compare=number == MOVES)
                assert checksum(stack) == before
                journey.stream.goes_on(50)
                journey.seen.blocks = journey.stream.blocks()
                with capsys.disabled():
                    report(journey.seen)
            finally:
                journey.guest.stop()
        for host in (source, target):
            host.check_alive()


def resident(host: Host) -> str:
    """A vNIC that leaves no room for the guest's contract."""
    return vhost_user_vnic(
        *("resident", host.folder / "resident.sock", "52:54:00:00:09:03"),
        *('tx = { max = "100mbit", min = "70mbit" }', 'to = ["peer"]'),
    )


def refused_for_want_of_room(target: Host, stack: Stack) -> None:
    """What the target has promised leaves no room for the guest: said before anything moves."""
    wanted = target.file(contracts(target, stack, "t-target", resident(target)))
    refused = target.try_cli("apply", "-f", wanted)
    assert refused.returncode == 3, refused.stdout
    assert "egress peer refuses" in refused.stderr, refused.stderr
    assert target.names() == {"peer", "resident"}
    # There is nothing to migrate to.
    assert not (target.folder / "vm.sock").exists()
    target.cli("vnic", "rm", "resident")


def report(seen: Seen) -> None:
    """Print what was seen, and write it where TIDEGATE_REPORT says."""

    def output_of(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()

    def row(measure: str, seen: str, asked: str = "") -> dict[str, str]:
        return {"measure": measure, "asked": asked, "seen": seen, "verdict": "kept" if asked else "info"}

    def spread(milliseconds: list[float] | list[int]) -> str:
        return f"{statistics.median(milliseconds):.0f} ms, {max(milliseconds):.0f} ms"

    rows = [
        row("live migrations of a QEMU guest between two switches, over one TCP connection", str(MOVES)),
        row("bytes of it lost, out of order or changed", f"0 of {seen.blocks * 4096:,} each way", "0"),
        row("longest silence of the stream, median and worst", spread([1000 * gap for gap in seen.gaps])),
        row("guest stopped, as QEMU says, median and worst", spread(seen.stopped)),
        row("a migration from begin to end, median and worst", spread(seen.took)),
        row(
            *("pages of guest memory that differ at the target before it runs", f"0 of {seen.pages:,}", "0"),
        ),
        row("same contract in force at the target before the guest moves", "yes, each time", "yes"),
        row("contract that does not fit at the target", "refused before anything moved", "refused"),
        row("address announced at the target, and learned there by a bridge", "yes, each time", "yes"),
    ]
    print("\n" + "\n".join(f"  {row['measure']}: {row['seen']}" for row in rows))
    path = os.environ.get("TIDEGATE_REPORT")
    if not path:
        return
    commit = output_of("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    document = {
        "name": "migration",
        "command": "TIDEGATE_REPORT=$PWD/target/reliability/migration.json "
        ".venv/bin/python -m pytest -c tests/pyproject.toml --rootdir tests tests/switch/test_migration.py",
        "date": output_of("date", "-u", "+%FT%TZ"),
        "commit": commit + ("+" if output_of("git", "status", "--porcelain", "-uno") else ""),
        "rows": rows,
        "notes": [
            f"One guest of 160 MiB ({ACCEL}) and both switches on one machine, migrating by a Unix socket.",
            "In the last migration the target waits until memory is compared; it is in no time above.",
        ],
    }
    new = Path(f"{path}.new")
    new.write_text(json.dumps(document, indent=2) + "\n")
    new.rename(path)
