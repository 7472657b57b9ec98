"""Databases by TCP and TLS: a real `ovsdb-server`, certificates of both sides."""

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidegate_controller.ovsdb.events import Connected, Event, Lost
from tidegate_controller.ovsdb.session import Database

from lab.need import need_commands
from lab.ovs import SCHEMA
from lab.process import Process, wait_for

pytestmark = pytest.mark.abreast


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, an authority with certificates, and a foreign authority."""
    need_commands("ovsdb-server", "ovsdb-tool", "ovs-appctl", "openssl")
    path = tmp_path_factory.mktemp("o")
    subprocess.run(["ovsdb-tool", "create", path / "conf.db", SCHEMA], check=True)
    for authority in ("ca", "foreign"):
        _openssl(
            path,
            f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={authority}"
            f" -keyout {authority}.key -out {authority}.pem",
        )
    (path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name, authority in (("switch", "ca"), ("controller", "ca"), ("liar", "foreign")):
        _openssl(
            path,
            f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name}"
            f" -keyout {name}.key -out {name}.csr",
        )
        _openssl(
            path,
            f"x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial"
            f" -days 2 -extfile names -out {name}.pem",
        )
    return path


def _openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)


@contextmanager
def served(folder: Path, method: str, *words: str) -> Iterator[int]:
    """A database that listens on a port of its own choice."""
    control = folder / "server.ctl"
    log = folder / "server.log"
    database = [str(folder / "conf.db"), f"--remote={method}:0:127.0.0.1", f"--unixctl={control}"]
    with Process(["ovsdb-server", *database, *words], log, env={"OVS_RUNDIR": str(folder)}) as server:
        server.wait_for("the control socket", control.exists)
        wait_for("the port", lambda: "listening on port" in server.output())
        yield int(server.output().rpartition("listening on port ")[2].split()[0])


def first_event(remote: str, tls: ssl.SSLContext | None = None) -> Event:
    """What a session tells first."""

    async def main() -> Event:
        events: asyncio.Queue[Event] = asyncio.Queue()
        task = asyncio.create_task(Database(remote, events.put_nowait, tls=tls).run())
        try:
            return await asyncio.wait_for(events.get(), 15)
        finally:
            task.cancel()

    return asyncio.run(main())


def context(folder: Path, name: str, authority: str = "ca") -> ssl.SSLContext:
    """A controller with this certificate, which trusts this authority."""
    made = ssl.create_default_context(cafile=str(folder / f"{authority}.pem"))
    made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return made


def test_tcp(folder: Path) -> None:
    """Without certificates, for networks of management alone."""
    with served(folder, "ptcp") as port:
        assert isinstance(first_event(f"tcp:127.0.0.1:{port}"), Connected)


def test_tls_of_both_sides(folder: Path) -> None:
    """Each side refuses a certificate of a foreign authority, and the reason says so."""
    keys = [f"--private-key={folder}/switch.key", f"--certificate={folder}/switch.pem"]
    with served(folder, "pssl", *keys, f"--ca-cert={folder}/ca.pem") as port:
        remote = f"ssl:127.0.0.1:{port}"
        assert isinstance(first_event(remote, context(folder, "controller")), Connected)
        for wrong, why in (
            (context(folder, "liar"), ("closed", "ended", "alert", "unknown ca")),
            (context(folder, "controller", "foreign"), ("CERTIFICATE_VERIFY_FAILED",)),
        ):
            told = first_event(remote, wrong)
            assert isinstance(told, Lost)
            assert any(word in told.reason for word in why), told
            print(told.reason)
