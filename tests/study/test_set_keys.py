"""`--set`: keys set from text are checked like those of a study file, and errors name the key."""

from __future__ import annotations

import pytest

from whichlayers.config.errors import Problem
from whichlayers.errors import WhichlayersError
from whichlayers.study.set_keys import set_keys
from whichlayers.study.study_file import Study

FILE = """
name = "s"
trials = 3
[[models]]
name = "./m"
[[tasks]]
name = "SST-2"
[[tasks]]
name = "CoLA"
train_sizes = [500]
[[experiments]]
kind = "incremental"
keep = [0, 6]
[[experiments]]
kind = "probing"
[training]
lr = 5e-5
"""


@pytest.fixture
def study(tmp_path):
    return Study.from_toml(FILE, tmp_path)


@pytest.mark.parametrize(
    ("assignment", "in_file"),
    [
        ("trials=5", ("trials = 3", "trials = 5")),
        ("trials={ 500 = 50, default = 3 }", ("trials = 3", "trials = { 500 = 50, default = 3 }")),
        ("training.lr=1e-4", ("lr = 5e-5", "lr = 1e-4")),
        ("training.epochs = 2", ("lr = 5e-5", "lr = 5e-5\nepochs = 2")),
        ("head=pooler", ("trials = 3", 'trials = 3\nhead = "pooler"')),
        ('head="pooler"', ("trials = 3", 'trials = 3\nhead = "pooler"')),
        ("experiments[0].keep=[0, 3]", ("keep = [0, 6]", "keep = [0, 3]")),
        ("experiments[1].trials=2", ('"probing"', '"probing"\ntrials = 2')),
        ("tasks[1].train_sizes=[100, 0.5]", ("train_sizes = [500]", "train_sizes = [100, 0.5]")),
        (
            "recipe=[as_described, 'bert_init']",
            ("trials = 3", 'trials = 3\nrecipe = ["as_described", "bert_init"]'),
        ),
        ("experiments[0].keep=[0, depth-1, depth]", ("keep = [0, 6]", 'keep = [0, "depth-1", "depth"]')),
        ("keep_layer_norm=[true, false]", ("trials = 3", "trials = 3\nkeep_layer_norm = [true, false]")),
        ("models=./other", ('"./m"', '"./other"')),
    ],
)
def test_a_key_is_set_as_in_the_file(study, assignment, in_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # new relative paths start from the current folder
    assert set_keys(study, [assignment]) == Study.from_toml(FILE.replace(*in_file), tmp_path)


def test_a_table_and_then_its_entry_are_set(study):
    changed = set_keys(study, ["experiments=prune", "experiments[0].top=[1]", "tasks[0].name=RTE"])
    assert [(e.kind, e.top) for e in changed.experiments] == [("prune", (1,))]
    assert [task.name for task in changed.tasks] == ["RTE", "CoLA"]
    assert set_keys(study, ['experiments=[{ kind = "prune", top = [1] }]']).experiments == changed.experiments


def test_several_keys_are_set_and_the_study_stays_as_it_was(study, tmp_path):
    changed = set_keys(study, ["training.lr=1e-4", "training.epochs=2", "training.lr=1e-3"])
    assert (changed.training.lr, changed.training.epochs.default) == (1e-3, 2)
    assert study == Study.from_toml(FILE, tmp_path)
    assert set_keys(study, []) is study


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.lr=-1", r"training\.lr = -1: must be greater than 0"),
        ("training.lr=fast", r'training\.lr = "fast": must be a number'),
        ("training.lrr=1", r"training\.lrr: unknown key; did you mean `lr`"),
        ("lr=1", "unknown key; did you mean training.lr"),
        ("trails=1", "unknown key; did you mean `trials`"),
        ("head=meen", r'head = "meen": allowed: "mean", "pooler", "last"; did you mean `mean`'),
        ("experiments[2].keep=1", r"no experiments\[2\]; it has: experiments\[0\] is incremental"),
        ("experiments[1].keep=1", r"experiments\[1\]\.keep: not a key of this kind"),
        ("experiment[0].keep=1", "no table experiment; did you mean `experiments`"),
        ("trials", "must have the form KEY=VALUE"),
        ("training.lr.x=1", "must have the form"),
        ("=3", "must have the form"),
        ("trainng.lr=1", r"must have the form .*; did you mean training\.lr\?"),
        (
            "experiments.keep=1",
            r"must have the form .*; did you mean experiments\[0\]\.keep, of the first entry",
        ),
        ("recipe=[as_describd]", r'recipe\[0\] = "as_describd": allowed: .*; did you mean `as_described`'),
    ],
)
def test_errors_name_the_key(study, assignment, message):
    with pytest.raises(WhichlayersError, match=message):
        set_keys(study, [assignment])


def test_later_errors_name_the_option(study):
    changed = set_keys(study, ["experiments[0].keep=[0, 99]"])
    assert "with --set experiments[0].keep=[0, 99]" in str(
        changed.error([Problem(("experiments",), "wrong")])
    )
