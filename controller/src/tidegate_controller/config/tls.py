"""`[tls]`, `[keys]`, and what hosts have of them.

```text
 [tls] files, lifetime, revoked ─┐
 [keys] rotate, overlap, store ──┼─▶ TrustConfig (None without [tls]: nothing is encrypted)
 [openflow] tls ─────────────────┤
 [hosts.NAME] (config/api.py) ───┘
```
"""

import re

from tidegate_controller.config.api import MayAnnounce
from tidegate_controller.config.section import Section
from tidegate_controller.trust.ring import Times
from tidegate_controller.trust.roll import Member, Roll
from tidegate_controller.trust.settings import FOLDER, STORE, TrustConfig

SERIAL = re.compile(r"(0x)?[0-9a-fA-F]{1,40}")
FILES = ("authority", "authority-key", "certificate", "key", "switches-authority")
MOST_REVOKED = 10_000
LEAST_LIFETIME, MOST_LIFETIME = 3600.0, 366 * 86400.0
"""s"""
LEAST_OVERLAP = 1.0
"""s: shorter ones are for tests only, and cost a write of each segment."""


def read(root: Section, openflow: Section, members: dict[str, Member]) -> TrustConfig | None:
    """Takes the tables."""
    wanted = openflow.take("tls", bool, "true or false", False)
    if not root.has("tls"):
        if wanted:
            raise openflow.fault("tls", "needs a table [tls] with the certificate's files")
        if root.has("keys"):
            raise root.fault("keys", "needs a table [tls]: keys go to hosts by TLS alone")
        return None
    tls, keys = root.section("tls"), root.section("keys")
    folder = tls.path("folder", FOLDER)
    files = {name: tls.path(name) for name in FILES if tls.has(name)}
    if keys.has("key-encryption-key"):
        files["key-encryption-key"] = keys.path("key-encryption-key")
    lifetime = tls.quantity("lifetime", "time", "30d") / 1e9
    if not LEAST_LIFETIME <= lifetime <= MOST_LIFETIME:
        raise tls.fault("lifetime", "is not between 1h and 366d")
    revoked = _revoked(tls)
    rotate, overlap = (
        keys.quantity(name, "time", usual) / 1e9 for name, usual in (("rotate", "24h"), ("overlap", "1h"))
    )
    if overlap < LEAST_OVERLAP:
        raise keys.fault("overlap", "is below 1s")
    try:
        times = Times(rotate, overlap)
    except ValueError as error:
        raise keys.fault("overlap", str(error)) from None
    store = keys.path("store", STORE)
    tls.end()
    keys.end()
    return TrustConfig(folder, files, lifetime, times, store, wanted, Roll(members, revoked))


def member(announced: MayAnnounce) -> Member:
    """Returns what a host of the file may have."""
    token = announced.token
    return Member(None if token is None else f"sha256:{token.hex()}", announced.segments)


def _revoked(tls: Section) -> frozenset[int]:
    serials = tls.take("revoked", list, "a list of serial numbers", [])
    if len(serials) > MOST_REVOKED:
        raise tls.fault(
            "revoked", f"has {len(serials)}; at most {MOST_REVOKED} are read: make a new authority"
        )
    for serial in serials:
        if not isinstance(serial, str) or not SERIAL.fullmatch(serial):
            raise tls.fault(
                "revoked", f"has {str(serial)[:60]!r}; hexadecimal digits in quotes were expected"
            )
    return frozenset(int(serial, 16) for serial in serials)
