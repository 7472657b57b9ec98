"""Transactions of one leader: in its term, and each of them once.

```text
 body: leader's create revision = term, sequence = n ? operations, sequence = n + 1
 answer ─▶ DONE │ REPEATED: sequence = n + 1 already │ ENDED, OUT: no leader, another │ FOREIGN: another n
```

The sequence makes it harmless that a transaction whose answer was lost may be done later: it then finds
another number, and changes nothing.
"""

from enum import Enum, auto
from typing import Any

from tidegate_controller.state.etcd import b64, first_pair, get, has_value, is_created, put


class Outcome(Enum):
    """Of a transaction."""

    DONE = auto()
    REPEATED = auto()
    """It, or another one with its number, was done before."""
    ENDED = auto()
    """The term is over, and no controller leads."""
    OUT = auto()
    """Another controller leads."""
    FOREIGN = auto()
    """Another process writes in the name of this leader."""


class Fence:
    """The sequence of one kind of records."""

    def __init__(self, leader: str, sequence: str) -> None:
        """Both are keys."""
        self._leader, self._sequence = leader, sequence
        self._count = 0

    def begin(self) -> dict[str, Any]:
        """Returns the operation that begins the sequence anew, for a new leader."""
        self._count = 0
        return put(self._sequence, "0")

    def leads(self, term: int) -> dict[str, Any]:
        """The condition that this leader's term goes on."""
        return is_created(self._leader, term)

    def body(self, term: int, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the transaction."""
        return {
            "compare": [self.leads(term), has_value(self._sequence, str(self._count))],
            "success": [put(self._sequence, str(self._count + 1)), *operations],
            "failure": [get(self._leader), get(self._sequence)],
        }

    def outcome(self, term: int, answer: dict[str, Any]) -> Outcome:
        """Reads the answer to `body`. Raises as `two` does."""
        if answer.get("succeeded"):
            self._count += 1
            return Outcome.DONE
        leader, sequence = two(answer)
        if is_another(leader, term):
            return Outcome.OUT if leader else Outcome.ENDED
        if sequence.get("value") != b64(str(self._count + 1)):
            return Outcome.FOREIGN
        self._count += 1
        return Outcome.REPEATED


def is_another(leader: dict[str, Any], term: int) -> bool:
    """Whether a leader's key is not of this term, or not there."""
    return str(leader.get("create_revision", "0")) != str(term)


def two(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the two keys that a transaction found; empty where there is none.

    Raises `ValueError`, `LookupError`, `TypeError` or `AttributeError` for an answer of another form.
    """
    one, other = (first_pair(part.get("response_range", {})) for part in answer["responses"])
    return one, other
