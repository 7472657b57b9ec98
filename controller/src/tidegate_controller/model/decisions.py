"""What was decided, and why."""

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """The outcome of a decision."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    RELEASED = "released"
    RATE_RAISED = "rate-raised"
    LEVEL_RAISED = "level-raised"
    MOVED = "moved"
    VIOLATED = "violated"
    """Nothing helps: the host marks the contract."""
    KEPT = "kept"
    """Nothing is changed, so that paths do not flap."""


@dataclass(frozen=True)
class Decision:
    """One decision."""

    number: int
    """Counts from 1 in the controller's state."""
    time: float
    """Unix time, s."""
    path: str
    cause: str
    """What happened: a request, a miss, a link that went down."""
    verdict: Verdict
    reasons: tuple[str, ...] = field(default=())
    """Numbers for it, and against what was not taken."""
