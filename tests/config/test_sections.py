import dataclasses
from pathlib import Path

import pytest
from fake_facts import a_study

from whichlayers.config.errors import StudyError
from whichlayers.config.sections import (
    ModelSpec,
    PerSize,
    TaskSpec,
    TrainingSpec,
)
from whichlayers.trial import Training

OWN = {"name": "own", "train": "t.tsv", "dev": "d.tsv", "text": "a", "label": "b"}


def message_of(**settings) -> str:
    with pytest.raises(StudyError) as caught:
        a_study(**settings)
    return str(caught.value)


def test_training_has_all_settings_of_a_training_and_their_defaults():
    fields = {f.name for f in dataclasses.fields(Training)} - {"lr_factors", "parameters"}
    assert set(TrainingSpec.model_fields) == fields
    assert TrainingSpec().at(500, None, None, ()) == Training()


def test_a_number_per_size_holds_up_to_its_limit():
    trials = a_study(trials={500: 50, "5000": 10, "default": 3}).trials
    assert [trials.at(n) for n in (1, 500, 501, 5000, 5001)] == [50, 50, 10, 10, 3]
    assert trials.plain() == {"500": 50, "5000": 10, "default": 3}
    assert PerSize(3).plain() == 3


@pytest.mark.parametrize(
    "bad", [0, -1, 2.0, True, "3", {}, {"500": 5}, {"default": 0}, {"x": 1, "default": 1}]
)
def test_a_number_per_size_rejects(bad):
    assert "trials = " in message_of(trials=bad)
    assert "{ 500 = 50, default = 3 }" in message_of(trials=bad)


@pytest.mark.parametrize("bad", [[0.9], [], 0.9, [0.9, 0.99, 0.999]])
def test_betas_are_two(bad):
    text = message_of(training={"betas": bad})
    assert text.startswith("training.betas = ")
    assert text.endswith(": must be two numbers, such as [0.9, 0.999]")


@pytest.mark.parametrize("bad", [0, -5, 0.0, 1.0, 1.5, "al", True, None])
def test_invalid_sizes(bad):
    text = message_of(train_sizes=[10, bad])
    assert text.startswith("train_sizes[1] = ")
    assert '"all"' in text


def test_glue_names_may_be_spelled_in_other_ways():
    study = a_study(tasks=["sst2", "sts-b", {"name": "qnli", "source": "./glue_data"}])
    assert [task.name for task in study.tasks] == ["SST-2", "STS-B", "QNLI"]
    assert [task.origin for task in study.tasks] == ["glue"] * 3
    assert TaskSpec(**OWN | {"name": "sst2"}).name == "sst2"  # your own files keep their name
    assert "SST-2 is listed twice" in message_of(tasks=["sst2", "SST-2"])
    (named,) = study.override(tasks=["Qnli"]).tasks
    assert named.source == study.resolved(Path.cwd()).tasks[2].source  # the study's, with all its keys


def test_where_a_task_comes_from():
    assert TaskSpec(name="builtin:sentiment").origin == "builtin"
    assert TaskSpec(name="SST-2").origin == "glue"
    assert TaskSpec(name="SST-2", source="folder", train="train.tsv", dev="dev.tsv").origin == "glue"
    assert TaskSpec(**OWN).origin == "files"
    assert TaskSpec(**OWN | {"name": "SST-2"}).origin == "files"


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ("sst22", ['tasks[0] = "sst22"', "did you mean `SST-2`?", "train, dev, text and label"]),
        ({"name": "sst22"}, ['tasks[0].name = "sst22"', "did you mean `SST-2`?"]),
        ({"name": "builtin:sentimnt"}, ["did you mean `builtin:sentiment`?", "builtin:acceptability"]),
        ({"name": "builtin:sentiment", "train": "x"}, ['tasks[0].train = "x"', "has no key `train`"]),
        ({"name": "own", "train": "t.tsv"}, ["tasks[0].dev: ", "tasks[0].text: ", "tasks[0].label: "]),
        (OWN | {"source": "hub"}, ["tasks[0].source", "only for GLUE tasks"]),
        (OWN | {"kind": "regression", "metric": "f1"}, ["tasks[0].metric", '"pearson", "spearman"']),
        (OWN | {"dev": "t.tsv"}, ['tasks[0].dev = "t.tsv"', "the same file as `train`"]),
        (OWN | {"pair": "a"}, ['tasks[0].pair = "a"', "the same column as `text`"]),
        (OWN | {"label": "a"}, ['tasks[0].label = "a"', "the same column as `text`"]),
        (OWN | {"pair": "b"}, ['tasks[0].label = "b"', "the same column as `pair`"]),
        (OWN | {"metric": "acuracy"}, ["did you mean `accuracy`?"]),
        ({"name": "SST-2", "train": "train.tsv"}, ["tasks[0].train", "`source`"]),
        ({"name": "SST-2", "kind": "regression"}, ["tasks[0].kind"]),
        (
            {"name": "MRPC", "metric": "mcc"},
            ['tasks[0].metric = "mcc"', 'allowed for MRPC: "accuracy", "f1"'],
        ),
        (
            {"name": "builtin:acceptability", "metric": "pearson"},
            ['tasks[0].metric = "pearson"', 'allowed for builtin:acceptability: "accuracy", "mcc"'],
        ),
    ],
)
def test_invalid_combinations_of_task_keys(task, parts):
    text = message_of(tasks=[task])
    for part in parts:
        assert part in text


def test_paths_start_from_the_folder_of_the_study(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "org" / "model").mkdir(parents=True)

    def model(name):
        return ModelSpec(name=name).resolved(tmp_path).name

    assert model("package:x") == "package:x"
    assert model("org/other") == "org/other"  # a hub id: no such folder
    assert model("org/model") == str(tmp_path / "org/model")
    assert model("./absent") == str(tmp_path / "absent")
    assert model("../absent") == str(tmp_path.parent / "absent")
    assert model("~/m") == "/home/someone/m"
    assert model("/m") == "/m"
    own = TaskSpec(**OWN | {"dev": "/d.tsv"}).resolved(tmp_path)
    assert (own.train, own.dev) == (str(tmp_path / "t.tsv"), "/d.tsv")
    glue = TaskSpec(name="SST-2", source="glue", train="train.tsv").resolved(tmp_path)
    assert (glue.source, glue.train) == (str(tmp_path / "glue"), "train.tsv")
    assert TaskSpec(name="SST-2", source="hub").resolved(Path("/x")).source == "hub"


@pytest.mark.parametrize(
    ("key", "lowest", "below"),
    [
        ("max_length", 2, 1),
        ("batch_size", 1, 0),
        ("epochs", 1, 0),
        ("weight_decay", 0.0, -0.1),
        ("clip_norm", 0.0, -0.1),
        ("warmup", 0.0, -0.1),
        ("dropout", 0.0, -0.1),
    ],
)
def test_the_lowest_value_of_each_setting_is_allowed(key, lowest, below):
    assert getattr(TrainingSpec(**{key: lowest}), key) in (lowest, PerSize(1))
    assert "must be" in message_of(training={key: below})


@pytest.mark.parametrize(
    ("key", "highest", "above"),
    [
        ("max_length", 10**9, 10**9 + 1),
        ("batch_size", 10**9, 10**9 + 1),
        ("epochs", 10_000, 10_001),
        ("warmup", 1.0, 1.1),
        ("dropout", 0.99, 1.0),
    ],
)
def test_the_highest_value_of_each_setting_is_allowed(key, highest, above):
    assert getattr(TrainingSpec(**{key: highest}), key) in (highest, PerSize(10_000))
    assert "must be" in message_of(training={key: above})


def test_limits_of_a_study():
    assert a_study(trials=10_000, seed=2**62).trials.at(1) == 10_000
    for settings in ({"trials": 10_001}, {"trials": {"5": 10_001, "default": 1}}, {"seed": 2**62 + 1}):
        assert "must be" in message_of(**settings)
    assert "an integer from 1 to 10,000" in message_of(trials={str(10**18): 1, "default": 1})
    assert a_study(trials={str(10**17): 1, "default": 2}).trials.at(10**17) == 1
    assert "must not contain a NUL character" in message_of(models=["a\0b"])
