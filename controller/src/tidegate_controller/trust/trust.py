"""All of the controller's trust, joined.

```text
 TrustConfig ─▶ Trust.open ─▶ enrol, keys, identities ─▶ API
                          ├─▶ contexts, switches ──────▶ OpenFlow, OVSDB
                          └─▶ run: keys turn            SIGHUP ─▶ reload
```
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from tidegate_controller.trust import roll as rolls
from tidegate_controller.trust import secret
from tidegate_controller.trust.authority import Authority
from tidegate_controller.trust.contexts import Contexts, Files
from tidegate_controller.trust.enrolment import Enrolment
from tidegate_controller.trust.folder import ends
from tidegate_controller.trust.keyring import Keyring
from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.roll import Proof, Roll
from tidegate_controller.trust.sealed import Box, key_encryption_key
from tidegate_controller.trust.secret import SecretError
from tidegate_controller.trust.settings import TrustConfig
from tidegate_controller.trust.stores import Place, StoreError
from tidegate_controller.trust.switches import Switches
from tidegate_controller.trust.vault import Vault

SOON = 30 * 86400.0
"""s before the end of the controller's certificate from which the log says so each day."""
DAY = 86400.0

log = logging.getLogger(__name__)


class Clock:
    """Unix time that never goes back within the process."""

    def __init__(self, wall: float, monotonic: float) -> None:
        self._began = wall - monotonic

    def __call__(self) -> float:
        """s"""
        return self._began + asyncio.get_running_loop().time()


class Trust:
    """Made by `open`; `lead` before keys are served, `close` at the end."""

    def __init__(self, config: TrustConfig, place: Place, now: Clock) -> None:
        self._config, self._now = config, now
        self._place = place
        self._authority = _authority(config)
        self.contexts = Contexts()
        self.contexts.load(_files(config))
        self._box = Box(_kek(config))
        self.keyring = Keyring(place, self._box, config.times, now)
        self._enrolment = Enrolment(lambda: self._authority, lambda: self.roll, place, config.lifetime, now)
        self.switches = Switches(lambda: self.roll, lambda: "switches-authority" not in self._config.files)

    @classmethod
    async def open(cls, config: TrustConfig, now: Clock, place: Place | None = None) -> "Trust":
        """Reads files; keys are read by `lead`. Raises `SecretError` or `StoreError`.

        `place` is one that several controllers share; else a file of this one is used.
        """
        found = place or await Vault.open(config.store)
        try:
            trust = cls(config, found, now)
        except BaseException:
            await found.close()
            raise
        trust._tell_end()
        return trust

    async def lead(self) -> None:
        """Reads keys, and serves them from now on: a standby does not. Raises `StoreError`."""
        await self.keyring.open(self.roll)

    async def close(self) -> None:
        """Ends the use of the store."""
        await self._place.close()

    @property
    def roll(self) -> Roll:
        """Who is in the configuration."""
        return self._config.roll

    async def reload(self, config: TrustConfig) -> None:
        """Reads certificates anew, and takes hosts and revoked serial numbers.

        Raises `SecretError`, and then all is as before; or `StoreError`: then new segments have no key yet.
        Times, and the file of keys, are those of the start.
        """
        authority = _authority(config)
        self.contexts.load(_files(config))
        self._authority, self._config = authority, config
        self._tell_end()
        await self.keyring.share(config.roll)

    async def run(self) -> None:
        """Turns keys in time, until it is cancelled."""
        await asyncio.gather(self.keyring.run(), self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(DAY)
            self._tell_end()

    def _tell_end(self) -> None:
        files = _files(self._config)
        try:
            left = ends(files.certificate) - self._now()
        except SecretError as error:
            log.warning("%s", error)
            return
        if left < SOON:
            log.warning(
                "%s ends in %d days: make it anew by `tidegate-controller certificate --server --replace`,"
                " then send SIGHUP",
                files.certificate,
                left // DAY,
            )

    # For the API.

    def by_certificate(self, certificate: Mapping[str, Any] | None) -> Proof:
        """Returns who has shown it (`getpeercert()`), as the file is now. Raises `Refusal`."""
        return rolls.by_certificate(certificate, self.roll)

    def by_token(self, token: str) -> Proof:
        """Returns the host of an enrolment token. Raises `Refusal`."""
        return rolls.by_token(token, self.roll)

    async def enrol(self, proof: Proof, body: Mapping[str, Any]) -> dict[str, Any]:
        """The operation `enrol`. Raises `Refusal`."""
        try:
            return await self._enrolment.enrol(proof, body)
        except StoreError as error:
            log.error("enrolment: %s", error)
            raise Refusal("busy", "the use of the token cannot be stored; ask again later") from None

    def keys(self, proof: Proof) -> dict[str, Any]:
        """The operation `keys`. Raises `Refusal`."""
        return self.keyring.keys(proof)

    @property
    def api(self) -> ssl.SSLContext:
        """For the API's server; it stays the same at a reload."""
        return self.contexts.api


def _files(config: TrustConfig) -> Files:
    named, folder = config.files, config.folder
    return Files(
        secret.find(named.get("authority"), folder, "ca.pem"),
        secret.find(named.get("certificate"), folder, "server.pem"),
        secret.find(named.get("key"), folder, "server.key"),
        named.get("switches-authority"),
    )


def _authority(config: TrustConfig) -> Authority:
    path = secret.find(config.files.get("authority-key"), config.folder, "ca.key")
    certificate = _files(config).authority
    try:
        text = certificate.read_bytes()
    except OSError as error:
        raise SecretError(f"{certificate} cannot be read: {error.strerror}") from None
    return Authority.load(text, secret.read(path), f"{certificate} and {path}")


def _kek(config: TrustConfig) -> secret.Secret:
    path = secret.find(config.files.get("key-encryption-key"), config.folder, "key-encryption.key")
    return key_encryption_key(secret.read(path), str(path))
