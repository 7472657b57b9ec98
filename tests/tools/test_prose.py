"""`scripts/prose`: riddles are found where they are, counts count, a pick is the same for the same seed."""

import re
import subprocess
from pathlib import Path

import pytest

from lab.initramfs import ROOT

pytestmark = pytest.mark.abreast


def prose(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run it."""
    command = [str(ROOT / "scripts/prose"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write(root: Path, files: dict[str, str]) -> None:
    """Files below a folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.rs", "fn f() {}\n\n/// As is, for nobody.\nfn g() {}\n", 3),
        ("a.rs", '\nconst S: &str = "no one,\n    nobody";\n', 3),
        ("a.py", 'x = 1\n"""One line.\n\nnobody\n"""\n', 4),
        ("a", "#!/usr/bin/env python3\n# nobody\n", 2),
        ("a.c", "int a;\n/*\n * nobody\n */\n", 3),
        ("docs/a.md", "# Title\n\n```text\nnobody\n```\nNobody else.\n", 6),
    ],
)
def test_a_riddle_is_found_at_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    """In comments, literals and pages; not in code."""
    write(tmp_path, {name: text})
    done = prose("--riddles", root=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}:{line}: nobody: "), done.stdout
    assert re.search(r"^ +1 nobody ", done.stdout, re.M), done.stdout


def test_a_riddle_across_lines_is_found(tmp_path: Path) -> None:
    """On the line on which it begins."""
    write(
        tmp_path,
        {"a.rs": "// One.\n// Reads what is\n// there.\nfn f() {}\n// nine as\n// far as it goes.\n"},
    )
    lines = prose("--riddles", root=tmp_path).stdout.splitlines()
    assert [line[:20] for line in lines[:2]] == ["a.rs:2: what is ther", "a.rs:5: as far as: /"]


def test_names_in_code_are_no_riddles(tmp_path: Path) -> None:
    """Nor are words that contain one."""
    write(tmp_path, {"a.rs": "fn nobody() {}\n// somebodys\n", "a.py": "nobody = 1\n"})
    assert "a." not in prose("--riddles", root=tmp_path).stdout


def test_more_than_the_ceiling_is_an_error(tmp_path: Path) -> None:
    """Each is printed."""
    assert prose("--check", root=tmp_path).returncode == 0
    write(tmp_path, {"a.rs": "// nobody\n" * 10000})
    done = prose("--check", root=tmp_path)
    assert (done.returncode, "10000 nobody" in done.stdout) == (1, True)


def test_lines_and_words_are_counted(tmp_path: Path) -> None:
    """Empty lines are not."""
    source = "//! Crate.\n\nfn f() {} // two\n\n#[cfg(test)]\nmod tests {\n    // text\n    fn g() {}\n}\n"
    write(
        tmp_path,
        {
            "crates/a/src/lib.rs": source,
            "crates/a/tests/t.rs": "fn t() {\n}\n",
            "tests/test_a.py": "x = 1\n",
            "crates/a/bpf/a.bpf.c": "int a;\n\nint b;\n",
            "docs/a.md": "one two\n",
            "README.md": "three\n",
            "crates/a/notes.md": "four\n",
        },
    )
    lines = [line.split(None, 1) for line in prose("--count", root=tmp_path).stdout.splitlines()]
    counts = {what: number for number, what in lines}
    assert counts == {
        "production Rust lines": "1",
        "comment lines": "1",
        "test lines": "8",
        "C lines": "2",
        "documentation words": "3",
    }


OLD = """/// The old text.
pub struct Kept;
#[derive(Error)]
enum E {
    #[error("old: {0}")]
    First(u8),
}
"""
NEW = OLD.replace("old", "new") + "/// More.\npub(crate) fn inner() {}\n#[cfg(test)]\n/// T.\npub fn t() {}\n"


def test_a_pick_is_compared_with_an_older_checkout(tmp_path: Path) -> None:
    """The same names, with the text of each."""
    write(tmp_path, {"old/crates/a/src/lib.rs": OLD, "new/crates/a/src/lib.rs": NEW})
    new = prose("--pick", "5", "--seed", "1", root=tmp_path / "new").stdout
    old = prose("--pick", "5", "--names-of", str(tmp_path / "new"), root=tmp_path / "old").stdout
    items, messages = new.split("error messages:")
    assert items.split("\n", 1)[1].split() == [
        "public",
        "items:",
        "a:",
        "struct",
        "Kept",
        "The",
        "new",
        "text.",
    ]
    assert messages.split() == ["a:", "E::First", "new:", "{0}"]
    assert old == new.replace("new", "old")


def test_a_pick_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """Another seed picks others."""
    items = "".join(f"/// Item {number}.\npub struct Item{number};\n" for number in range(50))
    write(tmp_path, {"crates/a/src/lib.rs": items})
    picks = [prose("--pick", "3", "--seed", seed, root=tmp_path).stdout for seed in ("4", "4", "5")]
    assert picks[0] == picks[1] != picks[2]
