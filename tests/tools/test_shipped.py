"""What only tests need of a crate is not built into what is shipped."""

import subprocess

import pytest

from lab.initramfs import ROOT

pytestmark = pytest.mark.abreast


def features(crate: str, *edges: str) -> set[str]:
    """The features of a crate, in a build of what is shipped (`cargo build` builds the default members)."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--edges", ",".join(["features", *edges])]
    tree = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    begin = f'{crate} feature "'
    return {line.removeprefix(begin).split('"')[0] for line in tree.splitlines() if line.startswith(begin)}


def test_simulated_devices_are_not_shipped() -> None:
    """A switch opens real devices or none."""
    assert "default" in features("tidegate-verbs", "no-dev")
    assert not {"simulated", "conformance"} & features("tidegate-verbs", "no-dev")
    assert "simulated" in features("tidegate-verbs"), "the test would find them"
