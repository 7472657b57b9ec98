"""scripts/test: what it counts, and what it runs a second time."""

import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from lab.initramfs import ROOT

pytestmark = pytest.mark.abreast

CARGO = """\
#!/bin/sh
echo "$@" >>calls
case "$*" in
    *--exact\\ {steady}) echo "test {steady} ... ok"; echo "test result: ok. 1 passed; 0 failed; 0 ignored" ;;
    *--exact*) echo "test result: FAILED. 0 passed; 1 failed; 0 ignored"; exit 101 ;;
    *) echo "test good ... ok"
       for name in {failing}; do echo "test $name ... FAILED"; done
       echo; echo "failures:"; echo
       for name in {failing}; do echo "---- $name stdout ----"; echo "why $name failed"; echo; done
       echo; echo "failures:"
       for name in {failing}; do echo "    $name"; done
       echo "test result: FAILED. 1 passed; {count} failed; 0 ignored"
       echo 'error: test failed, to rerun pass `-p some --test file`'
       exit 101 ;;
esac
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/test as a module, working in a folder of its own."""
    loader = importlib.machinery.SourceFileLoader("runner", str(ROOT / "scripts/test"))
    spec = importlib.util.spec_from_loader("runner", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "runner", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return module


def cargo(folder: Path, *failing: str) -> None:
    """A `cargo` of which these tests fail; `shaky` passes when it is run by itself."""
    program = folder / "cargo"
    program.write_text(CARGO.format(steady="shaky", failing=" ".join(failing), count=len(failing)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("failing", "passed", "failed", "unstable", "runs"),
    [
        (["shaky"], 2, 0, ["-p some --test file shaky"], 2),
        (["broken"], 1, 1, [], 2),
        (["shaky", "broken"], 2, 1, ["-p some --test file shaky"], 3),
        (["shaky", "b", "c", "d"], 1, 4, [], 1),
    ],
)
def test_few_get_a_second_try(
    runner: ModuleType,
    tmp_path: Path,
    failing: list[str],
    passed: int,
    failed: int,
    unstable: list[str],
    runs: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What fails twice has failed; what passes then is named; many at once are not tried again.

    What the first failure printed stands before the second try.
    """
    cargo(tmp_path, *failing)
    counts = runner.cargo_test("--workspace")
    assert (counts.passed, counts.failed, counts.unstable) == (passed, failed, unstable)
    assert len((tmp_path / "calls").read_text().splitlines()) == runs
    printed = capsys.readouterr().out
    for name in failing if runs > 1 else ():
        first_failure_text = f"== -p some --test file {name}: the first failure, before its second try\n"
        again = printed[printed.index(first_failure_text) + len(first_failure_text) :]
        assert again.startswith(f"---- {name} stdout ----\nwhy {name} failed\n\n== cargo test"), printed


def test_the_order_of_cargos_programs(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test program of the workspace runs once, first those that measure the kernel."""
    monkeypatch.chdir(ROOT)
    alone, switch, (units, one, other, doc) = runner.cargo_parts()
    assert alone == ["--workspace", *(f"--test={name}" for name in runner.MEASURES_KERNEL)]
    folders = [folder for each in ("crates/*/tests", "crates/places/*/tests") for folder in ROOT.glob(each)]
    files = {path.stem for folder in folders for path in folder.glob("*.rs")}
    files |= {path.parent.name for folder in folders for path in folder.glob("*/main.rs")}
    words = [*alone, *switch, *one, *other]
    named = [word.removeprefix("--test=") for word in words if word.startswith("--test=")]
    assert len(named) == len(set(named))
    assert files <= set(named)
    own = {path.stem for path in (ROOT / "crates/switch/tests").glob("*.rs")}
    assert {f"--test={name}" for name in own} <= set(switch)
    assert units == ["--workspace", "--lib", "--bins"]
    assert doc == ["--workspace", "--doc"]


def test_the_release_build_begins_after_the_measuring_tests(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order that the runner's own text says."""
    order: list[str] = []

    def run(*arguments: str) -> object:
        order.append(arguments[-1])
        return runner.Counts(passed=1)

    def run_aside(*arguments: str, aside: bool) -> object:
        assert aside
        return run(*arguments), {}

    def controller(_: object) -> object:
        run("controller")
        return lambda: runner.Counts(passed=1)

    def build(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        order.append("build")
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(
        runner, "cargo_parts", lambda: (["alone"], ["switch"], [["units"], ["one"], ["other"], ["doc"]])
    )
    monkeypatch.setattr(runner, "cargo_test", run)
    monkeypatch.setattr(runner, "cargo_first_try", run_aside)
    monkeypatch.setattr(runner, "controller", controller)
    monkeypatch.setattr(runner.subprocess, "run", build)
    counts = runner.without_guests([], lambda: order.append("release"))
    assert {part: each.passed for part, each in counts.items()} == {"cargo test": 6, "controller": 1}
    assert order[:4] == ["build", "alone", "release", "switch"]
    assert sorted(order[4:]) == ["controller", "doc", "one", "other", "units"]


def test_a_second_try_in_two_of_ten_runs_is_reported(runner: ModuleType, tmp_path: Path) -> None:
    """A test is named after its second such run, and no more when ten runs have gone by."""
    assert runner.record(["a", "b"]) == []
    assert runner.record([]) == []
    (advice,) = runner.record(["a"])
    assert advice == "needed its second try in 2 of the last 3 runs: a: repair it, or mark it nightly"
    for run in range(10):
        assert len(runner.record([])) == (1 if run < 7 else 0), run
    lines = (tmp_path / "target/second-tries.jsonl").read_text().splitlines()
    assert len(lines) == 13
    assert json.loads(lines[0])["tests"] == ["a", "b"]
    assert json.loads(lines[0])["date"]


RESULT = "test result: FAILED. 1 passed; 1 failed; 0 ignored"
RERUN = "error: test failed, to rerun pass `-p some --test {}`"


@pytest.mark.parametrize(
    "lines",
    [
        ["error: could not compile `some`"],
        # A program that a signal ended says nothing of its tests; another one had one that failed.
        [RERUN.format("crashed")],
        ["test shaky ... FAILED", RERUN.format("crashed")],
        ["test shaky ... FAILED", RESULT, RERUN.format("file"), RERUN.format("crashed")],
    ],
)
def test_a_failure_without_a_test_name_is_a_failure(
    runner: ModuleType, tmp_path: Path, lines: list[str]
) -> None:
    """A build that fails and a program that crashes get no second try, and are no success."""
    (tmp_path / "output").write_text("\n".join(lines) + "\n")
    program = tmp_path / "cargo"
    program.write_text("#!/bin/sh\necho call >>calls\ncat output\nexit 101\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    counts = runner.cargo_test("--workspace")
    assert counts.failed >= 1
    assert not counts.unstable
    assert (tmp_path / "calls").read_text() == "call\n"


HANGS = """\
#!/bin/sh
# The first test leaves a process that holds the output; the second one hangs.
(sleep 300 & echo "$!" >left)
sh -c 'echo "test good ... ok"; sleep 301'
echo 'error: test failed, to rerun pass `-p some --test hangs`'
echo "test other ... ok"
echo "test result: ok. 1 passed; 0 failed; 0 ignored"
exit 101
"""


def test_a_hanging_test_is_killed_and_the_others_run(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a test that never ends nor a process that one left behind keeps the others waiting."""
    monkeypatch.setattr(runner, "SILENCE", 2.0)
    monkeypatch.setattr(runner, "HELD_OPEN", 1.0)
    program = tmp_path / "cargo"
    program.write_text(HANGS)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    began = time.monotonic()
    counts = runner.cargo_test("--workspace")
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert time.monotonic() - began < 60
    assert (counts.passed, counts.failed) == (1, 1)


TESTS = """\
import pytest, time
from pathlib import Path

def test_good(): pass

def once(name):
    first = not Path(name).exists()
    Path(name).touch()
    assert not first

def test_shaky(): once('tried')
def test_broken(): assert False
"""
ABREAST = """\
import pytest, time
from pathlib import Path

pytestmark = [pytest.mark.abreast, pytest.mark.lab]

def test_meets_the_others():
    Path('{own}').touch()
    end = time.monotonic() + 60
    while not all(Path(name).exists() for name in ('one', 'two', 'three')):
        assert time.monotonic() < end
"""


def test_end_to_end(runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What fails gets a second try, by its own list of what failed last; files that run at the same time."""
    (tmp_path / "test_alone.py").write_text(TESTS)
    (tmp_path / "test_one.py").write_text(ABREAST.format(own="one") + "\ndef test_more(): pass\n")
    shaky = (
        "\ndef test_shaky():\n"
        "    first = not Path('x').exists()\n"
        "    Path('x').touch()\n"
        "    assert not first\n"
    )
    (tmp_path / "test_two.py").write_text(ABREAST.format(own="two") + shaky)
    without_guests = ABREAST.replace(", pytest.mark.lab", "").format(own="three")
    (tmp_path / "test_three.py").write_text(without_guests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    abreast\n    lab\n")
    counts = runner.end_to_end([str(ROOT / ".venv/bin/pytest"), str(tmp_path)])
    assert (counts.passed, counts.failed, counts.skipped) == (2 + 2 + 2 + 1, 1, 0)
    assert counts.unstable == ["test_alone::test_shaky", "test_two::test_shaky"]
    printed = capsys.readouterr().out
    for name in ("test_alone::test_shaky", "test_alone::test_broken", "test_two::test_shaky"):
        first_failure_text = f"== {name}: the first failure, before its second try\n"
        assert first_failure_text in printed
        assert re.search(
            r"^E +assert ", printed[printed.index(first_failure_text) :].split("\n== ")[0], re.MULTILINE
        )


def test_files_of_one_name_have_reports_of_their_own(runner: ModuleType, tmp_path: Path) -> None:
    """switch/test_it.py and kernel/test_it.py run at the same time."""
    for folder in ("switch", "kernel"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_it.py").write_text(
            "import pytest\npytestmark = pytest.mark.abreast\ndef test_good(): pass\n"
        )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    abreast\naddopts = --import-mode=importlib\n"
    )
    counts = runner.end_to_end([str(ROOT / ".venv/bin/pytest"), str(tmp_path)])
    assert (counts.passed, counts.failed) == (2, 1), "the part that runs alone has no test"
    assert {report.name for report in (tmp_path / "target").glob("*_it.xml")} == {
        "end-to-end-switch-test_it.xml",
        "end-to-end-kernel-test_it.xml",
    }


def test_end_to_end_that_cannot_be_read(runner: ModuleType, tmp_path: Path) -> None:
    """Tests that are not found are not passed."""
    (tmp_path / "test_it.py").write_text("def test_good(): pass\n")
    (tmp_path / "test_wrong.py").write_text("import nothing_of_this_name\n")
    counts = runner.end_to_end([str(ROOT / ".venv/bin/pytest"), str(tmp_path)])
    assert counts.failed >= 1


def collected(*options: str) -> str:
    """pytest's list of the tests of this repository."""
    command = [str(ROOT / ".venv/bin/pytest"), str(ROOT / "tests"), "--collect-only", "--quiet", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_only_nightly_tests_are_omitted() -> None:
    """Neither an option, nor another marker, nor `#[ignore]` leaves a test out."""
    (run, total, left_out) = re.findall(
        r"^(\d+)/(\d+) tests collected \((\d+) deselected", collected(), re.M
    )[0]
    nightly = collected("-m", "nightly")
    assert re.findall(r"^(\d+)/\d+ tests collected", nightly, re.M) == [left_out]
    assert int(run) > 300
    assert int(run) + int(left_out) == int(total)
    alone = collected("-m", "not abreast")
    assert not set(re.findall(r"^\S+::\S+", alone, re.M)) & set(re.findall(r"^\S+::\S+", nightly, re.M))
    for source in ROOT.glob("crates/**/*.rs"):
        assert not re.search(r"^\s*#\[ignore", source.read_text(), re.MULTILINE), source


def test_a_session_that_takes_too_long_ends_and_has_failed(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that were not run are no success, nor is the one that failed before tried again."""
    monkeypatch.setattr(runner, "SESSION", 2)
    slow = "import time\ndef test_a(): assert False\ndef test_b(): time.sleep(3)\ndef test_c(): pass\n"
    (tmp_path / "test_slow.py").write_text(slow)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    abreast\n")
    counts = runner.end_to_end([str(ROOT / ".venv/bin/pytest"), str(tmp_path)])
    assert (counts.passed, counts.failed, counts.unstable) == (1, 2, [])


def test_the_commands_of_nightly_exist() -> None:
    """Each part names programs, targets and scenes of this repository, and has a row in CONTRIBUTING.md."""
    done = subprocess.run([ROOT / "scripts/nightly", "--list"], capture_output=True, text=True, check=True)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    _, _, rows = (ROOT / "CONTRIBUTING.md").read_text().partition("| Part of `make nightly` |")
    parts = [line.split()[0] for line in done.stdout.splitlines()]
    assert re.findall(r"^\| `([a-z-]+)` \|", rows, re.MULTILINE) == parts
    for line in done.stdout.splitlines():
        for scene in re.findall(r"--scene (\w+)", line):
            assert (ROOT / f"bench/scenes/{scene}.py").is_file(), line
        for program in re.findall(
            r"(?<![\w/])(?:bench|scripts|\.venv/bin)/[a-z-]+", line.split(maxsplit=1)[1]
        ):
            assert (ROOT / program).is_file(), line
        for target in re.findall(r"make ([a-z-]+)", line):
            assert target in targets, line
    unknown = subprocess.run([ROOT / "scripts/nightly", "x"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "no part x: expected earlier-release" in unknown.stderr


def test_the_limit_of_descriptors_is_raised(runner: ModuleType) -> None:
    """The usual soft limit, 1,024, is too little for tests of many ports."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert runner.raise_descriptors() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_says_where_the_time_went(runner: ModuleType, tmp_path: Path) -> None:
    """Steps in their order, then the files whose tests took longest, of all reports of this run together."""
    runner.heading(["cargo", "test"])
    (tmp_path / "target").mkdir()
    case = '<testsuites><testsuite><testcase classname="{}" name="t" time="{}"/></testsuite></testsuites>'
    for n, (name, seconds) in enumerate([("a.test_a", 3.2), ("b.test_b", 70), ("a.test_a", 1.0)]):
        report = tmp_path / f"target/end-to-end-{n}.xml"
        report.write_text(case.format(name, seconds))
        runner.REPORTS.append(report)
    # Of an earlier run; and of a pytest that died.
    (tmp_path / "target/end-to-end-stale.xml").write_text(case.format("c.test_c", 99))
    runner.REPORTS.append(tmp_path / "target/end-to-end-died.xml")
    lines = [line.split() for line in runner.spent()]
    assert lines == [["0", "s", "cargo", "test"], ["70", "s", "b.test_b"], ["4", "s", "a.test_a"]]
