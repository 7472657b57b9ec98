"""For how long this process has listened: a clock that stands still while the process does not get to work.

```text
 time of each look ─▶ Listening.until ─▶ s that it has listened
```

A process that got no CPU for seconds, or handled one event for that long, has sent no frames meanwhile, and
has not read those that came: the silence of that time tells nothing of a link.
"""


class Listening:
    """The clock."""

    def __init__(self, most: float) -> None:
        """Between two looks, `most` s count at most."""
        self._most = most
        self._listened = 0.0
        self._last: float | None = None

    def until(self, now: float) -> float:
        """Returns the time that counts until `now` (s), which is a look, too."""
        if self._last is not None:
            self._listened += min(max(0.0, now - self._last), self._most)
        self._last = now if self._last is None else max(self._last, now)
        return self._listened
