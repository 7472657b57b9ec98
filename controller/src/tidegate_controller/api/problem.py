"""Why nothing was done, as the API says it.

```text
 Problem(status, code, message, reasons) ─▶ JSON of the schema `Problem`
```
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

MOST_REASONS = 64
LONGEST = 2000


class Code(StrEnum):
    """What kind of problem."""

    INVALID = "invalid"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    REFUSED = "refused"
    WAITING = "waiting"
    BUSY = "busy"
    STANDBY = "standby"


STATUS = {
    Code.INVALID: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.REFUSED: 409,
    Code.WAITING: 409,
    Code.BUSY: 503,
    Code.STANDBY: 503,
}


class Problem(Exception):
    """Ends a request."""

    def __init__(
        self,
        code: Code,
        message: str,
        reasons: Sequence[str] = (),
        leader: str | None = None,
        retry: float | None = None,
        status: int | None = None,
    ) -> None:
        """`retry`: when to ask again, s; `status` if it is not that of the code."""
        super().__init__(message)
        self.code, self.leader, self.retry = code, leader, retry
        self.message = message[:LONGEST]
        self.reasons = [reason[:LONGEST] for reason in reasons[:MOST_REASONS]]
        self.status = status or STATUS[code]

    def body(self) -> dict[str, Any]:
        """For the answer."""
        return {
            "code": self.code.value,
            "message": self.message,
            "reasons": self.reasons,
            "leader": self.leader,
        }


def busy(message: str, retry: float = 1.0) -> Problem:
    """The controller has too much to do at this moment."""
    return Problem(Code.BUSY, message, retry=retry)


def crowd(message: str, retry: float) -> Problem:
    """One client asks too much."""
    return Problem(Code.BUSY, message, retry=retry, status=429)
