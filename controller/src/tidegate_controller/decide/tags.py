"""VLAN ids between switches, of paths' generations and of best effort between plain NICs.

```text
 free ─take, claim─▶ in use, until no frame and no rule has it ─free─▶ free, the last of all
```
"""

from collections.abc import Collection

MOST = 4094
"""IEEE 802.1Q, 9.6: 0 and 4095 are no ids."""


class TagsUsedUp(Exception):
    """No id is free."""

    def __init__(self, used: int, hosts: int) -> None:
        plain = f", or are VLANs of plain NICs ({hosts})" if hosts else ""
        super().__init__(f"all {used} VLAN ids between switches are in use{plain}: release a path")


class Tags:
    """The ids of one network, `first` to `last`."""

    def __init__(self, first: int = 1, last: int = MOST) -> None:
        if not 1 <= first <= last <= MOST:
            raise ValueError(f"VLAN ids {first} to {last}: they are 1 to {MOST}")
        self._free = list(range(last, first - 1, -1))
        self._owners: dict[int, str] = {}

    def take(self, owner: str, never: Collection[int] = (), avoid: Collection[int] = ()) -> int:
        """Takes the id that was free the longest, or never used.

        It is none of `never`, and one of `avoid` only if no other is left. Raises `TagsUsedUp`.
        """
        second: int | None = None
        for tag in reversed(self._free):
            if tag in never:
                continue
            if tag not in avoid:
                break
            second = second or tag
        else:
            if second is None:
                raise TagsUsedUp(len(self._owners), len(self._free))
            tag = second
        self._free.remove(tag)
        self._owners[tag] = owner
        return tag

    def claim(self, tag: int, owner: str) -> None:
        """Takes this id, for an owner of before a restart. Raises `ValueError` if it is in use."""
        if tag not in self._free:
            holder = self._owners.get(tag, "out of range")
            raise ValueError(f"VLAN id {tag} is not free for {owner}: {holder}")
        self._free.remove(tag)
        self._owners[tag] = owner

    def hand_on(self, tag: int, owner: str) -> None:
        """Gives an id to the next generation of a path, which keeps the way."""
        self._in_use(tag)
        self._owners[tag] = owner

    def free(self, tag: int) -> None:
        """Gives an id back that no frame and no rule has any more."""
        self._in_use(tag)
        del self._owners[tag]
        self._free.insert(0, tag)

    def owners(self) -> dict[int, str]:
        """Returns the owner of each id in use."""
        return dict(self._owners)

    def _in_use(self, tag: int) -> None:
        if tag not in self._owners:
            raise ValueError(f"VLAN id {tag} is not in use")
