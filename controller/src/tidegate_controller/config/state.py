"""`[state]`: where paths, changes under way and decisions are kept.

```toml
[state]                                  # one controller
file = "/var/lib/tidegate-controller/state.sqlite"

[state]                                  # several: the one that is elected leads
etcd = ["https://10.0.0.1:2379", "https://10.0.0.2:2379", "https://10.0.0.3:2379"]
prefix = "/tidegate/"
lease = "10s"
ca = "/etc/tidegate-controller/etcd-ca.pem"
certificate = "/etc/tidegate-controller/etcd.pem"
key = "/etc/tidegate-controller/etcd.key"
```
"""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidegate_controller.config.section import ConfigError, Section

FILE = "/var/lib/tidegate-controller/state.sqlite"
PREFIX = re.compile(r"/([A-Za-z0-9._-]{1,60}/){1,4}")
LEASE = range(3, 121)
"""s; etcd itself grants no lease below 2 s."""
MOST_MEMBERS = 9


@dataclass(frozen=True)
class StateFile:
    """A SQLite database of this machine."""

    path: Path


@dataclass(frozen=True)
class StateEtcd:
    """An etcd that several controllers share."""

    members: tuple[str, ...]
    """URLs."""
    prefix: str
    """Of all keys; ends with a slash."""
    lease: float
    """s: so long after its end a leader is replaced."""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def tls(self) -> ssl.SSLContext | None:
        """Reads the files. Raises `ConfigError`."""
        if self.ca is None and self.certificate is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"state: {self.ca or ''} {self.certificate or ''} {self.key or ''}: {error}"
            ) from None
        return context


State = StateFile | StateEtcd


def state(section: Section) -> State:
    """Reads the table. Raises `ConfigError`."""
    if not section.has("etcd"):
        path = section.path("file", FILE)
        section.end()
        return StateFile(path)
    if section.has("file"):
        raise section.fault("file", "and `etcd` are both there; one of them was expected")
    members = section.take("etcd", list, "a list of URLs")
    if not 1 <= len(members) <= MOST_MEMBERS:
        raise section.fault("etcd", f"has {len(members)} members; 1 to {MOST_MEMBERS} were expected")
    urls = tuple(_url(section, one) for one in members)
    prefix = section.take("prefix", str, "a prefix of keys", "/tidegate/")
    if not PREFIX.fullmatch(prefix):
        raise section.fault("prefix", f"is {prefix[:60]!r}; such as /tidegate/ was expected")
    lease = section.quantity("lease", "time", "10s") / 1e9
    if not LEASE.start <= lease < LEASE.stop or lease % 1:
        raise section.fault(
            "lease", f"is {lease:g}s; whole seconds from {LEASE.start} to {LEASE.stop - 1} were expected"
        )
    files = {key: section.path(key) for key in ("ca", "certificate", "key") if section.has(key)}
    if ("certificate" in files) != ("key" in files):
        raise section.fault("certificate", "and `key` belong together; one of them is missing")
    if files and not all(url.startswith("https://") for url in urls):
        raise section.fault("etcd", "has a member by http; https was expected, since there are certificates")
    section.end()
    return StateEtcd(urls, prefix, lease, **files)


def _url(section: Section, text: object) -> str:
    try:
        found = urlsplit(text) if isinstance(text, str) else None
        plain = found is not None and not (
            found.query or found.fragment or found.username or found.path.strip("/")
        )
        if (
            found is not None
            and plain
            and found.scheme in ("http", "https")
            and found.hostname
            and found.port
        ):
            return f"{found.scheme}://{found.netloc}"
    except ValueError:
        pass
    raise section.fault("etcd", f"has {str(text)[:60]!r}; URLs such as https://10.0.0.1:2379 were expected")
