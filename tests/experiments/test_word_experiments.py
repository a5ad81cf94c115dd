"""Word-level experiments: their keys in a study file and their trials."""

from __future__ import annotations

import dataclasses

import pytest
from fake_facts import FakeFacts, a_study

from whichlayers.config.errors import StudyError
from whichlayers.study.describe import describe_study
from whichlayers.study.expand import expand
from whichlayers.study.study_file import Study
from whichlayers.trial import Probe, Surgery, Training, Trial, WordProbe

DEPTH = 4


def points_of(
    *experiments, trials=2, tasks=("SST-2", "RTE"), corpora=("builtin:pos", "UD-EWT:upos"), **settings
):
    study = a_study(
        tasks=list(tasks), corpora=list(corpora), experiments=list(experiments), trials=trials, **settings
    )
    return expand(study, FakeFacts(depth=DEPTH))


def test_every_layer_of_the_pretrained_model_and_after_each_task():
    points = points_of("word_probing")
    assert {p.condition for p in points} == {"pretrained", "SST-2", "RTE"}
    assert {p.x for p in points} == {0, 1, 2, 3, 4}
    assert len(points) == 3 * 5 * 2 * 2
    assert len({p.trial.id for p in points}) == len(points)
    before = [p.trial for p in points if p.condition == "pretrained"]
    assert {(t.task, t.train_size, t.finetuning) for t in before} == {("", 0, None)}
    after = [p.trial for p in points if p.condition == "RTE"]
    assert {t.finetuning.id for t in after} == {Trial(**_plain(after[0]), seed=s).id for s in (0, 1)}


@pytest.mark.parametrize(
    ("settings", "trials"),
    [
        ({"train_sizes": [500, 5000], "trials": {"500": 3, "default": 7}}, 7),
        ({"train_sizes": [0.001], "trials": {"500": 9, "default": 3}}, 9),
        ({"train_sizes": [5000], "experiments": [{"kind": "word_probing", "train_sizes": [500]}],
          "trials": {"500": 9, "default": 3}}, 9),
        ({"trials": {"500": 9, "default": 3}, "tasks": []}, 3),
    ],
)  # fmt: skip
def test_the_pretrained_model_has_as_many_trials_as_any_finetuned_one(settings, trials):
    study = {"corpora": ["builtin:pos"], "tasks": ["SST-2"], "experiments": ["word_probing"], **settings}
    points = expand(a_study(**study), FakeFacts(depth=DEPTH))
    seeds = [p.trial.seed for p in points if p.condition == "pretrained" and p.x == 0]
    assert sorted(seeds) == list(range(trials))


def _plain(trial):
    names = ("model", "model_fingerprint", "task", "task_fingerprint", "train_size", "training")
    return {name: getattr(trial, name) for name in names}


def test_points_of_neuron_ranking():
    settings = {"shares": [0.05, 0.1], "rankings": ["lca", "probeless"], "finetuned_on": [], "trials": 1}
    points = points_of({"kind": "neurons", **settings}, corpora=["builtin:pos"])
    found = {(p.experiment, p.condition, p.x) for p in points}
    assert {c for c in found if c[0] == "neurons"} == {
        ("neurons", "pretrained: all neurons", 100.0),
        *(
            ("neurons", f"pretrained: {s}{r}", x)
            for s in ("top", "bottom")
            for r in ("", ", probeless")
            for x in (5, 10)
        ),
        *(("neurons", "pretrained: random", x) for x in (5, 10)),
    }
    assert sum(c[0] == "neuron_spread" for c in found) == 2 * 2 * 5
    assert {c for c in found if c[0] == "smallest_set"} == {
        ("smallest_set", "pretrained", 0.5),
        ("smallest_set", "pretrained: probeless", 0.5),
    }
    assert {p.trial.word_probe.lambdas for p in points} == {None}  # a grid search


def test_selectivity_probes_all_and_top_neurons():
    points = points_of({"kind": "selectivity", "l1": 0.001, "l2": 0.01}, trials=1, corpora=["builtin:pos"])
    assert {(p.experiment, p.trial.word_probe.measure, p.trial.word_probe.neurons) for p in points} == {
        (e, a, n)
        for e, a in (("selectivity", "selectivity"), ("description_length", "compression"))
        for n in ("all", "top")
    }
    assert {p.trial.word_probe.lambdas for p in points} == {(0.001, 0.01)}


def test_ids_depend_on_probe_settings_and_not_on_names():
    plain = Trial("m", "mf", "t", "tf", 10, 0, word_probe=WordProbe("c", "cf"))
    assert plain.id != dataclasses.replace(plain, word_probe=None).id
    changes = {
        "measure": "selectivity",
        "neurons": "top",
        "layer": 1,
        "share": 0.1,
        "lambdas": None,
        "lr": 0.1,
    }
    changes |= {"vector": "first", "standardize": True, "epochs": 3, "batch_size": 8, "fingerprint": "x"}
    for change in ({key: value} for key, value in changes.items()):
        assert (
            dataclasses.replace(
                plain, word_probe=WordProbe(**{"corpus": "c", "fingerprint": "cf", **change})
            ).id
            != plain.id
        )
    same = dataclasses.replace(  # neither the smallest set nor L2 is used
        plain, word_probe=WordProbe("another name", "cf", delta=0.3, norm="plain")
    )
    assert same.id == plain.id
    for lambdas in (None, (0.0, 0.1)):
        norms = [
            dataclasses.replace(plain, word_probe=WordProbe("c", "cf", lambdas=lambdas, norm=norm))
            for norm in ("squared", "plain")
        ]
        assert norms[0].id != norms[1].id
    assert Trial.from_json(same.to_json()) == same
    pretrained = dataclasses.replace(plain, task="", task_fingerprint="", train_size=0)
    assert dataclasses.replace(pretrained, training=Training(epochs=9), head="pooler").id == pretrained.id


def test_ids_of_other_trials_are_what_they_were():
    """Ids from a version without word-level experiments."""
    old = Trial("m", "mf", "t", "tf", 10, 0, surgery=Surgery(reinit=(2,)))
    assert old.id == "6689296472649a0d"
    assert Trial("m", "mf", "t", "tf", 10, 0, probe=Probe(3)).id == "1db344b03fbba304"


OWN = {"name": "mine", "train": "a", "test": "b", "format": "conll"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpora": []}, r"word_probing requires a \[\[corpora\]\] table"),
        ({"corpora": ["UD-EWT:xpox"]}, "unknown corpus; did you mean `UD-EWT:xpos`"),
        ({"corpora": [{"name": "mine", "train": "a.conll"}]}, "`test` is required for your own files"),
        ({"corpora": [{"name": "builtin:pos", "source": "x"}]}, "is built in and has no key `source`"),
        (
            {"corpora": [OWN | {"column": "upos"}]},
            r'corpora\[0\]\.column = "upos": columns of a conll file are given by index',
        ),
        ({"corpora": [OWN | {"column": 0}]}, r"corpora\[0\]\.column = 0: column 0 holds the words"),
        (
            {"corpora": [OWN | {"format": "conllu", "column": 3}]},
            r'corpora\[0\]\.column = 3: allowed for conllu: "upos", "xpos"',
        ),
        ({"corpora": [OWN | {"test": "a"}]}, r'corpora\[0\]\.test = "a": the same file as `train`'),
        ({"corpora": ["builtin:pos", "builtin:pos"]}, "builtin:pos is listed twice"),
        (
            {"experiments": [{"kind": "word_probing", "layers": [9]}]},
            "has 4 layers: allowed are layers 1 to 4",
        ),
        ({"experiments": [{"kind": "word_probing", "finetuned_on": ["QNLI"]}]}, "the study has no QNLI"),
        ({"experiments": [{"kind": "neurons", "l1": 0.1}]}, "give both l1 and l2"),
        ({"experiments": [{"kind": "neurons", "shares": [1.5]}]}, "shares"),
        ({"tasks": [], "experiments": ["incremental", "word_probing"]}, "tasks.*: at least one is required"),
    ],
)
def test_invalid_settings(settings, message):
    plain = {"corpora": ["builtin:pos"], "experiments": ["word_probing"], "tasks": ["SST-2"]}
    with pytest.raises(StudyError, match=message):
        expand(a_study(**(plain | settings)), FakeFacts(depth=DEPTH))


@pytest.mark.parametrize(
    ("experiment", "rejected"),
    [
        ({"kind": "word_probing", "l1": 0.1, "l2": 0.1}, False),
        ({"kind": "neurons"}, True),
        ({"kind": "neurons", "l1": 0.1, "l2": 0.1}, True),  # the smallest set
        ({"kind": "neurons", "smallest": False}, True),
        ({"kind": "neurons", "l1": 0.1, "l2": 0.1, "smallest": False}, False),
        ({"kind": "neurons", "corpora": ["builtin:chunk"]}, True),
        ({"kind": "selectivity"}, True),
        ({"kind": "selectivity", "l1": 0.1, "l2": 0.1}, False),
    ],
)
def test_a_corpus_without_validation_data(experiment, rejected):
    study = a_study(tasks=[], corpora=["builtin:pos", "builtin:chunk"], experiments=[experiment])
    assert expand(study, FakeFacts(depth=DEPTH))
    if not rejected:
        assert expand(study, FakeFacts(depth=DEPTH, has_validation_data=False))
        return
    with pytest.raises(StudyError, match="builtin:chunk has one training sentence and no dev file") as caught:
        expand(study, FakeFacts(depth=DEPTH, has_validation_data=False))
    assert ("corpora[0]: builtin:pos" in str(caught.value)) == ("corpora" not in experiment)


def test_two_experiments_may_not_have_different_probes_at_one_point():
    with pytest.raises(StudyError, match=r"different l1, l2 or search \(\[0.0, 0.0\] and \[0.0, 0.1\]\)"):
        points_of("word_probing", {"kind": "word_probing", "l2": 0.1})


def test_a_study_of_pretrained_models_needs_no_task():
    study = a_study(tasks=[], corpora=["builtin:pos"], experiments=["word_probing"])
    assert {p.condition for p in expand(study, FakeFacts(depth=DEPTH))} == {"pretrained"}
    assert "encode about the words of builtin:pos" in describe_study(study)


def test_word_experiments_survive_a_round_trip(tmp_path):
    own = {"name": "mine", "train": "a", "test": "b", "format": "conll", "column": 1, "train_words": 10}
    study = a_study(
        corpora=["builtin:pos", {"name": "PMB:sem", "source": "data"}, own],
        experiments=["word_probing", {"kind": "neurons", "corpora": ["mine"]}, "selectivity"],
    ).resolved(tmp_path)
    assert Study.from_toml(study.to_toml(), tmp_path) == study
    assert study.corpora[1].source == str(tmp_path / "data")
    assert study.corpora[2].train == str(tmp_path / "a")


def test_data_and_tasks_of_the_command_line_reach_corpora_and_experiments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = a_study(
        tasks=["SST-2"],
        corpora=["UD-EWT:xpos", "builtin:pos"],
        experiments=[
            {"kind": "word_probing", "finetuned_on": ["SST-2"]},
            {"kind": "neurons", "finetuned_on": []},
        ],
    ).override(tasks=["RTE"], source="data", trials=1)
    assert [c.source for c in study.corpora] == [str(tmp_path / "data"), None]
    assert [e.finetuned_on for e in study.experiments] == ["all", ()]


def test_selectivity_and_description_length_of_each_layer():
    points = points_of(
        "word_probing", {"kind": "word_probing", "selectivity": True, "description_length": True}
    )
    names = list(dict.fromkeys(p.experiment for p in points))
    by_name = {name: [p for p in points if p.experiment == name] for name in names}
    assert names == ["word_probing", "layer_selectivity", "layer_description_length"]
    measures = {name: {p.trial.word_probe.measure for p in of} for name, of in by_name.items()}
    assert measures == {
        "word_probing": {"accuracy"},
        "layer_selectivity": {"selectivity"},
        "layer_description_length": {"compression"},
    }
    for of_kind in by_name.values():
        assert all(p.x == p.trial.word_probe.layer and p.trial.word_probe.neurons == "layer" for p in of_kind)
        assert len(of_kind) == len(by_name["word_probing"])
    plain = points_of("word_probing")
    assert [p.trial.id for p in by_name["word_probing"]] == [p.trial.id for p in plain]


def test_penalties_of_layers_are_given_or_searched():
    points = points_of({"kind": "word_probing", "search": True})
    assert {p.trial.word_probe.lambdas for p in points} == {None}
    with pytest.raises(StudyError, match=r"search = true finds l1 and l2: remove l2, or search"):
        points_of({"kind": "word_probing", "search": True, "l2": 0.1})
