"""A small project that hostile inputs are put into, and the check that every command must pass."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

import fakes
import pytest
from hostile_study import STUDY
from running import run_fake_study
from small_study import write_model
from typer.testing import CliRunner

from whichlayers.cli import app

MAX_CPU_SECONDS = 10.0  # of one command; most take milliseconds


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A model, data, a study file, and the folder `done` of a finished study."""
    folder = tmp_path_factory.mktemp("hostile") / "project"
    write_model(folder / "model", ["good", "bad", "film", "plot", "the", "was"])
    for name in ("train", "dev"):
        rows = [f"the {name} {noun} {i} was {word}\t{word}" for i in range(6) for noun in ("film", "plot")
                for word in ("good", "bad")]  # fmt: skip
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (folder / "mine.toml").write_text(STUDY)
    run_fake_study(folder / "done", fakes.make_study(trials=3, name="done"))
    shutil.copytree(folder / "done", folder / "again")
    return folder


@pytest.fixture
def project(template, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(template, tmp_path / "project"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.delenv("WHICHLAYERS_DEBUG", raising=False)
    return folder


def state(folder: Path) -> dict[str, str]:
    """Hash of every file below a folder, but the empty lock file of a study."""
    return {
        str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def check(project):
    """Run a command: no traceback, the expected line and exit code, no changed file, not long."""

    def run(*arguments: str, code: int, expected: str, may_write: bool = False) -> str:
        before, began = state(project), time.process_time()
        result = CliRunner().invoke(app, list(arguments))
        output = result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in output
        assert "unexpected" not in output or "bug in whichlayers" not in output, output
        assert result.exit_code == code, output
        assert expected in output
        if code == 2:
            assert any(line.startswith("error: ") for line in result.stderr.splitlines())
        assert time.process_time() - began < MAX_CPU_SECONDS
        if not may_write:
            assert state(project) == before
        return output

    return run
