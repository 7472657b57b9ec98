"""What is done when frames are late, queues run short, or links go.

```text
 Missed ─▶ kept calm? ─▶ queues of the way ─▶ level, another way ─▶ VIOLATED
 Sampled ─▶ a queue that runs short ─▶ its rate ─▶ one of its paths goes another way
 Dropped ─▶ a port that drops frames, whatever their queue ─▶ one of its paths goes another way
 link down ─▶ the backup ─▶ another way ─▶ BROKEN, tried again; later if its hosts have no way at all
```
"""

from collections.abc import Sequence
from dataclasses import replace

from tidegate_controller import events as ev
from tidegate_controller import requests
from tidegate_controller.decide import react
from tidegate_controller.decide.admission import Refused, Wanted
from tidegate_controller.decide.queues import port_of
from tidegate_controller.decide.routes import candidates
from tidegate_controller.decide.tags import TagsUsedUp
from tidegate_controller.engine import Engine, numbers
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import Path, PathState, Route

MOST_TRIED = 4
"""Paths of a queue that runs short which are tried to move, per report."""


def missed(engine: Engine, event: ev.Missed) -> None:
    """Counts late frames of a path, and does what may help."""
    path = engine.paths.get(event.path)
    if path is None or event.count <= 0:
        return
    name, now = event.path, engine.now
    engine.misses[name] = engine.misses.get(name, 0) + event.count
    cause = f"{event.count} frames late, by up to {event.worst} ns"
    why: str | None = "it is being changed" if name in engine.running else None
    if path.state == PathState.BROKEN:
        why = "it is broken; its frames are best effort"
    # A host's clock may be ahead.
    why = why or engine.calm.kept(name, min(event.time, now), now)
    if why is not None:
        if engine.calm.tell(name, now):
            engine.decide(name, cause, Verdict.KEPT, (why,))
        return
    allowed = engine.settings.remedies
    raised = [text for link in path.route.links if (text := _more_rate(engine, link, path.route.level))]
    if raised:
        engine.calm.changed(name, now)
        engine.decide(name, cause, Verdict.RATE_RAISED, tuple(raised))
        return
    reasons = _move(engine, path, react.remedies(path, engine.ways(path.request), allowed), cause)
    if reasons:
        engine.calm.changed(name, now)
        engine.violated(path, cause, reasons)


def sampled(engine: Engine, samples: Sequence[ev.QueueSample]) -> None:
    """Acts on statistics of queues, before any frame is late."""
    allowed = engine.settings.remedies
    for sample in samples:
        link, level = engine.links.get(sample.port), sample.queue - 1
        if link is None or not 0 <= level < engine.levels:
            continue
        engine.trends.add(sample)
        shortage = engine.trends.shortage(sample.port, sample.queue)
        here = _paths_at(engine, link, level) if shortage else []
        if shortage is None or not here or not engine.calm_ports.may(str(sample.port), engine.now):
            continue
        engine.calm_ports.changed(str(sample.port), engine.now)
        more = _more_rate(engine, link, level)
        engine.trends.forget(sample.port, sample.queue)
        if more:
            engine.decide(here[0].request.name, shortage.text, Verdict.RATE_RAISED, (more,))
            continue
        reasons: list[str] = []
        for path in here[:MOST_TRIED]:
            ways = engine.ways(path.request, frozenset({link}))
            others = react.elsewhere(path, ways, link, allowed)
            refused = _move(engine, path, others, shortage.text)
            if not refused:
                break
            reasons += refused
        else:
            engine.decide(here[0].request.name, shortage.text, Verdict.KEPT, tuple(reasons[:8]))


def dropped(engine: Engine, event: ev.Dropped) -> None:
    """A port drops frames: more rate for a queue would not help. The most urgent paths go first."""
    link = engine.links.get(event.port)
    if link is None or not engine.calm_ports.may(str(event.port), engine.now):
        return
    here = [path for level in range(engine.levels) for path in _paths_at(engine, link, level)]
    if not here:
        return
    engine.calm_ports.changed(str(event.port), engine.now)
    cause = f"{event.port}: the port dropped {event.frames} frames"
    reasons: list[str] = []
    for path in here[:MOST_TRIED]:
        ways = engine.ways(path.request, frozenset({link}))
        others = react.remedies(path, ways, engine.settings.remedies)
        refused = _move(engine, path, [route for route in others if link not in route.links], cause)
        if not refused:
            return
        reasons += refused
    engine.decide(here[0].request.name, cause, Verdict.KEPT, tuple(reasons[:8]))


def repair(engine: Engine) -> bool:
    """Moves paths off links that are down, begins broken ones anew. Returns whether some are left."""
    left = False
    for name, path in sorted(engine.paths.items()):
        if name in engine.running:
            left = left or path.state == PathState.BROKEN or not engine.up(path.route.links)
        elif path.state == PathState.BROKEN:
            left = not requests.admit(engine, None, path.request, path) or left
        elif not engine.up(path.route.links):
            _reroute(engine, path)
            left = True
    return left


def look_after(engine: Engine, name: str) -> None:
    """Moves a path whose change is over, if one of its links went down meanwhile."""
    path = engine.paths.get(name)
    if path is None or name in engine.running or path.state == PathState.BROKEN:
        return
    if not engine.up(path.route.links):
        _reroute(engine, path)


def _reroute(engine: Engine, path: Path) -> None:
    """Moves a path onto its backup or another way, or closes it: one of its links is down.

    Hosts without any way gain nothing by rules that go, and keep the path if the link only seemed to be down:
    it is closed after the hold time. Else best effort has a way, and takes over at once.
    """
    down = [link for link in path.route.links if not engine.up([link])]
    cause = f"link {down[0]} is down"
    backup = path.backup
    if backup is not None and engine.up(backup.links):
        freed = frozenset({path.backup_reservation})
        if not _move(engine, path, [backup], cause, freed):
            return
    routes = candidates(engine.ways(path.request), engine.levels)
    reasons = _move(engine, path, routes, cause)
    if reasons and (routes or engine.gone_for(down) >= engine.settings.hold):
        engine.close(path, cause, reasons, frozenset())
    elif reasons:
        engine.unsettled = True


def _move(
    engine: Engine,
    path: Path,
    routes: Sequence[Route],
    cause: str,
    freed: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Begins to move a path to the first route that fits. Returns why none does."""
    if not routes:
        none = "there is no other way, and no more urgent level, that may be tried"
        return (f"path {path.request.name}: {none}",)
    new = replace(path, generation=path.generation + 1, backup=None)
    try:
        tag = engine.take_tag(new.reservation, new.request.key)
    except TagsUsedUp as used:
        return (str(used),)
    try:
        granted = engine.book.change(sorted(freed), [Wanted(new.reservation, path.request, routes)])[0]
    except Refused as refused:
        engine.tags.free(tag)
        return refused.reasons
    same = granted.route.links == path.route.links
    if same and path.backup is None:
        # The way's rules stay; the raise is one rule at the edge.
        engine.tags.free(tag)
        tag = path.tag
    new = replace(new, route=granted.route, tag=tag, bound=granted.bound, far_burst=granted.far_burst)
    if not same:
        new = requests.protected(engine, new)
    verdict = Verdict.LEVEL_RAISED if same else Verdict.MOVED
    engine.run(path, new, verdict, cause, (numbers(granted),), freed=freed)
    return ()


def _more_rate(engine: Engine, link: str, level: int) -> str | None:
    """Raises a queue's rate if it is short. Returns the reason."""
    terms = engine.book.terms.get(link)
    port = port_of(link)
    if terms is None or port is None or react.Remedy.RATE not in engine.settings.remedies:
        return None
    queue = engine.settings.marks.queue(level)
    levels = range(engine.levels)
    more = react.more_rate(
        terms,
        level,
        {one: engine.loads.at(link, one) for one in levels},
        {one: engine.raised.get((link, one), 0) for one in levels},
        engine.trends.shortage(port, queue),
    )
    if more is None:
        return None
    engine.raise_rate(more)
    engine.trends.forget(port, queue)
    return more.text


def _paths_at(engine: Engine, link: str, level: int) -> list[Path]:
    """Returns paths of a queue that may be changed now, the largest first."""
    here = [
        path
        for name, path in engine.paths.items()
        if name not in engine.running
        and path.state == PathState.ACTIVE
        and path.route.level == level
        and link in path.route.links
        and engine.calm.may(name, engine.now)
    ]
    return sorted(here, key=lambda path: (-path.request.rate, path.request.name))
