"""The operations of the OpenAPI file: their routes, who may use them, and checks of what they take.

```text
 openapi.json ─▶ Operation: method, route, schemes, parameters, body ─▶ taken: parameters and body, or Invalid
```
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate_controller.api.schema import Check, Invalid, compiled, contract

LARGE = 1 << 20
"""Bytes: the body of a registration, or of a batch of misses."""
SMALL = 32 << 10
"""Of all others."""
WITH_MUCH = {"register", "misses"}
NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class Parameter:
    """One of the path or the query."""

    name: str
    required: bool
    is_number: bool
    check: Check


@dataclass(frozen=True)
class Operation:
    """One operation of the file."""

    name: str
    method: str
    route: str
    schemes: tuple[str, ...]
    """Any of these; none: everybody."""
    parameters: tuple[Parameter, ...]
    body: Check | None
    largest: int
    """Bytes of the body."""

    def take(self, path: Mapping[str, str], query: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Reads the parameters. Raises `Invalid`."""
        given = dict(path)
        for name, value in query:
            if name in given:
                raise Invalid(f"parameter {name[:60]!a} is there twice")
            given[name] = value
        found: dict[str, Any] = {}
        for one in self.parameters:
            text = given.pop(one.name, None)
            if text is None:
                if one.required:
                    raise Invalid(f"parameter {one.name} is missing")
                continue
            read: Any = text
            if one.is_number:
                if not NUMBER.fullmatch(text):
                    raise Invalid(f"parameter {one.name}: is {text[:60]!a}; a number was expected")
                read = int(text)
            one.check(read, f"parameter {one.name}")
            found[one.name] = read
        for left in given:
            raise Invalid(f"parameter {left[:60]!a} is not known")
        return found


def operations() -> list[Operation]:
    """All of the file."""
    return [
        _operation(route, method, one)
        for route, methods in contract()["paths"].items()
        for method, one in methods.items()
    ]


def _operation(route: str, method: str, one: dict[str, Any]) -> Operation:
    name = one["operationId"]
    schemes = tuple(scheme for choice in one["security"] for scheme in choice)
    parameters = tuple(
        Parameter(
            each["name"], each["required"], each["schema"]["type"] == "integer", compiled(each["schema"])
        )
        for each in one.get("parameters", ())
    )
    body = one.get("requestBody")
    check = compiled(body["content"]["application/json"]["schema"]) if body else None
    largest = (LARGE if name in WITH_MUCH else SMALL) if body else 0
    return Operation(name, method.upper(), route, schemes, parameters, check, largest)
