"""What outlives a process: the network that rules follow, plain NICs, paths, changes under way, decisions.

```text
 SaveNetwork, SaveBehind, SavePath, SaveDecision, Drop... ─▶ Kept ─▶ Core.restore of the next process
```
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from tidegate_controller import events as ev
from tidegate_controller.model.decisions import Decision, Verdict
from tidegate_controller.model.paths import Path
from tidegate_controller.model.plain import NO_TAGS, NOTHING, Behind, Tagged

MOST_DECISIONS = 10_000
"""The last ones."""

Save = (
    ev.SaveNetwork
    | ev.SaveBehind
    | ev.SaveTagged
    | ev.SavePath
    | ev.DropPath
    | ev.SaveChange
    | ev.DropChange
    | ev.SaveDecision
)


@dataclass
class Kept:
    """All that was saved, in memory."""

    network: ev.SaveNetwork | None = None
    paths: dict[str, Path] = field(default_factory=dict)
    changes: dict[str, ev.SaveChange] = field(default_factory=dict)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=MOST_DECISIONS))
    verdicts: Counter[Verdict] = field(default_factory=Counter, compare=False)
    """Of decisions of this process."""
    behind: dict[str, Behind] = field(default_factory=dict)
    """By host."""
    tagged: Tagged = NO_TAGS

    @property
    def decided(self) -> int:
        """How many decisions there were."""
        return self.decisions[-1].number if self.decisions else 0

    def become(self, other: "Kept") -> None:
        """Has what another one has, for all that refer to this one."""
        self.network, self.behind, self.tagged = other.network, other.behind, other.tagged
        self.paths, self.changes, self.decisions = other.paths, other.changes, other.decisions

    def take(self, effect: Save) -> None:
        """Keeps what an effect says."""
        match effect:
            case ev.SaveNetwork():
                self.network = effect
            case ev.SaveBehind(host, behind):
                self.behind[host] = behind
                if behind == NOTHING:
                    del self.behind[host]
            case ev.SaveTagged(tagged):
                self.tagged = tagged
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
