"""`[state]` of the configuration."""

from pathlib import Path

import pytest
from test_config import GOOD

from tidegate_controller.config import ConfigError, parse
from tidegate_controller.config.state import FILE, StateEtcd, StateFile

ETCD = 'etcd = ["http://127.0.0.1:2379", "http://[::1]:2379/"]'


def test_what_it_says() -> None:
    """A file by default, or an etcd."""
    assert parse(GOOD, "f").state == StateFile(Path(FILE))
    assert parse(GOOD + '[state]\nfile = "/a/b"', "f").state == StateFile(Path("/a/b"))
    members = ("http://127.0.0.1:2379", "http://[::1]:2379")
    found = parse(GOOD + "[state]\n" + ETCD, "f").state
    assert found == StateEtcd(members, "/tidegate/", 10.0)
    assert isinstance(found, StateEtcd)
    assert found.tls() is None
    secure = (
        'etcd = ["https://e:2379"]\nprefix = "/a/b/"\nlease = "5s"\nca = "/c"\ncertificate = "/d"\nkey = "/e"'
    )
    found = parse(GOOD + "[state]\n" + secure, "f").state
    assert found == StateEtcd(("https://e:2379",), "/a/b/", 5.0, Path("/c"), Path("/d"), Path("/e"))
    with pytest.raises(ConfigError, match="/c /d /e: "):
        found.tls()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("file = 7", "f: state.file: is '7'; the whole path of a file"),
        ('file = "state.sqlite"', "f: state.file: is 'state.sqlite'; the whole path of a file"),
        ('fil = "/a"', "f: state.fil: is not known"),
        ('file = "/a"\n' + ETCD, "f: state.file: and `etcd` are both there"),
        ('file = "/a"\nprefix = "/a/"', "f: state.prefix: is not known"),
        ("etcd = []", "f: state.etcd: has 0 members; 1 to 9"),
        ('etcd = "http://a:1"', "a list of URLs was expected"),
        ("etcd = [7]", "f: state.etcd: has '7'; URLs such as"),
        ('etcd = ["ftp://a:1"]', "URLs such as"),
        ('etcd = ["http://a"]', "URLs such as"),
        ('etcd = ["http://a:99999"]', "URLs such as"),
        ('etcd = ["http://u@a:1"]', "URLs such as"),
        ('etcd = ["http://a:1/b"]', "URLs such as"),
        (ETCD + '\nprefix = "a"', "f: state.prefix: is 'a'; such as /tidegate/"),
        (ETCD + '\nprefix = "/a"', "such as /tidegate/"),
        (ETCD + '\nlease = "2s"', "f: state.lease: is 2s; whole seconds from 3 to 120"),
        (ETCD + '\nlease = "3.5s"', "f: state.lease: is 3.5s"),
        (ETCD + '\nlease = "121s"', "f: state.lease: is 121s"),
        (ETCD + '\nca = "/a"', "f: state.etcd: has a member by http; https was expected"),
        ('etcd = ["https://a:1"]\nkey = "/a"', "f: state.certificate: and `key` belong together"),
    ],
)
def test_what_is_wrong(text: str, fault: str) -> None:
    """The key, and what was expected."""
    with pytest.raises(ConfigError) as found:
        parse(f"{GOOD}[state]\n{text}", "f")
    assert fault in str(found.value)
