"""Other terms of a path: one change, or all as before."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import MBIT, request, ring, terms

from tidegate_controller.decide.admission import Refused, Wanted
from tidegate_controller.decide.book import Book
from tidegate_controller.decide.routes import Routes, candidates
from tidegate_controller.decide.transactions import alter, hull, reservations
from tidegate_controller.model.paths import Path, PathRequest, Route

TOPOLOGY = ring(4)
ROUTES = Routes(TOPOLOGY)


def routes(asked: PathRequest) -> list[Route]:
    """Between the hosts of a request."""
    return candidates(ROUTES.ways(asked.source, asked.target), 2)


def begin(book: Book, asked: PathRequest) -> Path | None:
    """A path of generation 1, if it fits."""
    try:
        granted = book.change([], [Wanted(f"{asked.name}#1", asked, routes(asked))])[0]
    except Refused:
        return None
    return Path(asked, granted.route, 1, 1, granted.bound, granted.far_burst)


requests = st.builds(
    lambda rate, burst, small, large, budget: replace(
        request(rate=rate * MBIT, budget=budget),
        burst=burst + large,
        smallest_frame=small,
        largest_frame=large,
    ),
    st.sampled_from([1, 20, 100, 200, 300, 390, 450]),
    st.integers(0, 60_000),
    st.sampled_from([60, 110, 500]),
    st.sampled_from([500, 1000, 1500, 1600]),
    st.sampled_from([10**6, 10**7, 10**9]),
)


@given(requests, requests, st.lists(requests, max_size=3), st.integers(0, 3))
def test_one_change_or_none(
    before: PathRequest, after: PathRequest, beside: list[PathRequest], source: int
) -> None:
    """A refusal leaves all; a grant covers both terms until it is narrowed or undone, which always fits."""
    book = Book()
    book.learn(terms(TOPOLOGY))
    path = begin(book, before)
    for number, other in enumerate(beside):
        begin(book, replace(other, name=f"other{number}"))
    if path is None:
        return
    if source not in (0, 2):
        # The VM is on another host.
        after = replace(request(source=source), name=before.name, rate=after.rate)
    held, usage = book.names(), json.dumps(book.usage())
    try:
        altered = alter(book, path, after, routes(after))
    except Refused:
        assert (book.names(), json.dumps(book.usage())) == (held, usage)
        return
    new = replace(path, request=after, generation=2, route=altered.granted.route)
    gone = set(path.reservations) if altered.instead else set()
    assert set(book.names()) == set(held) - gone | {new.reservation}
    assert altered.granted.bound <= after.budget
    if altered.narrow:
        assert altered.granted.route == path.route
        # Forward: the new terms alone. Back: the old ones.
        book.change([new.reservation], altered.narrow)
        assert book.held(new.reservation).request == after
        book.change([new.reservation], [Wanted(new.reservation, hull(before, after), [path.route])])
        book.change(new.reservations, reservations(path, before))
        assert (book.names(), json.dumps(book.usage())) == (held, usage)


@given(requests, requests)
def test_a_hull_covers_both(one: PathRequest, other: PathRequest) -> None:
    """Each of its terms is the harder one."""
    both = hull(one, other)
    assert both.rate == max(one.rate, other.rate)
    assert both.burst >= max(one.burst, other.burst)
    assert both.smallest_frame <= min(one.smallest_frame, other.smallest_frame)
    assert both.largest_frame >= max(one.largest_frame, other.largest_frame)
    assert (both.key, both.budget) == (other.key, other.budget)


def test_a_large_path_gets_larger_in_place() -> None:
    """Both beside each other would not fit; its backup grows with it."""
    book = Book()
    book.learn(terms(TOPOLOGY))
    path = begin(book, request(rate=200 * MBIT))
    assert path is not None
    other = next(route for route in routes(path.request) if route.links != path.route.links)
    book.change([], [Wanted(path.backup_reservation, path.request, [replace(other, level=path.route.level)])])
    path = replace(path, backup=replace(other, level=path.route.level))
    altered = alter(book, path, request(rate=210 * MBIT), routes(path.request))
    assert (altered.instead, len(altered.narrow)) == (True, 2)
    assert book.names() == [f"{path.request.name}#2", f"{path.request.name}#2/backup"]


def test_the_book_grows() -> None:
    """Reservations stay; links that are known keep their terms; faults are told."""
    book = Book()
    links = terms(TOPOLOGY)
    book.learn(links[:-1])
    book.learn(links)
    path = begin(book, request())
    assert path is not None
    usage = book.usage()
    book.learn([replace(links[0], capacity=1), *terms(ring(5))])
    assert book.terms[links[0].name] == links[0]
    assert book.names() == [path.reservation]
    assert sum(int(str(one["reserved-bits"])) for one in book.usage()) == sum(
        int(str(one["reserved-bits"])) for one in usage
    )
    with pytest.raises(ValueError, match="at most"):
        book.learn([replace(links[0], name=f"x{number}") for number in range(20_000)])
    with pytest.raises(ValueError, match="begins and ends"):
        book.learn([replace(links[0], name="loop", target=links[0].source)])
    assert "loop" not in book.terms
