"""The API by TLS: clients are known by certificates that the context has checked."""

import asyncio
import datetime
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from apis import Client, Quick, announcement, configuration, run
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidegate_controller.api.identity import Identity, Kind
from tidegate_controller.api.operations import Call
from tidegate_controller.api.server import Api, create
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime


class Authority:
    """Signs certificates, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self.own = self._signed("authority", self._key, True)
        self.file = folder / "authority.pem"

    def make(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of a name."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._signed(name, key, False)
        file = self._folder / f"{name}.key"
        kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(kind, form, serialization.NoEncryption()))
        return self._folder / f"{name}.pem", file

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if is_authority else self.own.subject
        found = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), True)
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"{name}.pem"
        file.write_bytes(found.public_bytes(serialization.Encoding.PEM))
        return found


def of_client(authority: Authority, name: str | None, signer: Authority) -> ssl.SSLContext:
    """Trusts the authority; shows a certificate of the signer's."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.check_hostname = False
    if name is not None:
        context.load_cert_chain(*signer.make(name))
    return context


async def silent_clients(api: Api, health: Callable[[], Awaitable[int]]) -> None:
    """Clients that never speak have places from their first moment, and few."""
    api.places.most_new = 8
    before = len(os.listdir("/proc/self/fd"))
    silent = [await asyncio.open_connection("127.0.0.1", api.port) for _ in range(60)]
    ended = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
    async with asyncio.timeout(20):
        while sum(one.done() for one in ended) < 60 - 8:
            await asyncio.sleep(0.02)
    assert len(os.listdir("/proc/self/fd")) <= before + 60 + 8
    for one in ended:
        one.cancel()
    for _, writer in silent:
        writer.close()

    async def again() -> bool:
        with suppress(aiohttp.ClientError):
            return await health() == 200
        return False

    while not await again():
        await asyncio.sleep(0.05)


def test_certificates(tmp_path: Path) -> None:
    """A host's name is its certificate's; its token opens only the enrolment."""
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(*authority.make("controller"))
    context.verify_mode = ssl.CERT_OPTIONAL
    asked: list[Call] = []

    async def enrol(call: Call) -> Any:  # noqa: ANN401
        asked.append(call)
        return {"certificate": "c", "authority": "a", "expires": 1.0}

    async def keys(call: Call) -> Any:  # noqa: ANN401
        asked.append(call)
        return {"segments": [], "refresh": 1}

    async def test() -> None:
        config, kept = configuration(), Kept()
        runtime = Quick(config, kept)
        handlers = {"enrol": enrol, "keys": keys}
        api = create(config, cast(Runtime, runtime), kept, ssl_context=context, handlers=handlers)
        await api.start()
        runtime.begin()

        async def call(who: str | None, operation: str, signer: Authority = authority, **rest: Any) -> int:  # noqa: ANN401
            connector = aiohttp.TCPConnector(ssl=of_client(authority, who, signer))
            async with aiohttp.ClientSession(connector=connector) as session:
                client = Client(session, f"https://127.0.0.1:{api.port}")
                return (await client.call(operation, **{"token": None, **rest}))[0]

        body, request = announcement("h1"), {"request": "-----BEGIN CERTIFICATE REQUEST-----\n"}
        try:
            assert await call("h1", "register", host="h1", body=body) == 200
            assert await call("h1", "register", host="h2", body=body) == 403
            assert await call("h9", "register", host="h1", body=body) == 401
            assert await call(None, "register", host="h1", body=body) == 401
            assert await call(None, "register", token="token-h1", host="h1", body=body) == 403
            assert await call("h1", "hosts") == 403
            assert await call("operator", "hosts") == 200
            assert await call(None, "hosts", token="token-operator") == 200
            assert await call("h1", "keys", host="h1") == 200
            assert await call(None, "keys", token="token-h1", host="h1") == 403
            assert await call(None, "enrol", token="token-h1", host="h1", body=request) == 200
            assert await call("h1", "enrol", host="h1", body=request) == 200
            assert [call.who for call in asked] == [
                Identity(Kind.HOST, "h1", True),
                Identity(Kind.HOST, "h1"),
                Identity(Kind.HOST, "h1", True),
            ]
            with pytest.raises(aiohttp.ClientError):
                await call("h1", "hosts", signer=other)
            # Bytes that are no TLS, and silence: others are served.
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await call(None, "health") == 200
            writer.close()
            await silent_clients(api, lambda: call(None, "health"))
        finally:
            await api.stop()

    run(test)
