"""The wheel: builds, holds what it needs, and works in a clean environment, away from the checkout."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.places import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """A new environment with the wheel installed; returns its folder of programs.

    The dependencies are lent by path from the environment of the tests, so that no network is needed. A path lent this
    way brings no editable install with it: the sharpmax found there can only be the wheel's.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("sharpmax/py.typed", "sharpmax/report/report.html.jinja"):
        assert needed in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sharpmax"}


@pytest.mark.slow  # pip has to be installed first
def test_the_installed_command_works_outside_the_checkout(clean, tmp_path):
    def run(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    where = run(str(clean / "python"), "-c", "import sharpmax; print(sharpmax.__file__)")
    assert Path(where).is_relative_to(clean.parent)
    assert "reproduce" in run(str(clean / "sharpmax"), "--help")
    assert "reproduce" in run(str(clean / "python"), "-m", "sharpmax", "--help")
    assert run(str(clean / "sharpmax"), "reproduce", "bounds", "--quick").startswith("report: runs/report.html\n")
    assert "The theorem, drawn" in (tmp_path / "runs" / "report.html").read_text()
    assert '"commit": null' in (tmp_path / "runs" / "bounds" / "quick-seed0" / "metrics.json").read_text()
