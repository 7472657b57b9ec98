"""Who asks.

```text
 TLS: the certificate's common name ─┐
 Authorization: Bearer TOKEN ────────┴▶ Identity: a host, an operator, or unknown ─▶ may it do this?
```

A token is looked for by its SHA-256, so how long that takes tells nothing of any token. With TLS, a host's
token is good for its enrolment only.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tidegate_controller.api.problem import Code, Problem
from tidegate_controller.config.api import OPERATOR, Api
from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.roll import names_of

LONGEST_TOKEN = 4096


class Kind(StrEnum):
    """What a client is."""

    HOST = "host"
    OPERATOR = "operator"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Identity:
    """A client."""

    kind: Kind
    name: str = ""
    """Of the host."""
    certified: bool = False
    """By its certificate, not by a token."""
    proof: Any = field(default=None, compare=False, repr=False)
    """What `trusted.py` knows it by."""
    why: str = field(default="", compare=False)
    """Why it is unknown, if there is more to say."""


UNKNOWN = Identity(Kind.UNKNOWN)


class Known(Protocol):
    """Who clients are."""

    def of(self, certificate: Mapping[str, Any] | None, authorization: str | None) -> Identity:
        """Who it is, by its checked certificate and the header `Authorization`."""

    def take(self, api: Api) -> None:
        """Takes hosts and tokens of a configuration that is read again."""


class Identities:
    """All clients that there are."""

    def __init__(self, hosts: Iterable[str], tokens: Mapping[str, bytes], operator: bytes | None) -> None:
        """`tokens` and `operator` are SHA-256 of tokens."""
        self._set(hosts, tokens, operator)

    def take(self, api: Api) -> None:
        """Takes hosts and tokens of a configuration that is read again."""
        self._set(api.allowed, api.tokens, api.operator)

    def _set(self, hosts: Iterable[str], tokens: Mapping[str, bytes], operator: bytes | None) -> None:
        self._hosts = frozenset(hosts)
        self._tokens = {digest: Identity(Kind.HOST, name) for name, digest in tokens.items()}
        if operator is not None:
            self._tokens[operator] = Identity(Kind.OPERATOR)

    def of(self, certificate: Mapping[str, Any] | None, authorization: str | None) -> Identity:
        """Who it is. A token that is wrong counts, not the certificate beside it."""
        if authorization is not None:
            return self._by_token(authorization)
        try:
            name, _, _ = names_of(certificate)
        except Refusal:
            return UNKNOWN
        if name == OPERATOR:
            return Identity(Kind.OPERATOR, certified=True)
        if name in self._hosts:
            return Identity(Kind.HOST, name, certified=True)
        return UNKNOWN

    def _by_token(self, authorization: str) -> Identity:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(token) > LONGEST_TOKEN:
            return UNKNOWN
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        return self._tokens.get(digest, UNKNOWN)


def check(identity: Identity, schemes: Iterable[str], secure: bool, host: str | None) -> None:
    """Whether a client may ask; `schemes` are those of the operation, `host` is the one in its path.

    Raises `Problem`.
    """
    schemes = list(schemes)
    if not schemes:
        return
    if identity.kind == Kind.UNKNOWN:
        text = identity.why or "no token or certificate, or a wrong one"
        raise Problem(Code.UNAUTHORIZED, f"{text}: {_expected(schemes)} was expected")
    if not any(_fits(identity, scheme, secure) for scheme in schemes):
        raise Problem(
            Code.FORBIDDEN, f"not with this token or certificate: {_expected(schemes)} was expected"
        )
    if host is not None and identity.kind == Kind.HOST and identity.name != host:
        raise Problem(
            Code.FORBIDDEN, f"this is the token or certificate of host {identity.name}, not of {host}"
        )


def _fits(identity: Identity, scheme: str, secure: bool) -> bool:
    is_host = identity.kind == Kind.HOST
    match scheme:
        case "host":
            return is_host and (identity.certified or not secure)
        case "certificate":
            return is_host and identity.certified
        case "enrolment":
            return is_host and not identity.certified
        case "operator":
            return identity.kind == Kind.OPERATOR
        case _:
            return False


TEXTS = {
    "host": "a host's certificate (without TLS its token)",
    "certificate": "a host's certificate",
    "enrolment": "a host's token",
    "operator": "the operators' token or certificate",
}


def _expected(schemes: Iterable[str]) -> str:
    return " or ".join(TEXTS[scheme] for scheme in schemes)
