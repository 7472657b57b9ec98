"""A stream of JSON is cut at its objects, however it arrives."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_controller.ovsdb.framing import MOST_MESSAGE, NotJson, Splitter

Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(), Json, max_size=3), max_size=5),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from(["", "\n", " \t "]),
)
def test_any_cut_gives_the_same_objects(
    objects: list[dict[str, Any]], step: int, ascii_only: bool, between: str
) -> None:
    """Braces, quotes and backslashes in strings, and characters of several bytes, end nothing."""
    stream = between.join(json.dumps(one, ensure_ascii=ascii_only) for one in objects).encode()
    splitter = Splitter()
    cuts = (stream[at : at + step] for at in range(0, len(stream), step))
    assert [found for cut in cuts for found in splitter.feed(cut)] == objects


@given(st.binary(max_size=200))
def test_anything_is_objects_or_an_error(stream: bytes) -> None:
    """No other exception, whatever comes."""
    splitter = Splitter()
    try:
        found = list(splitter.feed(stream))
    except NotJson:
        return
    assert all(isinstance(one, dict) for one in found)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"HTTP/1.1 400 Bad Request", "no JSON object begins with"),
        (b'[{"id": 1}]', "no JSON object begins with"),
        (b"{id: 1}", "not JSON"),
        (b'{"a": ' * 10_000 + b"1" + b"}" * 10_000, "not JSON"),
        (b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_json(stream: bytes, why: str) -> None:
    """The reason says what is wrong, within bounds."""
    with pytest.raises(NotJson, match=why):
        list(Splitter().feed(stream))


def test_a_message_without_end_is_not_kept() -> None:
    """No more than one message and one chunk is ever held."""
    splitter = Splitter()
    list(splitter.feed(b'{"a": "'))
    chunk = b"x" * (1 << 16)
    for _ in range(MOST_MESSAGE // len(chunk) - 1):
        assert not list(splitter.feed(chunk))
    with pytest.raises(NotJson, match="more than"):
        list(splitter.feed(chunk))
