"""Which QEMU runs a guest: the installed one, or one that has the NIC `igb`.

Debian 12's QEMU has no igb: scripts/setup unpacks a newer one beside the build
(target/lab/qemu), which uses the firmware of the installed one. Debian 13's has it.
"""

import shutil
import subprocess

from .initramfs import LAB

INSTALLED = "qemu-system-x86_64"

_UNPACKED = LAB / "qemu"


def with_igb() -> str:
    """The QEMU that has igb; which one it is depends on the distribution alone."""
    if (_UNPACKED / "ready").exists():
        return str(_UNPACKED / "usr/bin" / INSTALLED)
    return INSTALLED


def have_igb() -> bool:
    """Whether `with_igb` exists and has it."""
    program = with_igb()
    if shutil.which(program) is None:
        return False
    # Not `-device help`: that loads modules, and the installed ones are the other QEMU's.
    help_text = subprocess.run([program, "-device", "igb,help"], capture_output=True, text=True, check=False)
    return help_text.stdout.startswith("igb options")
