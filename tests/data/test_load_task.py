"""Loading tasks by name: each kind of name selects its loader."""

import subprocess
import sys
from pathlib import Path

import pytest

import whichlayers.data
from whichlayers.data.load_task import load_task


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "CoLA").mkdir()
    for name, rows in (("train", 3), ("train_small", 2), ("dev", 2)):
        lines = "".join(f"gj\t{i % 2}\t\tSentence {i}.\n" for i in range(rows))
        (tmp_path / "CoLA" / f"{name}.tsv").write_text(lines)
        own = "".join(f"Sentence {i},{'ab'[i % 2]}\n" for i in range(rows))
        (tmp_path / f"{name}.csv").write_text("body,team\n" + own)
    return tmp_path


@pytest.mark.parametrize("source", [None, "hub"])
def test_builtin(source):
    task = load_task("builtin:sentiment", source=source)
    assert (task.name, task.metric) == ("sentiment", "accuracy")
    assert (task.kind, len(task.train)) == ("classification", 2000)
    assert load_task("builtin:acceptability", metric="mcc").metric == "mcc"


def test_glue_from_a_folder(folder):
    task = load_task("CoLA", source=str(folder))
    assert (task.name, task.metric, len(task.train)) == ("CoLA", "mcc", 3)
    assert len(load_task("CoLA", source=folder, train="train_small.tsv").train) == 2
    assert load_task("CoLA", source=folder, metric="accuracy").metric == "accuracy"


def test_custom_files(folder, monkeypatch):
    absolute = load_task(
        "tickets", train=folder / "train.csv", dev=folder / "dev.csv", text="body", label="team"
    )
    assert (absolute.name, absolute.label_names, len(absolute.train)) == ("tickets", ("a", "b"), 3)
    in_source = load_task("x", source=folder, train="train.csv", dev="dev.csv", text="body", label="team")
    monkeypatch.chdir(folder)
    here = load_task(
        "x", source="hub", train="train.csv", dev="dev.csv", text="body", label="team", metric="mcc"
    )
    assert absolute.fingerprint == in_source.fingerprint != here.fingerprint
    assert here.metric == "mcc"


def test_custom_files_may_have_a_glue_name(folder):
    task = load_task("CoLA", source=folder, train="train.csv", dev="dev.csv", text="body", label="team")
    assert task.label_names == ("a", "b")


def test_settings_that_a_study_file_does_not_allow(folder):
    with pytest.raises(ValueError, match="train, dev, text and label are not all given"):
        load_task("tickets", source=folder, train="train.csv", dev="dev.csv")
    with pytest.raises(ValueError, match="sentimint is not in the catalog"):
        load_task("builtin:sentimint")
    with pytest.raises(ValueError, match="primary metric 'pearson' is not in metrics"):
        load_task("builtin:acceptability", metric="pearson")


def test_the_package_is_imported_without_heavy_libraries():
    code = (
        "import sys, importlib\n"
        "for name in ('sklearn', 'scipy', 'pandas', 'datasets', 'pyarrow', 'pydantic'):\n"
        "    sys.modules[name] = None\n"
        "for name in ('tasks', 'readers', 'file_task', 'glue', 'metrics', 'tokenize', 'batches', 'load_task',\n"
        "             'conll', 'corpora'):\n"
        "    importlib.import_module('whichlayers.data.' + name)\n"
    )
    root = Path(whichlayers.data.__path__[0]).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
