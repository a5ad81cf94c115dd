"""The import contracts in pyproject.toml hold, and each of them can be broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )


def test_all_contracts_are_kept():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout
    assert "4 kept, 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("models/head.py", "import whichlayers.engine.dropout"),
        ("study/expand.py", "import whichlayers.models.load"),
        ("results/frames.py", "import torch"),
        ("probes/labels.py", "import pydantic"),
    ],
)
def test_a_forbidden_import_breaks_a_contract(tmp_path, module, line):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = tmp_path / "src" / "whichlayers" / module
    changed.write_text(changed.read_text() + f"\n{line}\n")
    result = lint(tmp_path)
    assert result.returncode == 1
    assert "3 kept, 1 broken" in result.stdout


def test_no_file_is_longer_than_450_lines():
    files = (Path(__file__).parents[1] / "src").rglob("*.py")
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: n for name, n in lengths.items() if n > 450} == {}
