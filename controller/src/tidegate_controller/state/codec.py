"""Frozen dataclasses as JSON values, and back: each value is checked when it is read.

```text
 Path(...) ─▶ encode ─▶ {"request": {...}, "tag": 7, ...} ─▶ decode(Path, ...) ─▶ Path(...)
                                                              └ a missing or unknown key, another type: Wrong
```

What was written by another version, or by hand, is refused with the place of the fault.
"""

import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

LARGEST = 1 << 63
"""Whole numbers are below it, as in SQL and in etcd."""

T = TypeVar("T")


class Wrong(ValueError):
    """A value that does not parse: where, and what was expected."""


def encode(value: object) -> Any:  # noqa: ANN401 - JSON
    """Returns a value of model or events as a JSON value. Sets are sorted, so that equal ones are equal."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: encode(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, set | frozenset):
        return [encode(one) for one in sorted(value)]
    if isinstance(value, list | tuple):
        return [encode(one) for one in value]
    if isinstance(value, dict):
        return {key: encode(one) for key, one in value.items()}
    return value


def decode(kind: type[T], value: object, where: str) -> T:
    """Returns the value of this type that `encode` has made. Raises `Wrong`."""
    read: Callable[[object, str], T] = _reader(kind)  # type: ignore[arg-type]
    return read(value, where)


@cache
def _reader(kind: Any) -> Callable[[object, str], Any]:  # noqa: ANN401 - types
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [one for one in arguments if one is not type(None)]
        inner = _reader(kinds[0]) if len(kinds) == 1 else _either(kinds)
        return _maybe(inner) if len(kinds) < len(arguments) else inner
    if origin in (tuple, frozenset, set, Sequence):
        # What is a sequence was a list.
        return _many(list if origin is Sequence else origin, _reader(arguments[0]))
    if origin is dict:
        return _table(_reader(arguments[1]))
    if is_dataclass(kind):
        return _record(kind)
    if issubclass(kind, StrEnum):
        return _choice(kind)
    return _plain(kind)


def _wrong(where: str, value: object, expected: str) -> Wrong:
    return Wrong(f"{where}: {str(value)[:60]!r}; {expected} was expected")


def _maybe(inner: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    return lambda value, where: None if value is None else inner(value, where)


def _many(made: Callable[[Any], Any], inner: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def read(value: object, where: str) -> object:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        return made(inner(one, f"{where}[{number}]") for number, one in enumerate(value))

    return read


def _table(inner: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def read(value: object, where: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(where, value, "a table")
        return {key: inner(one, f"{where}.{key}") for key, one in value.items()}

    return read


def _record(kind: Any) -> Callable[[object, str], Any]:  # noqa: ANN401 - a dataclass
    hints = typing.get_type_hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in fields(kind)}

    def read(value: object, where: str) -> object:
        if not isinstance(value, dict) or value.keys() != readers.keys():
            raise _wrong(where, value, f"a table of {', '.join(readers)}")
        return kind(**{key: inner(value[key], f"{where}.{key}") for key, inner in readers.items()})

    return read


def _either(kinds: Sequence[Any]) -> Callable[[object, str], Any]:
    """Reads one of several records, which differ in their fields."""
    by_fields = {frozenset(one.name for one in fields(kind)): _reader(kind) for kind in kinds}
    forms = " or ".join(f"a table of {', '.join(one.name for one in fields(kind))}" for kind in kinds)

    def read(value: object, where: str) -> object:
        reader = by_fields.get(frozenset(value)) if isinstance(value, dict) else None
        if reader is None:
            raise _wrong(where, value, forms)
        return reader(value, where)

    return read


def _choice(kind: type[StrEnum]) -> Callable[[object, str], Any]:
    known = {str(one): one for one in kind}

    def read(value: object, where: str) -> object:
        if not isinstance(value, str) or value not in known:
            raise _wrong(where, value, f"one of {', '.join(known)}")
        return known[value]

    return read


def _plain(kind: type) -> Callable[[object, str], Any]:
    names = {int: "a whole number", str: "a text", bool: "true or false", float: "a number"}
    expected = names[kind]

    def read(value: object, where: str) -> object:
        if kind is float and type(value) is int:
            value = float(value) if abs(value) < LARGEST else math.inf
        if type(value) is not kind:
            raise _wrong(where, value, expected)
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(where, value, "a finite number")
        if type(value) is int and not -LARGEST <= value < LARGEST:
            raise _wrong(where, value, "a number of 64 bits")
        return value

    return read
