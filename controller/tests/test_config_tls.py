"""`[tls]` and `[keys]`: what they say, and what is wrong with them."""

from pathlib import Path

import pytest
from test_config import GOOD

from tidegate_controller.config import ConfigError, parse
from tidegate_controller.trust.ring import Times

TLS = """
[tls]
folder = "/etc/c"
key = "/run/key.pem"
switches-authority = "/etc/others.pem"
lifetime = "7d"
revoked = ["0x1F", "2a"]
[keys]
rotate = "12h"
overlap = "30min"
store = "/var/lib/c/trust.db"
key-encryption-key = "/run/kek"
"""
WHOLE = GOOD.replace("[openflow]", "[openflow]\ntls = true").replace("tcp:", "ssl:") + TLS


def test_a_file() -> None:
    """All keys, and their usual values."""
    trust = parse(WHOLE, "f").trust
    assert trust is not None
    assert (trust.folder, trust.openflow, trust.lifetime) == (Path("/etc/c"), True, 7 * 86400.0)
    assert trust.files == {
        "key": Path("/run/key.pem"),
        "switches-authority": Path("/etc/others.pem"),
        "key-encryption-key": Path("/run/kek"),
    }
    assert (trust.times, trust.store) == (Times(43200.0, 1800.0), Path("/var/lib/c/trust.db"))
    assert trust.roll.revoked == {31, 42}
    assert "h1" in trust.roll.members
    usual = parse(GOOD + "[tls]\n", "f").trust
    assert usual is not None
    assert (usual.folder, usual.openflow, usual.lifetime) == (
        Path("/etc/tidegate-controller"),
        False,
        30 * 86400.0,
    )
    assert usual.times == Times(86400.0, 3600.0)
    assert parse(GOOD, "f").trust is None


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (TLS, "", "needs a certificate|needs a table .tls."),
        (TLS, "[tls]\nfolder = 5", "f: tls.folder: is '5'"),
        ("tls = true", "tls = 1", "f: openflow.tls: is '1'; true or false"),
        ('"/etc/c"', '"etc/c"', "f: tls.folder: is 'etc/c'; the whole path of a file"),
        ('"/run/key.pem"', '"key.pem"', "f: tls.key: is 'key.pem'; the whole path of a file"),
        ('"/run/kek"', r'"/run/\u0000"', "f: keys.key-encryption-key: "),
        ('"7d"', '"5min"', "f: tls.lifetime: is not between 1h and 366d"),
        ('"7d"', '"367d"', "f: tls.lifetime: is not between"),
        ('"7d"', "7", "f: tls.lifetime: is '7'; a time such as 5ns"),
        ('"2a"', '"xy"', "f: tls.revoked: has 'xy'; hexadecimal"),
        ('"2a"', "42", "f: tls.revoked: has '42'; hexadecimal"),
        ('["0x1F", "2a"]', '"2a"', "f: tls.revoked: is '2a'; a list"),
        ('"30min"', '"5h"', "f: keys.overlap: overlap 18000 s is not above 0 and at most a third of 43200 s"),
        ('"30min"', '"10ms"', "f: keys.overlap: is below 1s"),
        ("lifetime", "lifetimes", "f: tls.lifetimes: is not known"),
        ("overlap", "overlaps", "f: keys.overlaps: is not known"),
    ],
)
def test_faults_name_the_key(old: str, new: str, text: str) -> None:
    """And what was expected."""
    assert old in WHOLE
    with pytest.raises(ConfigError, match=text):
        parse(WHOLE.replace(old, new, 1), "f")


def test_without_tls() -> None:
    """No keys, and no database by TLS."""
    with pytest.raises(ConfigError, match=r"f: keys: needs a table .tls.: keys go to hosts by TLS alone"):
        parse(GOOD + "[keys]\n", "f")
    with pytest.raises(ConfigError, match=r"f: switches\.s2\.database: ssl:10.* needs a certificate"):
        parse(GOOD.replace("tcp:", "ssl:"), "f")


def test_switches_by_tls_need_files() -> None:
    """Else they would connect in plain text though TLS was asked for."""
    with pytest.raises(ConfigError, match=r"f: openflow\.tls: needs a table .tls."):
        parse(GOOD.replace("[openflow]", "[openflow]\ntls = true"), "f")
