"""Debian packages, built for a test.

controller/src, target/wheels, the module of `make native` ─▶ scripts/deb-controller ─▶ FOLDER/*.deb
"""

import os
import subprocess
from pathlib import Path

from .initramfs import ROOT
from .need import need, need_commands

MODULE = ROOT / "controller/src/tidegate_native.abi3.so"
WHEELS = ROOT / "target/wheels/requirements.txt"


def build_controller_package(folder: Path) -> Path:
    """The controller's package: with the module that its tests use, and not compressed."""
    need_commands("dpkg-deb", "strip", "objdump")
    need(f"{MODULE} missing: make native", MODULE.exists())
    need(f"{WHEELS} missing: scripts/setup controller", WHEELS.exists())
    done = subprocess.run(
        [ROOT / "scripts/deb-controller", MODULE, folder],
        env={**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
