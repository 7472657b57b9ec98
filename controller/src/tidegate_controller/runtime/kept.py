"""What outlives a process: the network that rules follow, paths, changes under way, decisions.

```text
 SaveNetwork, SavePath, SaveChange, SaveDecision, Drop... ─▶ Kept ─▶ Core.restore of the next process
```
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from tidegate_controller import events as ev
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import Path

MOST_DECISIONS = 10_000
"""The last ones."""

Save = ev.SaveNetwork | ev.SavePath | ev.DropPath | ev.SaveChange | ev.DropChange | ev.SaveDecision


@dataclass
class Kept:
    """All that was saved, in memory."""

    network: ev.SaveNetwork | None = None
    paths: dict[str, Path] = field(default_factory=dict)
    changes: dict[str, ev.SaveChange] = field(default_factory=dict)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=MOST_DECISIONS))
    verdicts: Counter[Verdict] = field(default_factory=Counter, compare=False)
    """Of decisions of this process."""

    @property
    def decided(self) -> int:
        """How many decisions there were."""
        return self.decisions[-1].number if self.decisions else 0

    def become(self, other: "Kept") -> None:
        """Has what another one has, for all that refer to this one."""
        self.network = other.network
        self.paths, self.changes, self.decisions = other.paths, other.changes, other.decisions

    def take(self, effect: Save) -> None:
        """Keeps what an effect says."""
        match effect:
            case ev.SaveNetwork():
                self.network = effect
            case ev.SavePath(path):
                self.paths[path.request.name] = path
                self.changes.pop(path.request.name, None)
            case ev.DropPath(name):
                self.paths.pop(name, None)
                self.changes.pop(name, None)
            case ev.SaveChange():
                self.changes[effect.new.request.name] = effect
            case ev.DropChange(name):
                self.changes.pop(name, None)
            case ev.SaveDecision(decision):
                self.decisions.append(decision)
                self.verdicts[decision.verdict] += 1
