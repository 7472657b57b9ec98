"""Whether links may have other terms while paths are there.

```text
 terms, paths, changes under way ─▶ Book anew ─▶ all fits, with the same bound and burst at the end ─▶ ""
                                                └ else ─▶ what is in the way
```

The bound was told to the hosts, and the burst was admitted at the far one: neither may grow behind their
back.
"""

from collections.abc import Iterable

from tidegate_controller.decide.admission import Granted, LinkTerms, Refused
from tidegate_controller.decide.book import Book
from tidegate_controller.decide.transactions import reservations, together
from tidegate_controller.events import SaveChange
from tidegate_controller.model.paths import Path, PathState


def renewed(terms: Iterable[LinkTerms], paths: Iterable[Path], changes: Iterable[SaveChange]) -> str:
    """Returns what is in the way of these terms of all links, or nothing."""
    book = Book()
    changing: set[str] = set()
    try:
        book.learn(terms)
        for change in changes:
            granted = book.change([], change.reserved)
            by_name = {wanted.reservation: one for wanted, one in zip(change.reserved, granted, strict=True)}
            for path in (change.old, change.new):
                found = [by_name[one] for one in path.reservations if one in by_name] if path else []
                if path is not None and found:
                    _compare(path, together(found))
            if change.old is not None:
                changing.add(change.old.request.name)
        for path in paths:
            if path.state != PathState.BROKEN and path.request.name not in changing:
                _compare(path, together(book.change([], reservations(path, path.request))))
    except (Refused, ValueError) as error:
        return f"{error}"
    return ""


def _compare(path: Path, granted: Granted) -> None:
    if granted.bound > path.bound or granted.far_burst > path.far_burst:
        raise ValueError(
            f"path {path.request.name} would have a bound of {granted.bound} ns, not {path.bound} ns,"
            f" and a burst of {granted.far_burst} bytes at its end, not {path.far_burst}"
        )
