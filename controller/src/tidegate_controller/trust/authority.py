"""The controller's certificate authority.

```text
 PKCS #10 ─▶ requested: signature, kind of key ─▶ sign(role, name) ─▶ certificate: CN = name, OU = role,
                └ else Refusal                       ▲                  serialNumber = a host's token, hashed
                                                     └ the request's subject and extensions do not count
```

X.509 as in RFC 5280, requests as in RFC 2986. One authority without others below it; serial
numbers are random.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidegate_controller.trust.refusal import Refusal
from tidegate_controller.trust.roll import Role
from tidegate_controller.trust.secret import DIGEST, Secret, SecretError

LARGEST_REQUEST = 16384
"""Characters of a request."""
LEAST_RSA, MOST_RSA = 3072, 8192
"""Bits. What is longer takes long to check."""
EARLIER = 300
"""s that a certificate begins in the past: clocks of hosts differ."""
AUTHORITY_LIVES = 3650 * 86400
"""s"""
KINDS = "P-256, Ed25519 and RSA of 3072 bits and more"
HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


@dataclass(frozen=True)
class Issued:
    """A new certificate, PEM; its end is Unix time, s."""

    certificate: str
    serial: int
    expires: float


@dataclass(frozen=True)
class Pair:
    """A certificate with its key, both PEM."""

    certificate: str
    key: Secret


def requested(text: str) -> PublicKey:
    """Returns the key of a request whose owner has it. Raises `Refusal`."""
    if len(text) > LARGEST_REQUEST:
        raise Refusal("invalid", f"request: more than {LARGEST_REQUEST} characters")
    try:
        request = x509.load_pem_x509_csr(text.encode())
        key = request.public_key()
        # The kind first: a signature by a huge key takes long to check.
        if not _is_served(key):
            raise Refusal("invalid", f"request: this kind of key is not signed; {KINDS} are")
        hashed = request.signature_hash_algorithm
        if hashed is not None and not isinstance(hashed, HASHES):
            raise Refusal("invalid", f"request: signed with {hashed.name}; sha256 or longer was expected")
        valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, UnicodeError) as error:
        raise Refusal("invalid", f"request: no PKCS #10 in PEM: {str(error)[:200]}") from None
    if not valid:
        raise Refusal("invalid", "request: its signature is not by the key that it names")
    assert isinstance(key, PublicKey)
    return key


def _is_served(key: object) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return LEAST_RSA <= key.key_size <= MOST_RSA and key.public_numbers().e == 65537
    if isinstance(key, ec.EllipticCurvePublicKey):
        return isinstance(key.curve, ec.SECP256R1)
    return isinstance(key, ed25519.Ed25519PublicKey)


def fingerprint(key: PublicKey) -> str:
    """SHA-256 of a public key, in hexadecimal."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    hashed = hashes.Hash(hashes.SHA256())
    hashed.update(key.public_bytes(serialization.Encoding.DER, form))
    return hashed.finalize().hex()


class Authority:
    """Signs; its key is used here alone."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()
        """PEM"""

    @classmethod
    def load(cls, certificate: bytes, key: Secret, where: str) -> Self:
        """Reads PEM. Raises `SecretError`, which names `where` and shows nothing of the key."""
        try:
            found = x509.load_pem_x509_certificate(certificate)
            private = serialization.load_pem_private_key(key.reveal(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise SecretError(f"{where}: no certificate, or no key, in PEM") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise SecretError(
                f"{where}: the key is not on an elliptic curve; `tidegate-controller init` makes one"
            )
        if private.public_key() != found.public_key():
            raise SecretError(f"{where}: the key is not that of the certificate")
        return cls(found, private)

    @classmethod
    def create(cls, now: float) -> tuple[Self, Pair]:
        """Makes a new one."""
        key = ec.generate_private_key(ec.SECP256R1())
        # A name of its own: with two authorities of one name, libraries pick the wrong one.
        number = x509.random_serial_number()
        name = _name(f"Tidegate authority {number & 0xFFFFFFFF:08x}", "authority")
        usage = _usage(key_cert_sign=True, crl_sign=True)
        made = (
            _begun(name, name, key.public_key(), number, now, now + AUTHORITY_LIVES)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        authority = cls(made, key)
        return authority, Pair(authority.certificate, _private(key))

    def sign(
        self,
        role: Role,
        name: str,
        key: PublicKey,
        now: float,
        lifetime: float,
        addresses: Sequence[str] = (),
        token: str | None = None,
    ) -> Issued:
        """Returns a certificate of `lifetime` s, and never longer than the authority's own.

        `token` is the digest of the one by which a host was enrolled. `addresses` are the controller's alone:
        clients take a server with the right address in its certificate for the controller.
        """
        if addresses and role != Role.CONTROLLER:
            raise ValueError(f"a {role} has no addresses in its certificate")
        end = self._certificate.not_valid_after_utc.timestamp()
        expires = int(min(now + lifetime, end))
        number = x509.random_serial_number()
        # Switches and the controller are either end of a connection.
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role in (Role.SWITCH, Role.CONTROLLER):
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = (
            _begun(_name(name, role, token), self._certificate.subject, key, number, now, expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if addresses:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_address(one) for one in addresses]), critical=False
            )
        made = builder.sign(self._key, hashes.SHA256())
        text = made.public_bytes(serialization.Encoding.PEM).decode()
        return Issued(text, made.serial_number, float(expires))

    def pair(
        self, role: Role, name: str, now: float, lifetime: float, addresses: Sequence[str] = ()
    ) -> tuple[Pair, Issued]:
        """Makes a key, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        issued = self.sign(role, name, key.public_key(), now, lifetime, addresses)
        return Pair(issued.certificate, _private(key)), issued


def _begun(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, number: int, now: float, expires: float
) -> x509.CertificateBuilder:
    begin, end = (dt.datetime.fromtimestamp(int(time), dt.UTC) for time in (now - EARLIER, expires))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(number)
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(name: str, unit: str, token: str | None = None) -> x509.Name:
    parts = [
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
        x509.NameAttribute(NameOID.COMMON_NAME, name),
    ]
    if token is not None:
        parts.append(x509.NameAttribute(NameOID.SERIAL_NUMBER, token.removeprefix(DIGEST)))
    return x509.Name(parts)


def _usage(**used: bool) -> x509.KeyUsage:
    names = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
        " key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{name: used.get(name, False) for name in names.split()})


def _address(text: str) -> x509.GeneralName:
    """An IP address or a name; `init` has checked it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _private(key: ec.EllipticCurvePrivateKey) -> Secret:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return Secret(key.private_bytes(serialization.Encoding.PEM, form, plain))
