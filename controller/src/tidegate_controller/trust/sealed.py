"""Rings at rest: AES-256-GCM (NIST SP 800-38D) under the key-encryption key.

```text
 Ring ─▶ JSON ─▶ version │ key's id, 8 B │ nonce, 12 B │ sealed text, tag     bound to (segment, generation)
```

Nonces are random: with 2^32 of them two are equal with a probability of 2^-33. The key's id tells a wrong key
from damage. What is not seen: a whole old file in the place of a newer one.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidegate_controller.trust.ring import KEY, Phase, Ring
from tidegate_controller.trust.secret import Secret, SecretError
from tidegate_controller.trust.stores import Row, StoreError

VERSION = 1
NONCE = 12
ID = 8
KEK = 32
"""Bytes of a key-encryption key."""


def key_encryption_key(text: Secret, where: str) -> Secret:
    """Reads 64 hexadecimal digits. Raises `SecretError`."""
    found = re.fullmatch(rb"\s*([0-9a-fA-F]{64})\s*", text.reveal())
    if found is None:
        raise SecretError(
            f"{where}: 64 hexadecimal digits were expected: (umask 077; openssl rand -hex 32 >{where})"
        )
    return Secret(bytes.fromhex(found[1].decode()))


class Box:
    """Seals and opens rows."""

    def __init__(self, key: Secret) -> None:
        if len(key.reveal()) != KEK:
            raise ValueError(f"a key-encryption key has {KEK} bytes")
        self._cipher = AESGCM(key.reveal())
        self._id = hashlib.sha256(b"tidegate key-encryption key" + key.reveal()).digest()[:ID]

    def seal(self, ring: Ring) -> Row:
        """Returns what is stored."""
        nonce = os.urandom(NONCE)
        text = json.dumps(
            {
                "keys": {str(number): key.reveal().hex() for number, key in ring.keys.items()},
                "phase": ring.phase,
                "began": ring.began,
                "since": ring.since,
                "hosts": sorted(ring.hosts),
                "hurry": ring.hurry,
            }
        )
        sealed = self._cipher.encrypt(nonce, text.encode(), _bound(ring.segment, ring.generation))
        return Row(ring.segment, ring.generation, bytes([VERSION]) + self._id + nonce + sealed)

    def open(self, row: Row) -> Ring:
        """Reads it. Raises `StoreError`."""
        where, data = f"segment {row.segment}, generation {row.generation}", row.sealed
        if len(data) < 1 + ID + NONCE or data[0] != VERSION:
            raise StoreError(
                f"{where}: damaged: no header of version {VERSION}; restore the file from a copy"
            )
        if data[1 : 1 + ID] != self._id:
            raise StoreError(
                f"{where}: sealed under another key-encryption key ({data[1 : 1 + ID].hex()}; this one is"
                f" {self._id.hex()}): name the right file in keys.key-encryption-key"
            )
        nonce, sealed = data[1 + ID : 1 + ID + NONCE], data[1 + ID + NONCE :]
        try:
            text = self._cipher.decrypt(nonce, sealed, _bound(row.segment, row.generation))
            return _ring(row, json.loads(text))
        except (InvalidTag, ValueError, KeyError, TypeError, AttributeError):
            # Nothing of the text may come into the message.
            raise StoreError(
                f"{where}: damaged: it is not as it was sealed; restore the file from a copy"
            ) from None


def _bound(segment: int, generation: int) -> bytes:
    return f"tidegate segment {segment} generation {generation}".encode()


def _ring(row: Row, value: Mapping[str, object]) -> Ring:
    keys, hosts = value["keys"], value["hosts"]
    began, since = value["began"], value["since"]
    assert isinstance(keys, dict)
    assert isinstance(hosts, list)
    assert isinstance(began, float | int)
    assert isinstance(since, float | int)
    found = {int(number): Secret(bytes.fromhex(key)) for number, key in keys.items()}
    phase = Phase(str(value["phase"]))
    other = {Phase.QUIET: 0, Phase.ANNOUNCED: 1, Phase.SETTLING: -1}[phase]
    if set(found) != {row.generation, row.generation + other}:
        raise ValueError("other generations")
    if any(len(key.reveal()) != KEY or key.reveal()[-1] & 1 != number & 1 for number, key in found.items()):
        raise ValueError("a key of another form")
    names = frozenset(str(host) for host in hosts)
    hurry = value["hurry"] is True
    return Ring(row.segment, row.generation, found, phase, float(began), float(since), names, hurry)
