"""The 82576's counters of a VF, read in the guest from the PF's register window, as the agent reads them.

Intel 82576 Datasheet, "VF statistics": 32 bits each, which wrap and reading does not clear. What QEMU
counts in them: docs/places/nic/lab.md.
"""

import struct
from dataclasses import dataclass

from .guest import Guest, GuestError
from .igb import Pf

_POOL = 0x100
ATTEMPTS = 5
"""A frame may come between reading and searching."""
_OFFSETS = {
    "rx_frames": 0x10010,  # PVFGPRC
    "tx_frames": 0x10014,  # PVFGPTC
    "rx_bytes": 0x10018,  # PVFGORC
    "tx_bytes": 0x10034,  # PVFGOTC
    "rx_multicast": 0x1003C,  # PVFMPRC
}

_READ = """
import ctypes, mmap, os, sys
window = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0x20000)
for address in sys.argv[2:]:
    # One load of 32 bits, which the device asks for.
    print(ctypes.c_uint32.from_buffer(window, int(address)).value)
"""


@dataclass(frozen=True)
class VfCounters:
    """Frames and bytes (with header and FCS) of one VF; directions are the VM's."""

    rx_frames: int
    tx_frames: int
    rx_bytes: int
    tx_bytes: int
    rx_multicast: int

    def __sub__(self, before: "VfCounters") -> "VfCounters":
        return VfCounters(*((a - b) % 2**32 for a, b in zip(self._all(), before._all(), strict=True)))

    def _all(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in _OFFSETS)


def read_counters(pf: Pf, vf: int) -> VfCounters:
    """What the registers say now."""
    addresses = " ".join(str(offset + vf * _POOL) for offset in _OFFSETS.values())
    text = pf.guest.run(f"python3 -c '{_READ}' {pf.pci}/resource0 {addresses}")
    return VfCounters(*map(int, text.split()))


def set_counter(pf: Pf, vf: int, name: str, value: int) -> None:
    """Set a register, such as to just below 2^32, from outside: QEMU ignores what the guest writes to it.

    It is found in QEMU's memory by what the VF's registers say, so there has to have been traffic
    and there must be none meanwhile.
    """
    for _ in range(ATTEMPTS):
        now = read_counters(pf, vf)
        if 0 in (now.rx_frames, now.tx_frames):
            raise GuestError("a VF without traffic cannot be told from other memory")
        # The first three registers are neighbours; the fourth and fifth say whether it is them.
        known = struct.pack("<3I", now.rx_frames, now.tx_frames, now.rx_bytes)
        found = [at for at in _search(pf.guest, known) if _word(pf.guest, at + 0x24) == now.tx_bytes]
        if len(found) == 1:
            break
    else:
        raise GuestError(f"{now} is at {len(found)} places of QEMU's memory, expected 1")
    with open(f"/proc/{_pid(pf.guest)}/mem", "r+b", buffering=0) as memory:
        memory.seek(found[0] + _OFFSETS[name] - _OFFSETS["rx_frames"])
        memory.write(struct.pack("<I", value))


def _pid(guest: Guest) -> int:
    pid = getattr(guest.process, "pid", None)
    assert isinstance(pid, int), "QEMU is a process of this machine"
    return pid


def _word(guest: Guest, at: int) -> int:
    with open(f"/proc/{_pid(guest)}/mem", "rb", buffering=0) as memory:
        memory.seek(at)
        (word,) = struct.unpack("<I", memory.read(4))
        return int(word)


def _search(guest: Guest, known: bytes) -> list[int]:
    """Where these bytes are in QEMU's own memory, at multiples of 4; not in the guest's, which is shared."""
    found = []
    pid = _pid(guest)
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            area, rights, _, _, inode, *_ = line.split()
            start, end = (int(number, 16) for number in area.split("-"))
            if rights != "rw-p" or inode != "0":
                continue
            memory.seek(start)
            try:
                data = memory.read(end - start)
            except OSError:
                continue
            at = data.find(known)
            while at >= 0:
                if at % 4 == 0:
                    found.append(start + at)
                at = data.find(known, at + 1)
    return found
