"""When keys change: whatever happens, hosts that asked lately read each other's stamps."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate_controller.trust import ring as rings
from tidegate_controller.trust.ring import Phase, Ring, Times
from tidegate_controller.trust.secret import Secret

TIMES = Times(rotate=100.0, overlap=10.0)
HOSTS = ("h1", "h2", "h3")
ALL = frozenset(HOSTS)


class Random:
    """Other bytes each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, length: int) -> bytes:
        """A number, so that all are different."""
        self.count += 1
        return self.count.to_bytes(length)


def parity(key: Secret) -> int:
    """The bit by which a stamp tells its key."""
    return key.reveal()[-1] & 1


class Network:
    """Hosts with the keys that they were told last, and for how long they could have asked since."""

    def __init__(self) -> None:
        self.random, self.now = Random(), 1000.0
        self.ring = rings.first(7, ALL, self.now, self.random)
        self.told: dict[str, tuple[Secret, Secret | None]] = {}
        self.served: dict[str, float] = {}
        self.generations = [0]

    def ask(self, host: str) -> None:
        """A host asks; one that lost the segment gets nothing."""
        if host not in self.ring.hosts:
            return
        self.told[host], self.served[host] = rings.answer(self.ring), 0.0

    def serve(self, time: float) -> None:
        """Time in which hosts can ask; what is due is done at its end."""
        self.now += time
        self.served = {host: since + time for host, since in self.served.items()}
        self.check()
        self._now_is(rings.turn(self.ring, self.now, TIMES, self.random))

    def away(self, time: float) -> None:
        """Time in which no controller answers, by clocks that may differ."""
        self.now = max(0.0, self.now + time)
        self._now_is(rings.resume(self.ring, self.now))

    def lose(self, host: str) -> None:
        """A host may not have the segment any more."""
        self.told.pop(host, None)
        self.served.pop(host, None)
        self._now_is(rings.share(self.ring, self.ring.hosts - {host}))

    def _now_is(self, ring: Ring) -> None:
        if ring.generation != self.ring.generation:
            self.generations.append(ring.generation)
        self.ring = ring
        self.check()

    def check(self) -> None:
        """Each host that asked less than an overlap ago accepts the keys by which the others sign."""
        key, other = rings.answer(self.ring)
        assert other is None or parity(key) != parity(other)
        assert parity(key) == self.ring.generation & 1
        lately = [self.told[host] for host, since in self.served.items() if since < TIMES.overlap]
        for signs, _ in lately:
            assert all(signs in accepted for accepted in lately)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(HOSTS)),
        st.tuples(st.just("serve"), st.sampled_from([0.0, 0.5, 3.0, 9.9, 10.0, 10.1, 30.0, 90.0])),
        st.tuples(st.just("away"), st.sampled_from([-50.0, 0.0, 1.0, 10.0, 89.0, 5000.0])),
        st.tuples(st.just("lose"), st.sampled_from(HOSTS)),
    ),
    max_size=60,
)


LATE: tuple[tuple[str, str | float], ...] = (("away", 89.0), ("serve", 0.0), ("ask", "h2"), ("serve", 0.0))
"""An absence, and a host that asks after it."""


@given(steps)
@example([("away", 5000.0), ("ask", "h1"), ("serve", 0.0), *LATE])
@example([("away", 5000.0), ("serve", 0.0), ("serve", 3.0), ("ask", "h1"), ("serve", 9.9), *LATE])
def test_hosts_that_asked_lately_read_each_other(taken: list[tuple[str, str | float]]) -> None:
    """Also when the controller was away, came late, or a host lost the segment."""
    network = Network()
    for name, value in taken:
        getattr(network, name)(value)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.5, 3.0]), min_size=100, max_size=200))
def test_keys_change_in_time(pauses: list[float]) -> None:
    """One generation in each `rotate`, but for the time between two looks."""
    network = Network()
    for pause in pauses:
        network.serve(pause)
    spent = sum(pauses)
    least, most = spent // (TIMES.rotate + 3 * 3.0), spent // TIMES.rotate + 1
    assert network.generations == list(range(len(network.generations)))
    assert least <= len(network.generations) - 1 <= most


def test_the_other_key_is_the_one_to_come_then_the_one_before() -> None:
    """And none in between, so that an old key counts for an overlap only."""
    network = Network()
    first, other = rings.answer(network.ring)
    assert other is None
    network.serve(TIMES.rotate - TIMES.overlap)
    key, second = rings.answer(network.ring)
    assert key == first
    assert second is not None
    network.serve(TIMES.overlap)
    assert rings.answer(network.ring) == (second, first)
    network.serve(TIMES.overlap)
    assert rings.answer(network.ring) == (second, None)
    assert set(network.ring.keys) == {1}


def test_a_host_that_leaves_changes_the_key() -> None:
    """At once, and once more if the key to come was announced already."""
    network = Network()
    network.lose("h1")
    network.serve(0.0)
    assert network.ring.phase == Phase.ANNOUNCED
    network.lose("h2")
    for _ in range(2):
        network.serve(TIMES.overlap)
    assert (network.ring.phase, network.ring.generation, network.ring.hurry) == (Phase.QUIET, 1, True)
    network.serve(0.0)
    assert (network.ring.phase, network.ring.hurry) == (Phase.ANNOUNCED, False)


def test_a_clock_that_was_ahead_does_not_stop_changes() -> None:
    """Such as that of another controller."""
    network = Network()
    network.ring = replace(network.ring, since=network.now + 10**9, began=network.now + 10**9)
    network.away(0.0)
    network.serve(TIMES.rotate - TIMES.overlap)
    assert network.ring.phase == Phase.ANNOUNCED


@pytest.mark.parametrize(("rotate", "overlap"), [(10.0, 0.0), (10.0, 4.0), (0.0, 0.0), (-1.0, -1.0)])
def test_times_that_leave_no_room(rotate: float, overlap: float) -> None:
    """Windows before and after a change must not meet."""
    with pytest.raises(ValueError, match="at most a third"):
        Times(rotate, overlap)
