"""Values that no log, repr or error may show, and the files in which they are.

```text
 file: regular, of this user, mode 0600 ─▶ read ─▶ Secret ─▶ reveal, where it is used
 create ─▶ a new file, 0600, on disk before its name is told; never over another one
```
"""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from tidegate_controller.owned import belongs

LARGEST = 1 << 16
"""Bytes of a file."""
DIGEST = "sha256:"
CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Where systemd puts the files of `LoadCredential=` (systemd.exec(5)); they belong to root, for each user."""


class SecretError(ValueError):
    """A file of secrets cannot be used; the text says why, and never what is in it."""


class Secret:
    """Bytes that only `reveal` shows."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = bytes(value)

    def reveal(self) -> bytes:
        """The bytes, for the one place that uses them."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(hashlib.sha256(self._value).digest())

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


def digest(token: str) -> str:
    """How a token is written in the configuration: `sha256:HEX`. Tokens are random, so no salt is needed."""
    return DIGEST + hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def new_token() -> str:
    """256 random bits, in letters that need no quotes."""
    return secrets.token_urlsafe(32)


def find(named: Path | None, folder: Path, name: str) -> Path:
    """Returns where a file is: as named, else among systemd's credentials, else in the folder."""
    if named is not None:
        return named
    if given := os.environ.get(CREDENTIALS):
        credential = Path(given) / name
        if credential.exists():
            return credential
    return folder / name


def read(path: Path) -> Secret:
    """Reads a file that only its owner can read. Raises `SecretError`."""
    try:
        # A pipe or device does not block; a link could lead to a file that another user may exchange.
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SecretError(
            f"{path} cannot be opened: {error.strerror}; `tidegate-controller init` makes it"
        ) from None
    about = os.fstat(number)
    if not stat.S_ISREG(about.st_mode):
        os.close(number)
        raise SecretError(f"{path} is no regular file; a file of mode 0600 was expected")
    with os.fdopen(number, "rb") as file:
        if not _is_credential(path):
            if about.st_mode & 0o077:
                mode = stat.S_IMODE(about.st_mode)
                raise SecretError(f"{path} has mode {mode:04o}, so others reach it: chmod 600 {path}")
            if about.st_uid != os.geteuid():
                raise SecretError(f"{path} {belongs(about.st_uid, path)}")
        value = file.read(LARGEST + 1)
    if len(value) > LARGEST:
        raise SecretError(f"{path} has more than {LARGEST} bytes: it is another file")
    return Secret(value)


def _is_credential(path: Path) -> bool:
    given = os.environ.get(CREDENTIALS)
    return bool(given) and path.parent == Path(str(given))


def create(path: Path, text: bytes) -> None:
    """Writes a new file, mode 0600. Raises `FileExistsError`, and leaves that file as it is."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, does not replace: the name stands for a whole file or for none.
        os.link(partial, path)
    finally:
        partial.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
