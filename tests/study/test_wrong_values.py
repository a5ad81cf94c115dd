"""Wrong values of every key of a study: the message is in whichlayers' own words, and never pydantic's."""

from __future__ import annotations

import datetime

import pytest

from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.errors import StudyError
from whichlayers.config.sections import ModelSpec, TaskSpec, TrainingSpec
from whichlayers.experiments import KINDS
from whichlayers.study.study_file import Study

VALID = {
    "name": "s",
    "models": [{"name": "m"}],
    "tasks": [{"name": "SST-2"}],
    "corpora": [{"name": "builtin:pos"}],
    "experiments": [{"kind": "incremental"}],
    "training": {},
}
WRONG = [
    *(None, True, -1, 0, 10**30, 10**400, 0.5, 1.5, float("nan"), float("inf"), "", "x", "\0"),
    *([], [1], ["x"], [[]], [[["x"]]], [None], [{}], {}, {"x": 1}, {"default": "x"}, {"name": 1}),
    datetime.date(2026, 1, 2),  # a value that TOML has
]
PYDANTIC = (
    "value error",
    "input should",
    "should be",
    "valid ",
    "assertion",
    "pydantic",
    "type=",
    "instance of",
)


def wrong_studies():
    """Name of the key, and a study with one wrong value of it."""
    for key in Study.model_fields:
        for value in WRONG:
            yield key, VALID | {key: value}
    for table, section in {"models": ModelSpec, "tasks": TaskSpec, "corpora": CorpusSpec}.items():
        for key in section.model_fields:
            for value in WRONG:
                yield key, VALID | {table: [VALID[table][0] | {key: value}]}
    for key in TrainingSpec.model_fields:
        for value in WRONG:
            yield key, VALID | {"training": {key: value}}
    for kind, experiment in KINDS.items():
        for key in experiment.model_fields:
            for value in WRONG:
                yield key, VALID | {"experiments": [{"kind": kind} | {key: value}]}


def error_of(settings) -> StudyError | None:
    try:
        Study(**settings)
    except StudyError as error:
        return error
    return None


def test_no_message_shows_the_words_of_pydantic():
    found = [(key, error) for key, settings in wrong_studies() if (error := error_of(settings)) is not None]
    for key, error in found:
        text = str(error).lower()
        assert not [phrase for phrase in PYDANTIC if phrase in text], f"{key}: {error}"
        assert "this value is not allowed" not in text, f"{key} has no message of its own: {error}"
        places = [(problem.path, problem.value) for problem in error.problems]
        assert len(set(places)) == len(places), f"two messages for one value: {error}"
    assert len(found) > 2000
    keys = {key for key, _ in found}
    assert {"lr", "keep", "drop", "column", "recipe", "train_sizes", "epochs", "kind", "seed"} <= keys


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experiments": [{"kind": "prune", "drop": {"x": 1}}]}, "must be a list"),
        ({"training": {"lr": 0}}, "training.lr = 0: must be greater than 0"),
        ({"models": {"nam": "x"}}, "models.nam: unknown key; did you mean `name`?"),
        ({"experiments": {"kind": "prune", "x": 1}}, "experiments.x: unknown key"),
        (
            {"corpora": [{"name": "builtin:pos", "column": True}]},
            "column = true: must be the index of a column, such as 1, or its name",
        ),
    ],
)
def test_messages(settings, message):
    with pytest.raises(StudyError) as caught:
        Study(**(VALID | settings))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        (("training", "learning_rate"), "`lr`"),
        (("training", "max_seq_length"), "`max_length`"),
        (("training", "num_train_epochs"), "`epochs`"),
        (("training", "seeds"), "`trials`"),
        ("learning_rate", "`lr` in [training]"),
        ("batch", "`batch_size` in [training]"),
        ("num_epochs", "`epochs` in [training]"),
        ("seeds", "`trials` (how many seeds) or `seed` (the first seed)"),
        ("n_trials", "`trials`"),
        ("dataset", "`tasks`"),
        ("model_name", "`models`"),
        ("Train-Size", "`train_sizes`"),
        (("models", "model_name"), "`name`"),
        (("tasks", "dataset"), "`name`"),
        (("tasks", "validation"), "`dev`"),
        (("tasks", "text_column"), "`text`"),
        (("experiments", "learning_rate"), "`lr`"),
        (("experiments", "batch"), "`batch_size` in `training`"),
    ],
)
def test_names_of_other_libraries_suggest_our_keys(key, suggestion):
    settings = dict(VALID)
    if isinstance(key, str):
        settings[key] = 1
    elif key[0] == "training":
        settings["training"] = {key[1]: 1}
    else:
        settings[key[0]] = [VALID[key[0]][0] | {key[1]: 1}]
    with pytest.raises(StudyError) as caught:
        Study(**settings)
    assert f"did you mean {suggestion}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pruning", "prune"),
        ("LoRA", "adapt"),
        ("linear-probe", "probing"),
        ("frozen", "freeze"),
        ("prunee", "prune"),
    ],
)
def test_other_names_of_experiments_suggest_ours(name, kind):
    with pytest.raises(StudyError, match=f"did you mean `{kind}`"):
        Study(**(VALID | {"experiments": [name]}))
