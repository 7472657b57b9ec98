"""Enrolment: a token, once, or a certificate before its end, for a new certificate.

```text
 Proof, request ────▶ host in the file? ─▶ key of the request ─▶ token: first use? ─▶ signed, CN = host
                          └─────────────────────┴──────────────────────┴─▶ Refusal
```

A token belongs to the first key that came with it: for an hour the same key gets its certificate again, since
an answer can be lost. Another key is refused. That another one has come is told to the operator.

The hash of the token is in the certificate, and in all that follow from it. So another token in the file ends
all of them: also those that a thief has got by renewal.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidegate_controller.trust.authority import Authority, fingerprint, requested
from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.roll import Proof, Role, Roll
from tidegate_controller.trust.stores import Once

AGAIN = 3600.0
"""s in which a token may be used once more by its key."""

log = logging.getLogger(__name__)


class Enrolment:
    """Answers the operation `enrol`."""

    def __init__(
        self,
        authority: Callable[[], Authority],
        roll: Callable[[], Roll],
        once: Once,
        lifetime: float,
        now: Callable[[], float],
    ) -> None:
        """`lifetime` of a host's certificate, s; `now` is Unix time, s."""
        self._authority, self._roll, self._once = authority, roll, once
        self._lifetime, self._now = lifetime, now

    async def enrol(self, proof: Proof, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `Enrolled` for `Enrolment` of the API. Raises `Refusal`."""
        name, now = proof.name, self._now()
        if proof.role != Role.HOST:
            raise Refusal("forbidden", f"a {proof.role} is not enrolled; hosts are")
        member = self._roll().members.get(name)
        if member is None:
            raise Refusal("forbidden", f"host {name[:60]!r} is not in the controller's configuration")
        text = body.get("request")
        if set(body) != {"request"} or not isinstance(text, str):
            raise Refusal("invalid", 'a body {"request": PEM} was expected')
        # The request first: a wrong one does not use the token up.
        key = requested(text)
        if proof.serial is None:
            if proof.token is None or proof.token != member.token:
                raise Refusal("unauthorized", f"the token is not the one of host {name}")
            await self._use(proof.token, name, fingerprint(key), now)
        authority = self._authority()
        issued = authority.sign(Role.HOST, name, key, now, self._lifetime, token=proof.token)
        way = "its token" if proof.serial is None else f"certificate {proof.serial:x}"
        log.info("host %s: certificate %x by %s", name, issued.serial, way)
        return {
            "certificate": issued.certificate,
            "authority": authority.certificate,
            "expires": issued.expires,
        }

    async def _use(self, token: str, name: str, key: str, now: float) -> None:
        first = await self._once.first(token, key, now)
        if first.by != key:
            log.warning("host %s: its enrolment token came again, with another key: was it stolen?", name)
        if first.by != key or now - first.at > AGAIN:
            raise Refusal(
                "unauthorized",
                f"the token of host {name} was used already;"
                f" `tidegate-controller token {name}` makes another one",
            )
