"""Recommendations about training: layers to freeze, learning rate decay, adapters."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from test_recommend import DEPTH, only, points_of

from whichlayers.analysis.recommend import QUESTIONS, Answer, recommend
from whichlayers.analysis.recommend.base import Candidate, training_savings
from whichlayers.analysis.recommend.costs import cost_text


def test_the_most_layers_that_can_stay_frozen(tmp_path):
    experiments = [{"kind": "freeze", "train": ["top", "norms", "biases"]}]
    points = points_of(tmp_path, experiments, lambda p: 0.9 - (0.1 if p.x > 4 else 0), sd=0.001)
    (answer,) = recommend(points).of("freeze")
    assert (answer.verdict, answer.choice) == ("recommended", "layers 1-4 and the embeddings frozen")
    assert answer.trial_id in set(points.query("condition == 'top' and x == 4")["trial_id"])
    assert answer.level == pytest.approx(0.9)  # one series: norms and biases are not part of it
    assert "Stopped at layers 1-5" in answer.text


ALONE = {"kind": "freeze", "train": ["norms", "biases", "head"]}


def test_the_fewest_parameters_to_train(tmp_path):
    """The head alone is too bad; layer norms have fewer parameters than biases, and both are good enough."""
    points = points_of(tmp_path, [ALONE], lambda p: 0.9 - 0.1 * (p.condition == "head"), sd=0.001)
    answer = only(recommend(points))
    assert answer.question == "few_parameters"
    assert (answer.verdict, answer.choice) == ("recommended", "the layer norms alone")
    assert answer.text.startswith("Train the layer norms alone: ")
    assert answer.trial_id in set(points.query("condition == 'norms'")["trial_id"])
    assert answer.level == pytest.approx(0.9)  # one series
    assert [c.name for c in answer.compared] == [
        "the biases alone",
        "the layer norms alone",
        "the head alone",
    ]
    assert (
        "Compared: the biases, the layer norms and the head, each trained alone, in this order" in answer.text
    )
    assert "Stopped at the head alone" in answer.text


def test_trained_parameters_decide_the_order_and_not_the_scores(tmp_path):
    """A decoder may have more parameters in its norms than in its biases."""
    points = points_of(tmp_path, [ALONE], lambda p: 0.9 - 0.1 * (p.condition == "norms"), sd=0.001)
    assert only(recommend(points)).choice == "the biases alone"
    counts = {"all pretrained": 1000, "norms": 60, "biases": 50, "head": 2}
    counted = points.assign(trained_parameters=points["condition"].map(counts))
    answer = only(recommend(counted))
    assert (
        answer.verdict == "not enough trials"
    )  # norms are the first, and fail; the others may be good enough
    assert "Try another learning rate (`peft_lr`), or test them in a study of their own" in answer.text
    assert [c.result for c in answer.compared] == ["below the tolerance", "not tested", "not tested"]
    low = counted.assign(value=counted["value"].where(points["condition"] == "all pretrained", 0.6))
    low["value"] += 0.001 * (counted["value"] - 0.9)
    assert only(recommend(low)).verdict == "nothing to gain"
    assert (
        only(recommend(counted.assign(value=0.9 + points["seed"] % 2 / 1e3))).verdict == "not enough trials"
    )
    partly = counted.assign(
        trained_parameters=counted["trained_parameters"].where(points["condition"] != "norms")
    )
    assert only(recommend(partly)).choice == "the biases alone"  # not known: the usual order


def test_each_learning_rate_of_few_parameters_is_a_series(tmp_path):
    experiments = [ALONE, ALONE | {"peft_lr": [1e-3]}]
    low = {"norms", "biases", "head"}  # without a learning rate of their own
    points = points_of(tmp_path, experiments, lambda p: 0.9 - 0.3 * (p.condition in low), sd=0.001)
    counts = {"norms": 50, "biases": 60, "head": 2}
    parts = points["condition"].str.partition(", ")[0]
    answer = only(recommend(points.assign(trained_parameters=parts.map(counts).fillna(1000))))
    assert (answer.verdict, answer.choice) == ("recommended", "the head alone (lr 0.001)")
    assert answer.savings["trained parameters"] == pytest.approx(0.998)
    assert answer.level == pytest.approx(0.95)  # 5% divided by two series
    assert (
        "2 series, one for each learning rate (the biases, the layer norms and the head; the biases, "
        in answer.text
    )
    assert "the level of 5% is divided by 2. Stopped at the biases alone: −30" in answer.text


def test_few_parameters_are_compared_with_a_baseline_that_learned(tmp_path):
    experiments = [ALONE | {"train": ["biases"], "peft_lr": 1e-3}]
    rows = points_of(
        tmp_path, experiments, lambda p: 0.5 if p.condition == "all pretrained" else 0.9, sd=0.001
    )
    answer = only(recommend(rows))
    assert answer.verdict == "not learned"
    assert answer.text.startswith(
        "No answer: finetuning all parameters is no better than guessing at learning rate 2e-05, but the task can be "
        "learned: the biases alone (lr 0.001), "
    )
    assert recommend(rows[rows["condition"] != "all pretrained"]).answers == ()
    assert "few_parameters" in {q.key for q in recommend(rows[rows["condition"] == "all pretrained"]).unasked}


def test_both_ends_can_be_frozen(tmp_path):
    experiments = [{"kind": "freeze", "train": ["top", "bottom"], "frozen": [1, 2, 3]}]

    def score(p):
        return 0.9 - (0.1 if p.condition == "top" or p.x > 2 else 0)

    answer = only(recommend(points_of(tmp_path, experiments, score, sd=0.001)))
    assert answer.choice == "layers 5-6 frozen"
    assert "2 series (layers frozen: 1, 2 and 3; 1, 2 and 3)" in answer.text


@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_learning_rate_decay(tmp_path, gain):
    experiments = [{"kind": "lr_decay", "factors": [0.5, 0.8, 1.0]}]
    points = points_of(
        tmp_path, experiments, lambda p: 0.8 + (gain if p.x == 0.8 else 0), trials=10, sd=0.002
    )
    answer = only(recommend(points))
    assert answer.baseline == "one learning rate for all layers"
    if gain:
        assert (answer.verdict, answer.choice) == ("recommended", "a decay of 0.8")
    else:
        assert answer.verdict == "nothing to gain"
    assert "Compared: a decay of 0.5 and a decay of 0.8" in answer.text


def test_decay_with_reinitialized_layers_is_a_setting_of_its_own(tmp_path):
    experiments = [{"kind": "lr_decay", "factors": [0.8, 1.0], "reinit_top": [0, 2]}]

    def score(p):
        return 0.85 if p.condition == "top 2 reinitialized" and p.x == 1 else 0.8

    answer = only(recommend(points_of(tmp_path, experiments, score, trials=10, sd=0.002)))
    assert answer.choice == "a decay of 1 with the top 2 re-initialized"


def test_few_layers_with_adapters(tmp_path):
    experiments = [{"kind": "adapt", "where": ["everywhere", "last"], "targets": "all"}]

    def score(p):
        return 0.9 if p.condition == "all pretrained" or p.x >= 3 else 0.8

    answer = only(recommend(points_of(tmp_path, experiments, score, sd=0.001)))
    assert answer.choice == "adapters in layers 4-6"
    assert answer.baseline == f"finetuning all {DEPTH} layers"
    assert answer.compared[0].name == f"adapters in all {DEPTH} layers"
    assert "adapters in 6, 5, 4, 3, 2 and 1 layers" in answer.text


def test_the_best_layer_for_adapters(tmp_path):
    experiments = [{"kind": "adapt", "where": ["single"]}]
    points = points_of(tmp_path, experiments, lambda p: 0.9 if p.x == 5 else 0.8, sd=0.004)
    answer = only(recommend(points))
    assert answer.choice == "adapters in layer 5"
    assert answer.difference == pytest.approx(0.1 * (1 - 1 / DEPTH), abs=0.01)
    assert answer.baseline == "the mean of these places"


def test_the_mean_of_all_places_takes_the_seeds_of_all_of_them(tmp_path):
    """Layer 6, the best, fails with most seeds: layer 3 is above the mean of the others, and below that of all."""
    experiments = [{"kind": "adapt", "where": "single"}]
    points = points_of(tmp_path, experiments, lambda p: 0.8 + 0.12 * (p.x == 6) + 0.01 * (p.x == 3), sd=0.001)
    seeds = sorted(points["seed"].unique())
    best, late = points["x"] == 6, points["seed"] > seeds[3]
    answer = only(recommend(points[~(best & late)]))
    third = next(c for c in answer.compared if c.name == "adapters in layer 3")
    assert (third.n, third.difference) == (4, pytest.approx(0.01 - (0.12 + 0.01) / 6, abs=0.002))
    answer = only(recommend(points[best == late]))
    assert (answer.verdict, answer.compared) == ("not enough trials", ())
    assert "no seed has finished trials of all places" in answer.text


def test_blocks_of_several_lengths_are_places_and_no_settings(tmp_path):
    """The best block is one of two layers, although blocks of three layers score higher on average."""
    experiments = [{"kind": "adapt", "where": "blocks", "block": size} for size in (2, 3)]

    def score(p):
        return 0.9 if p.condition == "blocks, of 2 layers" and p.x == 4 else 0.8 + 0.01 * ("3" in p.condition)

    answer = only(recommend(points_of(tmp_path, experiments, score, sd=0.004)))
    assert (answer.verdict, answer.choice) == (
        "recommended",
        "adapters in the block of 2 layers that starts at layer 4",
    )
    assert len(answer.compared) == 5 + 4
    assert "highest mean" not in answer.text


def test_other_adapters_in_all_layers_are_a_series_of_their_own(tmp_path):
    """IA3 in all layers fails, which says nothing of LoRA in the last layers."""
    experiments = [
        {"kind": "adapt", "where": "everywhere", "method": "ia3"},
        {"kind": "adapt", "where": "last", "k": [1, 2]},
    ]

    def score(p):
        return 0.8 if "IA3" in p.condition or p.x == 1 else 0.9

    answer = only(recommend(points_of(tmp_path, experiments, score, sd=0.001)))
    assert (answer.verdict, answer.choice) == ("recommended", "adapters in layers 5-6 (LoRA)")
    assert answer.level == pytest.approx(0.95)  # two series


def test_training_questions_do_not_decide_what_is_built_before_the_smallest_model(tmp_path):
    experiments = [{"kind": "freeze", "train": ["top"]}, {"kind": "prune", "top": [1, 2]}]
    recommendation = recommend(points_of(tmp_path, experiments, lambda p: 0.9, sd=0.001))
    assert [a.question for a in recommendation.answers] == ["smallest", "freeze"]
    assert recommendation.best(recommendation.answers).question == "smallest"
    assert next(iter(QUESTIONS)) == "smallest"


def test_savings_of_time_memory_and_parameters():
    def candidate(seconds, memory, parameters):
        columns = {
            "seed": range(4),
            "value": 0.9,
            "seconds": seconds,
            "trial_id": list("abcd"),
            "stack": range(4),
        }
        return Candidate("x", pd.DataFrame(columns | {"memory": memory, "trained_parameters": parameters}))

    full = candidate([10.0, 11, 12, 10], 8e9, 1000)
    assert training_savings(candidate([5.0, 5.4, 6.1, 5], 2e9, 100), full) == {
        "training time": pytest.approx(0.5, abs=0.01),
        "training memory": 0.75,
        "trained parameters": 0.9,
    }
    noisy = candidate([2.0, 30, 4, 20], float("nan"), 1001)  # not significant, not known, less than 1%
    assert training_savings(noisy, full) == {}
    answer = Answer(
        *("freeze", "recommended", "text", "m", "f", "t", 100, "", "accuracy", "all", 6),
        savings={"training time": 0.5, "trained parameters": 0.9, "training memory": -0.1},
    )
    assert (
        cost_text(answer, [])
        == "50% less training time; 90% fewer trained parameters; 10% more training memory."
    )
    nearly_all = dataclasses.replace(answer, savings={"trained parameters": 0.9963})
    assert cost_text(nearly_all, []) == "Over 99% fewer trained parameters."


def test_a_learning_rate_that_failed_does_not_concern_the_others(tmp_path):
    """Finetuning learns nothing at the learning rate of `adapt`, whose adapters learn; `freeze` has another one."""
    high = {"lr": 5e-3}
    experiments = [
        {"kind": "freeze", "train": ["top"]},
        {"kind": "adapt", "where": ["everywhere", "last"], "training": high},
        {"kind": "adapt", "where": ["single"], "training": high},
    ]

    def score(p):
        return 0.5 if p.trial.training.lr == 5e-3 and p.condition == "all pretrained" else 0.9

    points = points_of(tmp_path, experiments, score, sd=0.002)
    verdicts = {a.question: a.verdict for a in recommend(points).answers}
    assert verdicts == {
        "freeze": "recommended",
        "adapters": "not learned",
        "adapter_place": "nothing to gain",
    }
    flat = points.assign(value=points["value"] - 0.4 * (points["condition"] == "single"))
    (place,) = recommend(flat).of("adapter_place")
    assert place.verdict == "not learned"
    assert "with adapters at the place that is best on other seeds" in place.text


def test_adapters_with_several_learning_rates(tmp_path):
    """Layer 2 is best at each learning rate, and the lower one is worse everywhere by 0.2, which is no merit of a
    layer."""
    lrs = {"peft_lr": [1e-4, 1e-3]}
    experiments = [
        {"kind": "adapt", "where": ["everywhere", "last"], **lrs},
        {"kind": "adapt", "where": ["single"], **lrs},
    ]

    def score(p):
        if p.condition == "all pretrained":
            return 0.9
        gain = 0.03 if (p.experiment, p.x) == ("adapt_layers", 2) else 0.0
        return 0.9 + gain - 0.2 * (p.trial.training.lr < 1e-3)

    points = points_of(tmp_path, experiments, score, sd=0.002)
    assert set(points["variant"]) == {""}
    found = recommend(points)
    (count,) = found.of("adapters")
    assert (count.verdict, count.choice) == ("recommended", "adapters in layer 6 (lr 0.001)")
    assert "2 series" in count.text
    assert "Stopped at adapters in all 6 layers (lr 0.0001): −19.9 points" in count.text
    (place,) = found.of("adapter_place")
    assert (place.verdict, place.choice) == ("recommended", "adapters in layer 2 (lr 0.001)")
    assert place.difference == pytest.approx(0.03 * 5 / 6, abs=0.003)  # the mean has a sixth of the gain
    assert {c.name[-11:] for c in place.compared} == {" (lr 0.001)"}
    assert place.text.endswith("lr 0.001, which has the highest mean over them of: lr 0.0001; lr 0.001.")


def test_too_few_trials_to_say_whether_the_model_learned(tmp_path):
    """Two trials of 0.75, guessing 0.5: the interval includes guessing, and a perfect score."""
    points = points_of(tmp_path, [{"kind": "freeze", "train": ["top"]}], lambda p: 0.75, trials=2)
    points["value"] = 0.7 + 0.1 * points["seed"] + 0.0001 * points["x"] * points["seed"]
    answer = only(recommend(points, tolerance=0.1))
    assert answer.verdict == "not enough trials"
    assert answer.text.startswith(
        "No answer: not shown to be better than guessing: too few trials. The model scores 75.0 with all layers "
        "pretrained (95% interval "
    )
    assert (answer.choice, answer.trial_id, answer.savings) == ("", None, {})
    assert answer.more_trials > 0
    assert answer.minutes == pytest.approx(answer.more_trials * points["trial_id"].nunique() / 2)


@pytest.mark.parametrize("experiment", ["adapt", "prune", "lr_decay"])
def test_a_baseline_that_learned_too_little_is_no_fair_comparison(tmp_path, experiment):
    """Finetuning all parameters scores 62 in the mean, which may be guessing (57); other settings score 76."""
    settings = {
        "adapt": {"where": ["everywhere", "last"], "k": [1, 2], "peft_lr": 1e-3},
        "prune": {"top": [1, 2]},
    }
    experiments = [{"kind": experiment, **settings.get(experiment, {"factors": [0.5, 0.8]})}]
    points = points_of(tmp_path, experiments, lambda p: 0.76, guess={"SST-2": 0.57}, trials=4, sd=0.002)
    baseline = points["condition"] == "all pretrained"
    if experiment == "lr_decay":
        baseline |= points["x"] == 1
    undertrained = points["seed"].map(dict(enumerate([0.57, 0.56, 0.68, 0.67])))
    answer = only(
        recommend(points.assign(value=points["value"].where(~baseline, undertrained)), tolerance=0.05)
    )
    assert (answer.verdict, answer.more_trials, answer.choice) == ("not learned", None, "")
    best = {"adapt": "adapters in ", "prune": "layers 1-", "lr_decay": "a decay of 0."}[experiment]
    assert answer.text.startswith(
        "No answer: finetuning all parameters is not shown to be better than guessing at learning rate 2e-05, but the "
        f"task can be learned: {best}"
    )
    assert "Finetuning all parameters scores 62.0 with all layers pretrained (95% interval " in answer.text
    assert answer.text.endswith(
        "The baseline is no fair comparison: raise `epochs` or change `lr` in [training], rather than adding trials."
    )
    wide = points["seed"].map(dict(enumerate([0.60, 0.90, 0.50, 0.99])))  # on average as good as the others
    noisy = only(recommend(points.assign(value=points["value"].where(~baseline, wide)), tolerance=0.05))
    assert noisy.verdict == "not enough trials"
    assert noisy.more_trials > 0


def test_a_setting_that_is_the_best_of_many_by_chance_did_not_learn_the_task(tmp_path):
    """All settings guess: the baseline is called no fair comparison in at most 2.5% of studies."""
    experiments = [{"kind": "prune", "top": [1, 2, 3, 4, 5]}]
    points = points_of(tmp_path, experiments, lambda p: 0.5, trials=5)
    rng, found = np.random.default_rng(0), 0
    for _ in range(150):
        answer = only(
            recommend(points.assign(value=0.5 + 0.02 * rng.normal(size=len(points))), tolerance=0.2)
        )
        found += "the task can be learned" in answer.text
    assert found <= 8


def test_a_baseline_as_good_as_the_others_is_not_called_unfair(tmp_path):
    """All settings gain less over guessing than counts as learned: that some of them are significantly better than
    guessing, and the baseline is not, does not show that they differ."""
    experiments = [{"kind": "prune", "top": [1, 2, 3, 4, 5]}]
    points = points_of(tmp_path, experiments, lambda p: 0.5, trials=10)
    rng, found = np.random.default_rng(1), 0
    for _ in range(150):
        values = 0.52 + 0.03 * rng.normal(size=len(points))
        found += "the task can be learned" in only(recommend(points.assign(value=values))).text
    assert found <= 8
