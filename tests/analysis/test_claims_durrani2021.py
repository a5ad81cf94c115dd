"""Claims D1 to D4 on simulated studies whose true effect is known."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from synthetic_results import prune, write_results
from synthetic_words import forgetting, word_points

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.durrani2021 import d1, d2, d3, d4
from whichlayers.results.frames import finished, load_points

DEPTH = 6
THRESHOLDS = ClaimThresholds()
HOLDS, FAILS, UNDECIDED, NOT_TESTED = "holds", "does not hold", "not enough trials", "not tested"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    @functools.cache
    def build(trials=5, models=("roberta-base",), tasks=("SST-2",), corpora=("UD-EWT:xpos",), **effects):
        folder = tmp_path_factory.mktemp("study")
        points = word_points(models=models, tasks=tasks, corpora=corpora, trials=trials, depth=DEPTH)
        return finished(load_points(write_results(folder, points, forgetting(DEPTH, **effects), depth=DEPTH)))

    return build


def test_d1_holds_if_upper_layers_lose_accuracy_and_lower_ones_do_not(study):
    found = d1(study(), THRESHOLDS)
    assert found.verdict == HOLDS
    upper, lower = found.tests
    assert upper.about == "UD-EWT:xpos after SST-2: upper quarter of the layers"
    assert upper.effect == pytest.approx(-0.2, abs=0.01)  # the mean of 1/3 and 1 of the drop of 0.3
    assert upper.low < upper.effect < upper.high < 0
    assert abs(lower.effect) < 0.01


def test_d1_fails_without_a_loss_and_is_undecided_with_noise(study):
    nothing = d1(study(drop=0.0), THRESHOLDS)
    assert nothing.verdict == FAILS
    noisy = d1(study(trials=3, drop=0.05, sd=0.04), THRESHOLDS)
    assert noisy.verdict == UNDECIDED
    assert noisy.needed is None or noisy.needed > 3


def test_d1_fails_if_lower_layers_lose_accuracy_too(study):
    points = study().copy()
    after = (points["experiment"] == "word_probing") & (points["finetuned_on"] != "")
    points.loc[after, "value"] -= 0.1
    found = d1(points, THRESHOLDS)
    assert found.verdict == FAILS
    assert "lower third" in found.about


def test_d2_measures_the_shift_of_the_mean_layer(study):
    found = d2(study(), THRESHOLDS)
    assert found.verdict == HOLDS
    # layers 0 to 2 have 1.5 times an even share, 4 to 6 half of it: the mean layer moves from 3 to 15 / 7
    assert found.effect == pytest.approx(15 / 7 - 3, abs=0.02)
    assert found.tests[0].unit == "layers"
    assert d2(study(shift=0.0), THRESHOLDS).verdict == FAILS


def test_d3_compares_top_and_bottom_and_the_families(study):
    alone = d3(study(), THRESHOLDS)
    assert alone.verdict == HOLDS
    assert alone.effect == pytest.approx(-0.3, abs=0.02)
    assert len(alone.tests) == 1
    both = study(models=("bert-base-uncased", "roberta-base"), sd=0.002)
    assert d3(both, THRESHOLDS).verdict != HOLDS  # RoBERTa loses no more than BERT
    spared = both.copy()
    lost = (spared["neurons"] == "bottom") & (spared["finetuned_on"] != "") & (spared["family"] == "bert")
    spared.loc[lost, "value"] += 0.3
    found = d3(spared, THRESHOLDS)
    assert found.verdict == HOLDS
    assert any(test.about.endswith("against BERT") for test in found.tests)


def test_d4_pairs_top_and_bottom_by_seed(tmp_path):
    def score(bottom):
        """Seeds differ by more than top and bottom do, and that difference varies a little between seeds."""
        cost = {"bottom": bottom, "top": 0.02}
        return lambda p: (
            0.9 - cost.get(p.condition, 0) + p.trial.seed * (0.0502 if p.condition == "bottom" else 0.05)
        )

    rows = prune(depth=DEPTH, counts=(3,))
    worse = finished(load_points(write_results(tmp_path / "a", rows, score(0.2), depth=DEPTH)))
    found = d4(worse, THRESHOLDS)
    assert (found.verdict, found.effect) == (HOLDS, pytest.approx(-0.18, abs=0.001))
    assert found.about == "SST-2: bottom 3 against top 3 dropped"
    same = finished(load_points(write_results(tmp_path / "b", rows, score(0.02), depth=DEPTH)))
    assert d4(same, THRESHOLDS).verdict == FAILS


def test_d4_is_about_the_most_dropped_layers_up_to_half_of_them(tmp_path):
    """Dropping the top costs more where few layers remain, which the paper does not measure."""

    def score(p):
        dropped = p.x or 0
        worse = "top" if dropped > DEPTH / 2 else "bottom"
        return 0.9 - (0.02 + 0.1 * (p.condition == worse)) * dropped / DEPTH + 0.001 * p.trial.seed * dropped

    rows = prune(depth=DEPTH, counts=(1, DEPTH // 2, DEPTH // 2 + 1))
    found = d4(finished(load_points(write_results(tmp_path / "a", rows, score, depth=DEPTH))), THRESHOLDS)
    assert [test.about for test in found.tests] == [
        f"SST-2: bottom {DEPTH // 2} against top {DEPTH // 2} dropped"
    ]
    assert found.effect == pytest.approx(-0.05)
    beyond = prune(depth=DEPTH, counts=(DEPTH // 2 + 1,))
    found = d4(finished(load_points(write_results(tmp_path / "b", beyond, score, depth=DEPTH))), THRESHOLDS)
    assert (found.verdict, "half of the layers" in found.details) == (NOT_TESTED, True)


SIZES = (500, 5000)


def of_models_and_sizes(points, models=()):
    """The points with each training size in SIZES, and for each of the models if any are given."""
    found = {}
    for point, size, model in ((p, n, m) for p in points for n in SIZES for m in models or (p.trial.model,)):
        trial = dataclasses.replace(point.trial, model=model)
        if not models and not trial.train_size:
            size = 0  # a pretrained model
        else:
            trial = dataclasses.replace(trial, train_size=size)
        if models:
            trial = dataclasses.replace(trial, model_fingerprint=model)
        found[point.experiment, point.condition, point.x, trial.id] = dataclasses.replace(point, trial=trial)
    return list(found.values())


def test_d1_to_d3_compare_families_and_tasks_at_the_same_training_size(tmp_path):
    """Both families, and both tasks, lose 10 points more with more examples: no difference at either size."""
    models = ("bert-base-uncased", "roberta-base")
    points = of_models_and_sizes(
        word_points(models=models, tasks=("SST-2", "RTE"), corpora=("UD-EWT:xpos",), depth=DEPTH)
    )
    scores = forgetting(DEPTH, drop=0.0, shift=0.0, bottom=0.0, sd=0.002)

    def score(point):
        loss = 0.1 * (point.trial.train_size == SIZES[1])
        return scores(point) * (1 - loss if point.trial.word_probe.measure != "spread" else 1)

    rows = finished(load_points(write_results(tmp_path, points, score, depth=DEPTH)))
    compared = [t for claim in (d1, d3) for t in claim(rows, THRESHOLDS).tests if " against " in t.about]
    compared = [test for test in compared if "top neurons" not in test.about]
    assert len(compared) == 2 * (
        2 + 1 + 2
    )  # sizes, of D1: RTE for each model, families on SST-2; D3: on both tasks
    assert all(abs(test.effect) < 0.02 for test in compared)
    for size in ("500 examples", "5,000 examples"):
        assert sum(size in test.about for test in compared) == len(compared) / 2


def test_d4_compares_families_at_each_training_size(tmp_path):
    """RoBERTa loses 5 points more than BERT at the larger size."""
    points = of_models_and_sizes(
        prune(depth=DEPTH, counts=(3,), tasks=("SST-2", "QNLI")), ("bert", "roberta")
    )

    def score(p):
        more = p.trial.model == "roberta" and p.trial.train_size == SIZES[1]
        noise = 0.001 * (int(p.trial.id, 16) % 5)
        return 0.9 - (0.1 + 0.05 * more) * (p.condition == "bottom") + noise

    found = d4(finished(load_points(write_results(tmp_path, points, score, depth=DEPTH))), THRESHOLDS)
    effects = {test.about: test.effect for test in found.tests if test.about.endswith("against BERT")}
    assert effects == {
        "QNLI and SST-2, 500 examples: bottom 3 dropped against none, roberta against BERT": pytest.approx(
            0, abs=0.003
        ),
        "QNLI and SST-2, 5,000 examples: bottom 3 dropped against none, roberta against BERT": pytest.approx(
            -0.05, abs=0.003
        ),
    }


def test_one_trial_is_undecided_and_an_untested_claim_says_what_to_run(study):
    for test in (d1, d2, d3):
        single = test(study(trials=1), THRESHOLDS)
        assert single.verdict == UNDECIDED
        assert "at least 3" in single.details
        nothing = test(study().iloc[:0], THRESHOLDS)
        assert nothing.verdict == NOT_TESTED
        assert "run kind" in nothing.details
    assert d4(study(), THRESHOLDS).verdict == NOT_TESTED
