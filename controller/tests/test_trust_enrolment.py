"""Enrolment: which requests get a certificate, and what is in it."""

import asyncio
import datetime as dt
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from trusted import csr, made, trust_config

from tidegate_controller.trust import Member, Proof, Refusal, Role, Roll, Trust
from tidegate_controller.trust.authority import Authority, requested
from tidegate_controller.trust.roll import by_certificate
from tidegate_controller.trust.secret import Secret, SecretError, digest
from tidegate_controller.trust.stores import StoreError, Use
from tidegate_controller.trust.trust import Clock

NOW = 1_800_000_000.0


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return tmp_path / "c"


def run(folder: Path, test: Callable[[Trust, dict[str, str]], Awaitable[None]], **more: Any) -> None:  # noqa: ANN401 - fields
    """Runs a test with hosts h1 and h2."""

    async def limited() -> None:
        tokens = made(folder, "h1", "h2")
        loop = asyncio.get_running_loop()
        trust = await Trust.open(trust_config(folder, tokens, **more), Clock(time.time(), loop.time()))
        await trust.lead()
        async with asyncio.timeout(30):
            await test(trust, tokens)
        await trust.close()

    asyncio.run(limited())


async def refused(trust: Trust, identity: Proof, body: dict[str, Any], code: str, text: str) -> None:
    """A request that gets nothing."""
    with pytest.raises(Refusal, match=text) as problem:
        await trust.enrol(identity, body)
    assert problem.value.code == code


def shown(pem: str) -> dict[str, Any]:
    """A certificate as `getpeercert` has it."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    names = {
        NameOID.ORGANIZATIONAL_UNIT_NAME: "organizationalUnitName",
        NameOID.COMMON_NAME: "commonName",
        NameOID.SERIAL_NUMBER: "serialNumber",
    }
    subject = [[(names[one.oid], one.value)] for one in certificate.subject]
    return {"subject": subject, "serialNumber": f"{certificate.serial_number:X}"}


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP256R1()),
        ed25519.Ed25519PrivateKey.generate(),
        rsa.generate_private_key(65537, 3072),
    ],
    ids=["P-256", "Ed25519", "RSA"],
)
def test_a_token_gives_a_certificate(folder: Path, key: Any) -> None:  # noqa: ANN401 - kinds of keys
    """With the host's name; subject and extensions of the request do not count."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        identity = trust.by_token(tokens["h1"])
        assert identity == Proof(Role.HOST, "h1", None, digest(tokens["h1"]))
        hashed = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        answer = await trust.enrol(identity, {"request": csr(key, "h2", hashed=hashed)})
        assert set(answer) == {"certificate", "authority", "expires"}
        found = x509.load_pem_x509_certificate(answer["certificate"].encode())
        authority = x509.load_pem_x509_certificate(answer["authority"].encode())
        found.verify_directly_issued_by(authority)
        assert found.public_key() == key.public_key()
        names = [(one.oid, one.value) for one in found.subject]
        assert names == [
            (NameOID.ORGANIZATIONAL_UNIT_NAME, "host"),
            (NameOID.COMMON_NAME, "h1"),
            (NameOID.SERIAL_NUMBER, digest(tokens["h1"]).removeprefix("sha256:")),
        ]
        extensions = found.extensions
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        with pytest.raises(x509.ExtensionNotFound):
            extensions.get_extension_for_class(x509.SubjectAlternativeName)
        assert answer["expires"] == found.not_valid_after_utc.timestamp()
        month = found.not_valid_after_utc - dt.datetime.now(dt.UTC)
        assert dt.timedelta(days=29, hours=23) < month <= dt.timedelta(days=30)
        assert trust.by_certificate(shown(answer["certificate"])).name == "h1"

    run(folder, test)


def test_a_token_counts_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For one key: the same request may come again for an hour, another key never."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        identity, body = trust.by_token(tokens["h1"]), {"request": csr()}
        first, second = await asyncio.gather(trust.enrol(identity, body), trust.enrol(identity, body))
        assert first["certificate"] != second["certificate"]
        await refused(trust, identity, {"request": csr()}, "unauthorized", "was used already; .*token h1")
        assert "host h1: its enrolment token came again, with another key" in caplog.text
        began = trust._now._began
        trust._now._began = began + 3601
        await refused(trust, identity, body, "unauthorized", "was used already")
        trust._now._began = began
        # A restart remembers.
        await trust.close()
        again = await Trust.open(trust._config, trust._now)
        await refused(again, identity, {"request": csr()}, "unauthorized", "was used already")
        await again.enrol(identity, body)
        await again.close()
        assert tokens["h1"] not in caplog.text

    run(folder, test)


def test_of_many_keys_at_once_one_wins(folder: Path) -> None:
    """A stolen token and its owner, in a race."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        identity = trust.by_token(tokens["h1"])
        tries = (trust.enrol(identity, {"request": csr()}) for _ in range(20))
        found = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(one, dict) for one in found) == 1
        assert sum(isinstance(one, Refusal) for one in found) == 19

    run(folder, test)


def test_a_certificate_gives_the_next_one(folder: Path) -> None:
    """For its own host; not when it is revoked, or the host is gone."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        first = await trust.enrol(trust.by_token(tokens["h1"]), {"request": csr()})
        identity = trust.by_certificate(shown(first["certificate"]))
        assert identity.serial is not None
        second = await trust.enrol(identity, {"request": csr(name="h2")})
        assert trust.by_certificate(shown(second["certificate"])).name == "h1"
        config = trust._config
        revoked = Roll(config.roll.members, frozenset({identity.serial}))
        await trust.reload(trust_config(config.folder, {}, roll=revoked))
        with pytest.raises(Refusal, match="is revoked") as problem:
            trust.by_certificate(shown(first["certificate"]))
        assert problem.value.code == "forbidden"
        assert trust.by_certificate(shown(second["certificate"])).name == "h1"
        await trust.reload(trust_config(config.folder, {}, roll=Roll({"h2": config.roll.members["h2"]})))
        with pytest.raises(Refusal, match="'h1' is not in the controller's configuration"):
            trust.by_certificate(shown(second["certificate"]))
        await refused(
            trust, identity, {"request": csr()}, "forbidden", "not in the controller's configuration"
        )

    run(folder, test)


def test_another_token_ends_all_certificates_that_followed_from_the_old_one(folder: Path) -> None:
    """Also those that a thief has got with the stolen key, before the serial number was revoked."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        answer = await trust.enrol(trust.by_token(tokens["h1"]), {"request": csr()})
        thief = answer
        for _ in range(3):
            thief = await trust.enrol(trust.by_certificate(shown(thief["certificate"])), {"request": csr()})
        config = trust._config
        # A token line that is taken out of the file changes nothing; the next one does.
        await trust.reload(trust_config(config.folder, {}, roll=Roll({"h1": Member()})))
        thief = await trust.enrol(trust.by_certificate(shown(thief["certificate"])), {"request": csr()})
        late = trust.by_certificate(shown(thief["certificate"]))
        members = {"h1": Member(digest("new"))}
        await trust.reload(trust_config(config.folder, {}, roll=Roll(members)))
        for one in (answer, thief):
            with pytest.raises(Refusal, match=r"'h1' follows from another token .*: enrol with that one"):
                trust.by_certificate(shown(one["certificate"]))
        # A request that had begun before gets a certificate that is refused, too.
        found = await trust.enrol(late, {"request": csr()})
        with pytest.raises(Refusal, match="follows from another token"):
            trust.by_certificate(shown(found["certificate"]))
        owner = await trust.enrol(trust.by_token("new"), {"request": csr()})
        owner = await trust.enrol(trust.by_certificate(shown(owner["certificate"])), {"request": csr()})
        assert trust.by_certificate(shown(owner["certificate"])).name == "h1"

    run(folder, test)


def test_another_token_in_the_file_ends_the_old_one(folder: Path) -> None:
    """Used or not."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        identity = trust.by_token(tokens["h1"])
        members = {"h1": Member(digest("new"), frozenset()), "h2": Member()}
        await trust.reload(trust_config(trust._config.folder, {}, roll=Roll(members)))
        with pytest.raises(Refusal, match="this token is that of no host") as problem:
            trust.by_token(tokens["h1"])
        assert problem.value.code == "unauthorized"
        await refused(trust, identity, {"request": csr()}, "unauthorized", "not the one of host h1")
        await trust.enrol(trust.by_token("new"), {"request": csr()})
        for token in ("", "sha256:", digest("new"), "x" * 10**6, "\ud800"):
            with pytest.raises(Refusal):
                trust.by_token(token)

    run(folder, test)


def test_a_store_that_fails_uses_no_token_up(folder: Path) -> None:
    """The host may ask again."""

    class Broken:
        async def first(self, mark: str, by: str, at: float) -> Use:
            raise StoreError("the disk is full")

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        once, trust._enrolment._once = trust._enrolment._once, Broken()
        identity = trust.by_token(tokens["h1"])
        await refused(trust, identity, {"request": csr()}, "busy", "cannot be stored")
        trust._enrolment._once = once
        await trust.enrol(identity, {"request": csr()})

    run(folder, test)


def _tampered() -> str:
    """The signature of another request."""
    one, other = (csr(name=name).split("\n") for name in ("one", "two"))
    return "\n".join([*one[:-4], *other[-4:]])


WRONG: list[tuple[Any, str]] = [
    ("", "no PKCS #10 in PEM"),
    ("x" * 16385, "more than 16384 characters"),
    ("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "no PKCS #10"),
    ("\ud800", "no PKCS #10"),
    (csr().replace("CERTIFICATE REQUEST", "CERTIFICATE"), "no PKCS #10"),
    (csr(ec.generate_private_key(ec.SECP384R1())), "kind of key is not signed; P-256"),
    (csr(ec.generate_private_key(ec.SECP256K1())), "kind of key|no PKCS #10"),
    (csr(rsa.generate_private_key(65537, 2048)), "kind of key"),
    (csr(rsa.generate_private_key(3, 3072)), "kind of key"),
    (csr(dsa.generate_private_key(2048)), "kind of key"),
    (csr(ed448.Ed448PrivateKey.generate(), hashed=None), "kind of key"),
    (csr(hashed=hashes.SHA224()), "signed with sha224; sha256"),
    (_tampered(), "not by the key that it names|no PKCS #10"),
    (7, "a body"),
    (None, "a body"),
    ([csr()], "a body"),
]


@pytest.mark.parametrize(("text", "why"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_requests_that_are_none(folder: Path, text: Any, why: str) -> None:  # noqa: ANN401 - any JSON
    """They do not use the token up."""

    async def test(trust: Trust, tokens: dict[str, str]) -> None:
        identity = trust.by_token(tokens["h1"])
        await refused(trust, identity, {"request": text}, "invalid", why)
        await refused(trust, identity, {"request": csr(), "more": 1}, "invalid", "a body")
        await refused(trust, identity, {}, "invalid", "a body")
        await trust.enrol(identity, {"request": csr()})

    run(folder, test)


def test_any_bytes_are_no_fault_of_ours() -> None:
    """Each byte of a request changed: refused, or its signature still holds."""
    good = csr()
    for at in range(len(good)):
        for other in ("A", "-", "\0", "é"):
            text = good[:at] + other + good[at + 1 :]
            with suppress(Refusal):
                requested(text)


def _subject(**names: list[str]) -> dict[str, Any]:
    return {
        "subject": [[(key, name)] for key, all_of in names.items() for name in all_of],
        "serialNumber": "1",
    }


@pytest.mark.parametrize(
    ("certificate", "text"),
    [
        (None, "no certificate was shown"),
        ({}, "no certificate was shown"),
        (_subject(commonName=[]), "no certificate|0 common names"),
        (_subject(commonName=["h1", "h2"], organizationalUnitName=["host"]), "2 common names"),
        (_subject(commonName=["h1"]), "'h1' is that of a stranger, not of a host"),
        (_subject(commonName=["h1"], organizationalUnitName=["switch"]), "is that of a switch"),
        (_subject(commonName=["h1"], organizationalUnitName=["host", "host"]), "stranger"),
        (_subject(commonName=["operator"], organizationalUnitName=["host"]), "'operator' is not in"),
        (_subject(commonName=["h9"], organizationalUnitName=["host"]), "'h9' is not in"),
    ],
)
def test_certificates_of_others(certificate: Any, text: str) -> None:  # noqa: ANN401 - as ssl has it
    """A name alone is nothing."""
    with pytest.raises(Refusal, match=text):
        by_certificate(certificate, Roll({"h1": Member()}))


def test_operators() -> None:
    """By unit and name."""
    found = by_certificate(_subject(commonName=["operator"], organizationalUnitName=["operator"]), Roll())
    assert found == Proof(Role.OPERATOR, "operator", 1)


def test_an_authority_with_another_key() -> None:
    """Nothing of the key is in the message."""
    one, pair = Authority.create(NOW)
    _, other = Authority.create(NOW)
    assert Authority.load(pair.certificate.encode(), pair.key, "f").certificate == one.certificate
    with pytest.raises(SecretError, match=r"^f: the key is not that of the certificate$"):
        Authority.load(pair.certificate.encode(), other.key, "f")
    with pytest.raises(SecretError, match=r"^f: no certificate, or no key, in PEM$"):
        Authority.load(pair.certificate.encode(), Secret(pair.key.reveal()[:100]), "f")
    with pytest.raises(SecretError, match=r"^f: no certificate"):
        Authority.load(b"", pair.key, "f")


def test_no_certificate_outlives_its_authority() -> None:
    """Else TLS would refuse it without a word about why."""
    authority, _ = Authority.create(NOW)
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    issued = authority.sign(Role.HOST, "h1", key, NOW + 3649 * 86400, 30 * 86400)
    assert issued.expires == NOW + 3650 * 86400
    assert ssl.PEM_cert_to_DER_cert(issued.certificate)
