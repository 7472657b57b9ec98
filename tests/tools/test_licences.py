"""scripts/licences: which packages are not passed on with the controller."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from lab.initramfs import ROOT

HASH = "0" * 64


@pytest.fixture(scope="module")
def script() -> Any:  # noqa: ANN401
    """The script, as a module: a process for each case would take most of the time."""
    name = "licences"
    spec = spec_from_loader(name, SourceFileLoader(name, str(ROOT / "scripts/licences")))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Packages:
    """A folder of installed packages, and a file that requires them."""

    def __init__(self, folder: Path, script: Any, output: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
        self._script, self._output = script, output
        self.folder = folder / "site"
        self.file = folder / "requirements.txt"
        self.file.write_text("")

    def add(self, name: str, licence: str, *, text: str = "Copyright 2026 A. Author\nDo.\n") -> None:
        """Put a package there whose metadata have a line about its licence."""
        about = self.folder / f"{name}-1.0.dist-info"
        (about / "licenses").mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{licence}\n")
        records = [f"{name}/__init__.py,,", f"{about.name}/METADATA,,"]
        if text:
            (about / "licenses/LICENSE").write_text(text)
            records.append(f"{about.name}/licenses/LICENSE,,")
        (about / "RECORD").write_text("\n".join(records) + "\n")
        self.require(f"{name}==1.0 \\\n    --hash=sha256:{HASH}\n    # via -r controller/requirements.in\n")

    def require(self, lines: str) -> None:
        """Add lines to the file."""
        self.file.write_text(self.file.read_text() + lines)

    def run(self, *options: str) -> tuple[int, str, str]:
        """Status and both outputs."""
        words = [*(options or ("--of",)), str(self.folder), "--requirements", str(self.file)]
        status = self._script.main(words)
        return status, *self._output.readouterr()


@pytest.fixture
def packages(tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]) -> Packages:  # noqa: ANN401
    """None yet."""
    return Packages(tmp_path, script, capsys)


@pytest.mark.parametrize(
    "licence",
    [
        "License-Expression: MIT",
        "License: Apache 2.0",
        "License-Expression: Apache-2.0 AND BSD-2-Clause",
        "License-Expression: GPL-3.0-only OR MIT",
        "License-Expression: LGPL-2.1-only AND MIT OR PSF-2.0",
    ],
)
def test_accepted(packages: Packages, licence: str) -> None:
    """One of the choices is, in all its parts."""
    packages.add("one", licence)
    assert packages.run() == (0, "", "")


@pytest.mark.parametrize(
    "licence",
    [
        "License-Expression: GPL-3.0-only",
        "License-Expression: MIT AND LGPL-2.1-only",
        "License-Expression: (MIT OR GPL-3.0-only) AND LGPL-2.1-only",
        "License-Expression: Apache-2.0 WITH LLVM-exception",
        "License: as you like",
        "Summary: says nothing",
    ],
)
def test_refused(packages: Packages, licence: str) -> None:
    """Any other licence, one that cannot be told, and none; no copyright file is made of it."""
    packages.add("one", "License-Expression: MIT")
    packages.add("other", licence)
    for options in ((), ("--copyright",)):
        status, printed, said = packages.run(*options)
        assert (status, printed) == (1, "")
        assert said.startswith("licences: other 1.0: licence ")


def test_a_licence_without_text(packages: Packages) -> None:
    """It cannot be passed on with the package."""
    packages.add("one", "License-Expression: MIT", text="")
    status, _, said = packages.run()
    assert (status, "its licence's text is missing" in said) == (1, True)


@pytest.mark.parametrize(
    "line",
    [
        "two==1.0\n",
        "two==1.0 --hash=md5:0123\n",
        f"two>=1.0 --hash=sha256:{HASH}\n",
        f"two @ https://example.org/two.whl --hash=sha256:{HASH}\n",
        "-e .\n",
        "--index-url https://example.org\n",
    ],
)
def test_a_requirement_that_is_not_locked(packages: Packages, line: str) -> None:
    """A version and its hashes are expected, and nothing else."""
    packages.add("one", "License-Expression: MIT")
    packages.require(line)
    status, _, said = packages.run()
    assert (status, said.startswith("licences: requirements.txt: ")) == (1, True)


def test_a_package_that_is_another(packages: Packages) -> None:
    """The version has to be one of those that are required: there may be several, for several Pythons."""
    packages.add("one", "License-Expression: MIT")
    packages.require(f"one==2.0 ; python_full_version >= '3.12' --hash=sha256:{HASH}\n")
    assert packages.run()[0] == 0
    packages.require(f"Two.Names==1.0 --hash=sha256:{HASH}\n")
    status, _, said = packages.run()
    assert (status, "two-names is not there; 1.0 was expected" in said) == (1, True)


def test_the_copyright_file(packages: Packages) -> None:
    """Whose each package is, and under which terms."""
    packages.add("one", "License-Expression: MIT")
    status, printed, said = packages.run("--copyright")
    assert (status, said) == (0, "")
    assert (
        "\nFiles: usr/lib/tidegate-controller/one-1.0.dist-info/* usr/lib/tidegate-controller/one/*\n"
        "Copyright: Copyright 2026 A. Author\nComment: one 1.0\nLicense: MIT\n Copyright 2026 A. Author\n"
    ) in printed
    assert "\nFiles: usr/lib/tidegate-controller/tidegate_native.abi3.so\n" in printed
    assert " pyo3 " in printed


def test_all_of_the_controller_is_accepted(script: Any) -> None:  # noqa: ANN401
    """As `make lint` checks it."""
    assert script.main([]) == 0
