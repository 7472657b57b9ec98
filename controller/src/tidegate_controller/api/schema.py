"""The schemas of the OpenAPI file as checks of JSON values.

```text
 openapi.json ─▶ compiled: one function for each schema ─▶ a value fits, or Invalid: where, what was expected
```

Of JSON Schema, the part that the file uses; a keyword that is not known is a fault of the file. Stricter at
two points: an integer has no decimal point, and a pattern holds for the whole text.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

Check = Callable[[Any, str], None]
"""Of a value and where it is."""
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
LARGEST = sys.float_info.max
"""No number is beyond it, also where the file names no bound: JSON's integers have no end."""
NOTES = {"description", "examples", "title"}


class Invalid(ValueError):
    """Names the place, and what was expected."""


@cache
def contract() -> dict[str, Any]:
    """The OpenAPI file."""
    text = resources.files(__package__).joinpath("openapi.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def named(name: str) -> Check:
    """The check of a schema of the file."""
    return compiled(contract()["components"]["schemas"][name])


def compiled(schema: dict[str, Any]) -> Check:
    """Makes a check. Raises `ValueError` for a keyword that is not known."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")

        def refer(value: Any, where: str) -> None:  # noqa: ANN401
            named(name)(value, where)

        return refer
    if "oneOf" in schema:
        return _either(schema["oneOf"])
    rest = dict(schema)
    kinds = rest.pop("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    checks: dict[type, list[Check]] = {kind: [] for name in names for kind in KINDS[name]}
    for name in names:
        found = _of_kind(name, rest)
        for kind in KINDS[name]:
            checks[kind] += found
    if unknown := rest.keys() - NOTES:
        raise ValueError(f"keywords {sorted(unknown)} are not known")
    expected = " or ".join(names)

    def check(value: Any, where: str) -> None:  # noqa: ANN401
        known = checks.get(type(value))
        if known is None:
            raise Invalid(f"{where}: is {_short(value)}; {expected} was expected")
        for one in known:
            one(value, where)

    return check


def _either(schemas: list[dict[str, Any]]) -> Check:
    """One of several objects of the file: the one with most of the value's members is meant."""
    names = [schema["$ref"].removeprefix("#/components/schemas/") for schema in schemas]
    forms = [(set(contract()["components"]["schemas"][name]["properties"]), named(name)) for name in names]

    def check(value: Any, where: str) -> None:  # noqa: ANN401
        members = set(value) if isinstance(value, dict) else set()
        _, one = max(forms, key=lambda form: len(form[0] & members))
        one(value, where)

    return check


def _of_kind(name: str, rest: dict[str, Any]) -> list[Check]:
    match name:
        case "object":
            return [_members(rest)]
        case "array":
            return [_items(rest)]
        case "string":
            return _text(rest)
        case "integer" | "number":
            return [_range(rest.pop("minimum", None), rest.pop("maximum", None))]
        case _:
            return []


def _members(rest: dict[str, Any]) -> Check:
    if rest.pop("additionalProperties", None) is not False:
        raise ValueError("an object without `additionalProperties: false`")
    required = set(rest.pop("required", ()))
    members = {name: compiled(schema) for name, schema in rest.pop("properties").items()}

    def check(value: dict[str, Any], where: str) -> None:
        if not required <= value.keys():
            raise Invalid(f"{where}: `{min(required - value.keys())}` is missing")
        for name, member in value.items():
            one = members.get(name)
            if one is None:
                raise Invalid(f"{where}: {_short(name)} is not known; {', '.join(members)} are")
            one(member, f"{where}.{name}")

    return check


def _items(rest: dict[str, Any]) -> Check:
    most, item = rest.pop("maxItems"), compiled(rest.pop("items"))

    def check(value: list[Any], where: str) -> None:
        if len(value) > most:
            raise Invalid(f"{where}: has {len(value)} entries; at most {most} were expected")
        for number, one in enumerate(value):
            item(one, f"{where}[{number}]")

    return check


def _text(rest: dict[str, Any]) -> list[Check]:
    least, most = rest.pop("minLength", 0), rest.pop("maxLength", math.inf)
    pattern, choices = rest.pop("pattern", None), rest.pop("enum", None)
    form = re.compile(pattern.removeprefix("^").removesuffix("$")) if pattern else None

    def check(value: str, where: str) -> None:
        if not least <= len(value) <= most:
            raise Invalid(f"{where}: has {len(value)} characters; {least} to {most} were expected")
        if form is not None and not form.fullmatch(value):
            raise Invalid(f"{where}: is {_short(value)}; the form {pattern} was expected")
        if choices is not None and value not in choices:
            raise Invalid(f"{where}: is {_short(value)}; {', '.join(choices)} were expected")
        if not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value):
            raise Invalid(f"{where}: has half a character (a surrogate)")

    return [check]


def _range(least: float | None, most: float | None) -> Check:
    low, high = -LARGEST if least is None else least, LARGEST if most is None else most

    def check(value: float, where: str) -> None:
        if not low <= value <= high:
            raise Invalid(f"{where}: is {_short(value)}; {low} to {high} was expected")

    return check


def _short(value: object) -> str:
    """A value for people, however large it is."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    if isinstance(value, int) and not -(10**20) < value < 10**20:
        return "a number of more than 20 digits"
    return ascii(value[:60] if isinstance(value, str) else value)


def parse(data: bytes) -> Any:  # noqa: ANN401
    """Reads JSON. Raises `Invalid`."""
    try:
        return json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Invalid(f"no JSON (RFC 8259): {text[:200]}") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
