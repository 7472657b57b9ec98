"""TLS over real sockets: who is let in, and what a reload changes."""

import asyncio
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from trusted import csr, made, private, trust_config

from tidegate_controller.trust import Refusal, Role, Roll, Trust, folder
from tidegate_controller.trust.contexts import Contexts, Files
from tidegate_controller.trust.secret import SecretError
from tidegate_controller.trust.trust import Clock


class Served:
    """A folder, its trust, and a server for each context."""

    def __init__(self, path: Path, trust: Trust, tokens: dict[str, str]) -> None:
        self.path, self.trust, self.tokens = path, trust, tokens
        self.shown: list[Any] = []
        self.ports: dict[ssl.SSLContext, int] = {}

    async def listen(self, context: ssl.SSLContext) -> asyncio.Server:
        """Serves; what clients show is kept."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.shown.append(writer.get_extra_info("peercert"))
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        self.ports[context] = server.sockets[0].getsockname()[1]
        return server

    async def certificate(self, host: str, key: Any = None) -> tuple[Path, Path]:  # noqa: ANN401
        """Enrols a host; returns the files of certificate and key."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        answer = await self.trust.enrol(self.trust.by_token(self.tokens[host]), {"request": csr(key)})
        files = self.path / f"{host}.pem", self.path / f"{host}.key"
        files[0].write_text(answer["certificate"])
        files[1].write_bytes(private(key))
        return files

    async def say(self, context: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
        """What comes back through a connection; an error of TLS if none."""
        where = asyncio.open_connection("127.0.0.1", self.ports[context], ssl=client)
        reader, writer = await where
        try:
            writer.write(b"hello\n")
            return await reader.readline()
        finally:
            writer.transport.abort()


def client(path: Path, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """A client that trusts the authority of a folder."""
    context = ssl.create_default_context(cafile=str(path / "ca.pem"))
    if files is not None:
        context.load_cert_chain(*files)
    return context


def run(path: Path, test: Callable[[Served], Awaitable[None]]) -> None:
    """Runs a test with hosts h1 and h2; both servers listen."""

    async def limited() -> None:
        tokens = made(path, "h1", "h2")
        now = Clock(time.time(), asyncio.get_running_loop().time())
        trust = await Trust.open(trust_config(path, tokens), now)
        await trust.lead()
        served = Served(path, trust, tokens)
        async with asyncio.timeout(30):
            servers = [await served.listen(one) for one in (trust.api, trust.contexts.switches)]
            await test(served)
        for server in servers:
            server.close()
        await trust.close()

    asyncio.run(limited())


async def refused(served: Served, context: ssl.SSLContext, by: ssl.SSLContext) -> str:
    """Why a connection ends."""
    before = len(served.shown)
    try:
        said = await served.say(context, by)
    except (ssl.SSLError, ConnectionError) as error:
        why = repr(error)
    else:
        assert said == b""
        why = "closed"
    assert len(served.shown) == before
    return why


def test_the_api_by_certificate_and_without(tmp_path: Path) -> None:
    """TLS 1.3 only; a certificate of another authority is refused, none is not."""

    async def test(served: Served) -> None:
        path, api = served.path, served.trust.api
        assert await served.say(api, client(path)) == b"hello\n"
        with pytest.raises(Refusal, match="no certificate was shown"):
            served.trust.by_certificate(served.shown[-1])
        files = await served.certificate("h1")
        assert await served.say(api, client(path, files)) == b"hello\n"
        identity = served.trust.by_certificate(served.shown[-1])
        assert (identity.role, identity.name) == (Role.HOST, "h1")
        assert served.trust.keys(identity)["segments"][0]["segment"] == 7
        old = client(path, files)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        await refused(served, api, old)
        made(path / "liar", "h1")
        liar = folder.certificate(path / "liar", Role.HOST, "h1", [], time.time(), False)
        print(await refused(served, api, client(path, (liar[1], liar[0]))))
        stranger = ssl.create_default_context()
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(served, api, stranger)

    run(tmp_path / "c", test)


def test_switches_need_a_certificate(tmp_path: Path) -> None:
    """A host's does not make it a switch; what `ovs-pki` puts behind a name does not count."""

    async def test(served: Served) -> None:
        path, trust = served.path, served.trust
        await refused(served, trust.contexts.switches, client(path))
        for role, name, text in (
            (Role.SWITCH, "s1", None),
            (Role.SWITCH, "s1 id:0123", None),
            (Role.SWITCH, "s2", "is that of 's2'; s1 was expected"),
            (Role.HOST, "s1", "is that of a host, not of a switch: .*certificate s1"),
        ):
            files = folder.certificate(path, role, name, [], time.time(), True)
            assert await served.say(trust.contexts.switches, client(path, (files[1], files[0]))) == b"hello\n"
            fault = trust.switches.fault(served.shown[-1], ["s1"])
            assert fault is None if text is None else re.search(text, str(fault))
        assert "no certificate" in str(trust.switches.fault(None, ["s1"]))

    run(tmp_path / "c", test)


def test_a_reload_changes_certificates_of_running_servers(tmp_path: Path) -> None:
    """The controller's own, and the authority; a folder that is broken changes nothing."""

    async def test(served: Served) -> None:
        path, trust = served.path, served.trust
        files = await served.certificate("h1")
        before = client(path, files)
        assert await served.say(trust.api, before) == b"hello\n"
        made(path / "other", "h1", "h2")
        config = trust_config(path / "other", {}, roll=trust.roll)
        (path / "other" / "server.key").chmod(0o644)
        with pytest.raises(SecretError, match=r"server\.key has mode 0644, so others reach it: chmod 600"):
            await trust.reload(config)
        assert await served.say(trust.api, before) == b"hello\n"
        (path / "other" / "server.key").chmod(0o600)
        await trust.reload(config)
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(served, trust.api, before)
        assert await served.say(trust.api, client(path / "other")) == b"hello\n"
        stays = client(path / "other", files)
        await refused(served, trust.api, stays)
        answer = await trust.enrol(trust.by_token(served.tokens["h2"]), {"request": csr()})
        assert answer["authority"] == (path / "other" / "ca.pem").read_text()

    run(tmp_path / "c", test)


def test_another_authority_of_switches(tmp_path: Path) -> None:
    """Then ours signs for no switch, and units do not count."""

    async def test(served: Served) -> None:
        path, trust = served.path, served.trust
        made(path / "others")
        theirs = folder.certificate(path / "others", Role.HOST, "s1", [], time.time(), False)
        ours = folder.certificate(path, Role.SWITCH, "s1", [], time.time(), False)
        files = {"switches-authority": path / "others" / "ca.pem"}
        await trust.reload(trust_config(path, {}, files=files, roll=trust.roll))
        assert await served.say(trust.contexts.switches, client(path, (theirs[1], theirs[0]))) == b"hello\n"
        assert trust.switches.fault(served.shown[-1], ["s1"]) is None
        await refused(served, trust.contexts.switches, client(path, (ours[1], ours[0])))
        number = int(served.shown[-1]["serialNumber"], 16)
        await trust.reload(trust_config(path, {}, files=files, roll=Roll({}, frozenset({number}))))
        assert "is revoked" in str(trust.switches.fault(served.shown[-1], ["s1"]))

    run(tmp_path / "c", test)


def test_files_that_are_none(tmp_path: Path) -> None:
    """Each is named; nothing asks for a password at a terminal."""
    path = tmp_path / "c"
    made(path)
    good = Files(path / "ca.pem", path / "server.pem", path / "server.key")
    contexts = Contexts()
    contexts.load(good)
    locked = path / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    locked.chmod(0o600)
    for files, text in (
        (Files(path / "none", good.certificate, good.key), "none: no certificate of an authority"),
        (Files(path / "operator.token", good.certificate, good.key), "operator.token: no certificate of"),
        (
            Files(good.authority, path / "none", good.key),
            "none and .*server.key: no certificate with its key",
        ),
        (Files(good.authority, good.certificate, path / "none"), "none cannot be opened"),
        (Files(good.authority, good.certificate, path / "ca.key"), "no certificate with its key"),
        (Files(good.authority, good.certificate, locked), "no certificate with its key"),
    ):
        before = contexts.databases
        with pytest.raises(SecretError, match=text):
            contexts.load(files)
        assert contexts.databases is before
