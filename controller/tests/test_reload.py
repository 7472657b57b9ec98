"""The program, with certificates: SIGHUP reads them anew, and a fault changes nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trusted import made

SOURCE = Path(__file__).parents[1] / "src"


class Program:
    """`tidegate-controller --config FILE`."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder, self.file, self.log = folder, folder / "c.toml", folder / "log"
        self.write()
        self.file.write_text(self.file.read_text() + more)
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


def test_sighup(tmp_path: Path) -> None:
    """Reads files anew; a file that is broken changes nothing; the end is clean."""
    made(tmp_path / "c")
    program = Program(tmp_path)
    try:
        program.until("switches are served at 127.0.0.1")
        program.write('revoked = ["1f"]')
        program.reload("certificates, hosts and what is revoked are those of")
        program.write("revoked = 7")
        program.reload(f"nothing is read anew: {program.file}: tls.revoked: is '7'")
        program.write()
        (tmp_path / "c" / "server.pem").write_text("none")
        program.reload("nothing is read anew: " + str(tmp_path / "c" / "server.pem"))
        program.file.write_text(program.file.read_text().replace("[tls]", "[other]"))
        program.reload("nothing is read anew: " + str(program.file))
        assert program.end() == 0
    finally:
        program.process.kill()
        program.process.wait()
    text = program.log.read_text()
    assert "Traceback" not in text
    kek = (tmp_path / "c" / "key-encryption.key").read_text().strip()
    assert kek not in text


@pytest.mark.parametrize(
    ("name", "text"),
    [("ca.key", "ca.key has mode 0644"), ("key-encryption.key", "key-encryption.key has mode")],
)
def test_a_start_without_secrets(tmp_path: Path, name: str, text: str) -> None:
    """Exit status 1, and the file is named."""
    made(tmp_path / "c")
    (tmp_path / "c" / name).chmod(0o644)
    program = Program(tmp_path)
    assert program.process.wait(30) == 1
    assert text in program.log.read_text()
    assert "Traceback" not in program.log.read_text()


def test_a_start_with_another_key_encryption_key(tmp_path: Path) -> None:
    """Says which key it is that is missing."""
    made(tmp_path / "c")
    level = '{ delay = "1ms", frames = 9 }'
    terms = f'[terms]\ncapacity = "1Gbit"\nreservable = "1Mbit"\nlevels = [{level}, {level}]\n'
    host = '[hosts.h1]\nsegments = [7]\nport = "s1:1"\naddress = "10.0.0.1"\nmac = "02:00:00:00:00:01"\n'
    program = Program(tmp_path, terms + host)
    program.until("switches are served")
    assert program.end() == 0
    (tmp_path / "c" / "key-encryption.key").write_text("ab" * 32)
    program.start()
    assert program.process.wait(30) == 1
    assert "segment 7, generation 0: sealed under another key-encryption key" in program.log.read_text()
