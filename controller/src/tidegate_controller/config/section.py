"""A table of the configuration, whose faults name the file, the key, and what was expected.

```text
 TOML ─▶ Section ─▶ texts, quantities, sections within ─▶ end: no key is left
```
"""

import re
from pathlib import Path
from typing import Any

MOST = {"switches": 256, "links": 4096, "hosts": 2048}
UNITS = {
    "time": {
        "ns": 1,
        "us": 10**3,
        "ms": 10**6,
        "s": 10**9,
        "min": 60 * 10**9,
        "h": 3600 * 10**9,
        "d": 86400 * 10**9,
    },
    "rate": {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9},
    "size": {"B": 1, "kB": 10**3, "KiB": 1 << 10, "MB": 10**6, "MiB": 1 << 20},
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class ConfigError(ValueError):
    """Names the file, the key, and what was expected."""


class Section:
    """A table of the file, whose faults name the key."""

    def __init__(self, where: str, key: str, values: object) -> None:
        self.where, self.key = where, key
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: {key}: a table was expected")
        self._values: dict[str, Any] = dict(values)

    def fault(self, key: str, text: str) -> ConfigError:
        """The fault of a key."""
        return ConfigError(f"{self.where}: {'.'.join(part for part in (self.key, key) if part)}: {text}")

    def take(self, key: str, kind: type | tuple[type, ...], what: str, default: object = None) -> Any:  # noqa: ANN401
        """A value of a kind. Without a default the key is needed."""
        value = self._values.pop(key, default)
        if value is None:
            raise self.fault(key, f"is missing; {what} was expected")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault(key, f"is {str(value)[:60]!r}; {what} was expected")
        return value

    def text(self, key: str, pattern: re.Pattern[str] | None = None, what: str = "a text") -> str:
        """A text, of a form."""
        value: str = self.take(key, str, what)
        if pattern is not None and not pattern.fullmatch(value):
            raise self.fault(key, f"is {value[:60]!r}; {what} was expected")
        return value

    def quantity(self, key: str, kind: str, default: str | None = None) -> int:
        """A time in ns, a rate in bit/s or a size in bytes."""
        units = UNITS[kind]
        what = f"a {kind} such as 5{next(iter(units))} ({', '.join(units)})"
        text: str = self.take(key, str, what, default)
        found = re.fullmatch(r"([0-9]{1,12})(\.[0-9]{1,9})?([A-Za-z]+)", text)
        if found is None or found[3] not in units:
            raise self.fault(key, f"is {text[:60]!r}; {what} was expected")
        fraction = found[2] or "."
        scaled = units[found[3]] * int(found[1] + fraction[1:])
        return scaled // int(10 ** (len(fraction) - 1))

    def path(self, key: str, default: str | None = None) -> Path:
        """The whole path of a file or folder."""
        text: str = self.take(key, str, "the whole path of a file", default)
        if not text.startswith("/") or "\0" in text:
            raise self.fault(key, f"is {text[:60]!r}; the whole path of a file was expected")
        return Path(text)

    def section(self, key: str) -> "Section":
        """A table within; empty if it is not there."""
        return Section(self.where, f"{self.key}.{key}" if self.key else key, self._values.pop(key, {}))

    def tables(self, key: str) -> "dict[str, Section]":
        """Tables by name, or a list of tables by number."""
        values = self._values.pop(key, {})
        if isinstance(values, list):
            values = {str(number): value for number, value in enumerate(values, 1)}
        named = Section(self.where, key, values)._values
        if len(named) > MOST[key]:
            raise ConfigError(f"{self.where}: {key}: {len(named)}; at most {MOST[key]} are served")
        return {name: Section(self.where, f"{key}.{name}", value) for name, value in named.items()}

    def values(self) -> dict[str, Any]:
        """What is not taken yet."""
        return dict(self._values)

    def has(self, key: str) -> bool:
        """Whether the key is there and not taken yet."""
        return key in self._values

    def end(self) -> None:
        """All keys have been taken."""
        for key in self._values:
            raise self.fault(key, "is not known")
