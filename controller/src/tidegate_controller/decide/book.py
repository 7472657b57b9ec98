"""What is reserved, in a network that grows.

```text
 change: release, reserve ─▶ Admission ─▶ Granted, ...    new links ─▶ a new Admission, the same reservations
```

The arithmetic has a fixed set of links. A link that was seen once keeps its terms and its reservations while
it is down: frames may be under way, and it may come back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidegate_controller.decide.admission import Admission, Granted, LinkTerms, Wanted

MOST_LINKS = 20_000
"""Directions; a switch that shows ever new ports stays below it."""


class Book:
    """All reservations, each with the request and the route that it has."""

    def __init__(self) -> None:
        self.terms: dict[str, LinkTerms] = {}
        self._admission = Admission([])
        self._held: dict[str, Wanted] = {}

    def learn(self, terms: Iterable[LinkTerms]) -> None:
        """Adds links that are new. Raises `ValueError` beyond `MOST_LINKS`, or for terms with a fault."""
        new = {link.name: link for link in terms if link.name not in self.terms}
        if not new:
            return
        if len(self.terms) + len(new) > MOST_LINKS:
            raise ValueError(f"{len(self.terms) + len(new)} links; at most {MOST_LINKS} are kept")
        known = self.terms | new
        admission = Admission(known.values())
        admission.change([], list(self._held.values()))
        self.terms, self._admission = known, admission

    def change(self, release: Sequence[str], reserve: Sequence[Wanted]) -> list[Granted]:
        """Releases and reserves, all or nothing. Raises `Refused`; nothing has changed then."""
        granted = self._admission.change(release, reserve)
        for name in release:
            del self._held[name]
        for wanted, one in zip(reserve, granted, strict=True):
            self._held[wanted.reservation] = replace(wanted, routes=[one.route])
        return granted

    def names(self) -> list[str]:
        """Returns the names of all reservations."""
        return self._admission.reservations()

    def held(self, name: str) -> Wanted:
        """Returns the request and route of a reservation."""
        return self._held[name]

    def usage(self) -> list[dict[str, object]]:
        """Returns what is reserved at each link."""
        return self._admission.usage()
