"""The Debian package: what is in it, and that its units make sense."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.host import BINARY
from lab.initramfs import ROOT
from lab.need import need_commands

pytestmark = pytest.mark.abreast


@pytest.fixture(scope="module")
def tree(package: Path) -> Path:
    """The package, unpacked."""
    root = package.parent / "root"
    subprocess.run(["dpkg-deb", "-R", package, root], check=True)
    return root


def test_contents(package: Path, tree: Path) -> None:
    """Every file of the promise is there, owned by root, and nothing is empty."""
    listing = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    assert all(" root/root " in line for line in listing.splitlines())
    for path in (
        "usr/bin/tidegate",
        "usr/lib/tidegate/guest/tidegate",
        "usr/lib/systemd/system/tidegate-switch.service",
        "usr/lib/systemd/system/tidegate-agent.service",
        "usr/lib/systemd/system/tidegate-libvirt.service",
        "usr/lib/sysusers.d/tidegate.conf",
        "usr/lib/tmpfiles.d/tidegate.conf",
        "usr/share/bash-completion/completions/tidegate",
        "usr/share/zsh/vendor-completions/_tidegate",
        "usr/share/fish/vendor_completions.d/tidegate.fish",
        "usr/share/doc/tidegate/copyright",
        "usr/share/doc/tidegate/docs/libvirt.md",
        "usr/share/doc/tidegate/docs/guest-limit.md",
        "etc/tidegate/contracts.toml",
    ):
        assert (tree / path).stat().st_size > 0, path
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/tidegate/contracts.toml\n"
    assert "GLIBC" not in (tree / "DEBIAN/control").read_text()


def test_pages_lead_to_pages(tree: Path) -> None:
    """Every page of the repository that an installed page links to is installed, too."""
    folder = tree / "usr/share/doc/tidegate"
    pages = list(folder.rglob("*.md"))
    assert len(pages) > 20
    for page in pages:
        links = re.findall(r"\]\(([^)\s#:]+\.(?:md|svg))[)#]", page.read_text())
        # Source, and what lies beside it, is not installed.
        targets = [(page.parent / link).resolve().relative_to(folder.resolve()) for link in links]
        inside = [t for t in targets if t.parts[0] == "docs" or len(t.parts) == 1]
        assert [t for t in inside if not (folder / t).exists()] == [], page
    for unit in (tree / "usr/lib/systemd/system").iterdir():
        for path in re.findall(r"^Documentation=file:/(\S+)", unit.read_text(), re.MULTILINE):
            assert (tree / path).exists(), unit


def test_the_guests_program_is_static(tree: Path) -> None:
    """It needs nothing of a guest's distribution, and says what it is."""
    program = tree / "usr/lib/tidegate/guest/tidegate"
    headers = subprocess.run(["objdump", "-p", program], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in headers
    assert "INTERP" not in headers
    assert program.stat().st_size < 2 << 20
    done = subprocess.run([program, "limit"], capture_output=True, text=True, check=False)
    assert (done.returncode, "org.tidegate.limit.0" in done.stderr) == (4, True)


def test_program_runs(tree: Path) -> None:
    """The stripped program starts, and is the version the package says."""
    control = (tree / "DEBIAN/control").read_text()
    version = re.search(r"^Version: (.*)$", control, re.MULTILINE)
    assert version
    done = subprocess.run(
        [tree / "usr/bin/tidegate", "--version"], capture_output=True, text=True, check=True
    )
    assert version[1] in done.stdout


def test_units(tree: Path, tmp_path: Path) -> None:
    """systemd finds nothing to complain about, and the command lines are ones the program takes."""
    need_commands("systemd-analyze")
    for unit in ("tidegate-switch.service", "tidegate-agent.service", "tidegate-libvirt.service"):
        text = (tree / "usr/lib/systemd/system" / unit).read_text()
        # Verified where it is not installed: with the program's path as unpacked.
        (tmp_path / unit).write_text(text.replace("/usr/bin/tidegate", str(tree / "usr/bin/tidegate")))
        command = re.search(r"^ExecStart=(\S+(?: -\S+ [/\w.]+| -v)*(?: \w+)+)", text, re.MULTILINE)
        assert command
        words = command[1].replace("/usr/bin/tidegate", str(BINARY)).split()
        usage = subprocess.run([*words, "--help"], capture_output=True, text=True, check=False)
        assert usage.returncode == 0, usage.stderr
        for line in re.findall(r"^Exec(?:Start|Reload)=((?:.*\\\n)*.*)$", text, re.MULTILINE):
            assert all(option in usage.stdout for option in re.findall(r" (--[a-z]+)\b", line)), line
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(tmp_path.glob("*.service"))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "tidegate-" in line]
    assert not complaints


def test_names_agree(tree: Path) -> None:
    """Users and groups of units and folders are those that sysusers makes (kvm is the system's)."""
    sysusers = (tree / "usr/lib/sysusers.d/tidegate.conf").read_text()
    made = set(re.findall(r"^[ug] (\S+)", sysusers, re.MULTILINE)) | {"root", "kvm"}
    units = "".join(p.read_text() for p in (tree / "usr/lib/systemd/system").iterdir())
    used = set(re.findall(r"^(?:User|Group)=(\S+)", units, re.MULTILINE))
    for line in (tree / "usr/lib/tmpfiles.d/tidegate.conf").read_text().splitlines():
        if line.startswith("d "):
            used |= set(line.split()[3:5])
    assert used <= made


def test_reproducible(package: Path, tmp_path: Path) -> None:
    """The same source makes the same package."""
    again = subprocess.run(
        [ROOT / "scripts/deb", BINARY, tmp_path], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(again).read_bytes() == package.read_bytes()


def test_sysusers_and_tmpfiles(tree: Path, tmp_path: Path) -> None:
    """systemd accepts both files, tried in a folder."""
    need_commands("systemd-sysusers", "systemd-tmpfiles")
    (tmp_path / "etc").mkdir()
    shutil.copytree(tree / "usr/lib/sysusers.d", tmp_path / "usr/lib/sysusers.d")
    done = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tidegate-switch:" in (tmp_path / "etc/passwd").read_text()
    assert "tidegate:" in (tmp_path / "etc/group").read_text()
