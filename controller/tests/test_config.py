"""The configuration's file: what it says, and what is wrong with it."""

import hashlib
import re
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller import config as config_package
from tidegate_controller.config import LARGEST_FILE, ConfigError, load, parse
from tidegate_controller.config.file import TERMS
from tidegate_controller.decide.react import Remedy
from tidegate_controller.main import main
from tidegate_controller.model.hosts import Allowed
from tidegate_controller.model.topology import Link, Port

GOOD = """
[openflow]
listen = "[::1]:6653"
[discovery]
interval = "1.5s"
[paths]
marks = [46, 34]
hold = "2s"
protect = true
[terms]
capacity = "1Gbit"
reservable = "500Mbit"
overhead = "20B"
levels = [{ delay = "200us", frames = 5000 }, { delay = "2ms", buffer = "1MiB" }]
[switches.s1]
datapath = "0000000000000001"
database = "unix:/run/db.sock"
[switches.s2]
datapath = "0000000000000002"
database = "tcp:10.0.0.2:6640"
[[links]]
between = ["s1:1", "s2:1"]
capacity = "10Gbit"
[hosts.h1]
port = "s1:2"
address = "10.0.0.1"
mac = "02:00:00:00:00:01"
token = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
segments = [100, 16777215]
macs = ["02:00:00:00:0a:01", "02:00:00:0b:00:00/32"]
vnics = ["web-*", "db"]
vnics-at-most = 9
addresses = ["192.168.1.0/24", "fd00::/64"]
paths = 12
rate = "50Mbit"
[api]
listen = "127.0.0.1:0"
public = "https://10.0.0.1:6654"
lease = "9s"
operator-token = "sha256:0000000000000000000000000000000000000000000000000000000000000002"
[hosts.h2]
port = "s2:2"
address = "FD00::2"
mac = "02:00:00:00:00:02"
"""


def test_what_may_be_done_about_misses_and_failures() -> None:
    """All, unless the operator leaves something out."""
    assert parse(GOOD, "f").settings.remedies == frozenset(Remedy)
    assert parse(GOOD, "f").settings.bfd
    fewer = GOOD.replace('"1.5s"', '"1.5s"\nbfd = false').replace('"2s"', '"2s"\nremedies = ["level"]')
    settings = parse(fewer, "f").settings
    assert (settings.remedies, settings.bfd) == (frozenset({Remedy.LEVEL}), False)
    none = parse(GOOD.replace('"2s"', '"2s"\nremedies = []'), "f").settings
    assert none.remedies == frozenset()


def test_a_file() -> None:
    """Terms of all, but for those of one link; both directions."""
    config = parse(GOOD, "f")
    assert config.listen == ("::1", 6653)
    assert (config.interval, config.bfd_interval) == (1.5, 50)
    slower = parse(GOOD.replace('"1.5s"', '"1.5s"\nbfd-interval = "0.2s"'), "f")
    assert slower.bfd_interval == 200
    assert (config.settings.hold, config.settings.protect) == (2.0, True)
    assert config.databases == {"unix:/run/db.sock": {1}, "tcp:10.0.0.2:6640": {2}}
    link = Link(Port("s1", 1), Port("s2", 1))
    assert config.links == {link, link.back}
    terms = {one.name: one for one in config.terms}
    assert set(terms) == {link.name, link.back.name, "h1>s1:2", "s1:2>h1", "h2>s2:2", "s2:2>h2"}
    fast, uplink = terms[link.back.name], terms["h1>s1:2"]
    assert (fast.source, fast.capacity, fast.reservable, fast.overhead) == ("s2", 10**10, 5 * 10**8, 20)
    assert (uplink.source, uplink.target, uplink.capacity) == ("h1", "s1", 10**9)
    assert [(level.delay, level.buffer, level.in_frames) for level in uplink.levels] == [
        (200_000, 5000, True),
        (2_000_000, 1 << 20, False),
    ]
    assert config.hosts["h2"].address == "fd00::2"
    api = config.api
    assert (api.listen, api.public, api.lease, api.plain) == (
        ("127.0.0.1", 0),
        "https://10.0.0.1:6654",
        9.0,
        False,
    )
    assert (api.tokens, api.operator) == ({"h1": (1).to_bytes(32)}, (2).to_bytes(32))
    one = api.allowed["h1"]
    assert one.address == "10.0.0.1"
    assert one.segments == {100, 16777215}
    for mac, mine in {"0a:01": True, "0a:02": False, "0b:ff": False}.items():
        assert any(macs.has(f"02:00:00:00:{mac}") for macs in one.macs) == mine
    assert one.macs[1].has("02:00:00:0b:ff:ff")
    names = [name for name in ("web-1", "db", "dbx", "web") if one.has_name(name)]
    assert (names, one.most_vnics) == (["web-1", "db"], 9)
    there = [text for text in ("192.168.1.9", "192.168.2.9", "fd00::9", "::1") if one.has_address(text)]
    assert (there, one.most_paths, one.most_rate) == (["192.168.1.9", "fd00::9"], 12, 50_000_000)
    assert api.allowed["h2"] == Allowed("fd00::2")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[openflow]", "[openflow]\nport = 7", "f: openflow.port: is not known"),
        ("[openflow]", "[other]\n[openflow]", "f: other: is not known"),
        ('"[::1]:6653"', '"localhost:1"', "f: openflow.listen: is 'localhost:1'; ADDRESS:PORT"),
        ('"[::1]:6653"', '"[::1]:66530"', "f: openflow.listen: has port 66530"),
        ('"1.5s"', '"10ms"', "f: discovery.interval: is below 50ms"),
        ('"1.5s"', '"1.5s"\nbfd-interval = "9.9ms"', "f: discovery.bfd-interval: is not 10ms to 10000ms"),
        ('"1.5s"', '"1.5s"\nbfd-interval = "11s"', "f: discovery.bfd-interval: is not 10ms to 10000ms"),
        ('"1.5s"', '"1.5s"\nbfd-interval = 50', "f: discovery.bfd-interval: "),
        ('"2s"', '"0s"', "f: paths.hold: is below 100ms"),
        ("[46, 34]", "[46, 46]", "f: paths.marks: marks .46, 46.: each level needs"),
        ("[46, 34]", "[46]", "levels: 2; `paths.marks` has 1"),
        ("[46, 34]", '["a", 1]', "f: paths.marks: "),
        ('"2s"', "2", "f: paths.hold: is '2'; a time such as 5ns"),
        ('"2s"', '"2s"\nremedies = ["luck"]', "f: paths.remedies: is .'luck'.; a list of rate, level, route"),
        ('"2s"', '"2s"\nremedies = [[]]', "f: paths.remedies: is ....; a list of rate"),
        ('"1.5s"', '"1.5s"\nbfd = "no"', "f: discovery.bfd: is 'no'; true or false"),
        ("true", "1", "f: paths.protect: is '1'; true or false"),
        ('capacity = "10Gbit"', 'capacity = "10GB"', "f: links.1.capacity: is '10GB'; a rate such as 5bit"),
        ('capacity = "10Gbit"', 'capacity = "9Mbit"', "f: links.1.capacity: is 9000000 bit/s; at least"),
        ('capacity = "1Gbit"', "", "f: hosts.h1.capacity: is missing|f: hosts.h2.capacity: is missing"),
        ("frames = 5000", "frames = 0", "levels.1.frames: is not above 0"),
        ("frames = 5000", "frames = 5000, buffer = '1B'", "levels.1.buffer: is not known"),
        ('"0000000000000002"', '"0000000000000001"', "f: switches.s2.datapath: is that of switch s1, too"),
        ('"0000000000000002"', '"2"', "f: switches.s2.datapath: is '2'; 16 hexadecimal digits"),
        ('"tcp:10.0.0.2:6640"', '"http:x"', "f: switches.s2.database: "),
        ("[switches.s2]", '[switches."a b"]', "f: switches.a b: 'a b' is no name"),
        ('"s2:1"]', '"s3:1"]', "f: links.1.between: switch 's3' is not in `switches`"),
        ('"s2:1"]', '"s2"]', "f: links.1.between: is 's2'; SWITCH:PORT"),
        ('"s2:1"]', '"s1:1"]', "f: links.1.between: port s1:1 is used already"),
        ('"s2:1"]', '"s1:3"]', "f: links.1.between: both ports are of one switch"),
        ('"s2:1"]', '"s2:0"]', "f: links.1.between: has port 0"),
        ('"s1:2"', '"s1:1"', "f: hosts.h1.port: port s1:1 is used already"),
        ('"FD00::2"', '"10.0.0.1"', "f: hosts.h2.address: 10.0.0.1 is that of host h1, too"),
        ('"FD00::2"', '"ten"', "f: hosts.h2.address: is 'ten'; an IP address"),
        ("00:00:02", "00:00:01", "f: hosts.h2.mac: 02:00:00:00:00:01 is that of host h1, too"),
        ("[hosts.h1]", "hosts.h1 = 5\n[x]", "f: hosts.h1: a table was expected|f: .*"),
        ("[hosts.h1]", "[hosts.h1", "f: .*line"),
        ('reservable = "500Mbit"', 'reservable = "20Gbit"', "f: links.1: "),
        ('"127.0.0.1:0"', '"127.0.0.1"', "f: api.listen: is '127.0.0.1'; ADDRESS:PORT"),
        ('"127.0.0.1:0"', '"0.0.0.0:1"', "f: api.listen: .*is no loopback address: it needs TLS, or `plain"),
        ('"https:', '"ftp:', "f: api.public: is 'ftp://10.0.0.1:6654'; a URL"),
        ('"9s"', '"0.9s"', "f: api.lease: 1s to 3600s"),
        ("operator-token =", "operator =", "f: api.operator: is not known"),
        ("operator-token =", "operator-token-file =", "f: api.operator-token-file: sha256:.*No such file"),
        ("operator-token =", 'operator-token-file = "x"\noperator-token =', "are two; state one"),
        ('000002"\n[hosts.h2]', '000001"\n[hosts.h2]', "f: hosts.h1.token: is that of the operators, too"),
        ("sha256:0", "sha1:0", "f: hosts.h1.token: is 'sha1:.*sha256: and 64 hexadecimal digits"),
        ("16777215]", "16777216]", "f: hosts.h1.segments: has '16777216'; 1 to 16777215"),
        ('"web-*"', '"web-/"', "f: hosts.h1.vnics: has 'web-/'; a name such as web-1, or a pattern"),
        ('"web-*"', "7", "f: hosts.h1.vnics: has '7'"),
        ("vnics-at-most = 9", "vnics-at-most = 4097", "f: hosts.h1.vnics-at-most: is 4097; 0 to 4096"),
        ("1.0/24", "1.1/24", "f: hosts.h1.addresses: 192.168.1.1/24 has host bits set; a prefix such as"),
        ("paths = 12", "paths = -1", "f: hosts.h1.paths: is -1; 0 to 500"),
        ("16777215]", "true]", "f: hosts.h1.segments: has 'True'"),
        ("00/32", "00/49", "f: hosts.h1.macs: has '02:00:00:0b:00:00/49'; a MAC such as"),
        ('"02:00:00:00:0a:01"', "5", "f: hosts.h1.macs: has '5'; a MAC"),
        ("[hosts.h1]", "[hosts.operator]", "f: hosts.operator: `operator` is the name"),
    ],
)
def test_faults_name_the_key(old: str, new: str, text: str) -> None:
    """And what was expected."""
    assert old in GOOD
    with pytest.raises(ConfigError, match=text.replace("[", r"\[")):
        parse(GOOD.replace(old, new, 1), "f")


@given(st.data())
def test_any_value_anywhere(data: st.DataObject) -> None:
    """A value of another kind is a fault with a text, and never anything else."""
    lines = GOOD.splitlines()
    number = data.draw(st.sampled_from([at for at, line in enumerate(lines) if " = " in line]))
    values = [
        "-1",
        "0",
        "1e400",
        "nan",
        "true",
        '""',
        "[]",
        "[[]]",
        "{}",
        "1979-05-27",
        '"x"',
        '"9' + "9" * 30 + 's"',
    ]
    lines[number] = f"{lines[number].partition(' = ')[0]} = {data.draw(st.sampled_from(values))}"
    text = "\n".join(lines)
    tomllib.loads(text)
    with suppress(ConfigError):
        parse(text, "f")


def test_bounds() -> None:
    """Of switches, so of all that a file can make."""
    many = "".join(f'[switches.s{n}]\ndatapath = "{n:016x}"\ndatabase = "unix:/x"\n' for n in range(1, 258))
    with pytest.raises(ConfigError, match="switches: 257; at most 256"):
        parse(many, "f")
    with pytest.raises(ConfigError, match="switches: none is named"):
        parse("", "f")


def test_the_operators_token_in_a_file(tmp_path: Path) -> None:
    """It is read with the configuration; a file that all may read is a fault."""
    file = tmp_path / "token"
    text = re.sub("operator-token = .*", f'operator-token-file = "{file}"', GOOD)
    file.write_text("a-token-of-16-bytes\n")
    file.chmod(0o600)
    assert parse(text, "f").api.operator == hashlib.sha256(b"a-token-of-16-bytes").digest()
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="may be read by all"):
        parse(text, "f")
    file.write_text("short")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="has 5 bytes"):
        parse(text, "f")
    for content in ("two words of a token", "a-token-of-16-b\u00fctes"):
        file.write_text(content)
        with pytest.raises(ConfigError, match="more than one word of visible ASCII"):
            parse(text, "f")


@pytest.mark.parametrize("page", ["docs/reference/controller.md", "controller/README.md"])
def test_examples_of_the_documentation(page: str, tmp_path: Path) -> None:
    """The program takes them."""
    text = (Path(__file__).parents[2] / page).read_text()
    examples = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 1
    file = tmp_path / "example.toml"
    file.write_text(examples[0])
    assert main(["--check", "--config", str(file)]) == 0


def test_every_key_is_documented() -> None:
    """By its name in the table of keys."""
    text = (Path(__file__).parents[2] / "docs/reference/controller.md").read_text()
    source = Path(config_package.__file__).parent
    keys = set()
    for name in ("file.py", "api.py", "tls.py"):
        keys |= set(re.findall(r"""\.(?:take|text|quantity)\(\s*"([a-z-]+)\"""", (source / name).read_text()))
    keys |= set(TERMS)
    assert {"listen", "lease", "segments", "hold", "between", "datapath"} <= keys
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_the_program_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and one line."""
    file = tmp_path / "c.toml"
    file.write_text(GOOD)
    assert main(["--check", "--config", str(file)]) == 0
    file.write_text(GOOD.replace("hold", "held"))
    assert main(["--config", str(file)]) == 2
    assert capsys.readouterr().err == f"{file}: paths.held: is not known\n"
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none")
    file.write_bytes(b"#" * (LARGEST_FILE + 1))
    with pytest.raises(ConfigError, match="at most"):
        load(file)
