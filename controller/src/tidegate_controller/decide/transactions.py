"""Other terms of a path that is there: another rate, burst or mark, or a VM on another host.

```text
 Path, new request ─▶ 1. the same way, for the larger of both terms, instead of the old reservation
                      2. another way, beside the old one
                      3. another host: also instead of the old one
                      ─▶ Altered, or Refused: the old reservation is in force
```

While frames of the old and the new terms may both be under way on one way, what is reserved covers the larger
rate, burst and frames of both: the host's bucket carries over, so its arrivals in any time are at most these.
The rest is given back after the drain, which always fits. A VM that moved is silent at its old host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate_controller.decide.admission import Granted, Refused, Wanted
from tidegate_controller.decide.book import Book
from tidegate_controller.model.paths import EthernetKey, Path, PathRequest, Route


@dataclass(frozen=True)
class Altered:
    """What was reserved for new terms."""

    granted: Granted
    instead: bool
    """The old reservations are gone."""
    narrow: tuple[Wanted, ...] = ()
    """To be reserved in place of those of the same names, when the old terms are gone for good."""


def hull(old: PathRequest, new: PathRequest) -> PathRequest:
    """Returns terms that cover both, in the name of the new ones."""
    return replace(
        new,
        rate=max(old.rate, new.rate),
        burst=max(old.burst, new.burst),
        smallest_frame=min(old.smallest_frame, new.smallest_frame),
        largest_frame=max(old.largest_frame, new.largest_frame),
    )


def alter(book: Book, path: Path, request: PathRequest, routes: Sequence[Route]) -> Altered:
    """Reserves new terms for the next generation; `routes` lead between the hosts of the request.

    Raises `Refused`.
    """
    after = replace(path, generation=path.generation + 1, request=request)
    stays = (path.request.source, path.request.target) == (request.source, request.target)
    # Frames of a plain NIC have their tag already: no terms cover both forms.
    stays = stays and isinstance(path.request.key, EthernetKey) == isinstance(request.key, EthernetKey)
    reasons: list[str] = []
    if stays and path.route in routes:
        try:
            return _in_place(book, path, after)
        except Refused as refused:
            reasons += refused.reasons
    others = [route for route in routes if not (stays and route == path.route)]
    wanted = [Wanted(after.reservation, request, others)]
    try:
        return Altered(book.change([], wanted)[0], False)
    except Refused as refused:
        reasons += refused.reasons
    if not stays:
        try:
            return Altered(book.change(path.reservations, wanted)[0], True)
        except Refused as refused:
            reasons += refused.reasons
    raise Refused(list(dict.fromkeys(reasons)))


def _in_place(book: Book, path: Path, after: Path) -> Altered:
    """Covers both terms on the way of both. The bound and the burst at the end are those of the new terms."""
    both = hull(path.request, after.request)
    covering, narrow = reservations(after, both), reservations(after, after.request)
    book.change(path.reservations, covering)
    try:
        granted = together(book.change(after.reservations, narrow))
    except Refused:
        # Terms that contradict themselves may look sound beside the old ones.
        book.change(after.reservations, reservations(path, path.request))
        raise
    book.change(after.reservations, covering)
    return Altered(granted, True, tuple(narrow))


def together(grants: Sequence[Granted]) -> Granted:
    """Returns the first grant, a path's, with the bound and burst that cover all: those of a backup, too."""
    bound, burst = max(one.bound for one in grants), max(one.far_burst for one in grants)
    return replace(grants[0], bound=bound, far_burst=burst)


def reservations(path: Path, request: PathRequest) -> list[Wanted]:
    """Returns those of a path as it is."""
    wanted = [Wanted(path.reservation, request, [path.route])]
    if path.backup is not None:
        wanted.append(Wanted(path.backup_reservation, request, [path.backup]))
    return wanted
