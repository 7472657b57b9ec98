"""The modules of a crate, their items and imports, and which file uses an item of which other.

What is an edge from one file to another of the same crate, and what is not, stands in the
description of `scripts/modules`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from sources.tokens import Token, group_end, tokens, without_tests

_DEFINING = frozenset(["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"])
_ATTRIBUTE_PATH = re.compile(r'"((?:\w+::)*\w+)"')
_PATH_ATTRIBUTES = frozenset(
    ["with", "default", "serialize_with", "deserialize_with", "skip_serializing_if", "remote"],
)


@dataclass(frozen=True, slots=True)
class Use:
    """The use of an item: its name, and the line of the using file."""

    item: str
    line: int


@dataclass(frozen=True, slots=True)
class Import:
    """One name, or all names (`name` is "*"), that a `use` brings into a scope."""

    path: tuple[str, ...]
    name: str
    public: bool
    line: int


@dataclass(eq=False, slots=True)
class Scope:
    """A module: its file (one file may hold several), children, items, imports and code."""

    file: Path
    parent: "Scope | None"
    children: dict[str, "Scope"] = field(default_factory=dict)
    items: set[str] = field(default_factory=set)
    macros: set[str] = field(default_factory=set)
    imports: list[Import] = field(default_factory=list)
    code: list[Token] = field(default_factory=list)

    def root(self) -> "Scope":
        """The scope of the crate's root."""
        return self if self.parent is None else self.parent.root()

    def is_part_of(self, item: "Item") -> bool:
        """Whether this module, below that of a type, adds methods to it: one definition in several files."""
        above = self.parent
        while above is not None and above.file != item.file:
            above = above.parent
        return above is not None and item.name in _extended(self.code)

    def all(self) -> Iterator["Scope"]:
        """This scope and all below."""
        yield self
        for child in self.children.values():
            yield from child.all()


@dataclass(frozen=True, slots=True)
class Item:
    """An item and the file that defines it."""

    file: Path
    name: str


Target = Scope | Item
Edges = dict[tuple[Path, Path], list[Use]]


class Crate:
    """A crate's modules, from its roots `lib.rs`, `main.rs` and `bin/*.rs`."""

    def __init__(self, source: Path, library: str) -> None:
        """`source` is its `src` folder, `library` the name by which its programs import it."""
        self.library = library
        roots = [source / "lib.rs", source / "main.rs", *sorted(source.glob("bin/*.rs"))]
        self.roots = {root: _load(root, None) for root in roots if root.exists()}
        self.lib = self.roots.get(source / "lib.rs")
        self.scopes = [scope for root in self.roots.values() for scope in root.all()]

    def files(self) -> list[Path]:
        """All files that a build without tests compiles."""
        return sorted({scope.file for scope in self.scopes})

    def edges(self) -> Edges:
        """Which file uses which items of which other file."""
        found: dict[tuple[Path, Path], dict[Use, None]] = {}
        for scope in self.scopes:
            for target, line in self._uses(scope):
                if isinstance(target, Item) and target.file != scope.file and not scope.is_part_of(target):
                    found.setdefault((scope.file, target.file), {})[Use(target.name, line)] = None
        return {pair: sorted(uses, key=lambda use: (use.line, use.item)) for pair, uses in found.items()}

    def _uses(self, scope: Scope) -> Iterator[tuple[Target, int]]:
        paths = list(_paths(scope.code))
        mentioned = {
            path[0] for path, _, called in paths if len(path) == 1 and (called or path[0][0].isupper())
        }
        for imported in scope.imports:
            targets = self._resolve(scope, imported.path)
            if imported.name == "*":
                # The names are looked up where code mentions them.
                targets = [target for target in targets if isinstance(target, Item)]
            elif imported.public or any(isinstance(target, Scope) for target in targets):
                # A re-export is no use; nor is a module, and a function of the same name only if called.
                targets = targets if imported.name in mentioned else []
            for target in targets:
                yield target, imported.line
        plain = {imported.name for imported in scope.imports if not imported.public}
        for path, line, called in paths:
            if len(path) == 1 and (path[0] not in mentioned or path[0] in plain):
                continue
            if len(path) == 1 and not called and not path[0][0].isupper():
                continue
            for target in self._resolve(scope, path):
                yield target, line
        for path, line in _attribute_paths(scope.code):
            for target in self._resolve(scope, path):
                yield (Item(target.file, path[-1]) if isinstance(target, Scope) else target), line

    def _resolve(self, scope: Scope, path: tuple[str, ...]) -> list[Target]:
        return self._follow(scope, path, set())

    def _follow(self, scope: Scope, path: tuple[str, ...], seen: set[tuple[int, str]]) -> list[Target]:
        here: list[Target]
        at = 1
        match path[0]:
            case "crate":
                here = [scope.root()]
            case "self":
                here = [scope]
            case "super":
                here = [scope.parent] if scope.parent else []
                while at < len(path) and path[at] == "super":
                    here = [up.parent for up in here if isinstance(up, Scope) and up.parent]
                    at += 1
            case first:
                here = self._look_up(scope, first, seen)
                if not here and first == self.library and self.lib and scope.root() is not self.lib:
                    here = [self.lib]
                if not here:
                    here = self._textual_macro(scope, first)
        for name in path[at:]:
            inner = next((target for target in here if isinstance(target, Scope)), None)
            if inner is None:
                break
            here = self._look_up(inner, name, seen)
        return here

    def _look_up(self, scope: Scope, name: str, seen: set[tuple[int, str]]) -> list[Target]:
        """What a name means in a scope: at most a module and an item, which may share a name."""
        if (id(scope), name) in seen:
            return []
        seen = seen | {(id(scope), name)}
        found: list[Target] = []
        if name in scope.children:
            found.append(scope.children[name])
        if name in scope.items:
            found.append(Item(scope.file, name))
        for imported in scope.imports:
            if imported.name == name:
                found += self._follow(scope, imported.path, seen)
        if not found:
            for imported in scope.imports:
                if imported.name != "*":
                    continue
                for target in self._follow(scope, imported.path, seen):
                    if isinstance(target, Scope):
                        found += self._look_up(target, name, seen)
        return list(dict.fromkeys(found))

    def _textual_macro(self, scope: Scope, name: str) -> list[Target]:
        """A `macro_rules!` is known below its own module without an import."""
        above: Scope | None = scope
        while above is not None:
            if name in above.macros:
                return [Item(above.file, name)]
            above = above.parent
        return []


def _load(file: Path, parent: Scope | None) -> Scope:
    scope = Scope(file, parent)
    folder = (
        file.parent
        if file.name in ("mod.rs", "lib.rs", "main.rs") or parent is None
        else file.with_suffix("")
    )
    _read_items(scope, without_tests(list(tokens(file.read_text()))), folder)
    return scope


def _read_items(scope: Scope, code: list[Token], folder: Path) -> None:
    """Fill a scope from the tokens of its module; `folder` is where files of its children are."""
    at = depth = 0
    path_attribute: str | None = None
    while at < len(code):
        token = code[at]
        text = token.text if token.kind in ("name", "sign") else ""
        following = code[at + 1].text if at + 1 < len(code) else ""
        if text == "use" and following != "<" and (at == 0 or code[at - 1].text != "+"):
            end = _semicolon(code, at)
            public = _is_public(code, at)
            scope.imports += _imports(code[at + 1 : end], public)
            at = end + 1
        elif text == "mod" and depth == 0 and code[at + 1].kind == "name":
            if code[at + 2].text == "{":
                end = group_end(code, at + 2)
                child = Scope(scope.file, scope)
                _read_items(child, code[at + 3 : end - 1], folder / following)
                at = end
            else:
                child = _load(_module_file(folder, following, path_attribute), scope)
                at += 3
            path_attribute = None
            scope.children[following] = child
        elif text == "#" and following == "[" and [t.text for t in code[at + 2 : at + 4]] == ["path", "="]:
            path_attribute = code[at + 4].text.strip('"')
            at = group_end(code, at + 1)
        else:
            if text in _DEFINING and depth == 0:
                _define(scope, code, at)
            depth += (text == "{") - (text == "}")
            scope.code.append(token)
            at += 1


def _define(scope: Scope, code: list[Token], at: int) -> None:
    keyword = code[at].text
    name_at = at + 1 + (keyword == "macro_rules") + (code[at + 1].text == "mut")
    no_item = keyword == "const" and code[name_at].text in ("fn", "unsafe", "async")
    if code[name_at].kind != "name" or no_item:
        return
    scope.items.add(code[name_at].text)
    if keyword == "macro_rules":
        scope.macros.add(code[name_at].text)
        # The items that its text defines come into being where it is called, in the same module as a rule.
        body = code[name_at + 1 : group_end(code, name_at + 1)]
        for before, after in pairwise(body):
            if before.kind == "name" and before.text in _DEFINING and after.kind == "name":
                scope.items.add(after.text)


def _module_file(folder: Path, name: str, path_attribute: str | None) -> Path:
    if path_attribute is not None:
        return folder / path_attribute
    plain = folder / f"{name}.rs"
    return plain if plain.exists() else folder / name / "mod.rs"


def _semicolon(code: list[Token], at: int) -> int:
    while at < len(code) and code[at].text != ";":
        at += 1
    return at


def _is_public(code: list[Token], at: int) -> bool:
    if at and code[at - 1].text == ")":
        at -= 1
        while at and code[at].text != "(":
            at -= 1
    return at > 0 and code[at - 1].text == "pub"


def _imports(tree: list[Token], public: bool) -> list[Import]:
    """The names that the tree of a `use` brings in."""
    found: list[Import] = []

    def read(at: int, before: tuple[str, ...]) -> int:
        path = before
        while at < len(tree):
            token = tree[at]
            if token.text == "{":
                at += 1
                while tree[at].text != "}":
                    at = read(at, path)
                    at += tree[at].text == ","
                return at + 1
            if token.text == "*":
                found.append(Import(path, "*", public, token.line))
                return at + 1
            if token.kind == "name":
                if token.text != "self" or not path:
                    path = (*path, token.text)
                following = tree[at + 1].text if at + 1 < len(tree) else ""
                if following == "as":
                    found.append(Import(path, tree[at + 2].text, public, token.line))
                    return at + 3
                if following != "::":
                    found.append(Import(path, path[-1], public, token.line))
                    return at + 1
            at += 1
        return at

    read(0, ())
    return found


def _extended(code: list[Token]) -> set[str]:
    """The types that `impl T` blocks add to; not `impl Trait for T`."""
    found = set()
    for start, token in enumerate(code):
        if token.text != "impl" or token.kind != "name":
            continue
        depth = 0
        name = ""
        for following in code[start + 1 :]:
            if following.text in ("{", "for", "where", ";", ")"):
                if following.text in ("{", "where"):
                    found.add(name)
                break
            depth += (following.text == "<") - (following.text == ">")
            if depth == 0 and following.kind == "name":
                name = following.text
    return found


def _paths(code: list[Token]) -> Iterator[tuple[tuple[str, ...], int, bool]]:
    """The paths that code mentions, the line of each, and whether it is called."""
    at = 0
    while at < len(code):
        before = code[at - 1].text if at else ""
        if code[at].kind != "name" or before in (".", "::", "fn", "mod", "let", "struct", "enum", "trait"):
            at += 1
            continue
        path, line = [code[at].text], code[at].line
        at += 1
        while at + 1 < len(code) and code[at].text == "::" and code[at + 1].kind == "name":
            path.append(code[at + 1].text)
            at += 2
        called = at < len(code) and code[at].text in ("(", "!", "::")
        yield tuple(path), line, called


def _attribute_paths(code: list[Token]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Paths in strings of attributes, such as `#[serde(with = "crate::time")]`."""
    for name, equals, value in zip(code, code[1:], code[2:], strict=False):
        if name.text in _PATH_ATTRIBUTES and equals.text == "=" and value.kind == "string":
            match = _ATTRIBUTE_PATH.fullmatch(value.text)
            if match:
                yield tuple(match.group(1).split("::")), value.line
