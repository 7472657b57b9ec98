"""Ids of generations against a set."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate_controller.decide.tags import Tags, TagsUsedUp


class Use(RuleBasedStateMachine):
    """Eight ids, taken and freed in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = Tags(5, 12)
        self.model: dict[int, str] = {}
        self.last_freed: list[int] = []

    @rule()
    def take(self) -> None:
        """A free id of the range, or a refusal with the number."""
        owner = f"p#{len(self.model)}"
        if len(self.model) == 8:
            with pytest.raises(TagsUsedUp, match="all 8 VLAN ids"):
                self.tags.take(owner)
            return
        tag = self.tags.take(owner)
        assert tag not in self.model
        assert 5 <= tag <= 12
        self.model[tag] = owner

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """An id in use."""
        tag = data.draw(st.sampled_from(sorted(self.model)))
        self.tags.free(tag)
        del self.model[tag]

    @rule(tag=st.integers(1, 14))
    def claim(self, tag: int) -> None:
        """One that is free is given."""
        if 5 <= tag <= 12 and tag not in self.model:
            self.tags.claim(tag, "old")
            self.model[tag] = "old"
        else:
            with pytest.raises(ValueError, match="not free"):
                self.tags.claim(tag, "old")

    @invariant()
    def owners(self) -> None:
        """No more, no less."""
        assert self.tags.owners() == self.model


TestUse = Use.TestCase


def test_an_id_that_was_freed_waits() -> None:
    """The one that was free the longest is next, so that stale frames meet no new path."""
    tags = Tags(1, 3)
    first = tags.take("a")
    tags.free(first)
    assert [tags.take(name) for name in "bcd"] == [2, 3, 1]
    tags.hand_on(2, "b#2")
    assert tags.owners()[2] == "b#2"


def test_vlans_of_hosts_are_no_tags() -> None:
    """Those of paths never, those that are only announced last."""
    tags = Tags(1, 5)
    assert [tags.take(name, never={1}, avoid={2, 3}) for name in "abcd"] == [4, 5, 2, 3]
    used = "all 4 VLAN ids between switches are in use, or are VLANs of plain NICs"
    with pytest.raises(TagsUsedUp, match=used):
        tags.take("e", never={1}, avoid={2, 3})
    assert tags.take("e") == 1


def test_faults() -> None:
    """Ids out of range, and ids that are not in use."""
    for first, last in [(0, 4), (4, 3), (1, 4095)]:
        with pytest.raises(ValueError, match="VLAN ids"):
            Tags(first, last)
    with pytest.raises(ValueError, match="not in use"):
        Tags().free(1)
