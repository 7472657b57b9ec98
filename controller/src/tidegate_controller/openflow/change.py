"""One change of what a switch holds.

```text
 before ─▶ after:   nothing ─▶ rule   added      rule ─▶ rule   modified      rule ─▶ nothing   deleted
```
"""

from dataclasses import dataclass

from tidegate_controller.model.intent import Group, Rule


@dataclass(frozen=True)
class Change:
    """A rule or a group that comes, changes or goes; one side at least is there, both have the same key."""

    before: Rule | Group | None
    after: Rule | Group | None

    @property
    def inverse(self) -> "Change":
        """The change that takes this one back."""
        return Change(self.after, self.before)

    def __str__(self) -> str:
        if self.before is None:
            return f"add {self.after}"
        if self.after is None:
            return f"delete {self.before}"
        return f"modify {self.before} to {self.after}"
