from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
from fake_facts import FakeFacts, a_study

from whichlayers.config.errors import StudyError
from whichlayers.study.describe import describe_study
from whichlayers.study.expand import expand
from whichlayers.study.selection import example_count
from whichlayers.study.study_file import Study
from whichlayers.trial import COMPONENTS, Point, Probe, Surgery, Training, Trial

KINDS = [
    "incremental",
    "localized",
    "single_layer",
    "permutation",
    {"kind": "prune", "top": [1, 2], "bottom": 1},
    {"kind": "probing", "layers": [0, 1]},
]


def points_of(metadata: FakeFacts | None = None, **settings) -> list[Point]:
    return expand(a_study(**settings), metadata or FakeFacts())


def test_longer_training_is_evaluated_after_every_epoch():
    points = points_of(experiments=["incremental", "epochs"], training={"epochs": 3, "evaluate": "end"})
    found = {(p.experiment, p.trial.training.epochs, p.trial.training.evaluate) for p in points}
    assert found == {("incremental", 3, "end"), ("epochs", 10, "every epoch")}


def test_an_experiment_of_some_tasks():
    points = points_of(
        tasks=["SST-2", "CoLA"], experiments=["incremental", {"kind": "localized", "tasks": "CoLA"}]
    )
    found = {(p.experiment, p.trial.task) for p in points}
    assert found == {("incremental", "SST-2"), ("incremental", "CoLA"), ("localized", "CoLA")}


def test_a_size_need_not_fit_a_task_that_the_experiment_leaves_out():
    metadata = FakeFacts(rows=9000, rows_of={"CoLA": 100})
    big = {"kind": "localized", "tasks": ["SST-2"], "train_sizes": [5000]}
    settings = {"tasks": ["SST-2", "CoLA"], "train_sizes": [50]}
    assert points_of(metadata, experiments=["incremental", big], **settings)
    assert "CoLA has 100 training examples" in message_of(
        metadata, experiments=[big | {"tasks": "all"}], **settings
    )


@pytest.mark.parametrize(
    ("tasks", "message"), [(["SST2"], "the study has no SST2; did you mean"), ([], "name at least one task")]
)
def test_tasks_that_an_experiment_cannot_have(tasks, message):
    with pytest.raises(StudyError, match=message):
        points_of(tasks=["SST-2"], experiments=[{"kind": "incremental", "tasks": tasks}])


def test_tasks_that_a_command_names_replace_those_of_an_experiment():
    study = a_study(tasks=["SST-2", "CoLA"], experiments=[{"kind": "localized", "tasks": ["CoLA"]}])
    assert study.override(tasks=["SST-2"]).experiments[0].tasks == "all"


def message_of(metadata: FakeFacts, **settings) -> str:
    with pytest.raises(StudyError) as caught:
        points_of(metadata, **settings)
    return str(caught.value)


@pytest.mark.parametrize("depth", [3, 6, 12, 24])
def test_numbers_of_points(depth):
    sizes, trials, models, tasks = 2, 3, 2, 2
    points = points_of(
        FakeFacts(depth),
        models=["a/a", "b/b"],
        tasks=["SST-2", "CoLA"],
        experiments=KINDS,
        train_sizes=[100, 200],
        trials=trials,
    )
    variants = (depth + 1) + (2 + 2 * (depth - 2)) + (2 + depth) + (2 + 10) + (1 + 3) + 2
    assert len(points) == variants * sizes * trials * models * tasks
    assert len({(p.experiment, p.condition, p.x, p.trial.id) for p in points}) == len(points)


def seeds_of(points: list[Point]) -> list[list[int]]:
    """The seeds of the components, in the order of COMPONENTS, of each trial of the first condition."""
    first = [p.trial for p in points if (p.condition, p.x) == (points[0].condition, points[0].x)]
    return [[trial.seed_of(component) for component in COMPONENTS] for trial in first]


def test_without_vary_all_components_have_the_seed_of_the_trial():
    points = points_of(trials=3, seed=7)
    assert seeds_of(points) == [[s] * 5 for s in (7, 8, 9)]
    assert all(p.trial.seeds == () for p in points)
    assert [p.trial.id for p in points_of(trials=3, seed=7, vary=COMPONENTS[::-1])] == [
        p.trial.id for p in points
    ]


def test_vary_leaves_the_other_components_at_the_first_seed():
    points = points_of(trials=3, seed=7, vary=["order", "init"])
    assert seeds_of(points) == [[7, s, s, 7, 7] for s in (7, 8, 9)]
    assert [p.trial.seed for p in points[:3]] == [7, 8, 9]
    assert points[0].trial.id == points_of(trials=3, seed=7)[0].trial.id


def test_every_condition_has_the_same_seeds_in_trial_i():
    points = points_of(trials=12, vary_apart=True, vary=["subset", "init", "head"], experiments=KINDS[:3])
    by_seed: dict[int, set] = {}
    for point in points:
        by_seed.setdefault(point.trial.seed, set()).add(point.trial.seeds)
    assert len(by_seed) == 12
    assert all(len(seeds) == 1 for seeds in by_seed.values())


@pytest.mark.parametrize("trials", [10, 25, 32, 50])
def test_components_that_vary_apart_are_balanced_and_two_trials_share_one_at_most(trials):
    found = seeds_of(points_of(trials=trials, vary_apart=True, seed=3))
    assert len(found) == trials
    for level in zip(*found, strict=True):
        counts = [level.count(seed) for seed in sorted(set(level))]
        assert min(level) == 3
        assert max(counts[:5]) - min(counts[:5]) <= 1
        if trials % 25 == 0:
            assert counts == [5] * (trials // 5)
    for i, j in combinations(range(trials), 2):
        shared = sum(a == b for a, b in zip(found[i], found[j], strict=True))
        same_row = i // 5 == j // 5
        other_round = i // 25 != j // 25
        assert shared == (0 if same_row or other_round else 1)


def test_trial_i_does_not_depend_on_the_number_of_trials():
    few, many = (seeds_of(points_of(trials=n, vary_apart=True)) for n in (12, 60))
    assert many[:12] == few


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": ["subset", "seed"]}, "subset.*order.*init.*head.*dropout"),
        ({"vary": []}, "vary"),
        ({"vary": ["head", "head"]}, "head is listed twice"),
        ({"vary": ["head"], "vary_apart": True}, "needs at least two components in vary"),
    ],
)
def test_what_vary_cannot_be(settings, message):
    with pytest.raises(StudyError, match=message):
        a_study(**settings)


def test_vary_in_a_study_file(tmp_path):
    study = a_study(vary=["init", "subset"], vary_apart=True)
    again = Study.from_toml(study.to_toml(), tmp_path)
    assert (again.vary, again.vary_apart) == (("init", "subset"), True)
    assert "with separate seeds for init and subset" in describe_study(study)
    assert "which differ in head only" in describe_study(a_study(vary="head"))


def test_word_probes_of_the_pretrained_model_have_no_seeds_of_components():
    points = points_of(trials=2, vary=["init"], experiments=["word_probing"], corpora=["builtin:pos"])
    found = {p.trial.seeds for p in points if p.condition == "pretrained"}
    assert found == {()}
    assert any(p.trial.seeds for p in points if p.condition != "pretrained")


def test_incremental_against_the_obvious_loop():
    points = points_of(tasks=["SST-2", "CoLA"], train_sizes=[500, 5000], trials=3, seed=7)
    expected = [
        (task, size, k, seed)
        for task, size, k, seed in product(["SST-2", "CoLA"], [500, 5000], range(13), [7, 8, 9])
    ]
    assert [(p.trial.task, p.trial.train_size, p.x, p.trial.seed) for p in points] == expected
    for p in points:
        assert p.trial.surgery == Surgery(reinit=tuple(range(int(p.x) + 1, 13)))


def test_the_order_is_always_the_same():
    assert points_of(experiments=KINDS) == points_of(experiments=KINDS)


def test_ids_are_those_of_earlier_versions():
    points = points_of(experiments=KINDS, train_sizes=[500], recipe="as_released")
    ids = {(p.experiment, p.condition, p.x): p.trial.id for p in points}
    assert ids["incremental", "", 12] == "5091be37eed5a63b"
    assert ids["incremental", "", 0] == "94dba4e93f795edc"
    assert ids["localized", "block preserved", 4] == "edeedb7d9ba41dc7"
    assert ids["permutation", "permuted", 1] == "8639136a7acf0493"
    assert ids["prune", "top", 2] == "33528e1c5cf1569c"


def test_experiments_share_trials():
    points = points_of(experiments=KINDS)
    by_point = {(p.experiment, p.condition, p.x): p.trial for p in points}
    full, none = by_point["incremental", "", 12], by_point["incremental", "", 0]
    for experiment in ("localized", "single_layer", "permutation"):
        assert by_point[experiment, "all pretrained", 0] == full
        assert by_point[experiment, "none pretrained", 0] == none
    assert by_point["prune", "all pretrained", 0] == full
    assert by_point["single_layer", "", 12] == by_point["incremental", "", 11]
    assert full.surgery.order is None


def test_the_recipe_does_not_matter_without_reinitialized_layers():
    points = points_of(
        FakeFacts(depth=2), recipe=["as_described", "bert_init"], keep_layer_norm=[False, True]
    )
    at = {k: [p for p in points if p.x == k] for k in range(3)}
    assert [len(at[k]) for k in range(3)] == [4, 4, 1]
    assert {(p.trial.surgery.recipe, p.trial.surgery.keep_layer_norm) for p in at[0]} == set(
        product(["as_described", "bert_init"], [False, True])
    )


def test_an_experiment_may_differ_from_the_study():
    own = {
        "kind": "incremental", "recipe": "bert_init", "keep_layer_norm": True,
        "train_sizes": [50], "trials": 2, "epochs": 9, "lr": 1e-3,
    }  # fmt: skip
    points = points_of(FakeFacts(depth=2), experiments=[own], trials=5)
    assert len(points) == 3 * 2
    for p in points:
        assert (p.trial.train_size, p.trial.training.epochs, p.trial.training.lr) == (50, 9, 1e-3)
    assert points[0].trial.surgery == Surgery(None, (1, 2), "bert_init", True)


def test_reinitialized_layers_at_another_learning_rate():
    points = points_of(FakeFacts(depth=3), experiments=[{"kind": "incremental", "reinit_lr_factor": 5}])
    factors = {p.x: p.trial.training.lr_factors for p in points}
    assert factors == {0: ((1, 5.0), (2, 5.0), (3, 5.0)), 1: ((2, 5.0), (3, 5.0)), 2: ((3, 5.0),), 3: ()}
    both = points_of(FakeFacts(depth=3), experiments=[{"kind": "incremental", "reinit_lr_factor": [1, 5]}])
    assert len(both) == 3 + 4
    assert {p.trial.id for p in points} | {p.trial.id for p in points_of(FakeFacts(depth=3))} == {
        p.trial.id for p in both
    }


def test_permutations_may_have_fewer_trials_than_their_baselines():
    points = points_of(
        experiments=[{"kind": "permutation", "permutations": 4, "trials": 1, "baseline_trials": 3}]
    )
    assert [p.condition for p in points].count("permuted") == 4
    assert [p.condition for p in points].count("all pretrained") == 3


def test_trials_and_epochs_per_size():
    points = points_of(
        FakeFacts(depth=1),
        train_sizes=[500, 5000],
        trials={"500": 5, "default": 2},
        training={"epochs": {"500": 5, "default": 3}},
    )
    assert [p.trial.train_size for p in points].count(500) == 2 * 5
    assert [p.trial.train_size for p in points].count(5000) == 2 * 2
    assert {(p.trial.train_size, p.trial.training.epochs) for p in points} == {(500, 5), (5000, 3)}


def test_sizes():
    assert [example_count(s, 67_349) for s in (500, 0.1, 0.01, "all", 1e-9)] == [500, 6735, 673, 67_349, 1]
    points = points_of(FakeFacts(rows=1000), train_sizes=["all", 1000, 0.5, 500, 1])
    assert list(dict.fromkeys(p.trial.train_size for p in points)) == [1000, 500, 1]


def test_a_task_may_have_sizes_of_its_own_and_an_experiment_comes_before_it():
    tasks = ["SST-2", {"name": "CoLA", "train_sizes": [500]}]
    experiments = ["incremental", {"kind": "single_layer", "train_sizes": [50]}]
    points = points_of(tasks=tasks, experiments=experiments, train_sizes=[500, 50_000])
    assert {(p.experiment, p.trial.task, p.trial.train_size) for p in points} == {
        ("incremental", "SST-2", 500),
        ("incremental", "SST-2", 50_000),
        ("incremental", "CoLA", 500),
        ("single_layer", "SST-2", 50),
        ("single_layer", "CoLA", 50),
    }


def test_names_and_revision_reach_the_trial_but_not_its_id():
    (first, *_), (second, *_) = points_of(), points_of(models=[{"name": "some/model", "revision": "r"}])
    assert (first.trial.revision, second.trial.revision) == (None, "r")
    assert first.trial.model == "some/model"
    assert first.trial.id == second.trial.id


@pytest.mark.parametrize(
    ("metadata", "settings", "parts"),
    [
        (FakeFacts(6), {"experiments": [{"kind": "incremental", "keep": [0, 9]}]},
         ["experiments[0].keep = 9", "some/model has 6 layers", "0 to 6"]),
        (FakeFacts(2), {"experiments": ["localized"]}, ["experiments[0].block = 3", "1 to 2 layers"]),
        (FakeFacts(6), {"experiments": ["incremental", {"kind": "single_layer", "layers": [7]}]},
         ["experiments[1].layers = 7", "1 to 6"]),
        (FakeFacts(6), {"experiments": [{"kind": "prune", "top": 6}]}, ["experiments[0].top = 6", "1 to 5"]),
        (FakeFacts(has_pooler=False), {"head": "pooler"},
         ['head = "pooler"', "no pretrained pooler", '"mean"']),
        (FakeFacts(has_pooler=False), {"experiments": [{"kind": "probing", "pooling": "pooler"}]},
         ['experiments[0].pooling = "pooler"', "no pretrained pooler", '"mean" or "summary"']),
        (FakeFacts(rows=100), {"train_sizes": [50, 101]},
         ["train_sizes[1] = 101", "has 100 training examples", "1 to 100", "set `train_sizes` of tasks[0]"]),
        (FakeFacts(rows=100), {"tasks": [{"name": "SST-2", "train_sizes": 101}]},
         ["tasks[0].train_sizes[0] = 101"]),
        (FakeFacts(rows=100), {"experiments": [{"kind": "incremental", "train_sizes": [101]}]},
         ["experiments[0].train_sizes[0] = 101"]),
        (FakeFacts(one_fingerprint="f"), {"models": ["a/a", "b/b"]}, ["models[1]", "the same as models[0]"]),
        (FakeFacts(6), {"experiments": ["incremental", {"kind": "incremental", "lr": 1e-3}]},
         ["experiments[1]: another incremental", "lr (2e-05 and 0.001)", "separate study files"]),
    ],
)  # fmt: skip
def test_invalid_settings_are_reported_before_training(metadata, settings, parts):
    text = message_of(metadata, **settings)
    for part in parts:
        assert part in text


def test_all_problems_are_reported_at_once_with_file_and_line(tmp_path):
    text = (
        'name = "x"\ntrain_sizes = [500]\nhead = "pooler"\nmodels = ["a/a"]\ntasks = ["CoLA"]\n'
        '[[experiments]]\nkind = "incremental"\nkeep = [7]\n'
    )
    study = Study.from_toml(text, tmp_path, "s.toml")
    with pytest.raises(StudyError) as caught:
        expand(study, FakeFacts(depth=6, has_pooler=False, rows_of={"CoLA": 10}))
    lines = str(caught.value).split("\n")
    assert lines[0] == "s.toml has 3 problems:"
    assert [line.split(": ")[0].strip() for line in lines[1:]] == ["s.toml:2", "s.toml:3", "s.toml:8"]


def test_probes_have_their_own_training():
    probing = {"kind": "probing", "layers": [0, 2], "trials": 2, "train_sizes": [50, "all"]}
    study = a_study(experiments=[probing], training={"epochs": 7, "lr": 1.0, "max_length": 64})
    points = expand(study, FakeFacts(rows=100))
    assert [(p.experiment, p.condition, p.x) for p in points[:3]] == [
        ("probing", "", 0.0),
        ("probing", "", 0.0),
        ("probing", "", 2.0),
    ]
    assert [(p.trial.train_size, p.trial.seed) for p in points[:2]] == [(50, 0), (50, 1)]
    assert len(points) == 2 * 2 * 2
    assert {p.trial.training for p in points} == {Training(max_length=64)}
    assert [p.trial.probe for p in points[:3:2]] == [Probe(0), Probe(2)]
    other = a_study(experiments=[probing], training={"max_length": 64})
    assert [p.trial.id for p in expand(other, FakeFacts(rows=100))] == [p.trial.id for p in points]


def test_probes_of_several_poolings_are_several_curves():
    """One pooling keeps the empty condition; trials do not depend on how many there are."""
    poolings = ("mean", "summary", "pooler")
    alone = {p: points_of(experiments=[{"kind": "probing", "pooling": p}]) for p in poolings}
    assert {p.condition for points in alone.values() for p in points} == {""}
    one_list = points_of(experiments=[{"kind": "probing", "pooling": list(poolings)}])
    assert one_list == [replace(p, condition=f"pooling {key}") for key in poolings for p in alone[key]]
    assert one_list == points_of(experiments=[{"kind": "probing", "pooling": p} for p in poolings])
    study = a_study(experiments=[{"kind": "probing", "pooling": ["mean", "summary"]}])
    assert Study.from_toml(study.to_toml(), Path.cwd()) == study
    assert 'pooling = "mean"\n' in a_study(experiments=["probing"]).to_toml()
    assert "of the frozen model, with mean or summary pooling, for" in study.experiments[0].summary()


def test_probes_with_other_settings_are_told_apart():
    first, other = {"kind": "probing", "layers": [1]}, {"standardize": True, "lr": 0.01, "batch_size": 16}
    points = points_of(experiments=[first, first | other])
    assert [p.condition for p in points] == [
        "batch size 8, probe lr 0.001, not standardized",
        "batch size 16, probe lr 0.01, standardized",
    ]
    assert {p.condition for p in points_of(experiments=[first, {"kind": "probing", "layers": [2]}])} == {""}


def test_pooling_last_is_refused_with_its_name_in_probing():
    message = (
        r'pooling = "last": allowed: "mean", "summary", "pooler"; the last token of a decoder is "summary"'
    )
    with pytest.raises(StudyError, match=message):
        a_study(experiments=[{"kind": "probing", "pooling": "last"}])
    with pytest.raises(StudyError, match='"summary" here'):
        a_study(experiments=[{"kind": "probing", "pooling": ["mean", "last"]}])


def test_conflicts_name_the_experiment_and_the_keys():
    top = 'name = "x"\nmodels = ["a/a"]\ntasks = ["CoLA"]\n[[corpora]]\nname = "builtin:pos"\n'
    experiments = (
        '[[experiments]]\nkind = "word_probing"\n' * 2 + 'probe_lr = 0.1\nl2_norm = "plain"\nl2 = 1.0\n'
    )
    with pytest.raises(StudyError) as error:
        expand(Study.from_toml(top + experiments, Path.cwd(), "s.toml"), FakeFacts())
    assert str(error.value) == (
        "s.toml:8: experiments[1]: another word_probing experiment trains the same models with different l1, l2 or"
        ' search ([0.0, 0.0] and [0.0, 1.0]), l2_norm ("squared" and "plain") and probe_lr (0.001 and 0.1); put them in'
        " separate study files"
    )
    settings = [{"kind": "freeze", "embeddings": e, "frozen": [1]} for e in ("frozen", "trained")]
    with pytest.raises(
        StudyError, match=r"^experiments\[1\]: another .* \"top\" at 1; .* the same `embeddings`$"
    ):
        points_of(experiments=settings)


def test_heads_prompts_and_bos_of_decoders():
    study = a_study(
        models=["an/encoder", {"name": "a/decoder", "bos": True}],
        tasks=["builtin:sentiment", {"name": "QNLI", "pair_template": "{second} / {first}"}, "RTE"],
    )
    facts = FakeFacts(decoders=("a/decoder",), pair_tasks=("QNLI", "RTE"))
    trials = {(p.trial.model, p.trial.task): p.trial for p in expand(study, facts)}
    found = {key: (t.head, t.pair_template, t.bos) for key, t in trials.items()}
    template = study.pair_template
    assert found == {
        ("an/encoder", "builtin:sentiment"): ("mean", "", None),
        ("an/encoder", "QNLI"): ("mean", "", None),
        ("an/encoder", "RTE"): ("mean", "", None),
        ("a/decoder", "builtin:sentiment"): ("last", "", True),
        ("a/decoder", "QNLI"): ("last", "{second} / {first}", True),
        ("a/decoder", "RTE"): ("last", template, True),
    }
    one = trials["a/decoder", "RTE"]
    others = [
        replace(one, pair_template="{first} {second}"),
        replace(one, bos=None),
        replace(one, head="mean"),
    ]
    assert len({t.id for t in (one, *others)}) == 4
    assert all(Trial.from_json(t.to_json()) == t for t in (one, *others))


def test_settings_of_decoders_are_errors_for_encoders():
    study = a_study(models=[{"name": "an/encoder", "bos": True}], head="last")
    with pytest.raises(StudyError) as caught:
        expand(study, FakeFacts())
    assert 'an/encoder is an encoder; use "mean"' in str(caught.value)
    assert "only for decoders" in str(caught.value)
    with pytest.raises(StudyError, match=r"must contain \{first\} and \{second\}"):
        a_study(pair_template="{first}")


def test_a_model_without_a_pooler_is_fine_if_nothing_uses_one():
    without = FakeFacts(has_pooler=False)
    assert points_of(without, head="mean")
    assert points_of(without, experiments=[{"kind": "probing", "pooling": "mean"}])
    assert points_of(FakeFacts(has_pooler=True), head="pooler")


def test_the_default_has_no_factors_of_the_learning_rate():
    for experiment in ({"kind": "incremental"}, {"kind": "incremental", "reinit_lr_factor": 1}):
        assert {p.trial.training.lr_factors for p in points_of(experiments=[experiment])} == {()}


COUNTED_KINDS = [
    *KINDS,
    {"kind": "freeze", "train": ["top", "bottom", "norms", "biases", "head"]},
    {"kind": "adapt", "where": ["first", "last", "single", "blocks", "everywhere"], "rank": [1, 2, 4]},
    {"kind": "adapt", "method": "ia3", "where": ["single", "blocks"], "trials": 7},
    {"kind": "freeze", "train": ["norms", "head"], "peft_lr": [1e-3, 2e-3, 4e-3]},
    {"kind": "lr_decay", "reinit_top": [1, 2], "recipe": ["as_described", "bert_init"]},
    {"kind": "incremental", "keep_layer_norm": [True, False], "reinit_lr_factor": [1, 2, 5]},
    {"kind": "epochs", "train_sizes": [8, 9, 10]},
    {"kind": "word_probing", "finetuned_on": "all"},
    {"kind": "neurons", "finetuned_on": "all"},
    "selectivity",
]


@pytest.mark.parametrize("kind", COUNTED_KINDS, ids=str)
def test_the_number_of_points_is_known_before_they_are_created(kind, monkeypatch):
    """The count includes duplicates, so it is at least the number of points."""
    settings = {"experiments": [kind], "train_sizes": [8, 16], "trials": {"8": 3, "default": 2}}
    settings["corpora"] = ["builtin:pos"]
    created = len(points_of(**settings))
    monkeypatch.setattr("whichlayers.study.expand.MAX_POINTS", created - 1)
    with pytest.raises(
        StudyError, match=rf"^trials: the study has [0-9,]+ trials .* more than {created - 1:,}; reduce"
    ):
        points_of(**settings)
    monkeypatch.setattr("whichlayers.study.expand.MAX_POINTS", 2 * created)
    assert len(points_of(**settings)) == created


def test_a_study_may_have_as_many_points_as_the_limit(monkeypatch):
    study = {"experiments": [{"kind": "incremental", "keep": [0, 1]}], "trials": 3, "train_sizes": [8]}
    monkeypatch.setattr("whichlayers.study.expand.MAX_POINTS", 6)
    assert len(points_of(**study)) == 6
    monkeypatch.setattr("whichlayers.study.expand.MAX_POINTS", 5)
    with pytest.raises(StudyError, match="the study has 6 trials"):
        points_of(**study)


def test_the_head_of_a_word_probe_is_that_of_its_finetuning():
    experiments = [{"kind": "word_probing", "finetuned_on": "all", "pretrained": True}]
    points = points_of(head="pooler", corpora=["builtin:pos"], experiments=experiments, train_sizes=[8])
    assert {(p.trial.train_size, p.trial.head) for p in points} == {(0, "mean"), (8, "pooler")}
