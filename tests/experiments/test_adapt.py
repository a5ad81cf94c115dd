"""The adapter experiment: which layers have adapters, and what is refused before anything trains."""

from pathlib import Path

import pytest
from fake_facts import FakeFacts, a_study

from whichlayers.config.errors import StudyError
from whichlayers.experiments import display_of
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
        ("adapt", "first", 1): (1,), ("adapt", "first", 2): (1, 2),
        ("adapt", "last", 1): (3,), ("adapt", "last", 2): (2, 3),
        ("adapt_layers", "single", 1): (1,), ("adapt_layers", "single", 2): (2,),
        ("adapt_layers", "single", 3): (3,),
        ("adapt_layers", "blocks", 1): (1, 2), ("adapt_layers", "blocks", 2): (2, 3),
    }  # fmt: skip


def test_the_summary_names_the_numbers_of_layers():
    assert Adapt(where=["last"], k=[1, 3]).summary().endswith("in the last k layers, for k = 1 and 3")
    assert Adapt(where=["first"]).summary().endswith("in the first k layers, for every k")
    assert Adapt(where=["single"]).summary().endswith("in each single layer")


@pytest.mark.parametrize("k", ["all", [1, 3]])
def test_all_layers_are_one_point_if_they_are_listed(k):
    """Two points with the same trials would count twice in corrections, and hide each other in figures."""
    counts = [1, 2] if k == "all" else [1]
    for where in (["everywhere", "last"], ["last", "first", "everywhere"]):
        points = list(Adapt(where=where, k=k).variants(3))
        assert [(v.condition, v.x) for v in points if v.adapter and len(v.adapter.layers) == 3] == [
            ("everywhere", 3)
        ]
        assert {v.x for v in points if v.condition == "last"} == set(counts)
    both = [v for v in Adapt(where=["first", "last"], k=k).variants(3) if v.adapter]
    assert (
        {v.x for v in both if v.condition == "last"}
        == {v.x for v in both if v.condition == "first"}
        == {*counts, 3}
    )


def test_the_same_layers_are_one_trial_and_each_name_has_its_baseline():
    study = a_study(experiments=[{"kind": "adapt", "where": ["last", "first", "single"], "k": [1, 3]}])
    points = {(p.experiment, p.condition, p.x): p.trial for p in expand(study, FakeFacts(depth=3))}
    assert points["adapt", "last", 3] == points["adapt", "first", 3]
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
        (
            {"targets": [["query"], []]},
            r'targets = \[\["query"\], \[\]\]: allowed: "all", or a list of names',
        ),
        ({"method": []}, "at least one is required"),
        ({"method": ["ia3", "peft"]}, r'method\[1\] = "peft": allowed: "lora", "ia3"'),
        ({"method": "ia3", "rank": 4, "dropout": 0.1}, r'dropout = 0.1: only for method = "lora"'),
        ({"method": "adapters"}, r'method = "adapters": allowed: "lora", "ia3"'),
        ({"where": "middle"}, 'allowed: "everywhere"'),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(StudyError, match=message):
        expand(a_study(experiments=[{"kind": "adapt", **settings}]), FakeFacts(depth=6))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"alpha": 32.0}, ("alpha 16", "alpha 32")),
        ({"dropout": 0.1}, ("dropout 0", "dropout 0.1")),
        ({"rank": 4}, ("rank 8", "rank 4")),
        ({"targets": ["query", "mlp.dense"]}, ("all modules", "mlp.dense + query")),
        ({"block": 2}, ("of 3 layers", "of 2 layers")),
        ({"method": "ia3"}, ("LoRA", "IA3")),
        (
            {"method": "ia3", "targets": "query", "block": 1},
            ("of 3 layers, LoRA, all modules", "of 1 layer, IA3, query"),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("lr", [None, 0.001])
def test_two_experiments_at_the_same_place_are_told_apart_by_the_settings_that_differ(settings, names, lr):
    """Their trials are those of studies with one of them alone, whose conditions do not name the settings."""
    first = {"kind": "adapt", "where": "blocks"} | ({} if lr is None else {"peft_lr": lr})
    experiments = [first, first | settings]
    points = expand(a_study(experiments=experiments), FakeFacts(depth=3))
    end = "" if lr is None else f", lr {lr}"
    assert {p.condition for p in points} == {"all pretrained", *(f"blocks, {name}{end}" for name in names)}
    for experiment, name in zip(experiments, names, strict=True):
        alone = {p for p in expand(a_study(experiments=[experiment]), FakeFacts(depth=3)) if p.trial.adapter}
        assert {p.condition for p in alone} == {f"blocks{end}"}
        named = {p for p in points if p.condition == f"blocks, {name}{end}"}
        assert {(p.x, p.trial.id) for p in named} == {(p.x, p.trial.id) for p in alone}


def test_settings_that_differ_are_named_although_learning_rates_differ_too():
    """Two curves that differ in method and learning rate must not read like two learning rates."""
    lora = {"kind": "adapt", "where": "everywhere", "rank": [2, 8], "peft_lr": 0.005}
    study = a_study(
        experiments=[lora, {"kind": "adapt", "method": "ia3", "where": ["everywhere"], "peft_lr": 0.02}]
    )
    conditions = {p.condition for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter}
    assert conditions == {
        "everywhere, LoRA, rank 2, lr 0.005", "everywhere, LoRA, rank 8, lr 0.005", "everywhere, IA3, lr 0.02",
    }  # fmt: skip
    display = display_of("adapt")
    assert {display.condition_name(c) for c in conditions} == {
        "all layers, LoRA, rank 2, lr 0.005", "all layers, LoRA, rank 8, lr 0.005", "all layers, IA3, lr 0.02",
    }  # fmt: skip


def test_all_places_of_an_experiment_name_the_same_settings():
    """The point with all layers is the start of the curve of the last k layers, with the same settings."""
    lora = {"kind": "adapt", "where": ["everywhere", "last", "single"], "k": [1]}
    study = a_study(experiments=[lora, {"kind": "adapt", "where": "everywhere", "method": "ia3"}])
    assert {p.condition for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter} == {
        "everywhere, LoRA", "last, LoRA", "single", "everywhere, IA3",
    }  # fmt: skip


def test_curves_of_several_places_name_the_settings_in_which_they_differ():
    """IA3 in all layers is not the first step of LoRA in fewer and fewer layers."""
    lora = {"kind": "adapt", "where": "last", "k": [1, 2], "rank": 4}
    study = a_study(experiments=[lora, {"kind": "adapt", "where": "everywhere", "method": "ia3"}])
    assert {p.condition for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter} == {
        "last, LoRA", "everywhere, IA3",
    }  # fmt: skip


def test_conditions_of_experiments_on_other_data_or_in_other_figures_name_no_settings():
    """They cannot be mistaken for each other, so their results keep their names."""
    first = {"kind": "adapt", "where": "everywhere", "train_sizes": [8]}
    for other in ({"train_sizes": [16]}, {"tasks": ["CoLA"]}, {"where": "single"}):
        experiments = [first | {"tasks": ["builtin:sentiment"]}, first | {"method": "ia3"} | other]
        study = a_study(tasks=["builtin:sentiment", "CoLA"], experiments=experiments)
        conditions = {p.condition for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter}
        assert conditions <= {"everywhere", "single"}


def test_lists_of_methods_and_targets():
    settings = {"kind": "adapt", "where": "everywhere", "rank": [2, 4]}
    settings |= {"method": ["lora", "ia3"], "targets": [["query", "mlp.dense"], "all"]}
    study = a_study(experiments=[settings])
    found = {p.condition: p.trial.adapter for p in expand(study, FakeFacts(depth=3)) if p.trial.adapter}
    assert {c: (a.method, a.rank, a.targets) for c, a in found.items()} == {
        f"everywhere, {name}, {modules}": (method, rank, targets)
        for name, method, rank in [
            ("LoRA, rank 2", "lora", 2),
            ("LoRA, rank 4", "lora", 4),
            ("IA3", "ia3", 8),
        ]
        for modules, targets in [
            ("mlp.dense + query", ("attention.query", "mlp.dense")),
            ("all modules", ALL),
        ]
    }
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study
    assert study.experiments[0].summary() == (
        "train LoRA adapters of rank 2 or 4 or IA3 adapters on query and mlp.dense, or on all modules in all layers"
    )


@pytest.mark.parametrize("targets", ["all", ["all"], "query", ["query"], [["query"]], ["query", "mlp.dense"]])
def test_targets_are_written_as_they_are_given_in_the_simplest_form(targets):
    study = a_study(experiments=[{"kind": "adapt", "targets": targets}])
    simplest = {"all": '"all"', "query": '["query"]', "mlp.dense": '["query", "mlp.dense"]'}
    last = targets if isinstance(targets, str) else targets[-1]
    assert f"targets = {simplest[last if isinstance(last, str) else last[0]]}\n" in study.to_toml()
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study


def test_two_experiments_with_other_training_are_two_curves():
    first = {"kind": "adapt", "where": "single"}
    study = a_study(experiments=[first, first | {"training": {"weight_decay": 0.1}}])
    assert len({p.trial.id for p in expand(study, FakeFacts(depth=3))}) == 2 * (1 + 3)


def test_a_study_of_ia3_is_read_from_its_folder():
    """The study file in a folder has all defaults, also those of keys that ia3 does not use."""
    study = a_study(experiments=[{"kind": "adapt", "method": "ia3"}])
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study
