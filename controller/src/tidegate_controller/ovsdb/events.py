"""What the session of a database tells the core."""

from dataclasses import dataclass

from tidegate_controller.model.topology import Port


@dataclass(frozen=True)
class Connected:
    """A database has answered; its switches, by name."""

    remote: str
    switches: tuple[str, ...]


@dataclass(frozen=True)
class Lost:
    """A database is not connected. The session goes on trying; nothing is known of its links meanwhile."""

    remote: str
    reason: str


@dataclass(frozen=True)
class LinkUp:
    """BFD hears the other end of a watched port."""

    port: Port


@dataclass(frozen=True)
class LinkDown:
    """BFD does not hear the other end of a watched port any more, or the port is gone."""

    port: Port
    reason: str


@dataclass(frozen=True)
class Changed:
    """Queues or BFD of a switch were set; `text` says what was wrong."""

    switch: str
    text: str


@dataclass(frozen=True)
class Left:
    """A port does not get its queues, until what `reason` names is gone."""

    port: Port
    reason: str


@dataclass(frozen=True)
class NotSet:
    """The database, or the switch behind it, did not do what was asked."""

    switch: str
    reason: str


Event = Connected | Lost | LinkUp | LinkDown | Changed | Left | NotSet
