"""Names of places as string literals in the agent, which must not know a place by its name."""

import re
from pathlib import Path

from sources.crates import Package
from sources.scopes import Crate
from sources.tokens import tokens, without_tests

_CONTENT = re.compile(r'(?:b|c)?r?#*"(.*)"#*', re.DOTALL)


def places_named_by_agent(crates: list[Package]) -> list[str]:
    """A line for every literal in the agent's production code that is a place's name, or names its unit."""
    names = [crate.label.removeprefix("places/") for crate in crates if crate.label.startswith("places/")]
    if not names:
        return []
    either = "|".join(map(re.escape, names))
    forbidden = re.compile(rf"({either})|.*\btidegate-({either})\b.*", re.DOTALL)
    return [
        f"{agent.label}: {file.relative_to(source).as_posix()}:{line}: {text} names a place; "
        "the place has to report the fact for which the agent asks"
        for agent in crates
        if agent.label == "agent"
        for source in [agent.folder / "src"]
        for file in Crate(source, agent.library).files()
        for line, text in _literals(file)
        if (content := _CONTENT.fullmatch(text)) and forbidden.fullmatch(content.group(1))
    ]


def _literals(file: Path) -> list[tuple[int, str]]:
    """The lines and texts of a file's string literals outside of tests."""
    code = without_tests(list(tokens(file.read_text())))
    return [(token.line, token.text) for token in code if token.kind == "string"]
