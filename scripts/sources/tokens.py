"""Rust's source text as tokens: enough of the language to find names, strings and comments."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = frozenset(OPENING.values())

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//[^\n]*|/\*)
    | (?P<raw>(?:b|c)?r(?P<hashes>\#*)")
    | (?P<string>(?:b|c)?"(?:\\.|[^"\\])*")
    | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^\\'\n])')
    | (?P<lifetime>'\w+)
    | (?P<name>(?:r\#)?[^\W\d]\w*)
    | (?P<number>\d[\w]*(?:\.\d[\w]*)?)
    | (?P<sign>::|->|=>|\.\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A name, a sign, a literal or a comment, and the line (from 1) on which it begins."""

    kind: str
    text: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """All tokens of a file, comments included."""
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative matches any character"
        kind, end = match.lastgroup or "", match.end()
        if match.group("raw") is not None:
            kind = "string"
            close = text.find('"' + match.group("hashes"), end)
            end = len(text) if close < 0 else close + 1 + len(match.group("hashes"))
        elif match.group() == "/*":
            end = _block_comment_end(text, end)
        whole = text[at:end]
        if kind != "space":
            yield Token(kind, whole.removeprefix("r#") if kind == "name" else whole, line)
        line += whole.count("\n")
        at = end


def _block_comment_end(text: str, at: int) -> int:
    """The position behind a block comment whose `/*` ends at `at`; such comments nest."""
    depth = 1
    for sign in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if sign.group() == "/*" else -1
        if depth == 0:
            return at + sign.end()
    return len(text)


def group_end(code: list[Token], at: int) -> int:
    """The position behind the group that the bracket at `at` opens."""
    depth = 0
    for position in range(at, len(code)):
        if code[position].kind != "sign":
            continue
        if code[position].text in OPENING:
            depth += 1
        elif code[position].text in CLOSING:
            depth -= 1
            if depth == 0:
                return position + 1
    return len(code)


def without_tests(code: list[Token]) -> list[Token]:
    """Tokens without comments, `#[test]` functions, and items that only a test build compiles.

    Features and targets count as unknown: an item goes only if its `cfg` needs `test`.
    """
    code = [token for token in code if token.kind != "comment"]
    kept: list[Token] = []
    at = 0
    while at < len(code):
        if code[at].text != "#" or at + 1 == len(code):
            kept.append(code[at])
            at += 1
            continue
        inner = code[at + 1].text == "!"
        bracket = at + 1 + inner
        if bracket >= len(code) or code[bracket].text != "[":
            kept.append(code[at])
            at += 1
            continue
        end = group_end(code, bracket)
        if not _only_in_tests(code[bracket + 1 : end - 1]):
            kept += code[at:end]
            at = end
        elif inner:
            return []
        else:
            at = _item_end(code, end)
    return kept


def _only_in_tests(attribute: list[Token]) -> bool:
    texts = [token.text for token in attribute]
    if texts == ["test"]:
        return True
    return texts[:2] == ["cfg", "("] and _cfg(texts[2:-1]) is False


def _cfg(texts: list[str]) -> bool | None:
    """The value of a `cfg` condition outside of test builds; None if it is open."""
    if texts == ["test"]:
        return False
    if len(texts) < 3 or texts[1] != "(":
        return None
    values = [_cfg(part) for part in _split(texts[2:-1])]
    match texts[0]:
        case "not":
            return None if values[0] is None else not values[0]
        case "all":
            return False if False in values else (None if None in values else True)
        case "any":
            return True if True in values else (None if None in values else False)
    return None


def _split(texts: list[str]) -> list[list[str]]:
    """The parts between commas."""
    parts: list[list[str]] = [[]]
    depth = 0
    for text in texts:
        depth += (text == "(") - (text == ")")
        if text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(text)
    return [part for part in parts if part]


def _item_end(code: list[Token], at: int) -> int:
    """The position behind the item, field, arm or statement that begins at `at`."""
    while code[at].text == "#" and at + 1 < len(code) and code[at + 1].text == "[":
        at = group_end(code, at + 1)
    keyword = item_keyword(code, at)
    to_semicolon = keyword in ("use", "let", "const", "static", "type")
    while at < len(code):
        text = code[at].text if code[at].kind == "sign" else ""
        if text in CLOSING:
            return at
        if text == ";" or (text == "," and not keyword):
            return at + 1
        if text not in OPENING:
            at += 1
            continue
        at = group_end(code, at)
        if text == "{" and not to_semicolon:
            more = not keyword and at < len(code) and code[at].text in (",", ";")
            return at + 1 if more else at
    return at


ITEMS = frozenset(
    [
        "fn",
        "struct",
        "enum",
        "union",
        "trait",
        "impl",
        "mod",
        "use",
        "let",
        "const",
        "static",
        "type",
        "macro_rules",
        "extern",
    ],
)
_BEFORE_ITEMS = frozenset(["pub", "unsafe", "async", "default"])


def item_keyword(code: list[Token], at: int) -> str:
    """The keyword of the item at `at`, behind visibility and qualifiers; "" if there is none."""
    while at < len(code) and code[at].kind == "name" and code[at].text in _BEFORE_ITEMS:
        at += 1
        if at < len(code) and code[at].text == "(":
            at = group_end(code, at)
    if at < len(code) and code[at].text in ("const", "extern"):
        following = at + 1 + (at + 1 < len(code) and code[at + 1].kind == "string")
        if following < len(code) and code[following].text in ("fn", "unsafe", "async", "extern"):
            return item_keyword(code, following)
    found = at < len(code) and code[at].kind == "name" and code[at].text in ITEMS
    return code[at].text if found else ""
