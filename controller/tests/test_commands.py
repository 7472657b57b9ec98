"""What `init`, `token` and `certificate` make and print, and what they leave alone."""

import re
import stat
from pathlib import Path

import pytest
from cryptography import x509

from tidegate_controller.config import parse
from tidegate_controller.main import main
from tidegate_controller.trust import secret
from tidegate_controller.trust.secret import Secret, SecretError, create, digest, find, read

NAMES = {
    "ca.key",
    "ca.pem",
    "server.key",
    "server.pem",
    "operator.token",
    "key-encryption.key",
    "controller.toml",
}


def test_init_makes_all_that_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For this user alone; tokens are on the terminal only."""
    folder = tmp_path / "new" / "c"
    words = [
        "init",
        "--folder",
        str(folder),
        "--name",
        "10.0.0.1",
        "--name",
        "c.example",
        "--host",
        "h1",
        "--host",
        "h2",
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == NAMES
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    tokens = dict(re.findall(r"^(h\d): token, shown once: (\S{43})$", out, re.M))
    lines = dict(re.findall(r"^(h\d): in \[hosts.h\d\]: (token = \"sha256:[0-9a-f]{64}\")$", out, re.M))
    assert set(tokens) == {"h1", "h2"}
    assert lines == {host: f'token = "{digest(token)}"' for host, token in tokens.items()}
    stored = b"".join(path.read_bytes() for path in folder.iterdir())
    assert not any(token.encode() in stored for token in tokens.values())
    names = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in found] == ["10.0.0.1", "c.example"]
    text = (folder / "controller.toml").read_text()
    assert all(line in text for line in lines.values())
    whole = text.replace("# [", "[").replace("\n# ", "\n")
    config = parse(whole.replace("The controller", "# The controller", 1), "f")
    assert config.trust is not None
    assert config.trust.openflow
    assert config.trust.folder == folder
    for host in ("h1", "h2"):
        assert config.trust.roll.members[host].token == digest(tokens[host])


def test_nothing_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even one file of many, or by a link."""
    for name in sorted(NAMES - {"controller.toml"}):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).symlink_to(tmp_path / "nowhere")
        assert main(["init", "--folder", str(folder), "--name", "10.0.0.1"]) == 1
        assert f"{folder / name} is there already, and nothing was changed" in capsys.readouterr().err
        assert [path.name for path in folder.iterdir()] == [name]
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "controller.toml").write_text("mine")
    assert main(["init", "--folder", str(folder), "--name", "10.0.0.1"]) == 0
    assert (folder / "controller.toml").read_text() == "mine"


def test_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of switches, operators, and the controller's next one with the names of the one before."""
    folder = str(tmp_path)
    assert main(["init", "--folder", folder, "--name", "fd00::1"]) == 0
    for words, name, unit in (
        (["s1"], "s1", "switch"),
        (["s2", "--switch"], "s2", "switch"),
        (["--operator"], "operator", "operator"),
        (["--server", "--replace"], "server", "controller"),
    ):
        before = (tmp_path / f"{name}.pem").exists()
        assert main(["certificate", "--folder", folder, *words]) == 0
        found = x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes())
        assert f"OU={unit}" in found.subject.rfc4514_string()
        assert f"serial number {found.serial_number:x}" in capsys.readouterr().out
        assert before == (name == "server")
        read(tmp_path / f"{name}.key")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == ["fd00::1"]
    assert main(["certificate", "--folder", folder, "s1"]) == 1
    assert "s1.key is there already, and nothing was changed: add --replace" in capsys.readouterr().err
    assert main(["certificate", "--folder", folder]) == 1
    assert "the NAME of a switch, --operator or --server was expected" in capsys.readouterr().err
    assert main(["certificate", "--folder", str(tmp_path / "none"), "s1"]) == 1
    assert "ca.pem cannot be read" in capsys.readouterr().err


def test_a_switch_has_not_the_name_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else its certificate could replace the authority's."""
    folder = str(tmp_path)
    assert main(["init", "--folder", folder, "--name", "10.0.0.1"]) == 0
    before = (tmp_path / "ca.key").read_bytes()
    for name in ("ca", "server", "operator", "key-encryption"):
        assert main(["certificate", "--folder", folder, name, "--replace"]) == 1
        assert "is the name of a file of its own" in capsys.readouterr().err
    assert (tmp_path / "ca.key").read_bytes() == before


def test_another_token(capsys: pytest.CaptureFixture[str]) -> None:
    """Each time another one."""
    found = set()
    for _ in range(3):
        assert main(["token", "h1"]) == 0
        found.add(capsys.readouterr().out)
    assert len(found) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["token"],
        ["token", "a b"],
        ["token", "operator"],
        ["init"],
        ["init", "--name", "a b"],
        ["init", "--name", "a..b"],
        ["init", "--name", "10.0.0.1", "--host", "../x"],
        ["certificate", "../ca"],
        ["certificate", "--switch", "--server"],
        [],
        ["--check"],
    ],
)
def test_words_that_are_wrong(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, and what was expected."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: tidegate-controller" in capsys.readouterr().err


def test_files_of_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regular, of this user, for no other; systemd's credentials may be root's."""
    path = tmp_path / "s"
    create(path, b"secret")
    assert read(path) == Secret(b"secret")
    with pytest.raises(FileExistsError):
        create(path, b"other")
    assert read(path).reveal() == b"secret"
    assert [one.name for one in tmp_path.iterdir()] == ["s"]
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(SecretError, match=f"has mode 0{mode:o}, so others reach it: chmod 600 {path}"):
            read(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read(path).reveal() == b"secret"
    assert find(None, Path("/none"), "s") == path
    assert find(None, Path("/none"), "t") == Path("/none/t")
    assert find(Path("/named"), Path("/none"), "s") == Path("/named")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    path.chmod(0o600)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(SecretError, match=r"belongs to user .*: chown 12345"):
        read(path)
    monkeypatch.undo()
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "large").write_bytes(b"x" * (secret.LARGEST + 1))
    (tmp_path / "large").chmod(0o600)
    for name, text in (
        ("link", "cannot be opened"),
        ("none", "cannot be opened"),
        ("large", "more than"),
        (".", "no regular file"),
    ):
        with pytest.raises(SecretError, match=text):
            read(tmp_path / name)
