"""The experiments that freeze parameters or decay learning rates, and hyperparameters of single experiments."""

from pathlib import Path

import pytest
from fake_facts import FakeFacts, a_study

from whichlayers.config.errors import StudyError
from whichlayers.experiments.freeze import Freeze
from whichlayers.experiments.lr_decay import LrDecay
from whichlayers.results.schema import reinit_lr_factor
from whichlayers.study.checks import notes_on_models
from whichlayers.study.expand import expand
from whichlayers.study.study_file import Study


def frozen(variant) -> set[int]:
    return {layer for layer, factor in variant.lr_factors if factor == 0}


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_top_and_bottom_freeze_complementary_layers(depth):
    variants = list(Freeze(train=["top", "bottom"]).variants(depth))
    points = {(v.condition, v.x): frozen(v) for v in variants}
    assert points.pop(("all pretrained", 0)) == set()
    assert points["top", 0] == points["bottom", 0] == set()
    for k in range(1, depth + 1):
        assert points["top", k] == set(range(k + 1))  # with the embeddings
        assert points["bottom", k] == set(range(depth - k + 1, depth + 1))
    assert len(points) == 2 * (depth + 1)


@pytest.mark.parametrize(
    ("embeddings", "top", "bottom"),
    [("frozen", {0, 1}, {0, 3}), ("trained", {1}, {3}), ("auto", {0, 1}, {3})],
)
def test_embeddings_by_choice(embeddings, top, bottom):
    experiment = Freeze(train=["top", "bottom"], frozen=[1], embeddings=embeddings)
    found = {v.condition: frozen(v) for v in experiment.variants(3)}
    assert (found["top"], found["bottom"]) == (top, bottom)


def test_norms_biases_and_head():
    found = {v.condition: v for v in Freeze(train=["norms", "biases", "head"]).variants(3)}
    assert (found["norms"].parameters, found["biases"].parameters) == ("norms", "biases")
    assert frozen(found["norms"]) == frozen(found["biases"]) == set()
    assert frozen(found["head"]) == {0, 1, 2, 3}
    assert found["head"].parameters == "all"


def test_own_learning_rate_of_norms_biases_and_head():
    train = ["top", "norms", "biases", "head"]
    study = a_study(experiments=[{"kind": "freeze", "train": train, "frozen": [0, 3], "peft_lr": 1e-3}])
    points = {(p.condition, p.x): p.trial.training for p in expand(study, FakeFacts(depth=3))}
    assert {key: training.lr for key, training in points.items()} == {
        ("all pretrained", 0): 2e-5, ("top", 0): 2e-5, ("top", 3): 2e-5,
        ("norms, lr 0.001", 0): 1e-3, ("biases, lr 0.001", 0): 1e-3, ("head, lr 0.001", 3): 1e-3,
    }  # fmt: skip
    assert points["norms, lr 0.001", 0].parameters == "norms"
    assert points["head, lr 0.001", 3].frozen_layers == (0, 1, 2, 3)
    assert study.experiments[0].summary().endswith("(norms, biases and head with learning rate 0.001)")
    with pytest.raises(
        StudyError, match=r"peft_lr = 0.001: only for norms, biases and head, none of which is in"
    ):
        a_study(experiments=[{"kind": "freeze", "train": ["top", "bottom"], "peft_lr": 1e-3}])


def test_the_head_alone_and_all_layers_frozen_are_one_trial():
    study = a_study(experiments=[{"kind": "freeze", "train": ["top", "head"], "frozen": [0, "depth"]}])
    points = {(p.condition, p.x): p.trial.id for p in expand(study, FakeFacts(depth=6))}
    assert points["top", 6] == points["head", 6]
    assert points["top", 0] == points["all pretrained", 0]
    assert len(set(points.values())) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"frozen": [9]}, r"frozen = 9: some/model has 6 layers: 0 to 6 layers can be frozen"),
        ({"train": "bottom", "embeddings": "frozen"}, "leaves nothing but the head to train"),
        ({"train": "middle"}, r'train = "middle".*allowed: "top", "bottom", "norms", "biases", "head"'),
        ({"train": []}, "at least one is required"),
        ({"train": "head", "frozen": [3]}, r'frozen = \[3\]: `train` has neither "top" nor "bottom"'),
        ({"train": "norms", "embeddings": "frozen"}, r'embeddings = "frozen": `train` has neither "top"'),
        ({"training": {"lr": -1.0}}, r"training\.lr = -1\.0: must be greater than 0"),
        ({"training": {"learning_rate": 1.0}}, r"training\.learning_rate: unknown key.*allowed: epochs"),
        ({"training": {"epochs": 2}, "epochs": 3}, "epochs = 3: `epochs` is also in `training`"),
    ],
)
def test_invalid_settings_name_the_key_and_what_is_allowed(settings, message):
    with pytest.raises(StudyError, match=message):
        expand(a_study(experiments=[{"kind": "freeze", **settings}]), FakeFacts(depth=6))


def test_two_experiments_that_freeze_other_embeddings_are_refused():
    """Their results could not be told apart."""
    experiments = [{"kind": "freeze", "train": "top", "embeddings": e} for e in ("frozen", "trained")]
    with pytest.raises(StudyError, match='other parameters at the same point, freeze "top" at 0'):
        expand(a_study(experiments=experiments), FakeFacts(depth=3))


def test_the_pooler_is_reinitialized_only_if_the_head_uses_it():
    experiment = {"kind": "incremental", "keep": [4, 6], "reinit_pooler": True}
    with pytest.raises(StudyError, match=r'reinit_pooler = .*used with head = "pooler" only'):
        expand(a_study(experiments=[experiment]), FakeFacts(depth=6))
    points = expand(a_study(head="pooler", experiments=[experiment]), FakeFacts(depth=6))
    assert [p.trial.surgery.reinit_pooler for p in points] == [True, False]  # k = 6 changes nothing


def test_an_experiment_replaces_keys_of_training():
    study = a_study(
        experiments=[
            {"kind": "freeze", "train": "head", "training": {"lr": 1e-3, "epochs": {"500": 9, "default": 2}}},
            {"kind": "freeze", "train": "head", "training": {"bias_correction": False}},
            {"kind": "prune", "top": [1]},
        ],
        training={"lr": 5e-5, "weight_decay": 0.1},
    )
    again = Study.from_toml(study.to_toml(), Path.cwd())
    assert again == study
    for one in (study, again):
        found = {}
        for p in expand(one, FakeFacts(depth=6)):
            t = p.trial.training
            found.setdefault(p.experiment, set()).add((t.lr, t.epochs, t.bias_correction, t.weight_decay))
        assert found == {
            "freeze": {(1e-3, 9, True, 0.1), (5e-5, 3, False, 0.1)},
            "prune": {(5e-5, 3, True, 0.1)},
        }


def test_two_experiments_without_their_own_training_still_conflict():
    experiments = [{"kind": "freeze", "train": "head", "lr": lr} for lr in (1e-3, 1e-4)]
    with pytest.raises(StudyError, match=r"trains the same models with different (epochs|lr) \("):
        expand(a_study(experiments=experiments), FakeFacts(depth=6))


def test_learning_rates_decay_from_the_top():
    variants = list(LrDecay(factors=[0.5, 1], reinit_top=[0, 2]).variants(3))
    points = {(v.condition, v.x): v for v in variants}
    assert dict(points["", 0.5].lr_factors) == {3: 1.0, 2: 0.5, 1: 0.25, 0: 0.125}
    assert points["", 1.0].lr_factors == ()
    assert points["top 2 reinitialized", 0.5].reinit == (2, 3)
    assert dict(points["top 2 reinitialized", 0.5].lr_factors) == dict(points["", 0.5].lr_factors)


def test_lr_decay_multiplies_the_factor_of_reinitialized_layers():
    study = a_study(
        experiments=[{"kind": "lr_decay", "factors": 0.5, "reinit_top": 1, "reinit_lr_factor": 10.0}]
    )
    point = next(p for p in expand(study, FakeFacts(depth=2)) if "top" in p.condition)
    assert dict(point.trial.training.lr_factors) == {2: 10.0, 1: 0.5, 0: 0.25}
    assert reinit_lr_factor(point.trial) == 10.0  # the points of a curve have the same


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factors": [1.5]}, "must be at most 1"),
        ({"factors": [0.0]}, "must be greater than 0"),
        ({"reinit_top": [7]}, "0 to 6 layers can be re-initialized"),
    ],
)
def test_invalid_settings_of_lr_decay(settings, message):
    with pytest.raises(StudyError, match=message):
        expand(a_study(experiments=[{"kind": "lr_decay", **settings}]), FakeFacts(depth=6))


@pytest.mark.parametrize("train", [["biases"], ["top", "biases"]])
def test_listed_biases_of_models_without_biases_are_refused(train):
    study = {"experiments": [{"kind": "freeze", "train": train}]}
    with pytest.raises(
        StudyError, match=r"\[0\].train = \"biases\": some/model has no biases: nothing but the head"
    ):
        expand(a_study(**study), FakeFacts(depth=6, has_biases=False))
    with pytest.raises(StudyError, match=r"\[0\].train = \"biases\": none of the models has biases: nothing"):
        expand(a_study(**study, models=["a/b", "c/d"]), FakeFacts(depth=6, has_biases=False))


@pytest.mark.parametrize("experiment", ["freeze", {"kind": "freeze", "train": ["biases"]}])
def test_biases_are_left_out_for_models_without_biases(experiment):
    """The user did not ask for them, or other models of the study have them; a resumed study lists the default."""
    models = ["some/gpt2", "some/llama"]
    written = a_study(models=models, experiments=[experiment]).to_toml()
    facts = FakeFacts(depth=3, without_biases=("some/llama",))
    for study in (a_study(models=models, experiments=[experiment]), Study.from_toml(written, Path.cwd())):
        points = expand(study, facts)
        assert {p.trial.model for p in points if p.condition == "biases"} == {"some/gpt2"}
        for model in models:
            alone = a_study(models=[model], experiments=["freeze"])
            if experiment == "freeze":
                assert expand(alone, facts) == [p for p in points if p.trial.model == model]
        infos = [facts.model_info(model) for model in study.models]
        assert notes_on_models(study, infos) == [
            "some/llama has no biases: freeze leaves out the trials that train biases alone"
        ]
        assert notes_on_models(study, infos[:1]) == []
    assert notes_on_models(a_study(experiments=[{"kind": "freeze", "train": "head"}]), infos) == []
