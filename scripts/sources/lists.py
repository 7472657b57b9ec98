"""The lists of modules in the comments of module files, compared with the `mod` declarations there."""

import re
from collections.abc import Iterator

from sources.scopes import Scope
from sources.tokens import Token, group_end, tokens, without_tests

_LINE = re.compile(r"//!\s+- (.*)")
_NAME = r"(?:\[`[^`]+`\]\([^)]*\)|\[`[^`]+`\]|`[^`]+`)"
_ENTRY = re.compile(rf"({_NAME}(?:(?:,| and) {_NAME})*): ")
_PARTS = re.compile(r"\[?`(?:mod@)?([^`]+?)(?:\(\))?`\]?(?:\(([^)]*)\))?")


def faults(text: str, scope: Scope) -> Iterator[str]:
    """What is wrong with the list of modules in a file of this text; nothing if it has no such list."""
    declared = set(_declared(list(tokens(text))))
    needed = set(_declared(without_tests(list(tokens(text)))))
    listed = dict(_listed(text))
    if not declared & set(listed):
        return
    known = declared | set(scope.children) | scope.items
    known |= {imported.name for imported in scope.imports if imported.public}
    for name, line in listed.items():
        if name not in known:
            yield f"line {line}: the list of modules has `{name}`, which is neither a module nor an item here"
    for name in sorted(needed - set(listed)):
        yield f"the list of modules has no line for `{name}`"


def _listed(text: str) -> Iterator[tuple[str, int]]:
    """The names in lists, and their lines; a link to another file names no module of this one."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.match(line)
        entry = _ENTRY.match(found[1]) if found else None
        while found and entry:
            for name, target in _PARTS.findall(entry[1]):
                if target in ("", "self"):
                    yield name, number
            further = found[1].find("; ", entry.end())
            entry = _ENTRY.match(found[1], further + 2) if further >= 0 else None


def _declared(code: list[Token]) -> Iterator[str]:
    """The modules with files of their own."""
    code = [token for token in code if token.kind != "comment"]
    at = 0
    while at < len(code):
        if code[at].text == "{" and code[at].kind == "sign":
            at = group_end(code, at)
            continue
        if [token.text for token in code[at : at + 3 : 2]] == ["mod", ";"] and code[at].kind == "name":
            yield code[at + 1].text
        at += 1
