"""Records of refusals: equal ones are counted, and a host has a bounded part of all decisions."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.decide.refusals import BURST, MOST, Refusals

HOLD = 5.0
steps = st.tuples(
    st.floats(0, 8), st.sampled_from(["h1", "h2", ""]), st.sampled_from("abcdefgh"), st.integers(0, 3)
)


def test_equal_ones_are_one_decision_with_a_count() -> None:
    """Until the hold time is over; another reason is another one."""
    refusals = Refusals(HOLD)
    assert refusals.tell("h1", "p", "request", ("no",), 100.0) == 0
    for n in range(7):
        assert refusals.tell("h1", "p", "request", ("no",), 100.0 + n / 10) is None
    assert refusals.tell("h1", "p", "request", ("never",), 101.0) == 7
    assert refusals.tell("h1", "p", "request", ("no",), 104.9) is None
    assert refusals.tell("h1", "p", "request", ("no",), 105.0) == 1
    assert refusals.counted == 8


def test_a_flood_of_one_host() -> None:
    """It has its burst, and then one for each hold time; another host has its own, operators have all."""
    refusals, now, told, counted = Refusals(HOLD), 100.0, 0, 0
    for n in range(50_000):
        now += 0.02
        found = refusals.tell("h1", f"v{n}>r", "request", (f"{n} bit/s",), now)
        told += found is not None
        counted += found or 0
    assert abs(told - (BURST + 1000 / HOLD)) <= 1
    assert told + refusals.counted == 50_000
    assert refusals.counted - 250 <= counted <= refusals.counted
    assert refusals.tell("h2", "w>r", "request", ("no",), now) == 0
    assert all(refusals.tell("", f"o{n}", "request", ("no",), now) == 0 for n in range(200))
    assert len(refusals._seen) <= MOST


@given(st.lists(steps, max_size=80))
def test_none_is_missing(given_steps: list[tuple[float, str, str, int]]) -> None:
    """What is told and what is counted are all; the parts of a host never exceed what it has."""
    refusals, now = Refusals(HOLD), 1000.0
    told = {"h1": 0, "h2": 0, "": 0}
    counts = {"h1": 0, "h2": 0, "": 0}
    for wait, host, path, reason in given_steps:
        now += wait
        found = refusals.tell(host, path, "request", (str(reason),), now)
        if found is not None:
            told[host] += 1
            counts[host] += found
        for name in ("h1", "h2"):
            assert told[name] <= BURST + (now - 1000.0) / HOLD
    assert sum(told.values()) + refusals.counted == len(given_steps)
    assert sum(counts.values()) <= refusals.counted
