"""docs/reliability.md says what was measured, and nothing else."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import reliability
from lab.initramfs import ROOT

COMMAND = (ROOT / "bench/run", "--scene", "reliability")


def _part(**changes: object) -> dict[str, Any]:
    row = {"measure": "kills | survived", "asked": "100", "seen": "99", "verdict": "missed"}
    part = {"name": "kills", "command": "x kills", "date": "2026-11-21T11:45:00Z", "commit": "abc"}
    return {**part, "rows": [row], "notes": ["one note"], **changes}


def _run(results: Path, docs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words: list[str | Path] = [*COMMAND, "--from", results, "--docs", docs, *more]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_figures_stand_as_printed(tmp_path: Path) -> None:
    """What fell short says so; what was not measured too; another run keeps what it did not measure."""
    results, docs = tmp_path / "results", tmp_path / "docs"
    results.mkdir()
    docs.mkdir()
    (results / "kills.json").write_text(json.dumps(_part()))
    assert _run(results, docs).returncode == 0
    page = (docs / "reliability.md").read_text()
    assert "| kills \\| survived | 100 | 99 | **missed** |" in page
    assert "| Fuzzing | not measured | | |" in page
    (results / "kills.json").unlink()
    (results / "soak.json").write_text(json.dumps(_part(name="soak", date="2027-01-02T00:00:00Z")))
    assert re.search(r"\| kills +\| 2026-11-21T11:45:00Z", _run(results, docs).stdout)
    page = (docs / "reliability.md").read_text()
    assert "`x kills`, 2026-11-21, commit abc." in page
    assert "2027-01-02" in page
    assert _run(results, docs, "--check").returncode == 0
    (docs / "reliability.md").write_text(page.replace("99", "100"))
    assert _run(results, docs, "--check").returncode == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "kils"}, "expected one of kills"),
        ({"rows": []}, "at least one"),
        ({"rows": [{"measure": "x"}]}, "rows[0]"),
        ({"rows": [{"measure": "", "asked": "", "seen": "", "verdict": "good"}]}, "verdict 'good'"),
        ({"more": 1}, "expected an object with"),
        ({"notes": [1]}, "notes"),
        ({"date": 7}, "date: expected str"),
    ],
)
def test_a_wrong_result_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Nothing is written from a file that is not understood."""
    with pytest.raises(reliability.Wrong, match=said.replace("[", r"\[")):
        reliability.check(_part(**changes), "kills.json")
    (tmp_path / "kills.json").write_text(json.dumps(_part(**changes)))
    done = _run(tmp_path, tmp_path)
    assert done.returncode == 1
    assert "kills.json" in done.stderr
    assert not (tmp_path / "reliability.md").exists()


def test_the_page_equals_its_data() -> None:
    """docs/reliability.md was not edited by hand."""
    assert _run(ROOT / "target/reliability", ROOT / "docs", "--check").returncode == 0
