"""The program, with certificates: SIGHUP reads them anew, and a fault changes nothing."""

from pathlib import Path

import pytest
from trusted import Program, made

from tidegate_controller.main import main


def test_sighup(tmp_path: Path) -> None:
    """Reads files anew; a file that is broken changes nothing; the end is clean."""
    made(tmp_path / "c")
    program = Program(tmp_path)
    try:
        program.until("switches are served at 127.0.0.1")
        program.write('revoked = ["1f"]')
        program.reload("certificates and what is revoked are those of")
        program.write('lifetime = "60d"')
        program.file.write_text(program.file.read_text().replace("127.0.0.1:0", "127.0.0.1:7"))
        program.reload(f"{program.file}: openflow.listen is another one in the file: that takes a restart")
        program.until(f"{program.file}: tls.lifetime is another one in the file")
        program.write("revoked = 7")
        program.reload(f"nothing is read anew: {program.file}: tls.revoked: is '7'")
        program.write()
        (tmp_path / "c" / "server.pem").write_text("none")
        program.reload("nothing is read anew: " + str(tmp_path / "c" / "server.pem"))
        program.write()
        plain = program.file.read_text()
        program.file.write_text(plain.replace("[tls]", "[other]"))
        program.reload(f"nothing is read anew: {program.file}: switches.s1.database: ssl:127.0.0.1:9 needs")
        for one, other in (
            ("tls = true", ""),
            ("[tls]", ""),
            (f'folder = "{tmp_path}/c"', ""),
            ("[keys]", ""),
            (f'store = "{tmp_path}/trust.db"', ""),
            ("ssl:", "tcp:"),
        ):
            plain = plain.replace(one, other)
        program.file.write_text(plain)
        program.reload(f"nothing is read anew: {program.file}: tls: came into the file, or left it")
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
def test_a_start_without_secrets(
    tmp_path: Path, name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit status 1, and the file is named."""
    made(tmp_path / "c")
    (tmp_path / "c" / name).chmod(0o644)
    program = Program(tmp_path, begin=False)
    assert main(["--config", str(program.file)]) == 1
    assert text in caplog.text
    assert "Traceback" not in caplog.text


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
