"""How a path stands, as its host is told: as it is, or `violated` for a while.

```text
 TellHost: violated ─▶ marked, with reasons ─▶ state `violated`
           moved, raised ─▶ reasons, no mark
 another generation, or no late frame for the hold time ─▶ no mark
```
"""

from dataclasses import dataclass

from tidegate_controller.model.decisions import Verdict
from tidegate_controller.model.paths import Path, PathState


@dataclass(frozen=True)
class _Mark:
    generation: int
    violated: bool
    reasons: tuple[str, ...]
    time: float
    """Of the last late frame that was reported."""


class Standing:
    """Marks of paths."""

    def __init__(self, hold: float) -> None:
        """`hold` in s: as long as the core leaves a path as it is after a change."""
        self._hold = hold
        self._marks: dict[str, _Mark] = {}

    def told(self, path: Path, verdict: Verdict, reasons: tuple[str, ...], now: float) -> None:
        """The core has changed a path, or cannot help it."""
        violated = verdict == Verdict.VIOLATED
        self._marks[path.request.name] = _Mark(path.generation, violated, reasons, now)

    def missed(self, name: str, now: float) -> None:
        """Frames were late."""
        mark = self._marks.get(name)
        if mark is not None and mark.violated:
            self._marks[name] = _Mark(mark.generation, True, mark.reasons, now)

    def of(self, path: Path) -> tuple[str, tuple[str, ...]]:
        """The state of a path, and why."""
        mark = self._marks.get(path.request.name)
        if mark is None or (mark.generation != path.generation and path.state != PathState.BROKEN):
            return path.state.value, ()
        if mark.violated and path.state in (PathState.ACTIVE, PathState.MOVING):
            return "violated", mark.reasons
        return path.state.value, mark.reasons

    def pass_time(self, paths: dict[str, Path], now: float) -> list[str]:
        """Takes marks off. Returns paths that stand otherwise now."""
        found = []
        for name, mark in list(self._marks.items()):
            path = paths.get(name)
            if path is None:
                del self._marks[name]
            elif path.state != PathState.BROKEN and (
                path.generation != mark.generation or (mark.violated and now >= mark.time + self._hold)
            ):
                del self._marks[name]
                if mark.violated:
                    found.append(name)
        return found
