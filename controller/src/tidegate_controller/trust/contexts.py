"""TLS of the controller's connections.

```text
 files ─▶ Contexts ─▶ api:       TLS 1.3; certificates of clients optional, signed by our authority
                  ├─▶ switches:  TLS 1.2 or 1.3; certificates needed
                  └─▶ databases: the controller is the client
 `load` again ─▶ connections that begin from now on have the new files
```

A server keeps the context that it got. So `api` and `switches` are fronts: at each client's hello they hand
over to the newest context inside, which has certificate and authority.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from tidegate_controller.trust.secret import SecretError, read

ALERT = ssl.ALERT_DESCRIPTION_INTERNAL_ERROR


@dataclass(frozen=True)
class Files:
    """Where certificates are."""

    authority: Path
    certificate: Path
    key: Path
    switches_authority: Path | None = None
    """Of switches and their databases, if it is not ours."""


class Contexts:
    """The contexts of one process; files are read by `load`."""

    def __init__(self) -> None:
        self.api = _front(ssl.TLSVersion.TLSv1_3, ssl.CERT_OPTIONAL)
        self.switches = _front(ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED)
        self.databases = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        """Of the client; another one after each `load`."""
        self._inner: dict[ssl.SSLContext, ssl.SSLContext] = {}
        for front in (self.api, self.switches):
            front.sni_callback = self._hand_over

    def load(self, files: Files) -> None:
        """Reads all, or raises `SecretError` and leaves all as it was."""
        others = files.switches_authority or files.authority
        api = _server(self.api, files, files.authority)
        switches = _server(self.switches, files, others)
        databases = _plain(ssl.PROTOCOL_TLS_CLIENT, files, others)
        # Databases have no names to look up: who they are, their certificates' common names say.
        databases.check_hostname = False
        databases.verify_mode = ssl.CERT_REQUIRED
        databases.minimum_version = ssl.TLSVersion.TLSv1_2
        self._inner = {self.api: api, self.switches: switches}
        self.databases = databases

    def _hand_over(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, front: ssl.SSLContext
    ) -> int | None:
        del name
        inner = self._inner.get(front)
        if inner is None:
            return ALERT
        connection.context = inner
        return None


def _front(least: ssl.TLSVersion, certificates: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = least
    context.verify_mode = certificates
    # A session that goes on would not show its certificate anew.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _server(front: ssl.SSLContext, files: Files, authority: Path) -> ssl.SSLContext:
    context = _plain(ssl.PROTOCOL_TLS_SERVER, files, authority)
    context.verify_mode, context.minimum_version = front.verify_mode, front.minimum_version
    return context


def _plain(protocol: int, files: Files, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    read(files.key)
    try:
        # A key that needs a password would ask for it at a terminal.
        context.load_cert_chain(files.certificate, files.key, password="-")
    except (OSError, ValueError) as error:
        raise SecretError(
            f"{files.certificate} and {files.key}: no certificate with its key: {_why(error)}"
        ) from None
    try:
        context.load_verify_locations(cafile=authority)
    except (OSError, ValueError) as error:
        raise SecretError(f"{authority}: no certificate of an authority: {_why(error)}") from None
    return context


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
