"""The wheel works in a fresh environment without the source tree, and has everything it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from reader import make_reader_folder

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
pytest.importorskip("build", reason="the build package is not installed")
pytest.importorskip("hatchling", reason="hatchling is not installed")


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """A folder with the source distribution and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel_of(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


def test_the_distributions_are_valid_and_have_the_version_of_the_project(dist):
    pytest.importorskip("twine", reason="twine is not installed")
    files = sorted(dist.iterdir())
    assert [file.name for file in files] == [
        f"whichlayers-{PROJECT['version']}-py3-none-any.whl",
        f"whichlayers-{PROJECT['version']}.tar.gz",
    ]
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_file_of_the_package_is_in_the_wheel(dist):
    tracked = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = set(zipfile.ZipFile(wheel_of(dist)).namelist())
    assert {path.removeprefix("src/") for path in tracked} <= names
    others = {name for name in names if not re.match(r"whichlayers(/|-[^/]+\.dist-info/)", name)}
    assert others == set()


@pytest.fixture(scope="module")
def fresh(dist, tmp_path_factory) -> Path:
    """Python of a new environment in which pip installed the wheel, with the dependencies of this one.

    Dependencies come from the folder of this environment, whose .pth files (the editable install) are not followed.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    done = subprocess.run(
        [*install, "--no-deps", "--no-index", str(wheel_of(dist))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return folder / "bin" / "python"


SCRIPT = """
import sys
from pathlib import Path
from typer.testing import CliRunner
import whichlayers
from whichlayers.cli import app

def call(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output

print(whichlayers.__file__)
print(call("--version").strip())
assert "tamkin2020/incremental" in call("presets")
call("new", "s.toml", "--model", "./my-model")
small = ("--sizes", "16", "--trials", "2", "--set", "training.epochs=1")
call("run", "s.toml", *small, "--device", "cpu", "--workers", "0")
call("report", "s", "--overlay")
"""


@pytest.mark.slow
def test_a_study_runs_from_the_wheel_alone(fresh, tmp_path):
    folder = make_reader_folder(tmp_path / "reader")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(fresh), "-c", SCRIPT],
        cwd=folder,
        env=environment | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    where, version = done.stdout.splitlines()
    assert Path(where).is_relative_to(fresh.parent.parent)  # not the source tree
    assert version == f"whichlayers {PROJECT['version']}"
    command = [str(fresh.parent / "whichlayers"), "--version"]
    assert subprocess.run(command, capture_output=True, text=True, env=environment).stdout.strip() == version
    assert "Main findings" in (folder / "s" / "report.html").read_text(encoding="utf-8")
