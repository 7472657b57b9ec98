"""Terms that have changed since they were kept, and state that does not fit together."""

import logging
from dataclasses import replace

import pytest
from test_config import GOOD

from tidegate_controller import events as ev
from tidegate_controller.config import Config, parse
from tidegate_controller.core import Core
from tidegate_controller.decide.admission import Level, LinkTerms
from tidegate_controller.decide.book import Book
from tidegate_controller.decide.flood import Tree
from tidegate_controller.decide.marks import Marks
from tidegate_controller.decide.transactions import reservations, together
from tidegate_controller.model.paths import FlowKey, Path, PathRequest, PathState, Route
from tidegate_controller.model.topology import Link, Port, Topology
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.start import restore
from tidegate_controller.state.store import Damaged

CONFIG = parse(GOOD, "f")
WAY = ("h1>s1:2", "s1:1>s2:1", "s2:2>h2")
KEY = FlowKey("10.0.0.1", "fd00::2", 9)
REQUEST = PathRequest("v>r", "h1", "h2", KEY, 40, 100_000_000, 3000, 100, 1500, 10**9)


def kept(config: Config = CONFIG) -> Kept:
    """One path over the network of a configuration."""
    path = Path(REQUEST, Route(WAY, 0), 1, 7, 0, 0, PathState.ACTIVE, 1)
    book = Book()
    book.learn(config.terms)
    (granted,) = book.change([], reservations(path, REQUEST))
    path = replace(path, bound=granted.bound, far_burst=granted.far_burst)
    topology = Topology({"s1", "s2"}, set(config.links), dict(config.hosts))
    network = ev.SaveNetwork(topology, config.terms, Tree(1, config.links))
    return Kept(network, {"v>r": path})


def with_terms(**values: object) -> Config:
    """The configuration with other terms of the link."""
    changed = [replace(one, **values) if one.name == WAY[1] else one for one in CONFIG.terms]  # type: ignore[arg-type]
    return replace(CONFIG, terms=tuple(changed))


def began(kept: Kept, config: Config) -> tuple[Core, list[ev.Effect], tuple[LinkTerms, ...]]:
    """A core that goes on."""
    core = Core(config.settings)
    effects, new = restore(core, kept, config, 1.0, "FILE")
    return core, effects, new


def test_nothing_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said, and nothing is written. A link that is new is learnt."""
    core, effects, new = began(kept(), CONFIG)
    assert not caplog.records
    assert not any(isinstance(one, ev.SaveNetwork) for one in effects)
    assert new == ()
    assert core.engine.book.names() == ["v>r#1"]
    more = replace(CONFIG.terms[0], name="s1:9>s2:9")
    assert began(kept(), replace(CONFIG, terms=(*CONFIG.terms, more)))[2] == (more,)


@pytest.mark.parametrize(
    "values",
    [
        {"capacity": 10**9},
        {"reservable": 10**8 * 3},
        {"levels": (Level(200_000, 9000), Level(2_000_000, 90))},
    ],
)
def test_terms_that_fit(values: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    """They are in force, and kept."""
    config = with_terms(**values)
    with caplog.at_level(logging.WARNING):
        core, effects, _ = began(kept(), config)
    name = next(iter(values))
    assert f"link {WAY[1]}: {name} was kept as" in caplog.text
    assert "are in force from now on" in caplog.text
    assert core.engine.book.terms == {one.name: one for one in config.terms}
    assert [one.terms for one in effects if isinstance(one, ev.SaveNetwork)] == [config.terms]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"reservable": 10**8}, "bit/s would be reserved"),
        ({"levels": (Level(400_000, 5000), Level(2_000_000, 90))}, "would have a bound of"),
        ({"latency": 10**6}, "its fixed delay is 200us"),
    ],
)
def test_terms_that_do_not_fit(
    values: dict[str, object], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The kept ones stay, and it is said what is in the way and what to do."""
    with caplog.at_level(logging.WARNING):
        core, effects, _ = began(kept(), with_terms(**values))
    assert text in caplog.text
    assert "the terms that were kept stay in force" in caplog.text
    assert core.engine.book.terms == {one.name: one for one in CONFIG.terms}
    assert not any(isinstance(one, ev.SaveNetwork) for one in effects)


def test_terms_with_which_a_backup_would_be_later(caplog: pytest.LogCaptureFixture) -> None:
    """The bound of both ways was told: that of the backup may not grow either."""
    other = Link(Port("s1", 8), Port("s2", 8))
    parallel = [
        replace(CONFIG.terms[0], name=one.name, source=one.source.switch, target=one.target.switch)
        for one in (other, other.back)
    ]
    config = replace(CONFIG, links=CONFIG.links | {other, other.back}, terms=(*CONFIG.terms, *parallel))
    state, book = kept(config), Book()
    book.learn(config.terms)
    backup = Route((WAY[0], other.name, WAY[2]), 1)
    path = replace(state.paths["v>r"], route=Route(WAY, 1), backup=backup)
    granted = together(book.change([], reservations(path, REQUEST)))
    state.paths["v>r"] = replace(path, bound=granted.bound, far_burst=granted.far_burst)
    slow = (config.terms[0].levels[0], Level(3_000_000, 5000))
    slower = tuple(replace(one, levels=slow) if one.name == other.name else one for one in config.terms)
    with caplog.at_level(logging.WARNING):
        core, _, _ = began(state, replace(config, terms=slower))
    assert "path v>r would have a bound of" in caplog.text
    assert core.engine.book.terms == {one.name: one for one in config.terms}


def test_fewer_marks_than_a_path_needs() -> None:
    """The state is refused, by the path's name and the key, also for a change that was under way."""
    fewer = replace(CONFIG, settings=replace(CONFIG.settings, marks=Marks((46,))))
    state = kept()
    assert state.network is not None
    began(state, fewer)
    path = replace(state.paths["v>r"], route=Route(WAY, 1))
    why = "path v>r is at level 1, and `paths.marks` of the configuration has 1 marks: start with at least 2"
    with pytest.raises(Damaged, match=why):
        began(Kept(state.network, {"v>r": path}), fewer)
    change = ev.SaveChange(None, path, tuple(reservations(path, REQUEST)), (), frozenset())
    with pytest.raises(Damaged, match=why):
        began(Kept(state.network, {}, {"v>r": change}), fewer)
    began(Kept(state.network, {"v>r": replace(path, state=PathState.BROKEN)}), fewer)


def test_what_does_not_fit_together() -> None:
    """The state is refused: nothing is begun with a part of it."""
    greedy = kept()
    greedy.paths["v>r"] = replace(greedy.paths["v>r"], request=replace(REQUEST, rate=10**11))
    with pytest.raises(Damaged, match=r"FILE: what is reserved does not fit any more: .*bit/s"):
        began(greedy, CONFIG)
    twice = kept()
    twice.paths["w>r"] = replace(twice.paths["v>r"], request=replace(REQUEST, name="w>r"))
    with pytest.raises(Damaged, match="FILE: what was kept does not fit together: VLAN id 7 is not free"):
        began(twice, CONFIG)
    astray = kept()
    astray.paths["v>r"] = replace(astray.paths["v>r"], route=Route(("h1>s1:2", "s9:1>h2"), 0))
    with pytest.raises(Damaged, match="FILE: "):
        began(astray, CONFIG)
