"""The steps in which rules of no path change on all switches.

```text
 CARRY: rules for tags that are new ─▶ BEGIN: frames get these tags ─▶ DRAIN ─▶ DELETE: rules of old tags
          └ each is over when all switches have answered, or failed
```

A switch that does not answer is not waited for: it is set to what it is to hold when it is back.
"""

from abc import ABC, abstractmethod
from enum import StrEnum

from tidegate_controller.decide.move import Order, Update, Wait

DRAIN = 1.0
"""s; a frame of best effort is under way for less."""


class Phase(StrEnum):
    """Where it is."""

    IDLE = "idle"
    CARRY = "carry"
    BEGIN = "begin"
    DRAIN = "drain"
    DELETE = "delete"


AFTER = {
    Phase.CARRY: Phase.BEGIN,
    Phase.BEGIN: Phase.DRAIN,
    Phase.DRAIN: Phase.DELETE,
    Phase.DELETE: Phase.IDLE,
}


class Phases(ABC):
    """One change after the other."""

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self._serial = 0
        self._waiting: set[str] = set()

    def done(self, serial: int, switch: str) -> list[Order]:
        """Goes on after a switch has answered, or failed."""
        if serial != self._serial or switch not in self._waiting:
            return []
        self._waiting.discard(switch)
        return [] if self._waiting else self._enter(AFTER[self.phase])

    def elapsed(self, serial: int) -> list[Order]:
        """Goes on after a `Wait`."""
        if serial != self._serial or self.phase != Phase.DRAIN:
            return []
        return self._enter(Phase.DELETE)

    def _enter(self, phase: Phase) -> list[Order]:
        self.phase = phase
        self._serial += 1
        if phase == Phase.IDLE:
            self._over()
            return []
        if phase == Phase.DRAIN:
            return [Wait(self._serial, DRAIN)] if self._drains() else self._enter(Phase.DELETE)
        updates = self._updates(phase)
        self._waiting = {update.switch for update in updates}
        return list(updates) or self._enter(AFTER[phase])

    @abstractmethod
    def _updates(self, phase: Phase) -> list[Update]:
        """Returns what switches are to do; from now on they are to hold it."""

    @abstractmethod
    def _over(self) -> None:
        """Ends a change."""

    def _drains(self) -> bool:
        """Returns whether frames may be under way to rules that go."""
        return True
