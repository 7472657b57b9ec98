"""The configuration: one TOML file, checked before anything begins.

```text
 FILE ─▶ openflow, discovery, paths, terms, switches, links, hosts, state, api, tls, keys ─▶ Config
   └────── FILE: KEY: what is wrong
```

Sizes, rates and times have units (`1518B`, `1Gbit`, `200us`), as in the agent's configuration. A link or host
has the `terms` of all, but for those that it states itself. Unknown keys are faults.
"""

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate_controller.config import tls
from tidegate_controller.config.api import Api, announced, endpoint, read
from tidegate_controller.config.section import MAC, NAME, ConfigError, Section
from tidegate_controller.config.state import State, state
from tidegate_controller.decide.admission import Admission, Level, LinkTerms
from tidegate_controller.decide.marks import Marks
from tidegate_controller.decide.react import Remedy
from tidegate_controller.engine import Settings
from tidegate_controller.model.topology import Attachment, Link, Port
from tidegate_controller.ovsdb.connection import check_remote
from tidegate_controller.ovsdb.queues import BFD_INTERVAL
from tidegate_controller.trust.settings import TrustConfig

LARGEST_FILE = 4 << 20
LEAST_CAPACITY = 10_000_000
"""bit/s: the queues of levels, of best effort and of switches' own frames have a minimum each."""
LEAST_HOLD = 0.1
"""s."""
LEAST_BFD, LARGEST_BFD = 10, 10_000
"""ms."""
TERMS = {
    "capacity": "rate",
    "reservable": "rate",
    "overhead": "size",
    "latency": "time",
    "propagation": "time",
    "largest-frame": "size",
}


@dataclass(frozen=True)
class Config:
    """What the operator wants."""

    listen: tuple[str, int]
    """Where switches connect."""
    datapaths: Mapping[int, str]
    """The name of each switch, by its datapath id."""
    databases: Mapping[str, frozenset[int]]
    """Datapath ids of the switches of each database, by its remote."""
    links: frozenset[Link]
    """Both directions of each."""
    terms: tuple[LinkTerms, ...]
    """Of all links, and of both directions of hosts' uplinks."""
    hosts: Mapping[str, Attachment]
    settings: Settings
    interval: float
    """s between LLDP frames of a port."""
    state: State
    bfd_interval: int = BFD_INTERVAL
    """ms between BFD frames of a port."""
    api: Api = field(default_factory=Api)
    """Where hosts and operators ask."""
    trust: TrustConfig | None = None
    """Certificates and keys; without, nothing is encrypted."""


def load(path: Path) -> Config:
    """Reads a file. Raises `ConfigError`."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ConfigError(f"{path}: at most {LARGEST_FILE} bytes are read")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> Config:
    """Reads the text of a file. Raises `ConfigError`."""
    try:
        root = Section(where, "", tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from None
    openflow, discovery = root.section("openflow"), root.section("discovery")
    listen = endpoint(openflow, "listen", openflow.take("listen", str, "ADDRESS:PORT", "127.0.0.1:6653"))
    interval = discovery.quantity("interval", "time", "1s") / 1e9
    if interval < 0.05:
        raise discovery.fault("interval", "is below 50ms")
    kept = state(root.section("state"))
    bfd = discovery.take("bfd", bool, "true or false", True)
    bfd_interval = discovery.quantity("bfd-interval", "time", f"{BFD_INTERVAL}ms") // 1_000_000
    if not LEAST_BFD <= bfd_interval <= LARGEST_BFD:
        raise discovery.fault("bfd-interval", f"is not {LEAST_BFD}ms to {LARGEST_BFD}ms")
    settings = _settings(root.section("paths"), bfd)
    common = root.section("terms")
    links, terms = set[Link](), list[LinkTerms]()
    datapaths, databases = _switches(root, root.has("tls"))
    names = set(datapaths.values())
    defaults = common.values()
    used: set[Port] = set()
    for section in root.tables("links").values():
        link = _link(section, names, used)
        links |= {link, link.back}
        ends = [(one.name, one.source.switch, one.target.switch) for one in (link, link.back)]
        terms += _terms(section, defaults, ends, settings)
    hosts, may = {}, {}
    for name, section in root.tables("hosts").items():
        hosts[name] = host = _host(name, section, names, used)
        may[name] = announced(name, section)
        switch = host.port.switch
        ends = [(host.to_switch, name, switch), (host.to_host, switch, name)]
        terms += _terms(section, defaults, ends, settings)
    addresses = {name: host.address for name, host in hosts.items()}
    served = read(root.section("api"), may, addresses)
    trust = tls.read(root, openflow, {name: tls.member(one) for name, one in may.items()})
    if served.needs_tls and trust is None:
        wanted = "TLS, or `plain = true` for a network that only these hosts can read"
        raise ConfigError(f"{where}: api.listen: {served.listen} is no loopback address: it needs {wanted}")
    for section in (openflow, discovery, root):
        section.end()
    _different(root, hosts)
    return Config(
        listen,
        datapaths,
        databases,
        frozenset(links),
        tuple(terms),
        hosts,
        settings,
        interval,
        kept,
        bfd_interval=bfd_interval,
        api=served,
        trust=trust,
    )


def _settings(paths: Section, bfd: bool) -> Settings:
    marks = paths.take("marks", list, "a list of DSCPs", [46, 34])
    try:
        found = Marks(tuple(marks))
    except (ValueError, TypeError) as error:
        raise paths.fault("marks", str(error)) from None
    hold = paths.quantity("hold", "time", "5s") / 1e9
    if hold < LEAST_HOLD:
        raise paths.fault("hold", f"is below {LEAST_HOLD * 1000:g}ms: paths would be changed all the time")
    protect = paths.take("protect", bool, "true or false", False)
    remedies = _remedies(paths)
    paths.end()
    return Settings(marks=found, hold=hold, protect=protect, remedies=remedies, bfd=bfd)


def _remedies(paths: Section) -> frozenset[Remedy]:
    all_of_them = [str(one) for one in Remedy]
    what = f"a list of {', '.join(all_of_them)}"
    given = paths.take("remedies", list, what, all_of_them)
    try:
        return frozenset(Remedy(one) for one in given)
    except (ValueError, TypeError):
        raise paths.fault("remedies", f"is {str(given)[:60]}; {what} was expected") from None


def _switches(root: Section, secure: bool) -> tuple[dict[int, str], dict[str, frozenset[int]]]:
    datapaths: dict[int, str] = {}
    databases: dict[str, set[int]] = {}
    for name, section in root.tables("switches").items():
        if not NAME.fullmatch(name):
            raise section.fault("", f"{name[:60]!r} is no name of a switch: {NAME.pattern}")
        number = int(section.text("datapath", re.compile(r"[0-9a-f]{16}"), "16 hexadecimal digits"), 16)
        if number in datapaths:
            raise section.fault("datapath", f"is that of switch {datapaths[number]}, too")
        datapaths[number] = name
        remote = section.text("database")
        try:
            check_remote(remote, secure)
        except ValueError as error:
            raise section.fault("database", str(error)) from None
        databases.setdefault(remote, set()).add(number)
        section.end()
    if not datapaths:
        raise ConfigError(f"{root.where}: switches: none is named")
    return datapaths, {remote: frozenset(numbers) for remote, numbers in databases.items()}


def _port(section: Section, key: str, text: str, switches: set[str], used: set[Port]) -> Port:
    try:
        port = Port.parse(text)
    except ValueError:
        raise section.fault(key, f"is {text[:60]!r}; SWITCH:PORT was expected") from None
    if port.switch not in switches:
        raise section.fault(key, f"switch {port.switch[:60]!r} is not in `switches`")
    if not 0 < port.number < 0xFFFFFF00:
        raise section.fault(key, f"has port {port.number}; 1 to {0xFFFFFF00 - 1} were expected")
    if port in used:
        raise section.fault(key, f"port {port} is used already")
    used.add(port)
    return port


def _link(section: Section, switches: set[str], used: set[Port]) -> Link:
    ends = section.take("between", list, "two ports")
    if len(ends) != 2 or not all(isinstance(end, str) for end in ends):
        raise section.fault("between", f"is {str(ends)[:60]}; two ports were expected")
    one, other = (_port(section, "between", end, switches, used) for end in ends)
    if one.switch == other.switch:
        raise section.fault("between", "both ports are of one switch")
    return Link(one, other)


def _host(name: str, section: Section, switches: set[str], used: set[Port]) -> Attachment:
    if not NAME.fullmatch(name):
        raise section.fault("", f"{name[:60]!r} is no name of a host: {NAME.pattern}")
    port = _port(section, "port", section.text("port"), switches, used)
    text = section.text("address")
    try:
        address = str(ipaddress.ip_address(text))
    except ValueError:
        raise section.fault("address", f"is {text[:60]!r}; an IP address was expected") from None
    return Attachment(
        name, port, address, section.text("mac", MAC, "a MAC address such as 02:00:00:00:00:01")
    )


def _terms(
    section: Section, defaults: dict[str, Any], ends: list[tuple[str, str, str]], settings: Settings
) -> list[LinkTerms]:
    own = Section(section.where, section.key, defaults | section.values())
    values: dict[str, Any] = {
        key.replace("-", "_"): own.quantity(key, kind)
        for key, kind in TERMS.items()
        if own.has(key) or key in ("capacity", "reservable")
    }
    levels = tuple(
        _level(Section(own.where, f"{own.key}.levels.{number}", value))
        for number, value in enumerate(own.take("levels", list, "a list of levels"), 1)
    )
    own.end()
    if len(levels) != len(settings.marks.levels):
        raise own.fault("levels", f"{len(levels)}; `paths.marks` has {len(settings.marks.levels)}")
    if values["capacity"] < LEAST_CAPACITY:
        raise own.fault("capacity", f"is {values['capacity']} bit/s; at least {LEAST_CAPACITY} are needed")
    terms = [LinkTerms(*end, levels=levels, **values) for end in ends]
    try:
        Admission(terms)
    except ValueError as error:
        raise ConfigError(f"{own.where}: {own.key}: {error}") from None
    return terms


def _level(section: Section) -> Level:
    delay = section.quantity("delay", "time")
    in_frames = section.has("frames")
    buffer = (
        section.take("frames", int, "a number of frames") if in_frames else section.quantity("buffer", "size")
    )
    if buffer <= 0:
        raise section.fault("frames" if in_frames else "buffer", "is not above 0")
    section.end()
    return Level(delay, buffer, in_frames)


def _different(root: Section, hosts: Mapping[str, Attachment]) -> None:
    for what in ("address", "mac"):
        seen: dict[str, str] = {}
        for name, host in hosts.items():
            value = getattr(host, what)
            if value in seen:
                raise root.fault(f"hosts.{name}.{what}", f"{value} is that of host {seen[value]}, too")
            seen[value] = name
