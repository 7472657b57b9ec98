"""The API by TLS: who a certificate stands for, and the operations of certificates and keys.

```text
 getpeercert, Authorization ─▶ Trusted.of ─▶ Identity, with its proof      (not known, revoked: why)
 enrol, keys ─▶ proof ─▶ Trust ─▶ JSON, or Problem
```

The proof goes along, so that a token which the operator replaces in the middle of a request is not taken for
the new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidegate_controller.api.identity import LONGEST_TOKEN, UNKNOWN, Identities, Identity, Kind
from tidegate_controller.api.operations import Call, Handler
from tidegate_controller.api.problem import Code, Problem, busy
from tidegate_controller.api.service import Service
from tidegate_controller.config.api import Api
from tidegate_controller.trust import Proof, Refusal, Role, Trust


class Trusted:
    """All clients of an API by TLS."""

    def __init__(self, trust: Trust, operator: bytes | None) -> None:
        """`operator` is SHA-256 of the operators' token."""
        self._trust = trust
        self._operators = Identities((), {}, operator)

    def take(self, api: Api) -> None:
        """Takes another token of the operators; of hosts, `Trust` knows."""
        self._operators = Identities((), {}, api.operator)

    def of(self, certificate: Mapping[str, Any] | None, authorization: str | None) -> Identity:
        """Who it is. A token that is wrong counts, not the certificate beside it."""
        try:
            if authorization is None:
                return self._found(self._trust.by_certificate(certificate))
            operator = self._operators.of(None, authorization)
            if operator.kind == Kind.OPERATOR:
                return operator
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer" or len(token) > LONGEST_TOKEN:
                return UNKNOWN
            return self._found(self._trust.by_token(token.strip()))
        except Refusal as refusal:
            return replace(UNKNOWN, why=refusal.message)

    def _found(self, proof: Proof) -> Identity:
        if proof.role == Role.OPERATOR:
            return Identity(Kind.OPERATOR, certified=True, proof=proof)
        return Identity(Kind.HOST, proof.name, certified=proof.serial is not None, proof=proof)


def handlers(trust: Trust, service: Callable[[], Service]) -> dict[str, Handler]:
    """The operations of `trust`; a standby has none of them."""

    def lead() -> None:
        if not service().leads:
            raise service().standby()

    async def enrol(call: Call) -> Any:  # noqa: ANN401
        lead()
        try:
            return await trust.enrol(call.who.proof, call.body)
        except Refusal as refusal:
            raise _problem(refusal) from None

    async def keys(call: Call) -> Any:  # noqa: ANN401
        lead()
        try:
            return trust.keys(call.who.proof)
        except Refusal as refusal:
            raise _problem(refusal) from None

    return {"enrol": enrol, "keys": keys}


def _problem(refusal: Refusal) -> Problem:
    return busy(refusal.message) if refusal.code == "busy" else Problem(Code(refusal.code), refusal.message)
