"""scripts/deny: what it refuses, and what it says where advisories cannot be had."""

import os
import subprocess
from pathlib import Path

import pytest

from lab.initramfs import ROOT

CARGO = """#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in
"deny fetch db") [ "$FETCH" = works ] || { echo 'Could not resolve host' >&2; exit 1; } ;;
*) case "$*" in *"$WRONG"*) exit 1 ;; esac ;;
esac
"""
"""What stands for cargo: one of its checks may go wrong, and so may fetching."""

FETCH = "deny fetch db"
NATIVE = "--config deny.toml --manifest-path controller/native/Cargo.toml"
NOT_USED = "-A license-exception-not-encountered"
GENERAL = [
    f"deny --locked check --hide-inclusion-graph {NOT_USED} licenses sources",
    f"deny {NATIVE} --locked check --hide-inclusion-graph {NOT_USED} -A license-not-encountered"
    " licenses sources",
]
ADVISORIES = [
    "deny --offline --locked check advisories",
    f"deny {NATIVE} --offline --locked check advisories",
]


class Deny:
    """The script, beside a cargo that only says what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.copies = folder / "advisory-dbs"
        self._log = folder / "asked"
        cargo = folder / "bin/cargo"
        cargo.parent.mkdir()
        cargo.write_text(CARGO)
        cargo.chmod(0o755)
        path = f"{cargo.parent}:{os.environ['PATH']}"
        self._environment = {"PATH": path, "CARGO_HOME": str(folder), "LOG": str(self._log)}

    def run(self, *, fetch: bool = True, wrong: str = "nothing") -> tuple[int, str, list[str]]:
        """Status, what it says, and what cargo was asked for."""
        environment = {**self._environment, "FETCH": "works" if fetch else "fails", "WRONG": wrong}
        done = subprocess.run(
            [ROOT / "scripts/deny"], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr, self._log.read_text().splitlines()


@pytest.fixture
def deny(tmp_path: Path) -> Deny:
    """The script."""
    return Deny(tmp_path)


def test_all_is_checked(deny: Deny) -> None:
    """Licences, sources and advisories, of programs and of the controller's module."""
    assert deny.run() == (0, "", [*GENERAL, FETCH, *ADVISORIES])


@pytest.mark.parametrize("wrong", ["licenses", "advisories", f"{NATIVE} --locked", f"{NATIVE} --offline"])
@pytest.mark.parametrize("fetch", [True, False])
def test_a_forbidden_dependency_is_refused(deny: Deny, wrong: str, fetch: bool) -> None:
    """Also where the database is one of the last time."""
    (deny.copies / "advisory-db-1/crates").mkdir(parents=True)
    status, _, _ = deny.run(fetch=fetch, wrong=wrong)
    assert status == 1


def test_a_database_that_is_out_of_reach(deny: Deny) -> None:
    """Everything else is checked; that advisories are not is said, with the reason, and so is an old copy."""
    status, said, asked = deny.run(fetch=False)
    assert (status, asked) == (0, [*GENERAL, FETCH])
    assert "ADVISORIES WERE NOT CHECKED" in said
    assert "Could not resolve host" in said
    assert deny.run(fetch=False, wrong="licenses")[0] == 1
    (deny.copies / "advisory-db-1/crates").mkdir(parents=True)
    status, said, asked = deny.run(fetch=False)
    assert (status, asked[-2:]) == (0, ADVISORIES)
    assert "by the copy in" in said
