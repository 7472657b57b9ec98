"""Keys at rest and on their way: sealed, durable first, for the right hosts, in no log."""

import asyncio
import logging
import os
import pickle
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.state.sqlite import File
from tidegate_controller.state.store import Damaged
from tidegate_controller.trust import ring as rings
from tidegate_controller.trust.keyring import Keyring
from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.ring import Times
from tidegate_controller.trust.roll import Member, Proof, Role, Roll
from tidegate_controller.trust.sealed import Box, key_encryption_key
from tidegate_controller.trust.secret import Secret, SecretError
from tidegate_controller.trust.stores import Row, StoreError, Use
from tidegate_controller.trust.vault import Vault

KEK = Secret(bytes(range(32)))
TIMES = Times(rotate=100.0, overlap=9.0)
ROLL = Roll({"h1": Member(None, frozenset({7, 9})), "h2": Member(None, frozenset({9})), "h3": Member()})


def of(name: str, serial: int | None = 1) -> Proof:
    """A host with its certificate."""
    return Proof(Role.HOST, name, serial, None if serial else "sha256:0")


class Memory:
    """A store that can fail."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.broken = False
        self.saves = 0

    async def load(self) -> list[Row]:
        """All."""
        return list(self.rows.values())

    async def save(self, rows: Sequence[Row]) -> None:
        """All or none."""
        await asyncio.sleep(0)
        if self.broken:
            raise StoreError("the disk is full")
        self.saves += 1
        self.rows |= {row.segment: row for row in rows}


class World:
    """A keyring with a clock of its own."""

    def __init__(self, store: Memory | Vault | None = None, now: float = 1000.0) -> None:
        self.store = store or Memory()
        self.now = now
        self.keyring = Keyring(self.store, Box(KEK), TIMES, lambda: self.now)

    async def spend(self, time: int) -> None:
        """Looks each second."""
        for _ in range(time):
            self.now += 1
            await self.keyring.look()

    def of(self, name: str) -> dict[int, tuple[str, str | None]]:
        """The keys of a host."""
        return {one["segment"]: (one["key"], one["next"]) for one in self.keyring.keys(of(name))["segments"]}


def run(work: Awaitable[None]) -> None:
    """Runs a test with a loop of its own."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(limited())


def test_each_host_gets_the_keys_of_its_segments() -> None:
    """By its certificate; not by a token, and not others."""

    async def test() -> None:
        world = World()
        await world.keyring.open(ROLL)
        one, two = world.of("h1"), world.of("h2")
        assert set(one) == {7, 9}
        assert two == {9: one[9]}
        assert world.of("h3") == {}
        answer = world.keyring.keys(of("h1"))
        assert answer["refresh"] == 3 * 10**9
        assert [part["segment"] for part in answer["segments"]] == [7, 9]
        assert all(len(part["key"]) == 32 and part["next"] is None for part in answer["segments"])
        wrong = (
            of("h1", None),
            of("h4"),
            Proof(Role.OPERATOR, "operator", 1),
            Proof(Role.SWITCH, "h1", 1),
        )
        for identity in wrong:
            with pytest.raises(Refusal) as problem:
                world.keyring.keys(identity)
            assert problem.value.code == "forbidden"

    run(test())


def test_a_restart_goes_on_with_the_same_keys() -> None:
    """And announces for a whole overlap again, since no host could ask."""

    async def test() -> None:
        world = World()
        await world.keyring.open(ROLL)
        await world.spend(91)
        before = world.of("h1")
        assert isinstance(world.store, Memory)
        again = World(world.store, world.now + 10_000)
        await again.keyring.open(ROLL)
        assert again.of("h1") == before
        await again.spend(9)
        assert again.of("h1") == {segment: (new, old) for segment, (old, new) in before.items()}

    run(test())


def test_what_is_not_stored_is_not_told() -> None:
    """Keys stay as they are while the store fails; new segments have none."""

    async def test() -> None:
        world = World()
        store = world.store
        assert isinstance(store, Memory)
        await world.keyring.open(ROLL)
        before = world.of("h1")
        store.broken = True
        world.now += TIMES.rotate
        with pytest.raises(StoreError):
            await world.keyring.look()
        assert world.of("h1") == before
        more = Roll(
            dict(ROLL.members) | {"h4": Member(None, frozenset({9})), "h5": Member(None, frozenset({3}))}
        )
        with pytest.raises(StoreError):
            await world.keyring.share(more)
        for name in ("h4", "h5"):
            with pytest.raises(Refusal, match="not stored yet") as problem:
                world.of(name)
            assert problem.value.code == "busy"
        store.broken = False
        await world.keyring.look()
        assert world.of("h4")[9][0] == before[9][0]
        saves = store.saves
        await world.keyring.look()
        assert store.saves == saves

    run(test())


def test_a_segment_that_goes_and_comes_back_has_a_new_key() -> None:
    """Its hosts may have kept the old one: it changes, with its windows."""

    async def test() -> None:
        world = World()
        await world.keyring.open(ROLL)
        old = world.of("h1")[7][0]
        await world.keyring.share(Roll({"h2": ROLL.members["h2"]}))
        with pytest.raises(Refusal, match="not in the controller's configuration"):
            world.of("h1")
        await world.keyring.share(ROLL)
        assert world.of("h1")[7] == (old, world.of("h1")[7][1])
        assert world.of("h1")[7][1] is not None

    run(test())


def test_keys_turn_by_themselves() -> None:
    """In the task, also after a store that failed."""

    async def test() -> None:
        store = Memory()
        loop = asyncio.get_running_loop()
        keyring = Keyring(store, Box(KEK), Times(0.3, 0.09), loop.time)
        await keyring.open(ROLL)
        task = asyncio.create_task(keyring.run())
        while store.rows[7].generation < 2:
            await asyncio.sleep(0.01)
        store.broken = True
        await asyncio.sleep(0.1)
        store.broken = False
        reached = store.rows[7].generation
        while store.rows[7].generation < reached + 2:
            await asyncio.sleep(0.01)
        task.cancel()

    run(test())


def test_no_key_in_logs_and_texts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor on disk."""
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    keys: set[str] = set()

    async def test() -> None:
        vault = await Vault.open(tmp_path / "trust.db")
        world = World(vault)
        await world.keyring.open(ROLL)
        for _ in range(30):
            await world.spend(8)
            for key, other in world.of("h1").values():
                keys.update({key, other or key})
        with pytest.raises(Refusal) as problem:
            world.keyring.keys(of("h4"))
        shown.append(f"{problem.value!r} {problem.value}")
        rows = await vault.load()
        ring = Box(KEK).open(rows[0])
        shown.append(
            f"{world.keyring!r} {world.keyring.__dict__} {ring!r} {ring} {KEK!r} {[*ring.keys.values()]}"
        )
        for row in rows:
            with pytest.raises(StoreError) as fault:
                Box(KEK).open(replace(row, sealed=row.sealed[:-1]))
            shown.append(f"{fault.value!r} {fault.getrepr(style='long')}")
        await vault.close()

    run(test())
    assert len(keys) > 4
    text = "".join(shown) + caplog.text + "".join(capsys.readouterr())
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for key in keys:
        assert key not in text
        assert repr(bytes.fromhex(key)) not in text
        assert bytes.fromhex(key) not in stored
        assert key.encode() not in stored
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(KEK)


def test_another_key_encryption_key_and_damage() -> None:
    """Are told apart; each changed byte is seen."""
    ring = rings.first(7, frozenset({"h1"}), 5.0, os.urandom)
    row = Box(KEK).seal(ring)
    assert Box(KEK).open(row) == ring
    with pytest.raises(StoreError, match=r"another key-encryption key .*keys\.key-encryption-key"):
        Box(Secret(bytes(32))).open(row)
    for at in range(len(row.sealed)):
        data = bytearray(row.sealed)
        data[at] ^= 1
        with pytest.raises(StoreError, match=r"segment 7, generation 0: (damaged|sealed under another)"):
            Box(KEK).open(replace(row, sealed=bytes(data)))
    for other in (replace(row, segment=8), replace(row, generation=2), replace(row, sealed=b"")):
        with pytest.raises(StoreError, match="damaged"):
            Box(KEK).open(other)


@given(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.frozensets(st.text(max_size=5), max_size=3))
def test_all_rings_come_back(generation: int, turns: int, hurry: bool, hosts: frozenset[str]) -> None:
    """In each phase."""
    ring = replace(rings.first(7, hosts, 5.0, os.urandom), hurry=hurry)
    ring = replace(ring, generation=generation, keys={generation: rings.fresh(generation, os.urandom)})
    for _ in range(turns):
        ring = rings.turn(ring, 10**9, TIMES, os.urandom)
    assert Box(KEK).open(Box(KEK).seal(ring)) == ring


@pytest.mark.parametrize("text", [b"", b"00" * 31, b"0" * 65, b"zz" * 32, b"00" * 32 + b" x"])
def test_key_encryption_keys_of_another_form(text: bytes) -> None:
    """The text is not in the message."""
    with pytest.raises(SecretError, match="/f: 64 hexadecimal digits were expected"):
        key_encryption_key(Secret(text), "/f")
    assert key_encryption_key(Secret(b" " + b"0aF1" * 16 + b"\n"), "/f").reveal() == b"\x0a\xf1" * 16


def test_a_file_remembers(tmp_path: Path) -> None:
    """Rows and first uses, over a restart; it belongs to its user alone."""
    path = tmp_path / "trust.db"

    async def test() -> None:
        vault = await Vault.open(path)
        assert await vault.load() == []
        rows = [Row(2, 1, b"b"), Row(1, 0, b"a")]
        await vault.save(rows)
        await vault.save([Row(2, 2, b"c")])
        assert await vault.first("m", "one", 1.0) == Use("one", 1.0)
        assert await vault.first("m", "two", 2.0) == Use("one", 1.0)
        found = await asyncio.gather(*(vault.first("n", str(n), n) for n in range(20)))
        assert len(set(found)) == 1
        await vault.close()
        with pytest.raises(StoreError, match="closed"):
            await vault.load()
        again = await Vault.open(path)
        assert await again.load() == [Row(1, 0, b"a"), Row(2, 2, b"c")]
        assert await again.first("m", "three", 3.0) == Use("one", 1.0)
        await again.close()

    run(test())
    assert path.stat().st_mode & 0o077 == 0


def _foreign(path: Path) -> None:
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE x (y)")
    base.close()
    path.chmod(0o600)


def _state(path: Path) -> None:
    File(path)._make()


def _open(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o644)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_foreign, "no store of keys"),
        (_state, "no store of keys of this version .is it the file of `.state.`"),
        (
            lambda path: path.parent.chmod(0o777),
            "cannot be opened: other users may write in the folder .*chmod go-w",
        ),
        (_open, "is reached by others: chmod 600"),
        (lambda path: path.mkdir(), "cannot be opened"),
        (lambda path: path.symlink_to("/etc/passwd"), "cannot be opened"),
        (lambda path: path.write_bytes(b"no database " * 100) and path.chmod(0o600), "not a database"),
    ],
)
def test_files_that_are_none(make: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    """The message names the file."""
    path = tmp_path / "trust.db"
    make(path)
    with pytest.raises(StoreError, match=f"{path}.*{text}"):
        run(_opened(path))


async def _opened(path: Path) -> None:
    await (await Vault.open(path)).close()


def test_the_first_start_of_a_machine(tmp_path: Path) -> None:
    """The folder is made, for this user alone. The state does not begin in this file."""
    path = tmp_path / "new" / "trust.db"
    run(_opened(path))
    assert path.parent.stat().st_mode & 0o777 == 0o700

    async def load() -> None:
        await File(path).load()

    with pytest.raises(Damaged, match="another program, or the store of keys"):
        run(load())


def test_a_damaged_file(tmp_path: Path) -> None:
    """Is refused at the start, or when its rows are opened; never read as something else."""
    path = tmp_path / "trust.db"

    async def fill() -> None:
        vault = await Vault.open(path)
        world = World(vault)
        await world.keyring.open(Roll({"h1": Member(None, frozenset(range(1, 200)))}))
        await vault.close()

    async def read() -> None:
        vault = await Vault.open(path)
        try:
            for row in await vault.load():
                rows.append(row)
                Box(KEK).open(row)
        finally:
            await vault.close()

    run(fill())
    rows: list[Row] = []
    run(read())
    data, whole, refused = path.read_bytes(), rows.copy(), 0
    for at in range(1000, len(data), len(data) // 16):
        path.write_bytes(data[:at] + os.urandom(1000) + data[at + 1000 :])
        rows.clear()
        try:
            run(read())
        except StoreError:
            refused += 1
        else:
            # Bytes that nothing uses.
            assert rows == whole
    assert refused > 8
