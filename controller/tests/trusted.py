"""A folder as `tidegate-controller init` makes it, requests of hosts, and the program."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tidegate_controller.trust import folder
from tidegate_controller.trust.ring import Times
from tidegate_controller.trust.roll import Member, Roll
from tidegate_controller.trust.secret import digest
from tidegate_controller.trust.settings import TrustConfig

SOURCE = Path(__file__).parents[1] / "src"


def made(path: Path, *hosts: str) -> dict[str, str]:
    """Makes the folder; returns the tokens of hosts."""
    tokens = folder.init(path, ["127.0.0.1", "controller.example"], hosts, time.time())
    return {token.host: token.text for token in tokens}


def trust_config(path: Path, tokens: dict[str, str], **more: Any) -> TrustConfig:  # noqa: ANN401 - fields
    """What the file would say: each host has segment 7."""
    members = {name: Member(digest(token), frozenset({7})) for name, token in tokens.items()}
    more.setdefault("roll", Roll(members))
    return TrustConfig(path, store=path / "trust.db", times=Times(), **more)


def csr(key: Any = None, name: str = "anything", **more: Any) -> str:  # noqa: ANN401 - kinds of keys
    """A request."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    alternative = x509.SubjectAlternativeName([x509.DNSName("controller.example")])
    builder = builder.add_extension(alternative, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    signed = builder.sign(key, more.get("hashed", hashes.SHA256()))
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def private(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PEM"""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Program:
    """`tidegate-controller --config FILE`."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, more: str = "", begin: bool = True) -> None:
        """`more` are other tables of its file."""
        self.folder, self.file, self.log = folder, folder / "c.toml", folder / "log"
        self.write()
        self.file.write_text(self.file.read_text() + more)
        if begin:
            self.start()

    def start(self) -> None:
        """Starts it, with a log of its own."""
        words = [sys.executable, "-m", "tidegate_controller.main", "--config", str(self.file)]
        with self.log.open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def end(self) -> int:
        """Asks it to end; the exit status."""
        self.process.terminate()
        return self.process.wait(30)

    def write(self, more: str = "") -> None:
        """Another file."""
        self.file.write_text(
            f"""
            [openflow]
            listen = "127.0.0.1:0"
            tls = true
            [tls]
            folder = "{self.folder}/c"
            {more}
            [state]
            file = "{self.folder}/state.sqlite"
            [keys]
            store = "{self.folder}/trust.db"
            [switches.s1]
            datapath = "0000000000000001"
            database = "ssl:127.0.0.1:9"
            """
        )

    def until(self, text: str) -> None:
        """Waits for a text in the log."""
        end = time.monotonic() + 60
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, f"waited in vain for {text!r}: {self.log.read_text()}"
            time.sleep(0.02)

    def reload(self, text: str) -> None:
        """SIGHUP, and what the log says then."""
        self.process.send_signal(signal.SIGHUP)
        self.until(text)
