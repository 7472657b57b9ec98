"""Places of connections: in all, and of each address those on which nothing was asked yet.

```text
 accepted ─▶ take ─▶ in the handshake ─▶ shaken ─▶ nothing asked yet ─▶ asked ─▶ served
               └ no place: closed            └ failed: its place is free
```

A connection that ends says nothing here: the places are counted again when there seem to be none.
"""

from collections import Counter
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)


class Places(Generic[Connection]):
    """Of one server."""

    def __init__(self, most: int, most_new: int) -> None:
        """`most_new` connections of an address may be there on which nothing was asked."""
        self.most, self.most_new = most, most_new
        self._shaking: Counter[str] = Counter()
        self._new: dict[Connection, str] = {}
        self._served = 0
        """Beyond the handshake, those that have ended since the last count included."""
        self._quiet: Counter[str] = Counter()

    def take(self, address: str, there: Collection[Connection]) -> bool:
        """Whether a connection of an address has a place; `there` are those beyond the handshake."""
        if self._full(address):
            self.count(there)
            if self._full(address):
                return False
        self._shaking[address] += 1
        return True

    def shaken(self, address: str, connection: Connection | None) -> None:
        """The handshake is over, with a connection or without."""
        self._shaking[address] -= 1
        if not self._shaking[address]:
            del self._shaking[address]
        if connection is not None:
            self._served += 1
            self._new[connection] = address
            self._quiet[address] += 1

    def asked(self, connection: Connection) -> None:
        """A request has come on a connection."""
        address = self._new.pop(connection, None)
        if address is not None:
            self._quiet[address] -= 1

    def count(self, there: Collection[Connection]) -> None:
        """Counts anew: these connections are there."""
        self._served = len(there)
        self._new = {one: self._new[one] for one in there if one in self._new}
        self._quiet = Counter(self._new.values())

    def _full(self, address: str) -> bool:
        here = self._shaking[address] + self._quiet[address]
        return here >= self.most_new or self._shaking.total() + self._served >= self.most
