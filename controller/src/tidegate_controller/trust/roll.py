"""Who is in the configuration, and who a certificate or a token stands for.

```text
 certificate (checked by TLS) ─▶ role, name ─▶ in the file? not revoked? ─▶ Proof
 token ─▶ its digest ─▶ whose? ───────────────────────────────────────────▶ Proof     else Refusal
```

A certificate of our authority says in OU what its owner is, so that a host with the name of a switch is no
switch. It is asked anew for each request: a host that leaves the file is out with its next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.secret import DIGEST, digest

OPERATOR = "operator"
"""CN of operators' certificates; no host may have this name."""


class Role(StrEnum):
    """OU of a certificate."""

    HOST = "host"
    OPERATOR = "operator"
    SWITCH = "switch"
    CONTROLLER = "controller"


@dataclass(frozen=True)
class Member:
    """What a host of the file may have."""

    token: str | None = None
    """`sha256:HEX` of its enrolment token; none: it cannot enrol, and its certificates count as they are."""
    segments: frozenset[int] = frozenset()
    """Whose keys it gets."""


@dataclass(frozen=True)
class Roll:
    """All hosts of the file, and what is revoked."""

    members: Mapping[str, Member] = field(default_factory=dict)
    revoked: frozenset[int] = frozenset()
    """Serial numbers."""

    @cached_property
    def tokens(self) -> Mapping[str, str]:
        """The host of each token, by its digest."""
        return {member.token: name for name, member in self.members.items() if member.token is not None}

    def segments(self) -> dict[int, frozenset[str]]:
        """The hosts of each segment."""
        found: dict[int, set[str]] = {}
        for name, member in self.members.items():
            for segment in member.segments:
                found.setdefault(segment, set()).add(name)
        return {segment: frozenset(hosts) for segment, hosts in found.items()}


@dataclass(frozen=True)
class Proof:
    """Who asks: by a certificate, if a serial number is known, else by a token."""

    role: Role
    name: str
    serial: int | None = None
    token: str | None = None
    """`sha256:HEX` of the token that was shown, or by which the first of a host's certificates was got."""


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, str, int]:
    """Returns CN, OU and serial number of what `ssl.SSLObject.getpeercert` gives. Raises `Refusal`."""
    if not certificate:
        raise Refusal("unauthorized", "no certificate was shown")
    parts = _subject(certificate)
    names = parts.get("commonName", [])
    if len(names) != 1:
        raise Refusal("unauthorized", f"the certificate has {len(names)} common names; one was expected")
    units = parts.get("organizationalUnitName", [])
    return names[0], units[0] if len(units) == 1 else "", int(certificate.get("serialNumber", "0"), 16)


def _subject(certificate: Mapping[str, Any]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for group in certificate.get("subject", ()):
        for key, value in group:
            parts.setdefault(key, []).append(str(value))
    return parts


def by_certificate(certificate: Mapping[str, Any] | None, roll: Roll) -> Proof:
    """Returns who has shown a certificate of our authority. Raises `Refusal`."""
    name, unit, serial = names_of(certificate)
    if serial in roll.revoked:
        raise Refusal("forbidden", f"the certificate {serial:x} of {name[:60]!r} is revoked")
    if unit == Role.OPERATOR and name == OPERATOR:
        return Proof(Role.OPERATOR, name, serial)
    if unit != Role.HOST:
        raise Refusal(
            "forbidden",
            f"the certificate of {name[:60]!r} is that of a {unit[:60] or 'stranger'}, not of a host",
        )
    member = roll.members.get(name)
    if member is None:
        raise Refusal("forbidden", f"host {name[:60]!r} is not in the controller's configuration")
    tokens = [DIGEST + value for value in _subject(certificate or {}).get("serialNumber", [])]
    if member.token is not None and tokens != [member.token]:
        raise Refusal(
            "forbidden",
            f"the certificate {serial:x} of {name[:60]!r} follows from another token than the one in the"
            " controller's configuration: enrol with that one",
        )
    return Proof(Role.HOST, name, serial, tokens[0] if tokens else None)


def by_token(token: str, roll: Roll) -> Proof:
    """Returns the host that an enrolment token was made for, used or not. Raises `Refusal`."""
    # Of a digest, the time of the look-up tells nothing that helps to find a token.
    asked = digest(token)
    found = roll.tokens.get(asked)
    if found is None:
        raise Refusal(
            "unauthorized", "this token is that of no host: `tidegate-controller token HOST` makes one"
        )
    return Proof(Role.HOST, found, token=asked)
