"""Recommendations from synthetic results: each verdict of each question."""

import json
import math

import numpy as np
import pytest
from fake_facts import FakeFacts, a_study
from small_models import FAMILY_NAMES, small_model
from synthetic_results import write_results

from whichlayers.analysis.recommend import GOALS, QUESTIONS, recommend
from whichlayers.analysis.recommend.base import Candidate, describe_layers
from whichlayers.analysis.recommend.smallest import nested_series
from whichlayers.errors import WhichlayersError
from whichlayers.models.structure import ModelStructure, is_bias
from whichlayers.results.frames import finished, load_points
from whichlayers.study.expand import expand
from whichlayers.study.follow_up import follow_up_study

DEPTH = 6


def points_of(folder, experiments, score, trials=8, sd=0.004, guess=None, **settings):
    """Finished points of a study whose trials score `score(point)`, with noise that depends on seed and point."""
    study = a_study(experiments=experiments, trials=trials, tasks=["SST-2"], train_sizes=[500], **settings)
    points = expand(study, FakeFacts(depth=DEPTH))

    def noisy(point):
        digest = int(point.trial.id, 16) % 2**32
        shared = np.random.default_rng(point.trial.seed).normal()  # a good or bad seed, for all variants
        return score(point) + 0.02 * shared + sd * np.random.default_rng(digest).normal()

    write_results(folder, points, noisy, depth=DEPTH, guess={"SST-2": 0.5} if guess is None else guess)
    return finished(load_points(folder))


def top(*numbers):
    return [{"kind": "prune", "top": list(numbers)}]


def only(recommendation):
    (answer,) = recommendation.answers
    return answer


def test_the_smallest_model_is_the_last_one_within_the_loss(tmp_path):
    losses = {0: 0.0, 1: 0.0, 2: -0.002, 3: -0.08, 4: -0.01, 5: -0.2}
    points = points_of(tmp_path, top(1, 2, 3, 4, 5), lambda p: 0.9 + losses[p.x], sd=0.002)
    answer = only(recommend(points))
    assert answer.verdict == "recommended"
    assert answer.layers == (1, 2, 3, 4)
    assert answer.trial_id in set(points.query("condition == 'top' and x == 2")["trial_id"])
    assert answer.low > -0.01
    results = [c.result for c in answer.compared]
    assert results == [
        "within the tolerance",
        "within the tolerance",
        "below the tolerance",
        "not tested",
        "not tested",
    ]
    assert "Stopped at layers 1-3 of 6" in answer.text
    paired = points.pivot_table(index="seed", columns=["condition", "x"], values="value")
    difference = (paired["top", 2] - paired["all pretrained", 0]).mean()
    assert answer.difference == pytest.approx(difference)
    assert only(recommend(points, tolerance=0.3)).layers == (1,)


def test_nothing_to_gain_if_even_one_layer_costs_too_much(tmp_path):
    points = points_of(tmp_path, top(1, 2), lambda p: 0.9 - 0.1 * p.x)
    answer = only(recommend(points))
    assert answer.verdict == "nothing to gain"
    assert answer.trial_id is None
    assert answer.more_trials is None


def test_not_enough_trials_says_how_many_more_and_how_long(tmp_path):
    points = points_of(tmp_path, top(1, 2), lambda p: 0.9, trials=3, sd=0.02)
    answer = only(recommend(points, tolerance=0.005))
    assert answer.verdict == "not enough trials"
    assert answer.more_trials > 0
    assert answer.minutes == pytest.approx(answer.more_trials * 3)  # three models of a minute each
    assert f"{answer.more_trials} more trial" in answer.text


def test_an_estimate_beyond_the_loss_needs_no_more_trials(tmp_path):
    points = points_of(tmp_path, top(1), lambda p: 0.9 - 0.02 * p.x, trials=3, sd=0.02)
    answer = only(recommend(points, tolerance=0.001))
    assert (answer.verdict, answer.more_trials) == ("not enough trials", None)
    assert "more trials will probably not show it" in answer.text


def test_a_model_that_did_not_learn_gives_no_answer(tmp_path):
    points = points_of(tmp_path, [*top(1, 2), {"kind": "probing"}], lambda p: 0.5)
    points["memory"] = 4.0 - points["x"]  # a smaller model needs less
    answers = recommend(points, tolerance=0.1).answers
    assert {a.verdict for a in answers} == {"not learned"}
    assert not any(a.savings for a in answers)
    assert all(a.trial_id is None and math.isnan(a.difference) for a in answers)


def test_several_series_share_the_significance_level(tmp_path):
    experiments = [{"kind": "prune", "top": [1, 2], "bottom": [1, 2], "drop": [[2, 4], [3]]}]

    def score(p):
        return 0.9 - (0.1 * p.x if p.condition == "bottom" else 0)

    answer = only(recommend(points_of(tmp_path, experiments, score, sd=0.001)))
    assert answer.layers == (
        1,
        2,
        3,
        4,
    )  # two models without two layers: the first in order of score, at most
    assert answer.level == pytest.approx(1 - 2 * 0.05 / 4)
    assert "4 series" in answer.text


def test_series_are_nested_and_depend_on_layers_alone():
    sets = [(1, 2, 3), (1, 2), (2, 3, 4), (3, 4), (1, 3, 4), (1, 3), (1, 2, 3)]
    series = nested_series([Candidate("", None, layers) for layers in sets], depth=4)
    assert [[c.layers for c in one] for one in series] == [
        [(1, 2, 3), (1, 2)],
        [(2, 3, 4), (3, 4)],
        [(1, 3, 4), (1, 3)],
    ]


@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_layers_to_reinitialize(tmp_path, gain):
    points = points_of(
        tmp_path,
        ["incremental"],
        lambda p: 0.8 + (gain if p.x == 4 else 0) - (p.x < 3) * 0.2,
        trials=12,
        sd=0.003,
    )
    answer = only(recommend(points))
    if gain:
        assert (answer.verdict, answer.choice) == ("recommended", "the top 2 layers re-initialized")
        assert answer.low <= gain <= answer.high
        assert "both halves of the seeds chose the same" in answer.text
    else:
        assert answer.verdict == "nothing to gain"
        assert "keep the pretrained weights of all layers" in answer.text


def test_the_best_of_several_needs_four_seeds(tmp_path):
    points = points_of(tmp_path, ["incremental"], lambda p: 0.5 + p.x / 20, trials=3)
    answer = only(recommend(points))
    assert (answer.verdict, answer.more_trials) == ("not enough trials", 1)
    assert "at least 4 trials, there are 3" in answer.text


def test_the_best_features(tmp_path):
    points = points_of(tmp_path, ["probing"], lambda p: 0.9 - 0.05 * abs(p.x - 4), trials=8)
    answer = only(recommend(points))
    assert (answer.verdict, answer.choice, answer.layers) == ("recommended", "layer 4", (1, 2, 3, 4))
    assert answer.difference == pytest.approx(0.1, abs=0.01)
    noisy = points_of(tmp_path / "noisy", ["probing"], lambda p: 0.9, trials=4, sd=0.03)
    undecided = only(recommend(noisy))
    assert undecided.verdict == "not enough trials"
    assert undecided.more_trials > 0


def test_goals_select_questions_and_what_was_not_asked(tmp_path):
    points = points_of(tmp_path, [*top(1, 2), "incremental"], lambda p: 0.9, sd=0.001)
    assert {a.question for a in recommend(points).answers} == {"smallest", "reinit"}
    assert "features" in {q.key for q in recommend(points).unasked}
    assert [q.key for q in recommend(points, goal="features").unasked] == ["features"]
    assert {a.question for a in recommend(points, goal="size").answers} == {"smallest"}
    assert {goal for q in QUESTIONS.values() for goal in q.goals} == set(GOALS)
    assert recommend(points).best(recommend(points).answers).question == "smallest"


@pytest.mark.parametrize("depth", [2, 6, 24])
def test_a_study_can_ask_every_question(depth):
    study = follow_up_study(a_study(trials=2), [q.ask(depth, 2e-5) for q in QUESTIONS.values()])
    points = expand(study, FakeFacts(depth=depth))
    asked = {p.experiment for p in points}
    for question in QUESTIONS.values():
        assert asked & set(question.experiments), question.key
    assert max(p.trial.seed for p in points) >= 5


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_study_asks_for_biases_where_there_are_some(family):
    asked = QUESTIONS["few_parameters"].ask(6, 2e-5)
    (experiment,) = follow_up_study(a_study(), [asked], ["bert", family]).experiments
    has_biases = any(
        is_bias(name)
        for layer in ModelStructure(small_model(family)).layers
        for name, _ in layer.named_parameters()
    )
    assert experiment.train == (("norms", "biases", "head") if has_biases else ("norms", "head"))
    assert list(expand(a_study(experiments=[experiment]), FakeFacts(has_biases=has_biases)))


@pytest.mark.parametrize(("lr", "expected"), [(2e-5, 4e-4), (5e-5, 1e-3), (0.003, 0.06)])
def test_the_learning_rate_of_adapters_follows_that_of_finetuning(lr, expected):
    """10 to 50 times as high, as docs/footguns.md says."""
    asked = [q.ask(6, lr) for q in QUESTIONS.values()]
    lrs = [experiment["peft_lr"] for experiment in asked if "peft_lr" in experiment]
    assert lrs == [pytest.approx(expected)] * 3
    assert 10 * lr <= lrs[0] <= 50 * lr


def test_trials_of_the_next_study_share_no_seeds():
    """Those of a study of variance components do, so that its intervals are those of a fifth of the trials."""
    first = a_study(trials=25, vary=["order", "head"], vary_apart=True)
    study = follow_up_study(first, [QUESTIONS["features"].ask(6, 2e-5)])
    assert (study.vary, study.vary_apart, study.trials.default) == (("order", "head"), False, 25)


def test_every_number_of_layers_with_adapters_is_asked_once():
    study = follow_up_study(a_study(trials=1), [QUESTIONS["adapters"].ask(6, 2e-5)])
    points = [p for p in expand(study, FakeFacts(depth=6)) if p.condition != "all pretrained"]
    layers = [(p.trial.seed, p.trial.adapter.layers) for p in points]
    assert len(set(layers)) == len(layers)
    assert {len(one) for _, one in layers} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("experiment", "missing"),
    [
        (
            {"kind": "probing", "layers": [0, 1, 2]},
            "layer 6 was not probed: add it to `layers` of the experiment, or leave `layers` out",
        ),
        ({"kind": "incremental", "keep": [2, 3]}, 'add "depth" to `keep` of the experiment'),
    ],
)
def test_without_the_baseline_there_is_nothing_to_compare_with(tmp_path, experiment, missing):
    answer = only(recommend(points_of(tmp_path, [experiment], lambda p: 0.9)))
    assert (answer.verdict, answer.trial_id, answer.more_trials) == ("not enough trials", None, None)
    assert "so there is nothing to compare the others with. If the study is complete" in answer.text
    assert missing in answer.text


def test_answers_are_json(tmp_path):
    points = points_of(tmp_path, top(1, 2), lambda p: 0.9 - 0.1 * p.x)
    stored = json.loads(json.dumps(recommend(points).to_dict(), allow_nan=False))
    assert stored["answers"][0]["verdict"] == "nothing to gain"
    assert stored["answers"][0]["score"] is None


def test_bad_arguments(tmp_path):
    points = points_of(tmp_path, top(1), lambda p: 0.9)
    with pytest.raises(WhichlayersError, match="tolerance = 0"):
        recommend(points, tolerance=0)
    with pytest.raises(WhichlayersError, match="size, speed, accuracy, features"):
        recommend(points, goal="fun")


def test_layers_in_words():
    assert describe_layers((1, 2, 3, 5)) == "layers 1-3 and 5"
    assert describe_layers((4,)) == "layer 4"
