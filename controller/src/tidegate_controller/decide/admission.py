"""Whether a path fits: the arithmetic of `native`, in the words of `model`. No bound is computed here."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate_controller.model.paths import EthernetKey, PathRequest, Route
from tidegate_native import Ledger

TAG = 4
"""Bytes of a VLAN tag."""
SMALLEST = 60
"""Bytes of the smallest Ethernet frame without its checksum."""


@dataclass(frozen=True)
class Level:
    """A real-time queue of a link."""

    delay: int
    """The fixed delay, ns."""
    buffer: int
    """What the queue holds: frames, or bytes."""
    in_frames: bool = True


@dataclass(frozen=True)
class LinkTerms:
    """What a link promises; rates in bit/s, sizes in bytes, times in ns."""

    name: str
    source: str
    target: str
    capacity: int
    reservable: int
    levels: tuple[Level, ...]
    overhead: int = 24
    latency: int = 50_000
    propagation: int = 500
    largest_frame: int = 1518


@dataclass(frozen=True)
class Granted:
    """A route that fits."""

    route: Route
    bound: int
    """The longest time in the network, ns."""
    far_burst: int
    """The burst at the end, bytes."""


@dataclass(frozen=True)
class Wanted:
    """A reservation, by the name that it has in the arithmetic."""

    reservation: str
    request: PathRequest
    routes: Sequence[Route]


class Refused(Exception):
    """No route fits; `reasons` has one sentence for each."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


class Admission:
    """All reservations."""

    def __init__(self, links: Iterable[LinkTerms]) -> None:
        self._ledger = Ledger(json.dumps([_link(link) for link in links]))

    def change(self, release: Sequence[str], reserve: Sequence[Wanted]) -> list[Granted]:
        """Releases and reserves, all or nothing. Raises `Refused`; nothing has changed then."""
        try:
            text = self._ledger.change(list(release), json.dumps([_wanted(one) for one in reserve]))
        except ValueError as error:
            if not str(error).startswith("reserve: "):
                raise
            # A quantity that the arithmetic does not know, such as a rate beyond all links.
            raise Refused([str(error)]) from None
        outcome = json.loads(text)
        if refused := outcome.get("refused"):
            raise Refused([one["text"] for one in refused])
        granted = []
        for wanted, one in zip(reserve, outcome["granted"], strict=True):
            grant = one["grant"]
            route = wanted.routes[one["route"]]
            granted.append(Granted(route, nanoseconds(grant["bound"]), _bytes(grant["burst"])))
        return granted

    def reservations(self) -> list[str]:
        """Returns the names of all, in order."""
        return list(self._ledger.paths())

    def usage(self) -> list[dict[str, Any]]:
        """Returns what is reserved at each link."""
        found = json.loads(self._ledger.usage())
        assert isinstance(found, list)
        return found


def _link(link: LinkTerms) -> dict[str, Any]:
    return {
        "name": link.name,
        "from": link.source,
        "to": link.target,
        "capacity": f"{link.capacity}bit",
        "reservable": f"{link.reservable}bit",
        "overhead": f"{link.overhead}B",
        "latency": f"{link.latency}ns",
        "propagation": f"{link.propagation}ns",
        "largest-frame": f"{link.largest_frame}B",
        "levels": [
            {
                "delay": f"{level.delay}ns",
                "buffer": {"frames": level.buffer} if level.in_frames else {"bytes": f"{level.buffer}B"},
            }
            for level in link.levels
        ],
    }


def _wanted(wanted: Wanted) -> dict[str, Any]:
    request = wanted.request
    smallest, largest = request.smallest_frame, request.largest_frame
    if isinstance(request.key, EthernetKey):
        # The arithmetic adds a tag to each frame, and these have it. Rate and burst stay: they cover it.
        smallest = max(smallest - TAG, min(smallest, SMALLEST))
        largest = max(largest - TAG, smallest)
    return {
        "path": wanted.reservation,
        "request": {
            "rate": f"{request.rate}bit",
            "burst": f"{request.burst}B",
            "smallest-frame": f"{smallest}B",
            "largest-frame": f"{largest}B",
            "budget": f"{request.budget}ns",
        },
        "routes": [{"links": list(route.links), "level": route.level} for route in wanted.routes],
    }


NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
BYTES = {"B": 1, "kB": 1_000, "KiB": 1 << 10, "MB": 1_000_000, "MiB": 1 << 20}


def nanoseconds(text: str) -> int:
    """Reads a time as the arithmetic writes it."""
    return _quantity(text, NANOSECONDS)


def _bytes(text: str) -> int:
    return _quantity(text, BYTES)


def _quantity(text: str, units: dict[str, int]) -> int:
    """Returns the whole number of base units that a decimal with a unit stands for."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzBKM")
    whole, _, fraction = digits.partition(".")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * units[text[len(digits) :]] // scale
