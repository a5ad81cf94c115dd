"""Findings of pruning and word-level probing state what the statistics show."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from synthetic_results import incremental, prune, write_results
from synthetic_words import forgetting, word_points

from whichlayers.analysis.baseline_differences import differences_from_baseline
from whichlayers.analysis.incremental_curves import curves
from whichlayers.analysis.intervals import ends_of_one_of, paired_difference
from whichlayers.report.findings import findings, headlines
from whichlayers.report.word_findings import _compare_models
from whichlayers.results.frames import finished, load_points

DEPTH = 6


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    study_points = word_points(models=("bert-base-uncased",), corpora=("UD-EWT:xpos",), depth=DEPTH)
    return finished(
        load_points(
            write_results(tmp_path_factory.mktemp("words"), study_points, forgetting(DEPTH, drop=0.3))
        )
    )


def test_the_best_layer_and_the_effect_of_finetuning_on_the_last(points):
    [found] = findings(points, "word_probing")
    probed = points[points["experiment"] == "word_probing"]
    before = probed[probed["finetuned_on"] == ""]
    best = before.groupby("x")["value"].mean().idxmax()
    assert "UD-EWT:xpos" in found.heading
    assert f"layer {best:g} has the highest mean" in found.sentences[0]
    _, top = found.sentences
    last = probed[probed["x"] == DEPTH]
    lost = {
        name: last[last["finetuned_on"] == name]["value"].mean()
        - last[last["finetuned_on"] == ""]["value"].mean()
        for name in ("SST-2", "RTE")
    }
    most = min(lost, key=lost.get)
    assert f"Layer {DEPTH} after finetuning" in top
    assert (
        f"significantly lower when finetuned on SST-2 and RTE (largest difference when finetuned on {most}: "
        in top
    )
    assert f"−{100 * abs(lost[most]):.1f} points of accuracy" in top
    assert "3 trials" in top


def interval_in(sentence):
    """The interval in a sentence, and the number of choices that it is adjusted for."""
    found = re.search(
        r"95% interval (\S+) to (\S+?)(?:, adjusted for the choice among (\d+))?, \d+ ", sentence
    )
    low, high = (float(found[i].replace("−", "-")) / 100 for i in (1, 2))
    return low, high, int(found[3] or 1)


def test_the_interval_of_the_largest_difference_is_adjusted(tmp_path):
    rng = np.random.default_rng(0)
    study_points = prune(("SST-2",), trials=5, counts=(1, 2, 3, 4, 5))
    rows = finished(load_points(write_results(tmp_path, study_points, lambda p: 0.8 + 0.02 * rng.normal())))
    table = differences_from_baseline(rows)
    for condition, sentence in zip(("top", "bottom"), findings(rows, "prune")[0].sentences, strict=True):
        of_condition = table[table["condition"] == condition]
        largest = of_condition.loc[of_condition["mean"].abs().idxmax()]
        low, high, choices = interval_in(sentence)
        assert choices == 5
        assert (low, high) == pytest.approx(ends_of_one_of(5, largest["mean"], largest["sd"], 5), abs=6e-4)


def test_the_interval_of_the_best_layer_is_adjusted(points):
    [found] = findings(points, "word_probing")
    before = points[(points["experiment"] == "word_probing") & (points["finetuned_on"] == "")]
    best = before[before["x"] == before.groupby("x")["value"].mean().idxmax()]["value"]
    low, high, choices = interval_in(found.sentences[0])
    assert choices == DEPTH + 1
    assert (low, high) == pytest.approx(ends_of_one_of(DEPTH + 1, best.mean(), best.std(), 3), abs=6e-4)
    assert interval_in(found.sentences[1])[2] == 2


def test_differences_of_several_models_are_rarely_significant_by_chance():
    """Eight finetuned models, none of which differs; without adjustment, one does in a third of the studies."""
    rng, found, unadjusted = np.random.default_rng(0), 0, 0
    for _ in range(400):
        each = {
            str(i): paired_difference(pd.Series(rng.normal(size=5)), pd.Series(np.zeros(5))) for i in range(8)
        }
        (sentence,) = _compare_models(each, "Layer 6", "accuracy")
        found += "significantly lower" in sentence or "significantly higher" in sentence
        unadjusted += any(d.significant for d in each.values())
    assert found / 400 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert unadjusted / 400 > 0.25


def test_gains_of_several_curves_are_adjusted_for_their_number(tmp_path):
    """One of six gains has an interval just above zero."""

    def score(p):
        task = int(p.trial.task.removeprefix("task"))
        gain = (0.02 if task == 0 else 0.0) + 0.01 * np.sin(7 * p.trial.seed + task)
        return 0.7 + gain * (p.x == DEPTH)

    tasks = [f"task{i}" for i in range(6)]
    rows = finished(
        load_points(write_results(tmp_path, incremental(tasks=tasks, trials=3, ks=(0, DEPTH)), score))
    )
    (low,) = (c.gain.low for c in curves(rows) if c.task == "task0")
    assert low > 0
    assert "is not significantly greater than zero in any of 6 curves" in headlines(rows, [])[0]


def test_top_against_bottom_neurons(points):
    [found] = findings(points, "neurons")
    [sentence] = found.sentences
    assert sentence.startswith(
        "Probe on the top 5% of the neurons compared with the bottom 5%: significantly higher for the pretrained model "
        "and when"
    )


def test_headlines_have_one_sentence_per_experiment(points):
    sentences = headlines(points, [])
    assert (
        "Finetuning significantly lowers the word-level probing score of the last layer in 2 of 2 cases and raises it "
        "in 0 (one case per corpus and finetuned model; p values adjusted for the number of cases)."
        in sentences
    )
    assert any("bottom neurons in 3 of 3 cases" in sentence for sentence in sentences)
    raised = points["value"] + 0.5 * ((points["finetuned_on"] == "RTE") & (points["x"] == DEPTH))
    sentences = headlines(points.assign(value=raised), [])
    assert any("last layer in 1 of 2 cases and raises it in 1 (" in sentence for sentence in sentences)
    single = headlines(points[points["seed"] == 0], [])
    assert not any("cases" in sentence for sentence in single)


def test_differences_that_are_not_significant_are_reported_as_such(points):
    rng = np.random.default_rng(0)
    noise = points.assign(value=0.6 + 0.02 * rng.standard_normal(len(points)))
    for experiment in ("word_probing", "neurons"):
        [found] = findings(noise, experiment)
        assert "not significantly different" in found.sentences[-1]
        assert "−0.0 " not in found.sentences[-1]
    for way in ("higher", "lower"):
        assert f"significantly {way}" not in found.sentences[-1]


def test_single_trials_have_no_interval(points):
    [found] = findings(points[points["seed"] == 0], "neurons")
    assert "a single trial, so there is no interval" in found.sentences[0]
    assert "95%" not in found.sentences[0]


def test_a_single_comparison_per_condition_is_not_called_several(tmp_path):
    rng = np.random.default_rng(0)

    def score(p):
        return 0.9 - 0.2 * (p.condition == "bottom") + 0.01 * rng.standard_normal()

    study_points = prune(("SST-2",), trials=4, counts=(2,))
    [found] = findings(finished(load_points(write_results(tmp_path, study_points, score))), "prune")
    assert len(found.sentences) == 2
    for sentence in found.sentences:
        assert "largest" not in sentence
        assert " of 1 " not in sentence
        assert "after correction for" in sentence
        assert "at 2 layers dropped" in sentence


def test_too_few_trials_are_told_from_a_model_that_did_not_learn(tmp_path):
    def score(point):
        return 0.5 + 0.002 * point.trial.seed if point.trial.task == "RTE" else 0.7 + 0.1 * point.trial.seed

    study_points = incremental(tasks=("RTE", "MRPC"))
    folder = write_results(tmp_path, study_points, score, depth=DEPTH, guess={"RTE": 0.527, "MRPC": 0.7})
    points = finished(load_points(folder))
    sentences, unjudged = headlines(points, []), "(500 examples). Claims are not judged on these data."
    assert f"No better than guessing: RTE {unjudged}" in sentences
    assert f"Not shown to be better than guessing, too few trials: MRPC {unjudged}" in sentences
    told = [s for found in findings(points, "incremental") for s in found.sentences if "guessing" in s]
    assert [s.partition(": ")[2].partition(":")[0] for s in told] == [
        "no better than guessing",
        "not shown to be better than guessing, too few trials",
    ]
