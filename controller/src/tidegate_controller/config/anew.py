"""A file that is read again: what of it is in force at once, and what takes a restart.

```text
 Config in force ─┬─▶ hosts, what they may announce, tokens, files of [tls], revoked ─▶ Config from now on
 Config of FILE ──┘─▶ all else that differs ─▶ its keys, each with the reason
```

A host that is taken out of the file may nothing more, but its port stays its own until a restart: rules for
frames from and to it are there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace

from tidegate_controller.config.api import Api
from tidegate_controller.config.file import Config
from tidegate_controller.config.section import ConfigError
from tidegate_controller.decide.admission import LinkTerms
from tidegate_controller.decide.book import Book
from tidegate_controller.model.topology import Attachment
from tidegate_controller.trust.roll import Roll
from tidegate_controller.trust.settings import TrustConfig

RESTART = "is another one in the file: that takes a restart"

KEYS = {"bfd": "discovery.bfd"}
"""Of settings that are not in `[paths]`."""


def renewed(force: Config, file: Config, known: Iterable[LinkTerms] = ()) -> tuple[Config, list[str]]:
    """Returns what is in force from now on, and keys that stay as they were, with the reason.

    `known` are the terms of all links that the controller ever had. Raises `ConfigError` if nothing can be
    taken.
    """
    if (force.trust is None) != (file.trust is None):
        raise ConfigError("tls: came into the file, or left it: that takes a restart")
    taken, left = _hosts(force, file)
    fresh = {end for name, host in taken.items() if name not in force.hosts for end in _ends(host)}
    terms = (*force.terms, *(link for link in file.terms if link.name in fresh))
    try:
        Book().learn({link.name: link for link in (*terms, *known)}.values())
    except ValueError as error:
        raise ConfigError(f"hosts: {error}") from None
    left += [f"{key} {RESTART}" for key in _others(force, file)]
    new = replace(
        force,
        hosts={**force.hosts, **taken},
        terms=terms,
        api=_api(force.api, file.api, taken),
        trust=_trust(force.trust, file.trust, taken),
    )
    return new, left


def _hosts(force: Config, file: Config) -> tuple[dict[str, Attachment], list[str]]:
    """Hosts of the file, as they are attached from now on."""
    taken: dict[str, Attachment] = {}
    left: list[str] = []
    used = {
        what: {str(getattr(host, what)): name for name, host in force.hosts.items()}
        for what in ("port", "address", "mac")
    }
    for name, host in file.hosts.items():
        before = force.hosts.get(name)
        if before is not None:
            differing = [what for what in used if getattr(host, what) != getattr(before, what)]
            left += [f"hosts.{name}.{what} {RESTART}" for what in differing]
            taken[name] = before
            continue
        owners = [(what, owner) for what in used if (owner := used[what].get(str(getattr(host, what))))]
        left += [
            f"hosts.{name}.{what} is that of host {owner} until a restart: host {name} is not taken"
            for what, owner in owners
        ]
        if not owners:
            taken[name] = host
    return taken, left


def _ends(host: Attachment) -> tuple[str, str]:
    return host.to_switch, host.to_host


def _api(force: Api, file: Api, hosts: Mapping[str, Attachment]) -> Api:
    return replace(
        force,
        operator=file.operator,
        tokens={name: token for name, token in file.tokens.items() if name in hosts},
        allowed={
            name: replace(one, address=hosts[name].address)
            for name, one in file.allowed.items()
            if name in hosts
        },
    )


def _trust(
    force: TrustConfig | None, file: TrustConfig | None, hosts: Mapping[str, Attachment]
) -> TrustConfig | None:
    if force is None or file is None:
        return force
    members = {name: member for name, member in file.roll.members.items() if name in hosts}
    return replace(force, folder=file.folder, files=file.files, roll=Roll(members, file.roll.revoked))


def _others(force: Config, file: Config) -> Iterator[str]:
    """Keys that differ, and are not taken."""
    yield from _different(_values(force), _values(file))
    yield from (f"switches.{name}" for name in _different(_switches(force), _switches(file)))
    yield from sorted(f"links: {link.name}" for link in force.links ^ file.links)
    before = {link.name: link for link in force.terms}
    for link in file.terms:
        if before.get(link.name, link) != link:
            yield f"terms: {link.name}"


def _values(config: Config) -> dict[str, object]:
    api, settings, trust = config.api, config.settings, config.trust
    found: dict[str, object] = {
        "openflow.listen": config.listen,
        "discovery.interval": config.interval,
        "discovery.bfd-interval": config.bfd_interval,
        "state": config.state,
        "api.listen": api.listen,
        "api.plain": api.plain,
        "api.public": api.public,
        "api.lease": api.lease,
    }
    for one in fields(settings):
        found[KEYS.get(one.name, f"paths.{one.name}")] = getattr(settings, one.name)
    if trust is not None:
        found |= {
            "openflow.tls": trust.openflow,
            "tls.lifetime": trust.lifetime,
            "keys.rotate": trust.times.rotate,
            "keys.overlap": trust.times.overlap,
            "keys.store": trust.store,
        }
    return found


def _switches(config: Config) -> dict[str, tuple[int, str]]:
    remotes = {number: remote for remote, numbers in config.databases.items() for number in numbers}
    return {name: (number, remotes[number]) for number, name in config.datapaths.items()}


def _different(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
