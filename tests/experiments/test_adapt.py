"""The adapter experiment: which layers have adapters, and what is refused before anything trains."""

from pathlib import Path

import pytest
from fake_facts import FakeFacts, a_study

from whichlayers.config.errors import StudyError
from whichlayers.experiments.adapt import Adapt
from whichlayers.study.expand import expand
from whichlayers.study.study_file import Study

ALL = ("attention.dense", "attention.query", "mlp.dense")


def test_layers_with_adapters():
    experiment = Adapt(where=["everywhere", "first", "last", "single", "blocks"], block=2)
    found = {
        (v.experiment, v.condition, v.x): v.adapter.layers
        for v in experiment.variants(3)
        if not v.is_baseline
    }
    assert found == {
        ("adapt", "everywhere", 3): (1, 2, 3),
        ("adapt", "first", 1): (1,), ("adapt", "first", 2): (1, 2), ("adapt", "first", 3): (1, 2, 3),
        ("adapt", "last", 1): (3,), ("adapt", "last", 2): (2, 3), ("adapt", "last", 3): (1, 2, 3),
        ("adapt_layers", "single", 1): (1,), ("adapt_layers", "single", 2): (2,),
        ("adapt_layers", "single", 3): (3,),
        ("adapt_layers", "blocks", 1): (1, 2), ("adapt_layers", "blocks", 2): (2, 3),
    }  # fmt: skip


def test_the_summary_names_the_numbers_of_layers():
    assert Adapt(where=["last"], k=[1, 3]).summary().endswith("in the last k layers, for k = 1 and 3")
    assert Adapt(where=["first"]).summary().endswith("in the first k layers, for every k")
    assert Adapt(where=["single"]).summary().endswith("in each single layer")


def test_the_same_layers_are_one_trial_and_each_name_has_its_baseline():
    study = a_study(experiments=[{"kind": "adapt", "where": ["everywhere", "first", "single"], "k": [1, 3]}])
    points = {(p.experiment, p.condition, p.x): p.trial for p in expand(study, FakeFacts(depth=3))}
    assert points["adapt", "everywhere", 3] == points["adapt", "first", 3]
    assert points["adapt", "first", 1] == points["adapt_layers", "single", 1]
    assert points["adapt", "all pretrained", 0] == points["adapt_layers", "all pretrained", 0]
    assert points["adapt", "all pretrained", 0].adapter is None


@pytest.mark.parametrize(
    ("targets", "names"),
    [("all", ALL), ("query", ("attention.query",)), (["dense"], ("attention.dense", "mlp.dense")),
     (["attention.dense", "query"], ("attention.dense", "attention.query"))],
)  # fmt: skip
def test_targets_are_matched_by_the_end_of_the_name(targets, names):
    study = a_study(experiments=[{"kind": "adapt", "where": "everywhere", "targets": targets}])
    points = [p for p in expand(study, FakeFacts(depth=3)) if p.condition == "everywhere"]
    assert [p.trial.adapter.targets for p in points] == [names]


def test_several_ranks_are_several_curves():
    study = a_study(experiments=[{"kind": "adapt", "where": "everywhere", "rank": [2, 8], "alpha": 4.0}])
    found = {p.condition: p.trial.adapter for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter}
    assert {c: (a.rank, a.alpha) for c, a in found.items()} == {
        "everywhere, rank 2": (2, 4.0),
        "everywhere, rank 8": (8, 4.0),
    }
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study


def test_own_learning_rates_are_several_curves_with_one_baseline():
    settings = {"kind": "adapt", "where": ["everywhere", "single"], "rank": [2, 8]}
    study = a_study(experiments=[settings | {"peft_lr": [1e-3, 5e-3]}], training={"lr": 3e-5})
    points = expand(study, FakeFacts(depth=1))
    assert {(p.experiment, p.condition): p.trial.training.lr for p in points} == {
        (name, condition): lr
        for name, place in (("adapt", "everywhere"), ("adapt_layers", "single"))
        for condition, lr in [
            ("all pretrained", 3e-5),
            *((f"{place}, rank {rank}, lr {lr}", lr) for rank in (2, 8) for lr in (0.001, 0.005)),
        ]
    }
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study
    assert study.experiments[0].summary().endswith("each single layer with learning rate 0.001 or 0.005")


def test_a_learning_rate_of_the_adapters_gives_the_same_trials_as_one_of_the_experiment():
    """Ids depend on what is trained, not on how the study file says it; without peft_lr they are as before."""

    def ids(**settings):
        study = a_study(experiments=[{"kind": "adapt", "where": "last", **settings}])
        return {p.trial.id for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter}

    assert ids(peft_lr=1e-3) == ids(lr=1e-3) == ids(training={"lr": 1e-3})
    assert ids(lr=1e-4, peft_lr=1e-3) == ids(lr=1e-3)
    assert ids() == ids(peft_lr=2e-5) != ids(lr=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_lr": 0.0}, r"peft_lr = 0.0: must be greater than 0"),
        ({"peft_lr": []}, "at least one is required"),
        ({"peft_lr": "high"}, r"peft_lr = .*must be a number"),
        (
            {"targets": ["q_proj"]},
            r'targets = "q_proj": some/model has no such linear module in its layers; it has: attention.query, '
            "attention.dense, mlp.dense",
        ),
        ({"rank": 65}, r"rank = 65: attention.query of some/model has a width of 64; allowed: 1 to 64"),
        ({"rank": 0}, "must be at least 1"),
        ({"targets": []}, r'targets = \[\]: allowed: "all", or a list of names of modules or their ends'),
        ({"targets": ["query", ""]}, r'targets = \["query", ""\]: allowed: "all", or a list of names'),
        ({"where": "single", "k": [2]}, r'k = \[2\]: `where` has neither "first" nor "last"'),
        ({"where": "single", "block": 2}, 'block = 2: `where` has no "blocks"'),
        ({"where": "first", "k": [7]}, "k = 7: some/model has 6 layers: 1 to 6 layers can have adapters"),
        ({"where": "blocks", "block": 7}, "a block can have 1 to 6 layers"),
        ({"method": "ia3", "rank": 4, "dropout": 0.1}, r'dropout = 0.1: only for method = "lora"'),
        ({"method": "adapters"}, r'method = "adapters": allowed: "lora", "ia3"'),
        ({"where": "middle"}, 'allowed: "everywhere"'),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(StudyError, match=message):
        expand(a_study(experiments=[{"kind": "adapt", **settings}]), FakeFacts(depth=6))


@pytest.mark.parametrize("key", ["alpha", "rank", "targets", "block", "method"])
def test_two_experiments_with_other_adapters_at_one_point_are_refused(key):
    """Their results could not be told apart."""
    values = {"alpha": 32.0, "rank": 4, "targets": "query", "block": 2, "method": "ia3"}
    first = {"kind": "adapt", "where": "blocks"}
    with pytest.raises(
        StudyError, match='different parameters at the same point, adapt_layers "blocks" at 1'
    ):
        expand(a_study(experiments=[first, first | {key: values[key]}]), FakeFacts(depth=3))


def test_two_experiments_with_other_training_are_two_curves():
    first = {"kind": "adapt", "where": "single"}
    study = a_study(experiments=[first, first | {"training": {"weight_decay": 0.1}}])
    assert len({p.trial.id for p in expand(study, FakeFacts(depth=3))}) == 2 * (1 + 3)


def test_a_study_of_ia3_is_read_from_its_folder():
    """The study file in a folder has all defaults, also those of keys that ia3 does not use."""
    study = a_study(experiments=[{"kind": "adapt", "method": "ia3"}])
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study


def test_biases_of_a_model_without_biases():
    study = a_study(experiments=[{"kind": "freeze", "train": ["biases"]}])
    with pytest.raises(
        StudyError, match=r"train = \"biases\": some/model has no biases: nothing but the head"
    ):
        expand(study, FakeFacts(depth=6, has_biases=False))
