"""The state in a file: what was kept is there after a kill, and a damaged file is refused."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from networks import request
from saved import sequences

from tidegate_controller import events as ev
from tidegate_controller.decide.flood import Tree
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import Path as NetworkPath
from tidegate_controller.model.paths import Route
from tidegate_controller.model.topology import Topology
from tidegate_controller.runtime.kept import MOST_DECISIONS, Kept, Save
from tidegate_controller.state import sqlite
from tidegate_controller.state.sqlite import BESIDE, File
from tidegate_controller.state.store import Damaged, InUse, StateError, Unwritable

NETWORK = ev.SaveNetwork(Topology({"s1"}), (), Tree(1, frozenset()))
PATH = NetworkPath(request(), Route(("h0>s0:1", "s0:2>h2"), 0), 1, 7, 1000, 100, number=1)
PLAIN = '{"vlan": 4095, "priority": 5, "source_mac": "02:00:00:00:0a:01", "target_mac": "02:00:00:00:0b:01"}'


def load(path: Path, forget: bool = False) -> Kept:
    """What a process that begins finds."""

    async def work() -> Kept:
        file = File(path, forget)
        try:
            return await file.load()
        finally:
            await file.close()

    # A loop may run here already.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work()).result()


def write(path: Path, *groups: Sequence[Save], after: Callable[[], None] = lambda: None) -> None:
    """Write groups of saves."""

    async def work() -> None:
        file = File(path)
        await file.load()
        for saves in groups:
            await file.write(saves)
            after()
        await file.close()

    asyncio.run(work())


@pytest.fixture(name="quick")
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process wrote is there after its end, without the disk's confirmation."""
    monkeypatch.setattr(sqlite, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("quick")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequences())
def test_killed_after_any_save(tmp_path_factory: pytest.TempPathFactory, saves: list[Save]) -> None:
    """What is on the disk after each save is what was kept in memory, also if it is all that is left."""
    folder = tmp_path_factory.mktemp("k")
    path, kept = folder / "a" / "s", Kept()
    left = deque(saves)
    number = 0

    def check() -> None:
        nonlocal number
        number += 1
        kept.take(left.popleft())
        copy = folder / str(number)
        copy.mkdir()
        for end in BESIDE:
            if Path(f"{path}{end}").exists():
                shutil.copy(f"{path}{end}", copy / f"s{end}")
        assert load(copy / "s") == kept

    write(path, *([save] for save in saves), after=check)
    together = folder / "b" / "s"
    write(together, saves)
    assert load(together) == load(path) == kept
    shutil.rmtree(folder)


@pytest.mark.usefixtures("quick")
def test_the_last_decisions_are_kept(tmp_path: Path) -> None:
    """As many as in memory."""
    kept = Kept()
    made = [
        ev.SaveDecision(Decision(number, 1.0, "v", "a miss", Verdict.KEPT, ()))
        for number in range(1, MOST_DECISIONS + 120)
    ]
    for one in made:
        kept.take(one)
    groups = [made[first : first + 1000] for first in range(0, len(made), 1000)]
    write(tmp_path / "s", *groups)
    found = load(tmp_path / "s")
    assert (len(found.decisions), found) == (MOST_DECISIONS, kept)


def test_only_the_controller_reads_it(tmp_path: Path) -> None:
    """Folder and files, also those that SQLite makes, and a file that was opened to others."""
    path = tmp_path / "d" / "s"
    modes: list[int] = []

    def look() -> None:
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir())

    write(path, [NETWORK], after=look)
    assert set(modes) == {0o600}
    assert len(modes) == 4
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    load(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_controllers_on_one_file(tmp_path: Path) -> None:
    """The second is refused, also in another process; after the first ended it is not."""
    path = tmp_path / "s"
    program = (
        "import asyncio, sys; from pathlib import Path; from tidegate_controller.state.sqlite import File\n"
        "asyncio.run(File(Path(sys.argv[1])).load())"
    )

    def other() -> None:
        with pytest.raises(InUse, match="another controller uses it"):
            load(path)
        words = [sys.executable, "-c", program, str(path)]
        found = subprocess.run(
            words, check=False, capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
        )
        assert "InUse" in found.stderr

    write(path, [NETWORK], after=other)
    assert load(path).network == NETWORK


def edit(sql: str) -> Callable[[Path], None]:
    """A change by hand."""

    def do(path: Path) -> None:
        database = sqlite3.connect(path)
        database.executescript(sql)
        database.close()

    return do


def cut(path: Path) -> None:
    """Lose the second half."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])


def scribble(path: Path) -> None:
    """Other bytes in the middle."""
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + 200] = bytes(range(200))
    path.write_bytes(data)


def json_set(key: str, field: str, value: str) -> Callable[[Path], None]:
    """Another value in a record."""
    return edit(f"UPDATE records SET value = json_set(value, '{field}', {value}) WHERE key LIKE '{key}%'")


def added(key: str, value: str) -> Callable[[Path], None]:
    """A record more."""
    return edit(f"INSERT INTO records VALUES ('{key}', '{value}')")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b"garbage" * 1000), "not a database"),
        (cut, "malformed|not a database|invalid page|out of order|missing"),
        (scribble, "malformed|page|cell|btree|Tree"),
        (lambda path: (path.unlink(), path.mkdir()), "it is no file"),
        (edit("PRAGMA user_version = 7"), "it has format 7, this version of the controller 1"),
        (edit("PRAGMA application_id = 7"), "another program"),
        (edit("DROP TABLE records"), "no such table"),
        (edit("DELETE FROM records WHERE key = 'terms'"), "one is missing"),
        (edit("DELETE FROM records WHERE key IN ('terms', 'network')"), "there are paths, but no `network`"),
        (edit("INSERT INTO records VALUES ('other', '1')"), "other: no such record"),
        (edit("UPDATE records SET value = x'00ff' WHERE key = 'network'"), "is no text|UTF-8"),
        (edit("UPDATE records SET value = '{' WHERE key LIKE 'path/%'"), "path/h0/v>r: Expecting"),
        (edit("UPDATE records SET key = 'path/x' WHERE key LIKE 'path/%'"), "path/x: is of path 'h0/v>r'"),
        (json_set("path/", "$.tag", "9000"), "tag is 9000; 1 to 4094 was expected"),
        (json_set("path/", "$.tag", "'7'"), "path/h0/v>r.tag: '7'; a whole number was expected"),
        (json_set("path/", "$.more", "7"), "a table of request, route"),
        (json_set("path/", "$.state", "'gone'"), "one of installing, active"),
        (json_set("path/", "$.request.key.source", "'x'"), "'x' does not appear to be an IP"),
        (json_set("path/", "$.request.key", f"json('{PLAIN}')"), "vlan is 4095; 1 to 4094 was expected"),
        (json_set("path/", "$.request.key.vlan", "7"), "a table of source, .* or a table of vlan, priority"),
        (json_set("path/", "$.request.rate", "1e400"), "path/h0/v>r: "),
        (json_set("path/", "$.number", "9223372036854775807"), "number is 9223372036854775807"),
        (json_set("path/", "$.route.links", "json('[]')"), "links is 0; 2 or more"),
        (added("behind/h1", '{"vlans":[7],"places":[{"vlan":8,"mac":"02:00:00:00:00:01"}]}'), "is in VLAN 8"),
        (added("behind/h1", '{"vlans":[7],"places":[{"vlan":7,"mac":"02"}]}'), "'02' is no MAC"),
        (added("behind/h1", '{"vlans":[4095],"places":[]}'), "vlan is 4095; 1 to 4094"),
        (added("tagged", '{"hosts":[{"host":"h1","number":1,"tag":0}],"vlans":[]}'), "id is 0; 1 to 4094"),
        (
            added("tagged", '{"hosts":[],"vlans":[{"vlan":1,"tag":5},{"vlan":1,"tag":6}]}'),
            "tagged: a host, a number or a VLAN is there twice",
        ),
    ],
)
@pytest.mark.usefixtures("quick")
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[Path], None], text: str) -> None:
    """With the file, what is wrong and what to do; the file is left as it is. `--forget` moves it aside."""
    path = tmp_path / "d" / "s"
    many = [ev.SaveDecision(Decision(n, 1.0, "v", "miss", Verdict.KEPT, ("x" * 200,))) for n in range(1, 99)]
    write(path, [NETWORK, ev.SavePath(PATH), *many])
    assert load(path).paths == {PATH.request.name: PATH}
    damage(path)
    before = path.read_bytes() if path.is_file() else b""
    for _ in range(2):
        with pytest.raises(Damaged, match=text) as found:
            load(path)
        assert str(found.value).startswith(str(path))
        assert "--forget" in str(found.value)
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert load(path, forget=True) == Kept()
    assert load(path) == Kept()
    (aside,) = (one for one in path.parent.iterdir() if "forgotten" in one.name and one.suffix[-4:] != "-shm")
    assert (aside.read_bytes() if aside.is_file() else b"") == before


def test_a_log_without_its_database(tmp_path: Path) -> None:
    """One file was deleted or moved, of two files."""
    path = tmp_path / "s"

    def take() -> None:
        shutil.copy(f"{path}-wal", tmp_path / "other-wal")

    write(path, [NETWORK], after=take)
    path.unlink()
    (tmp_path / "other-wal").rename(f"{path}-wal")
    with pytest.raises(Damaged, match="s-wal, but not the database itself"):
        load(path)


@pytest.mark.usefixtures("quick")
def test_a_log_that_was_deleted_after_a_crash(tmp_path: Path) -> None:
    """It is found out; a database that was closed cleanly has none. A whole copy may take its place."""
    path, crashed = tmp_path / "a" / "s", tmp_path / "b"

    def crash() -> None:
        shutil.copytree(path.parent, crashed)

    write(path, [NETWORK], after=crash)
    assert load(path).network == NETWORK
    there = tmp_path / "there"
    shutil.copytree(crashed, there)
    assert load(there / "s").network == NETWORK
    (crashed / "s-wal").unlink()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"s-wal is missing, .* not ended cleanly: .* delete s.lock"):
            load(crashed / "s")
    shutil.copy(path, crashed / "s")
    (crashed / "s.lock").unlink()
    assert load(crashed / "s").network == NETWORK
    # What is given up needs no log.
    (there / "s.lock").write_text("open\n")
    assert load(there / "s", forget=True) == Kept()
    (there / "s.lock").write_text("open\n")
    (there / "s").unlink()
    assert load(there / "s") == Kept()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """It is said."""
    (tmp_path / "f").write_text("")
    with pytest.raises(Unwritable, match="the folder must be there and writable"):
        load(tmp_path / "f" / "s")


def test_a_full_disk(tmp_path: Path) -> None:
    """Nothing of the transaction is there, and the writer learns."""
    path = tmp_path / "s"

    async def work() -> None:
        file = File(path)
        await file.load()
        await file.write([NETWORK])
        assert file._database is not None
        pages = await file._thread.do(lambda: file._database.execute("PRAGMA page_count").fetchone()[0])  # type: ignore[union-attr]
        await file._thread.do(lambda: file._database.execute(f"PRAGMA max_page_count = {pages}"))  # type: ignore[union-attr]
        many = [ev.SaveDecision(Decision(n, 1.0, "v" * 1000, "miss", Verdict.KEPT, ())) for n in range(1, 99)]
        with pytest.raises(Unwritable, match="is the disk full"):
            await file.write(many)
        await file.close()

    asyncio.run(work())
    kept = load(path)
    assert kept.network == NETWORK
    assert not kept.decisions


def test_errors_are_of_one_kind() -> None:
    """The program tells them without a traceback."""
    for kind in (Damaged, InUse, Unwritable):
        assert issubclass(kind, StateError)
