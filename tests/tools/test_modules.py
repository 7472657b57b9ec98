"""`scripts/modules`: edges, circles, rules, lists and the picture, of small workspaces made here."""

import subprocess
from pathlib import Path

import pytest

from lab.initramfs import ROOT

pytestmark = pytest.mark.abreast

MARKERS = "# Architecture\n\n<!-- made by `scripts/modules --picture --write` -->\n<!-- end -->\n"


def workspace(
    root: Path, crates: dict[str, dict[str, str]], uses: dict[str, list[str]] | None = None
) -> Path:
    """Crates with their files below `src`, and with the crates that each one uses."""
    for crate, files in crates.items():
        folder = root / "crates" / crate
        name = "tidegate-" + crate.replace("places/", "place-")
        needs = "".join(f"tidegate-{use}.workspace = true\n" for use in (uses or {}).get(crate, []))
        for file, text in {
            **files,
            "../Cargo.toml": f'[package]\nname = "{name}"\n[dependencies]\n{needs}',
        }.items():
            path = folder / "src" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            (folder / "src").mkdir(exist_ok=True)
            path.write_text(text)
    (root / "ARCHITECTURE.md").write_text(MARKERS)
    return root


def modules(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it on a workspace."""
    command = [str(ROOT / "scripts/modules"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def edges(root: Path, crate: str) -> list[str]:
    """The edges of a crate as they are printed."""
    done = modules(root, "--list", crate)
    assert done.returncode == 0, done.stderr
    return [line.strip() for line in done.stdout.splitlines()[1:]]


def test_a_circle_of_two_files_is_found_with_items_and_lines(tmp_path: Path) -> None:
    """Each of its edges says what is used, and where."""
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a.rs": "use crate::b::B;\npub struct A(B);\n",
        "b.rs": "// text\npub struct B;\nfn f(_: &super::a::A) {}\n",
    }
    workspace(tmp_path, {"one": files})
    assert modules(tmp_path, "--picture", "--write").returncode == 0
    done = modules(tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "one: circle of 2 files: a.rs b.rs",
        "    a.rs → b.rs: B (line 1)",
        "    b.rs → a.rs: A (line 3)",
        "circles of files: 1; of folders: 0; of crates: 0; "
        "imports of a place by the agent: 0; rules broken: 0",
    ]


def test_no_circle_is_status_0(tmp_path: Path) -> None:
    """`mod b;` and a re-export are no use: the module file and its children make no circle."""
    files = {
        "lib.rs": "mod a;\npub use a::T;\n",
        "a/mod.rs": "mod b;\npub use b::T;\npub const N: usize = 1;\n",
        "a/b.rs": "pub struct T([u8; super::N]);\n",
    }
    workspace(tmp_path, {"one": files})
    assert modules(tmp_path, "--picture", "--write").returncode == 0
    done = modules(tmp_path)
    assert (done.returncode, edges(tmp_path, "one")) == (0, ["a/b.rs → a/mod.rs: N (line 1)"]), done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "use crate::a::T;\nfn f(_: T) {}\n",
        "\nfn f(_: crate::a::T) {}\n",
        "use super::*;\nfn f(_: T) {}\n",
        "use crate::{a::{self}, c};\nfn f(_: a::T) {}\n",
        '\nstruct S { #[serde(with = "crate::a::T")] f: u8 }\n',
    ],
)
def test_a_re_export_is_resolved_to_the_definition(tmp_path: Path, text: str) -> None:
    """By a name, a path, a glob, a module, an attribute's string."""
    files = {
        "lib.rs": "mod a;\nmod c;\nmod d;\nuse a::*;\n",
        "a/mod.rs": "mod b;\npub use b::*;\n",
        "a/b.rs": "pub struct T;\n",
        "c.rs": "",
        "d.rs": text,
    }
    workspace(tmp_path, {"one": files})
    line = 1 if text.startswith("use crate::a::T") else 2
    assert edges(tmp_path, "one") == [f"d.rs → a/b.rs: T (line {line})"]


@pytest.mark.parametrize(
    "text",
    [
        "#[cfg(test)]\nmod tests {\n    use crate::a::T;\n}\n",
        "#[cfg(test)]\nuse crate::a::T;\n",
        '#[cfg(all(test, feature = "x"))]\n#[allow(dead_code)]\nfn f<A, B>(_: crate::a::T) { g() }\n',
        "#[test]\nfn f() { crate::a::T; }\n",
        "struct S {\n    #[cfg(test)]\n    f: crate::a::T,\n}\n",
        "#[cfg(test)]\nmod c;\n",
        "// crate::a::T\n/* crate::a::T /* */ crate::a::T */\n",
        'const S: &str = "crate::a::T";\nconst R: &str = r#"" crate::a::T"#;\n',
    ],
)
def test_tests_comments_and_literals_use_nothing(tmp_path: Path, text: str) -> None:
    """What only a test build compiles is left out, with the files of its modules."""
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a.rs": "pub struct T;\n",
        "b.rs": text,
        "b/c.rs": "use crate::a::T;\n",
    }
    workspace(tmp_path, {"one": files})
    assert edges(tmp_path, "one") == []


@pytest.mark.parametrize("condition", ['any(test, feature = "x")', "not(test)", "unix"])
def test_code_that_some_build_without_tests_compiles_counts(tmp_path: Path, condition: str) -> None:
    """Features and targets are unknown, so their code is read."""
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a.rs": "pub struct T;\n",
        "b.rs": f"#[cfg({condition})]\nuse crate::a::T;\n",
    }
    workspace(tmp_path, {"one": files})
    assert edges(tmp_path, "one") == ["b.rs → a.rs: T (line 2)"]


def test_a_circle_of_folders_without_a_circle_of_files_is_found(tmp_path: Path) -> None:
    """At every depth."""
    files = {
        "lib.rs": "mod top;\n",
        "top/mod.rs": "mod a;\nmod b;\n",
        "top/a/mod.rs": "pub mod one;\npub mod two;\n",
        "top/a/one.rs": "use crate::top::b::B;\n",
        "top/a/two.rs": "pub struct Two;\n",
        "top/b.rs": "pub struct B;\nfn f(_: super::a::two::Two) {}\n",
    }
    workspace(tmp_path, {"one": files})
    done = modules(tmp_path)
    assert "one: circle of 2 modules: top/a top/b\n" in done.stdout
    assert "circles of files: 0; of folders: 1;" in done.stdout
    cuts = modules(tmp_path, "--cuts", "one").stdout
    assert "1 edges to take away" in cuts


def test_a_broken_rule_is_found_through_other_crates(tmp_path: Path) -> None:
    """With the way from the one to the other."""
    crates = {name: {"lib.rs": ""} for name in ("agent", "paths", "switch", "places/nic")}
    workspace(tmp_path, crates, {"agent": ["paths"], "paths": ["switch", "place-nic"]})
    done = modules(tmp_path)
    assert done.returncode == 1
    assert "agent must not depend on switch (" in done.stdout
    assert "): agent → paths → switch\n" in done.stdout
    assert "imports of a place by the agent: 2; rules broken: 2" in done.stdout


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('fn f(s: &str) -> bool { s == "nic" }\n', ["lib.rs:1"]),
        ('\nconst S: &[u8] = br#"nic"#;\nconst U: &str = "status tidegate-nic";\n', ["lib.rs:2", "lib.rs:3"]),
        ('const A: &str = "the nic";\nconst B: &str = "nics";\n// "nic"\n', []),
        ('#[cfg(test)]\nmod tests {\n    const S: &str = "nic";\n}\n', []),
    ],
)
def test_the_name_of_a_place_in_the_agent_breaks_a_rule(tmp_path: Path, text: str, lines: list[str]) -> None:
    """As a whole literal or within the name of a unit; in no other crate, and not in tests."""
    workspace(tmp_path, {"agent": {"lib.rs": text}, "tool": {"lib.rs": text}, "places/nic": {"lib.rs": ""}})
    assert modules(tmp_path, "--picture", "--write").returncode == 0
    done = modules(tmp_path)
    found = [line.split(": ")[1] for line in done.stdout.splitlines() if "names a place" in line]
    assert (found, done.returncode) == (lines, int(bool(lines))), done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"rules broken: {len(lines)}")


def test_a_circle_of_crates_is_found(tmp_path: Path) -> None:
    """Cargo refuses it too; the picture of such crates is not drawn."""
    workspace(tmp_path, {"a": {"lib.rs": ""}, "b": {"lib.rs": ""}}, {"a": ["b"], "b": ["a"]})
    done = modules(tmp_path)
    assert (done.returncode, "circle of crates: a → b → …" in done.stdout) == (1, True), done.stdout


def test_a_stale_picture_is_found_and_written(tmp_path: Path) -> None:
    """Written once it is right; a further crate makes it stale."""
    workspace(tmp_path, {"a": {"lib.rs": ""}, "b": {"lib.rs": ""}}, {"a": ["b"]})
    done = modules(tmp_path)
    assert (done.returncode, "--picture --write" in done.stdout) == (1, True)
    assert modules(tmp_path, "--picture", "--write").returncode == 0
    assert modules(tmp_path).returncode == 0
    assert "│ a  ──▶ b" in (tmp_path / "ARCHITECTURE.md").read_text()
    page = (tmp_path / "ARCHITECTURE.md").read_text()
    workspace(tmp_path, {"c": {"lib.rs": ""}})
    (tmp_path / "ARCHITECTURE.md").write_text(page)
    assert modules(tmp_path).returncode == 1


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    """It is left as it is."""
    workspace(tmp_path, {"a": {"lib.rs": ""}})
    (tmp_path / "ARCHITECTURE.md").write_text("# Architecture\n")
    done = modules(tmp_path, "--picture", "--write")
    assert (done.returncode, "add both lines" in done.stdout) == (1, True)
    assert (tmp_path / "ARCHITECTURE.md").read_text() == "# Architecture\n"


def stale_lists(root: Path, root_file: str, **files: str) -> list[str]:
    """What is wrong with the lists of a crate with this `lib.rs` and these other files."""
    others = {f"{name}.rs": text for name, text in files.items()}
    workspace(root, {"one": {"lib.rs": root_file, **others}})
    assert modules(root, "--picture", "--write").returncode == 0
    done = modules(root, "--check")
    lines = [line for line in done.stdout.splitlines() if "list of modules" in line]
    assert done.returncode == bool(lines), done.stdout
    return lines


def test_a_list_of_modules_names_each_one(tmp_path: Path) -> None:
    """A name that is neither a module nor an item, and a module without a line."""
    text = "//! - [`a`]: text; `gone`: text\n//! - `b`, [`lost`]: text\nmod a;\nmod b;\nmod c;\n"
    assert stale_lists(tmp_path, text, a="", b="", c="") == [
        "one: lib.rs: line 1: the list of modules has `gone`, which is neither a module nor an item here",
        "one: lib.rs: line 2: the list of modules has `lost`, which is neither a module nor an item here",
        "one: lib.rs: the list of modules has no line for `c`",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "//! - [`a`]: text\n//!   - [`mod@b`]: text\n//! - [`c`](self): text\nmod a;\nmod b;\nmod c;\n",
        "//! - `a` and [`b`]: c\n//! - [`T`], [`f()`]: text\nmod a;\nmod b;\npub use a::T;\nfn f() {}\n",
        "//! - `a`: text\n//!   - [`d`](crate::a::d): text\nmod a;\n",
        "//! - `a`: text\nmod a;\n#[cfg(test)]\nmod b;\n#[cfg(test)]\nmod tests {}\n",
        "//! - `a`: text\n//! - `b`: for tests\nmod a;\n#[cfg(test)]\nmod b;\n",
        "//! - `key`: no module\n//! - a point\nmod a;\nmod b;\n",
        "//! - `a`: text\nmod a;\nmod inline {\n    mod b {}\n}\n",
        "//! Text.\nmod a;\n",
    ],
)
def test_a_right_list_of_modules_is_no_fault(tmp_path: Path, text: str) -> None:
    """With nested lines, links, items, modules for tests; other lists, and files without a list."""
    assert stale_lists(tmp_path, text, a="pub struct T;\n", b="", c="") == []


def test_a_module_under_a_feature_needs_a_line(tmp_path: Path) -> None:
    """Some build without tests has it. The list may be in any file of the crate."""
    text = '//! - `b`: text\nmod b;\n#[cfg(any(test, feature = "x"))]\nmod c;\n'
    assert stale_lists(tmp_path, "mod a;\n", **{"a/mod": text, "a/b": "", "a/c": ""}) == [
        "one: a/mod.rs: the list of modules has no line for `c`"
    ]


def test_a_sample_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """Another seed takes others."""
    names = [f"m{number}" for number in range(12)]
    uses = "".join(f"use crate::{name}::f as {name};\n" for name in names[1:])
    files = {f"{name}.rs": "pub fn f() {}\n" for name in names[1:]}
    workspace(
        tmp_path,
        {"one": {**files, "lib.rs": "".join(f"mod {name};\n" for name in names), "m0.rs": uses}},
    )
    one, same, other = (modules(tmp_path, "--sample", "5", "--seed", seed).stdout for seed in "778")
    assert (one, len(one.splitlines())) == (same, 5)
    assert one != other


def test_the_parts_of_a_type_are_one_definition(tmp_path: Path) -> None:
    """Where a file of the folder adds methods to it; not where it only names it."""
    files = {
        "lib.rs": "mod t;\n",
        "t/mod.rs": "mod part;\nmod user;\npub struct T<A>(A);\nfn f() { part::g(); user::g(); }\n",
        "t/part.rs": "use super::T;\nimpl<A: Into<B>> T<A> {}\npub fn g() {}\n",
        "t/user.rs": "use super::T;\nimpl From<u8> for T<u8> {}\npub fn g() {}\n",
    }
    workspace(tmp_path, {"one": files})
    assert edges(tmp_path, "one") == [
        "t/mod.rs → t/part.rs: g (line 4)",
        "t/mod.rs → t/user.rs: g (line 4)",
        "t/user.rs → t/mod.rs: T (line 1)",
    ]


def test_miri_runs_modules_that_exist() -> None:
    """A name without tests is no error for cargo: a moved module would silently leave Miri's run."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("MIRI := "))
    names = line.removeprefix("MIRI := ").split()
    assert names
    for name in names:
        path = [part for part in name.split("::") if part]
        source = ROOT / "crates/switch/src"
        while path and (source / path[0]).is_dir():
            source /= path.pop(0)
        is_file = bool(path) and (source / f"{path[0]}.rs").exists()
        file = source / (f"{path.pop(0)}.rs" if is_file else "mod.rs")
        text = file.read_text()
        assert path in ([], ["tests"]) or f"fn {path[-1]}(" in text, f"{name}: not in {file}"
