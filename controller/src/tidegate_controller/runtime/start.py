"""How a process begins with what was kept.

```text
 Kept, Config ─▶ terms: kept ones, or the configured ones where all reservations keep their bounds
              ─▶ plain NICs: the part that hosts may still have
              ─▶ Core.restore ─▶ effects, terms of new links
                   └ what was kept does not fit together ─▶ Damaged
```
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from tidegate_controller import events as ev
from tidegate_controller.config import Config
from tidegate_controller.core import Core
from tidegate_controller.decide.admission import LinkTerms, Refused
from tidegate_controller.decide.places import permitted
from tidegate_controller.decide.renewal import renewed
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.state.store import Damaged

TOLD = 20
"""Links that are named."""

log = logging.getLogger(__name__)


def restore(
    core: Core, kept: Kept, config: Config, now: float, where: str
) -> tuple[list[ev.Effect], tuple[LinkTerms, ...]]:
    """Returns the first effects, and the terms of links that were never seen. Raises `Damaged`."""
    network, terms = kept.network, config.terms
    if network is None:
        return [], terms
    effects: list[ev.Effect] = []
    paths, changes = list(kept.paths.values()), list(kept.changes.values())
    try:
        after = _terms(network.terms, config.terms, kept)
        if after != network.terms:
            network = replace(network, terms=after)
            effects.append(network)
        behind = {host: permitted(one, config.api.allowed.get(host)) for host, one in kept.behind.items()}
        changed = (host for host, one in kept.behind.items() if behind[host] != one)
        effects += (ev.SaveBehind(host, behind[host]) for host in changed)
        effects += core.restore(network, paths, changes, kept.decided, now, behind, kept.tagged)
    except Refused as refused:
        raise Damaged(where, f"what is reserved does not fit any more: {refused}") from refused
    except (ValueError, LookupError) as error:
        raise Damaged(where, f"what was kept does not fit together: {error}") from error
    known = {link.name for link in network.terms}
    return effects, tuple(link for link in terms if link.name not in known)


def _terms(before: Sequence[LinkTerms], configured: Sequence[LinkTerms], kept: Kept) -> tuple[LinkTerms, ...]:
    """Those to begin with; differences are told."""
    wanted = {link.name: link for link in configured}
    differing = [link for link in before if wanted.get(link.name, link) != link]
    if not differing:
        return tuple(before)
    after = tuple(wanted.get(link.name, link) for link in before)
    problem = renewed(after, kept.paths.values(), kept.changes.values())
    for link in differing[:TOLD]:
        log.warning("link %s: %s", link.name, _difference(link, wanted[link.name]))
    if len(differing) > TOLD:
        log.warning("and %d links more", len(differing) - TOLD)
    if not problem:
        log.warning("the configuration's terms are in force from now on: all that is reserved fits as before")
        return after
    log.warning(
        "the terms that were kept stay in force, since with those of the configuration %s. Release paths over"
        " these links, and start the controller again",
        problem,
    )
    return tuple(before)


def _difference(kept: LinkTerms, wanted: LinkTerms) -> str:
    names = (name for name in kept.__dataclass_fields__ if getattr(kept, name) != getattr(wanted, name))
    return "; ".join(
        f"{name} was kept as {getattr(kept, name)}, and is {getattr(wanted, name)} in the configuration"
        for name in names
    )
