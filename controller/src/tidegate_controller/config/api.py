"""Where hosts and operators ask, who they are, and what each host may announce.

```text
 [api] listen, plain, public, lease, operator-token ─┐
 [hosts.NAME] token, segments, macs ─────────────────┴▶ Api
```

Tokens are kept as SHA-256, so that the file tells no secret.
"""

import hashlib
import ipaddress
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate_controller.config.section import ConfigError, Section
from tidegate_controller.model.hosts import Allowed, MacRange, number_of

OPERATOR = "operator"
"""The common name of an operator's certificate, so no host has it."""
MOST_SEGMENTS = 4096
MOST_MACS = 4096
LARGEST_TOKEN_FILE = 4096
HASH = re.compile(r"sha256:([0-9a-f]{64})")
MAC_RANGE = re.compile(r"([0-9a-f]{2}(?::[0-9a-f]{2}){5})(?:/([0-9]{1,2}))?")
URL = re.compile(r"https?://[0-9A-Za-z.:\[\]-]{1,250}")


@dataclass(frozen=True)
class Api:
    """The API, as configured."""

    listen: tuple[str, int] | None = None
    """Address and port; `None`: it is not served."""
    plain: bool = False
    """Whether tokens may cross the network in plain text."""
    public: str | None = None
    """The URL by which others reach it."""
    lease: float = 15.0
    """s for which a registration holds."""
    operator: bytes | None = None
    """SHA-256 of the operators' token."""
    tokens: Mapping[str, bytes] = field(default_factory=dict)
    """SHA-256 of the token of each host."""
    allowed: Mapping[str, Allowed] = field(default_factory=dict)
    """What each host may announce."""

    @property
    def needs_tls(self) -> bool:
        """Whether it would send tokens over a network that is not declared safe."""
        return (
            self.listen is not None
            and not self.plain
            and not ipaddress.ip_address(self.listen[0]).is_loopback
        )


def endpoint(section: Section, key: str, text: str) -> tuple[str, int]:
    """Reads ADDRESS:PORT."""
    host, _, port = text.rpartition(":")
    try:
        found = str(ipaddress.ip_address(host.strip("[]")))
        number = int(port)
    except ValueError:
        raise section.fault(key, f"is {text[:60]!r}; ADDRESS:PORT was expected") from None
    if not 0 <= number < 65536:
        raise section.fault(key, f"has port {number}; 0 to 65535 were expected")
    return found, number


def read(section: Section, hosts: Mapping[str, "MayAnnounce"], addresses: Mapping[str, str]) -> Api:
    """Reads `[api]`; `addresses` are those of the outer frames of hosts."""
    listen = None
    if section.has("listen"):
        listen = endpoint(section, "listen", section.text("listen"))
    plain = section.take("plain", bool, "true or false", False)
    public = None
    if section.has("public"):
        public = section.text("public", URL, "a URL such as https://10.0.0.1:6654")
    lease = section.quantity("lease", "time", "15s") / 1e9
    if not 1 <= lease <= 3600:
        raise section.fault("lease", "1s to 3600s were expected")
    operator = _operator(section)
    tokens = {name: host.token for name, host in hosts.items() if host.token is not None}
    seen: dict[bytes, str] = {operator: "the operators"} if operator else {}
    for name, token in tokens.items():
        if token in seen:
            raise ConfigError(f"{section.where}: hosts.{name}.token: is that of {seen[token]}, too")
        seen[token] = f"host {name}"
    section.end()
    allowed = {name: Allowed(addresses[name], host.segments, host.macs) for name, host in hosts.items()}
    return Api(listen, plain, public, lease, operator, tokens, allowed)


def _operator(section: Section) -> bytes | None:
    if section.has("operator-token"):
        if section.has("operator-token-file"):
            raise section.fault("operator-token", "and `operator-token-file` are two; state one")
        return _hash(section, "operator-token")
    if not section.has("operator-token-file"):
        return None
    key = "operator-token-file"
    path = Path(section.text(key))
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(LARGEST_TOKEN_FILE + 1).strip()
    except OSError as error:
        raise section.fault(key, f"{path}: {error.strerror}") from None
    if mode & 0o007:
        raise section.fault(key, f"{path} may be read by all ({mode:o}); `chmod o-rwx` it")
    if not 16 <= len(content) <= LARGEST_TOKEN_FILE:
        raise section.fault(
            key, f"{path} has {len(content)} bytes; a token of 16 to {LARGEST_TOKEN_FILE} is expected"
        )
    if not all(0x20 < byte < 0x7F for byte in content):
        raise section.fault(key, f"{path} has more than one word of visible ASCII: no client could send it")
    return hashlib.sha256(content).digest()


def _hash(section: Section, key: str) -> bytes:
    text = section.text(key, HASH, "sha256: and 64 hexadecimal digits (`printf %s TOKEN | sha256sum`)")
    return bytes.fromhex(text.removeprefix("sha256:"))


@dataclass(frozen=True)
class MayAnnounce:
    """Of one host's table."""

    token: bytes | None
    segments: frozenset[int]
    macs: tuple[MacRange, ...]


def announced(name: str, section: Section) -> MayAnnounce:
    """Takes `token`, `segments` and `macs` from a host's table."""
    if name == OPERATOR:
        raise section.fault(
            "", f"`{OPERATOR}` is the name of operators' certificates; name the host otherwise"
        )
    token = _hash(section, "token") if section.has("token") else None
    segments = section.take("segments", list, "a list of segments", [])
    if len(segments) > MOST_SEGMENTS:
        raise section.fault("segments", f"{len(segments)}; at most {MOST_SEGMENTS} are served")
    for segment in segments:
        if type(segment) is not int or not 0 < segment < 1 << 24:
            raise section.fault("segments", f"has {str(segment)[:60]!r}; 1 to 16777215 were expected")
    macs = section.take("macs", list, "a list of MAC addresses", [])
    if len(macs) > MOST_MACS:
        raise section.fault("macs", f"{len(macs)}; at most {MOST_MACS} are served")
    return MayAnnounce(token, frozenset(segments), tuple(_macs(section, text) for text in macs))


def _macs(section: Section, text: object) -> MacRange:
    found = MAC_RANGE.fullmatch(text) if isinstance(text, str) else None
    bits = int(found[2] or 48) if found else 49
    if found is None or bits > 48:
        wanted = "a MAC such as 02:00:00:00:0a:01, or a range such as 02:00:00:0b:00:00/32"
        raise section.fault("macs", f"has {str(text)[:60]!r}; {wanted} was expected")
    return MacRange(number_of(found[1]), bits)
