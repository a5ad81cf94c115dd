"""Every command and script in README.md works: on a random model and a few rows, in the order of the page.

A command without a handler here fails the test, so that new commands are tested, too.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from reader import enter_reader_folder, make_reader_folder, run_command

import whichlayers

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@pytest.fixture
def in_reader_folder(tmp_path, monkeypatch):
    folder = make_reader_folder(tmp_path / "reader")
    enter_reader_folder(folder, monkeypatch)
    return folder


def test_everything_on_the_page_works_in_its_order(in_reader_folder, monkeypatch, capsys):
    """One test, because commands use the files of earlier ones."""
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        if language == "python":
            run_python(block)
            assert re.search(r"^2\.0 +[01]\.\d+", capsys.readouterr().out, re.MULTILINE)
            continue
        for command in filter(None, block.splitlines()):
            with monkeypatch.context() as patch:
                run_command(command, patch)
            if "own_task" in command:
                assert re.search(r"accuracy: 0\.\d+ with all 2 layers", capsys.readouterr().out)
    check_columns_of_results_md()
    check_snippets_of_results_md()


def run_python(script: str) -> None:
    small = script.replace("train_sizes=[240]", "train_sizes=[24]")
    assert small != script
    exec(compile(small, "README.md", "exec"), {"__name__": "__main__"})


def test_extras_named_on_the_page_exist():
    named = re.findall(r"(?:whichlayers|\.)\[(\w+)\]", README)
    assert named
    for extras in named:
        assert extras in PROJECT["optional-dependencies"]


def check_columns_of_results_md() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    part = page.partition("The columns of `frame()`")[2].partition("\nStudies with word-level experiments")[0]
    rows = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    described = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    frame = whichlayers.load("mine").frame()
    assert set(frame.columns) - {"f1", "macro_f1"} == set(described)
    assert list(frame.columns[: described.index("accuracy")]) == described[: described.index("accuracy")]
    long = whichlayers.load("mine").epochs()
    expected = [c for c in described[: described.index("accuracy")] if c != "seconds"]
    assert list(long.columns) == [*expected, "epoch", "metric", "value"]


def check_snippets_of_results_md() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    variables: dict = {}
    for script in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(script, "results.md", "exec"), variables)
    assert isinstance(variables["curve"], pd.DataFrame)
    assert variables["curve"].shape == (3, 3)  # trials, k = 0, 1, 2
    assert len(variables["frame"]) == 9


def test_the_entry_point_is_there():
    assert PROJECT["scripts"] == {"whichlayers": "whichlayers.cli:main"}
    assert whichlayers.version._source_version() == f"{PROJECT['version']}+source"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "whichlayers", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert re.fullmatch(r"whichlayers \S+\n", done.stdout), done.stderr


def test_the_example_says_which_layers_matter(tmp_path, monkeypatch):
    """On synthetic results in which only layers 1 to 3 have an effect, and layer 2 the largest."""
    from synthetic_results import incremental, single_layer, write_results

    def score(point):
        reinit = point.trial.surgery.reinit
        lost = {1: 0.1, 2: 0.2, 3: 0.1}
        return (
            0.9 - sum(lost.get(layer, 0.0) for layer in reinit) + 0.001 * (point.trial.seed % 3) * len(reinit)
        )

    points = [*incremental(trials=5), *single_layer(size=500, trials=5)]
    write_results(tmp_path, points, score)
    lines = runpy.run_path(str(ROOT / "examples" / "own_task.py"))["answer"](whichlayers.load(tmp_path))
    assert "accuracy: 0.900 with all 6 layers pretrained" in lines[0]
    assert "the first 3 of 6 layers reach 90% of it" in lines
    assert re.fullmatch(r"layer 2 re-initialized: -0\.\d+ \(significant\)", lines[3])
    assert lines[6] == "these layers matter for my task: 1, 2, 3"
    assert len(lines) == 7


# --- the file tree ---


def tree() -> list[str]:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = next(block for block in blocks("text", page) if block.startswith("src/whichlayers/"))
    paths, parent = [], ""
    for line in text.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            parent = name if name.endswith("/") else ""
        paths.append(parent + name if line.startswith(" ") else name)
        assert len(line.split(maxsplit=1)) == 2 or name == "src/whichlayers/", f"{name} has no description"
    return paths


def test_every_path_of_the_tree_exists():
    for path in tree():
        assert (ROOT / path).exists(), path


def test_every_module_outside_of_packages_is_in_the_tree():
    """The table of packages in CONTRIBUTING.md has the others, see test_docs.py."""
    package = ROOT / "src" / "whichlayers"
    files = {f"src/whichlayers/{path.name}" for path in package.glob("*.py") if path.name != "__init__.py"}
    listed = {path for path in tree() if path != "src/whichlayers/" and path.startswith("src/whichlayers/")}
    assert listed == files


def test_everything_at_the_top_is_in_the_tree():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tops = {path.split("/")[0] + "/" * ("/" in path) for path in done.stdout.splitlines()}
    assert {top for top in tops if not top.startswith(".")} - {"src/", "README.md"} <= set(tree())


def test_the_table_is_that_of_the_demo_as_it_is_now():
    from whichlayers.study.preset import load_preset

    demo = load_preset("demo")
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    table = next(block for block in blocks("text", page) if block.startswith("task"))
    rows = [line.split()[:2] for line in table.splitlines()[2:]]
    names = [task.name.removeprefix("builtin:") for task in demo.tasks]
    expected = sorted([name, str(size)] for name in names for size in demo.train_sizes)
    assert sorted(rows) == expected, "run `make demo`, then put its table and figure into docs/index.md"
    assert len(table.splitlines()[0].split()) == 2 + 7  # k = 0 to 6


def test_the_pictures_are_small():
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert images == ["docs/images/gallery/layers.png", "docs/images/claims.png"]
    images += ["docs/images/demo.png", "docs/images/report.png"]
    tracked = subprocess.run(
        ["git", "ls-files", *images], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for image in images:
        assert (ROOT / image).stat().st_size < 300_000, image
        assert image in tracked.stdout.split(), f"{image} is not tracked by git"
