"""What hosts ask for: a path, other terms of it, its end.

```text
 request ─▶ sound? known hosts and addresses, a key of its own ─▶ new: reserve, tag ─▶ run
                                                                ─▶ there: alter ─▶ run
```
"""

from dataclasses import replace

from tidegate_controller import events as ev
from tidegate_controller.decide import react
from tidegate_controller.decide.admission import Refused, Wanted
from tidegate_controller.decide.routes import candidates
from tidegate_controller.decide.tags import MOST, TagsUsedUp
from tidegate_controller.decide.transactions import alter
from tidegate_controller.engine import Engine, flow, numbers
from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import EthernetKey, Path, PathRequest, PathState, Route

LONGEST_NAME = 200


def requested(engine: Engine, asker: int, request: PathRequest) -> None:
    """Begins a path that was asked for, or a change to other terms; or refuses it."""
    reasons = _unfit(engine, request)
    before = engine.paths.get(request.name)
    if not reasons and before is not None and before.request.lasting and not request.lasting:
        # A host that asks for the same path takes nothing from the operator.
        lasting = replace(request, lasting=True)
        if lasting == before.request:
            request = lasting
        else:
            reasons = (f"path {request.name}: an operator asked for it, so an operator has to change it",)
    if reasons:
        engine.refuse(asker, request, "request", reasons)
    elif before is None or before.state == PathState.BROKEN:
        admit(engine, asker, request, before)
    elif before.request == request:
        engine.effects.append(ev.Answer(asker, before))
    else:
        _alter(engine, asker, before, request)


def released(engine: Engine, asker: int, name: str) -> None:
    """Begins to release a path, now or after the change that is under way."""
    running, path = engine.running.get(name), engine.paths.get(name)
    if running is not None and running.release is None and running.verdict != Verdict.RELEASED:
        running.release = asker
    elif running is not None or path is None:
        engine.effects.append(ev.Answer(asker, None, (f"path {name} is not there, or is going",)))
    else:
        engine.release(asker, path)


def admit(engine: Engine, asker: int | None, request: PathRequest, before: Path | None) -> bool:
    """Begins a path that has nothing on switches: a new one, or one that was broken."""
    name = request.name
    generation = before.generation + 1 if before else 1
    reservation = f"{name}#{generation}"
    routes = candidates(engine.ways(request), engine.levels)
    try:
        tag = engine.take_tag(reservation, request.key)
    except TagsUsedUp as used:
        if asker is not None:
            engine.refuse(asker, request, "request", (str(used),))
        return False
    try:
        granted = engine.book.change([], [Wanted(reservation, request, routes)])[0]
    except Refused as refused:
        engine.tags.free(tag)
        if asker is not None:
            engine.refuse(asker, request, "request", refused.reasons)
        return False
    if before is None:
        engine.numbered += 1
    number = before.number if before else engine.numbered
    path = Path(request, granted.route, generation, tag, granted.bound, granted.far_burst, number=number)
    verdict = Verdict.MOVED if asker is None else Verdict.ADMITTED
    cause = "a route fits again" if asker is None else "request"
    engine.run(None, protected(engine, path), verdict, cause, (numbers(granted),), asker)
    return True


def protected(engine: Engine, path: Path) -> Path:
    """Returns the path, with a backup if one is wanted and fits."""
    between = react.between(path.route)
    if not engine.settings.protect or not between:
        return path
    routes = [Route(way, path.route.level) for way in engine.ways(path.request, between)]
    try:
        granted = engine.book.change([], [Wanted(path.backup_reservation, path.request, routes)])[0]
    except Refused:
        return path
    bound, burst = max(path.bound, granted.bound), max(path.far_burst, granted.far_burst)
    return replace(path, backup=granted.route, bound=bound, far_burst=burst)


def _alter(engine: Engine, asker: int, before: Path, request: PathRequest) -> None:
    routes = candidates(engine.ways(request), engine.levels)
    cause = "other terms"
    try:
        tag = engine.take_tag(f"{request.name}#{before.generation + 1}", request.key)
    except TagsUsedUp as used:
        engine.refuse(asker, request, cause, (str(used),))
        return
    try:
        altered = alter(engine.book, before, request, routes)
    except Refused as refused:
        engine.tags.free(tag)
        engine.refuse(asker, request, cause, refused.reasons)
        return
    in_place = bool(altered.narrow)
    if in_place and flow(request) == flow(before.request):
        # The rules are the same.
        engine.tags.free(tag)
        tag = before.tag
    granted = altered.granted
    new = replace(
        before,
        request=request,
        route=granted.route,
        generation=before.generation + 1,
        tag=tag,
        bound=granted.bound,
        far_burst=granted.far_burst,
        backup=before.backup if in_place else None,
    )
    if not in_place:
        new = protected(engine, new)
    freed = frozenset(before.reservations if altered.instead else ())
    reasons = (numbers(granted),)
    engine.run(before, new, Verdict.ADMITTED, cause, reasons, asker, altered.narrow, freed)


def _unfit(engine: Engine, request: PathRequest) -> tuple[str, ...]:
    """Returns what is wrong with a request, before any arithmetic."""
    name, settings, hosts = request.name, engine.settings, engine.newest.hosts
    source, target = hosts.get(request.source), hosts.get(request.target)
    if not 0 < len(name) <= LONGEST_NAME:
        text = f"its name has 1 to {LONGEST_NAME} characters"
    elif source is None or target is None:
        unknown = request.source if source is None else request.target
        text = f"host {unknown} is not in the configuration"
    elif why := _unkeyed(engine, request, source.address, target.address):
        text = why
    elif request.rate <= 0 or request.burst <= 0 or request.smallest_frame <= 0 or request.budget <= 0:
        text = "its rate, burst, frames and budget are above 0"
    elif engine.keys.get(flow(request), name) != name:
        text = f"path {engine.keys[flow(request)]} has the same addresses, ports and mark"
    elif name in engine.running:
        text = f"it is being changed; ask again in {settings.hold:g} s"
    else:
        text = "" if name in engine.paths else _too_many(engine, request)
    return (f"path {name}: {text}",) if text else ()


def _unkeyed(engine: Engine, request: PathRequest, source: str, target: str) -> str:
    """Says why the edge cannot tell its frames, between hosts with these addresses. Empty: it can."""
    key = request.key
    if not isinstance(key, EthernetKey):
        if (key.source, key.target) != (source, target):
            ours = f"{source} to {target}"
            return f"its frames go from {key.source} to {key.target}; its hosts have {ours}"
        if not (0 <= request.dscp < 64 and 0 < key.source_port < 65536 and 0 < key.target_port < 65536):
            return "its mark is 0 to 63, its UDP ports are 1 to 65535"
        return ""
    if not (0 < key.vlan <= MOST and 0 < key.priority < 8 and request.dscp == 0):
        return f"its VLAN is 1 to {MOST}, its priority 1 to 7, its mark 0"
    owner = engine.tags.owners().get(key.vlan)
    # Tags of best effort stay for long, and frames with them are in no table with those of hosts.
    if owner is None or key.vlan in engine.plain_tags:
        return ""
    return (
        f"VLAN {key.vlan} of its frames is the tag of {owner} between switches; ask again when that has moved"
        " or is released, or choose another VLAN"
    )


def _too_many(engine: Engine, request: PathRequest) -> str:
    begun = [one.new for one in engine.running.values() if one.old is None and one.new is not None]
    there = [*engine.paths.values(), *(new for new in begun if new.request.name not in engine.paths)]
    of_host = sum(path.request.source == request.source for path in there)
    most, most_of_host = engine.settings.most_paths, engine.settings.most_of_host
    if len(there) < most and of_host < most_of_host:
        return ""
    there_is = f"{len(there)} paths are there, {of_host} of its host"
    return f"{there_is}; at most {most}, {most_of_host} of a host"
