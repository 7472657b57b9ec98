"""What of a file that is read again is in force, and what takes a restart."""

import hashlib

import pytest

from tidegate_controller.config import Config, ConfigError, parse
from tidegate_controller.config.anew import renewed

TLS = '[tls]\nfolder = "/c"\n'
FILE = """
[openflow]
listen = "127.0.0.1:6653"
[api]
listen = "127.0.0.1:6654"
operator-token = "{operator}"
[terms]
capacity = "1Gbit"
reservable = "500Mbit"
levels = [{{ delay = "200us", frames = 500 }}, {{ delay = "2ms", frames = 500 }}]
[switches.s1]
datapath = "0000000000000001"
database = "tcp:127.0.0.1:6640"
[switches.s2]
datapath = "0000000000000002"
database = "tcp:127.0.0.1:6641"
[[links]]
between = ["s1:1", "s2:1"]
"""


def digest(text: str) -> str:
    """As in the file."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def host(number: int, port: int | None = None, segments: str = "100", own: str = "", token: str = "") -> str:
    """The table of a host."""
    return f"""
    [hosts.h{number}]
    port = "s1:{port or number + 1}"
    address = "10.0.0.{number}"
    mac = "02:00:00:00:00:0{number}"
    token = "{digest(token or f"h{number}")}"
    segments = [{segments}]
    {own}
    """


def config(*parts: str, operator: str = "o") -> Config:
    """The file with these tables."""
    return parse(FILE.format(operator=digest(operator)) + "".join(parts), "f")


def test_hosts_and_tokens_are_taken() -> None:
    """What hosts may announce, tokens, a host that is new with its terms, the operators' token."""
    force = config(host(1), host(2))
    file = config(
        host(1, segments="100, 200", token="other"),
        host(2),
        host(3, own='reservable = "1Mbit"'),
        operator="p",
    )
    new, left = renewed(force, file, force.terms)
    assert left == []
    assert new == file
    assert new.api.allowed["h1"].segments == {100, 200}
    assert {link.name for link in new.terms} - {link.name for link in force.terms} == {"h3>s1:4", "s1:4>h3"}
    assert renewed(new, file, new.terms) == (new, [])


def test_a_host_that_leaves_keeps_its_port() -> None:
    """It may nothing, and another one at its port takes a restart; it may come back."""
    force = config(host(1), host(2))
    new, left = renewed(force, config(host(1)))
    assert left == []
    assert new.hosts == force.hosts
    assert set(new.api.allowed) == set(new.api.tokens) == {"h1"}
    new, left = renewed(new, config(host(1), host(3, port=3)))
    assert left == ["hosts.h3.port is that of host h2 until a restart: host h3 is not taken"]
    assert new.api.allowed.keys() == {"h1"}
    new, left = renewed(new, force)
    assert (new, left) == (force, [])


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("127.0.0.1:6653", "127.0.0.1:6655", ["openflow.listen"]),
        ("127.0.0.1:6654", "127.0.0.1:6655", ["api.listen"]),
        ("[terms]", '[paths]\nhold = "1s"\nprotect = true\n[terms]', ["paths.hold", "paths.protect"]),
        ("[terms]", '[discovery]\ninterval = "2s"\n[terms]', ["discovery.interval"]),
        ("[terms]", '[discovery]\nbfd-interval = "90ms"\n[terms]', ["discovery.bfd-interval"]),
        ("[terms]", "[discovery]\nbfd = false\n[terms]", ["discovery.bfd"]),
        ("[terms]", '[paths]\nremedies = ["route"]\n[terms]', ["paths.remedies"]),
        ("[terms]", '[state]\nfile = "/x"\n[terms]', ["state"]),
        ("[api]", '[api]\nlease = "9s"\nplain = true', ["api.lease", "api.plain"]),
        ("[api]", '[api]\npublic = "http://10.0.0.1:1"', ["api.public"]),
        ("0000000000000002", "0000000000000003", ["switches.s2"]),
        ("127.0.0.1:6641", "127.0.0.1:6640", ["switches.s2"]),
        (
            '"s2:1"]',
            '"s2:2"]',
            ["links: s1:1>s2:1", "links: s1:1>s2:2", "links: s2:1>s1:1", "links: s2:2>s1:1"],
        ),
        ('"s2:1"]', '"s2:1"]\nlatency = "1us"', ["terms: s1:1>s2:1", "terms: s2:1>s1:1"]),
        ('"s1:2"', '"s1:9"', ["hosts.h1.port"]),
        ('"10.0.0.1"', '"10.0.0.9"', ["hosts.h1.address"]),
        ("00:01", "00:09", ["hosts.h1.mac"]),
    ],
)
def test_all_else_takes_a_restart(old: str, new: str, keys: list[str]) -> None:
    """The key is named; all stays as it was, and is named again at the next time."""
    text = FILE.format(operator=digest("o")) + host(1)
    assert old in text
    force, file = parse(text, "f"), parse(text.replace(old, new), "f")
    for _ in range(2):
        found, left = renewed(force, file)
        expected = [f"{key} is another one in the file: that takes a restart" for key in keys]
        assert [line for line in left if "h1>" not in line and ">h1" not in line] == expected
        assert found == force


def test_tls_that_comes_or_goes() -> None:
    """Who is who would be another question: nothing is taken."""
    for one, other in ((config(), config(TLS)), (config(TLS), config())):
        with pytest.raises(ConfigError, match="tls: came into the file, or left it"):
            renewed(one, other)


def test_keys_of_tls() -> None:
    """Files, members and what is revoked are taken; times and the store are not."""
    force = config(TLS, host(1))
    more = 'revoked = ["1f"]\nlifetime = "9d"\n[keys]\nrotate = "9h"\noverlap = "9min"\nstore = "/s"\n'
    file = config(TLS, more, host(1), host(2, port=2).replace("s1:2", "s2:2"))
    new, left = renewed(force, file)
    named = [line.split()[0] for line in left]
    assert named == ["keys.overlap", "keys.rotate", "keys.store", "tls.lifetime"]
    assert new.trust is not None
    assert new.trust.roll.revoked == {0x1F}
    assert set(new.trust.roll.members) == {"h1", "h2"}
    assert force.trust is not None
    assert (new.trust.lifetime, new.trust.store) == (force.trust.lifetime, force.trust.store)


def test_too_many_links() -> None:
    """Those that the controller ever had count."""
    force = config(host(1))
    one = force.terms[0]
    many = [type(one)(f"x{n}", "a", "b", one.capacity, one.reservable, one.levels) for n in range(20_000)]
    with pytest.raises(ConfigError, match="hosts: 20006 links; at most 20000"):
        renewed(force, config(host(1), host(2)), many)
