"""Programs that cargo builds: tests that have to run in a guest."""

import json
import subprocess
from pathlib import Path

from .initramfs import ROOT


def integration_test(package: str, test: str) -> Path:
    """The program of an integration test; `cargo test` has built it before, of the whole workspace.

    Of one package alone, libraries would be built once more, with fewer features.
    """
    return _built(f"--workspace --test {test}", package, test)


def unit_tests(package: str) -> Path:
    """The program of a library's own tests, with those that need a guest: its feature `guest-tests`."""
    return _built(f"-p {package} --lib --features guest-tests", package, package.replace("-", "_"))


def _built(target: str, package: str, name: str) -> Path:
    command = f"cargo test --locked --no-run --message-format=json {target}"
    built = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=True, timeout=900)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    # A package's own programs are built with its tests, and another package may have a test of that name.
    (program,) = [
        m["executable"]
        for m in messages
        if m.get("executable")
        and m["target"]["name"] == name
        and (f"/{package}#" in m["package_id"] or f"#{package}@" in m["package_id"])
    ]
    return Path(program)
