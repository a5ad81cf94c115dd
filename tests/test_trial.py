"""Trial ids: equal exactly for trials with equal results, and unchanged by a round trip through JSON."""

import dataclasses
import json

import pytest

from whichlayers.trial import COMPONENTS, Point, Probe, Surgery, Training, Trial, WordProbe

TRIAL = Trial("org/model", "f" * 16, "SST-2", "a" * 16, 500, 3)


def changed(**changes) -> Trial:
    return dataclasses.replace(TRIAL, **changes)


def test_an_id_is_16_hex_digits_and_pinned():
    """Results of earlier versions are looked up by id, so the id of a trial must never change."""
    assert TRIAL.id == "60120f9628d2e531"


def test_the_kind_of_a_trial():
    assert TRIAL.kind == "finetune"
    assert changed(probe=Probe(3)).kind == "probe"
    assert changed(word_probe=WordProbe("chunks", "b" * 16)).kind == "word_probe"


@pytest.mark.parametrize(
    "other",
    [
        changed(model_fingerprint="0" * 16),
        changed(task_fingerprint="0" * 16),
        changed(train_size=501),
        changed(seed=4),
        changed(head="pooler"),
        *(changed(seeds=((c, 9),)) for c in ("subset", "order", "head", "dropout")),
        changed(surgery=Surgery(reinit=(1,)), seeds=(("init", 9),)),
        changed(surgery=Surgery(order=(2, 1))),
        changed(surgery=Surgery(reinit=(1,))),
        changed(surgery=Surgery(reinit=(2,))),
        changed(surgery=Surgery(reinit=(1,), recipe="as_released")),
        changed(surgery=Surgery(reinit=(1,), keep_layer_norm=True)),
        *(
            changed(training=Training(**{field: value}))
            for field, value in {
                "epochs": 5,
                "batch_size": 16,
                "lr": 1e-4,
                "lr_factors": ((12, 5.0),),
                "weight_decay": 0.01,
                "betas": (0.9, 0.98),
                "eps": 1e-6,
                "clip_norm": 0.0,
                "warmup": 0.1,
                "schedule": "constant",
                "max_length": 64,
                "dropout": 0.0,
                "evaluate": "end",
                "parameters": "biases",
                "bias_correction": False,
                "precision": "float32",
            }.items()
        ),
        changed(training=Training(lr_factors=((1, 0.0),), frozen_dropout=False)),
        changed(surgery=Surgery(reinit_pooler=True)),
    ],
)
def test_what_determines_the_result_changes_the_id(other):
    assert other.id != TRIAL.id
    assert Trial.from_json(other.to_json()) == other
    assert Trial.from_json(other.to_json()).id == other.id


def test_every_setting_of_a_training_is_in_the_test_above():
    known = {
        "epochs",
        "batch_size",
        "lr",
        "lr_factors",
        "weight_decay",
        "betas",
        "eps",
        "clip_norm",
        "warmup",
    }
    assert {f.name for f in dataclasses.fields(Training)} == known | {
        "schedule",
        "max_length",
        "dropout",
        "evaluate",
        "parameters",
        "frozen_dropout",
        "bias_correction",
        "precision",
    }


@pytest.mark.parametrize(
    "same",
    [
        changed(model="./elsewhere"),
        changed(revision="v2"),
        changed(task="my name for it"),
        changed(surgery=Surgery(recipe="as_released", keep_layer_norm=True)),  # nothing is re-initialized
        changed(training=Training(lr_factors=((3, 1.0),))),
        changed(training=Training(clip_norm=1)),
        changed(seeds=tuple((c, 3) for c in COMPONENTS)),  # the seed of the trial
        changed(seeds=(("init", 9),)),  # nothing is re-initialized
    ],
)
def test_names_and_settings_without_effect_do_not(same):
    assert same.id == TRIAL.id


def test_equivalent_settings_have_one_id():
    one = changed(surgery=Surgery(reinit=(3, 1, 3)), training=Training(lr_factors=((3, 5), (1, 5)), lr=1))
    other = changed(
        surgery=Surgery(reinit=(1, 3)), training=Training(lr_factors=((1, 5.0), (3, 5.0)), lr=1.0)
    )
    assert one.id == other.id == Trial.from_json(one.to_json()).id


def test_identity_names_only_what_differs_from_the_defaults():
    identity = changed(surgery=Surgery(reinit=(2,)), training=Training(epochs=5)).identity()
    assert identity["surgery"] == {"reinit": (2,)}
    assert identity["training"] == {"epochs": 5}
    assert "head" not in identity
    assert json.dumps(identity)


def test_the_seeds_of_components():
    trial = changed(seeds=(("subset", 0), ("head", 7), ("order", 3)), surgery=Surgery(reinit=(1,)))
    assert [trial.seed_of(c) for c in COMPONENTS] == [0, 3, 3, 7, 3]
    assert [TRIAL.seed_of(c) for c in COMPONENTS] == [3] * 5
    assert trial.identity()["seeds"] == (("head", 7), ("subset", 0))
    assert trial.id == dataclasses.replace(trial, seeds=(("head", 7), ("subset", 0))).id
    assert "seeds" not in json.loads(TRIAL.to_json())  # as in files of version 0.1
    with_init = dataclasses.replace(trial, seeds=(("init", 9),))
    assert with_init.id != dataclasses.replace(trial, seeds=()).id
    without_dropout = changed(training=Training(dropout=0.0))
    assert dataclasses.replace(without_dropout, seeds=(("dropout", 9),)).id == without_dropout.id


def test_seeds_of_components_that_a_probe_does_not_have_do_not_change_its_id():
    probe, words = changed(probe=Probe(1)), WordProbe("chunks", "b" * 16)
    for component in COMPONENTS:
        own = ((component, 9),)
        has_effect = component in ("subset", "order", "head")
        assert (dataclasses.replace(probe, seeds=own).id != probe.id) == has_effect
        pretrained = changed(word_probe=words, train_size=0)
        assert dataclasses.replace(pretrained, seeds=own).id == pretrained.id
        finetuned = changed(word_probe=words, surgery=Surgery(reinit=(1,)))
        other = dataclasses.replace(finetuned, seeds=own)
        assert other.id != finetuned.id
        assert other.finetuning.id != finetuned.finetuning.id


def test_values_can_be_keys():
    assert len({TRIAL, changed(), changed(seed=9), Point("incremental", "", 1.0, TRIAL)}) == 3


PROBE = changed(probe=Probe(layer=3))


@pytest.mark.parametrize(
    "other",
    [
        TRIAL,
        changed(probe=Probe(layer=0)),
        changed(probe=Probe(layer=3), seed=4),
        changed(probe=Probe(layer=3), training=Training(max_length=64)),
        *(
            changed(probe=Probe(**{"layer": 3, field: value}))
            for field, value in {
                "layer": 4,
                "pooling": "summary",
                "max_epochs": 10,
                "patience": 3,
                "held_out": 0.2,
                "batch_size": 32,
                "lr": 1e-2,
                "weight_decay": 0.1,
                "standardize": True,
            }.items()
        ),
    ],
)
def test_what_determines_the_result_of_a_probe_changes_its_id(other):
    assert other.id != PROBE.id
    assert Trial.from_json(other.to_json()) == other
    assert Trial.from_json(other.to_json()).id == other.id


@pytest.mark.parametrize(
    "same",
    [
        changed(probe=Probe(layer=3), training=Training(epochs=7, lr=1.0)),
        changed(probe=Probe(layer=3), head="pooler"),
    ],
)
def test_finetuning_settings_do_not_affect_a_probe(same):
    assert same.id == PROBE.id


def test_patience_has_no_effect_without_held_out_examples():
    assert (
        changed(probe=Probe(3, held_out=0, patience=2)).id
        == changed(probe=Probe(3, held_out=0.0, patience=9)).id
    )


def test_a_trial_stored_before_probes_existed_is_read():
    raw = json.loads(TRIAL.to_json())
    raw.pop("probe")
    assert Trial.from_json(json.dumps(raw)) == TRIAL
