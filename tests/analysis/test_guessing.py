"""Whether results are better than guessing: intervals worked out by hand, error rates by simulation, claims."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower
from synthetic_results import baselines, incremental, lifelike, localized, prune, trial, write_results

from whichlayers.analysis.claims import HOLDS, NOT_TESTED, evaluate_claims
from whichlayers.analysis.decisions import cross_fitted
from whichlayers.analysis.guessing import (
    PARTLY_TRAINED,
    SETTING,
    GuessComparison,
    compare_with_guessing,
    describe_exclusions,
    judged_points,
    not_shown_better,
)
from whichlayers.analysis.intervals import t_interval
from whichlayers.analysis.recommend import recommend
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Point, Probe, Training


def read(folder, points, score, guess, depth=6):
    return finished(load_points(write_results(folder, points, score, depth=depth, guess=guess)))


def by_seed(values):
    """The values of the model without surgery by seed; other models have 0.1 less."""
    return lambda point: values[point.trial.seed] - 0.1 * bool(point.trial.surgery.reinit)


def test_the_baseline_is_the_model_with_all_layers_pretrained(tmp_path):
    values = [0.62, 0.58, 0.66]
    points = read(tmp_path, incremental() + localized(size=500), by_seed(values), {"SST-2": 0.509})
    (found,) = compare_with_guessing(points)  # both experiments share it
    assert dict(zip(SETTING, found.setting, strict=True))["task"] == found.task == "SST-2"
    assert (found.train_size, found.metric, found.guess, found.layer) == (500, "accuracy", 0.509, None)
    half = stats.t.ppf(0.975, 2) * np.std(values, ddof=1) / np.sqrt(3)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.62 - half, 0.62 + half))
    assert found.interval.n == 3
    assert found.better == (0.62 - half > 0.509)
    assert found.better


def test_experiments_say_whether_they_train_a_part_of_the_model():
    assert set(PARTLY_TRAINED) == {"freeze", "lr_decay", "adapt", "adapt_layers"}


def test_partly_trained_models_do_not_count(tmp_path):
    """The head alone learns nothing here, which says nothing about the model with all parameters trained."""
    frozen = Training(lr_factors=tuple((layer, 0.0) for layer in range(7)))
    head = [
        Point("freeze", "head", 6, dataclasses.replace(trial(seed=seed, size=500), training=frozen))
        for seed in range(3)
    ]
    points = read(
        tmp_path,
        incremental() + head,
        lambda p: 0.51 + 0.001 * p.trial.seed + 0.3 * (not p.trial.training.lr_factors),
        {"SST-2": 0.509},
    )
    (found,) = compare_with_guessing(points)
    assert (found.interval.n, found.interval.mean) == (3, pytest.approx(0.811))
    assert found.better


@pytest.mark.parametrize(
    ("guess", "better"), [(0.4, True), (0.5206, True), (0.5207, False), (0.62, False), (0.9, False)]
)
def test_better_means_that_the_interval_is_above_guessing(tmp_path, guess, better):
    values = [0.62, 0.58, 0.66]  # t(0.975, 2) = 4.302653, sd = 0.04: low = 0.62 - 0.0993655 = 0.5206345
    points = read(tmp_path, incremental(), by_seed(values), {"SST-2": guess})
    assert [one.better for one in compare_with_guessing(points)] == [better]
    assert bool(not_shown_better(points)) != better


def test_trials_that_all_predict_one_class_are_no_better(tmp_path):
    points = read(tmp_path, incremental(), lambda point: 0.509, {"SST-2": 0.509})
    assert len(not_shown_better(points)) == 1


def test_nothing_is_said_without_an_interval_or_a_known_score(tmp_path):
    one_trial = read(tmp_path / "1", incremental(trials=1), lambda point: 0.5, {"SST-2": 0.5})
    unknown = read(tmp_path / "2", incremental(), lambda point: 0.5, {"CoLA": 0.0})
    assert compare_with_guessing(one_trial) == compare_with_guessing(unknown) == []
    kept, excluded = judged_points(unknown)
    assert kept is unknown
    assert excluded == []


def test_settings_are_compared_one_by_one(tmp_path):
    longer = [
        dataclasses.replace(
            p, experiment="epochs", trial=dataclasses.replace(p.trial, training=Training(epochs=10))
        )
        for p in incremental()
    ]

    def score(p):
        return (
            0.8 if p.trial.training.epochs == 10 or p.trial.train_size == 5000 else 0.5
        ) + 0.01 * p.trial.seed

    study = incremental(tasks=("SST-2", "QNLI"), sizes=(500, 5000)) + longer
    points = read(tmp_path, study, score, {"SST-2": 0.509, "QNLI": 0.505})
    found = {(one.task, one.train_size, one.better) for one in compare_with_guessing(points)}
    assert found == {(t, n, n == 5000) for t in ("SST-2", "QNLI") for n in (500, 5000)} | {
        ("SST-2", 500, True)
    }
    kept, excluded = judged_points(points)
    described = "SST-2 (500 examples, epochs 3) and QNLI (500 examples)"  # 10 epochs are better on SST-2
    assert describe_exclusions(excluded, points) == described
    left = set(zip(kept.experiment, kept.task, kept.train_size, strict=True))
    assert left == {("incremental", t, 5000) for t in ("SST-2", "QNLI")} | {("epochs", "SST-2", 500)}


def test_probes_are_compared_at_their_best_layer(tmp_path):
    points = [
        Point("probing", "", layer, dataclasses.replace(trial(seed=seed), probe=Probe(layer=layer)))
        for layer in range(4)
        for seed in range(3)
    ]

    def score(p):
        return (0.4, 0.6, 0.7, 0.5)[int(p.x)] + 0.01 * p.trial.seed

    (found,) = compare_with_guessing(read(tmp_path / "1", points, score, {"SST-2": 0.65}))
    assert (found.layer, found.better, found.interval.mean) == (2, True, pytest.approx(0.71))
    table = read(tmp_path / "2", points, score, {"SST-2": 0.71})
    failed = not_shown_better(table)
    assert describe_exclusions(failed, table) == "linear probes on SST-2 (500 examples)"
    assert failed[0].text.startswith("71.0 at the layer that is best on other seeds (98% interval ")
    assert failed[0].text.endswith(", 3 trials), guessing 71.0")


def test_linear_probes_with_other_settings_are_compared_one_by_one(tmp_path):
    """The mean over the poolings would be better than guessing."""
    points = [
        Point(
            "probing",
            f"pooling {pooling}",
            layer,
            dataclasses.replace(trial(seed=seed), probe=Probe(layer=layer, pooling=pooling)),
        )
        for pooling in ("mean", "summary")
        for layer in (1, 2)
        for seed in range(3)
    ]

    def score(p):
        return (0.9 if p.trial.probe.pooling == "mean" else 0.5) + 0.01 * p.trial.seed

    table = read(tmp_path, points, score, {"SST-2": 0.52})
    found = {one.setting[SETTING.index("probe")]: one.better for one in compare_with_guessing(table)}
    assert found == {"pooling mean": True, "pooling summary": False}
    kept, excluded = judged_points(table)
    assert set(kept["variant"]) == {"pooling mean"}
    assert describe_exclusions(excluded, table) == "linear probes on SST-2 (500 examples, pooling summary)"
    verdicts = {a.variant: a.verdict for a in recommend(table).answers}
    assert verdicts["pooling summary"] in ("not learned", "not enough trials")
    assert verdicts["pooling mean"] != "not learned"


def test_under_the_null_2_5_percent_are_called_better(tmp_path):
    """A model that is as good as guessing on average; with an sd of a quarter of the gain, most gains are found."""
    points = read(
        tmp_path, baselines("localized", "SST-2", 500, range(5), 6), lambda point: 0.5, {"SST-2": 0.5}
    )
    rows = points[points["condition"] == "all pretrained"]
    rng = np.random.default_rng(0)

    (one,) = compare_with_guessing(rows)

    def better(values):
        return dataclasses.replace(one, interval=t_interval(values)).better

    null, gain = (rng.normal(mean, 0.02, (4000, 5)) for mean in (0.5, 0.58))
    assert np.mean([better(values) for values in null]) == pytest.approx(0.025, abs=0.007)
    assert np.mean([better(values) for values in gain]) > 0.99
    close = rng.normal(0.52, 0.02, (20, 5))
    from_rows = [not not_shown_better(rows.assign(value=values)) for values in close]
    assert from_rows == [better(values) for values in close]
    assert 0 < sum(from_rows) < 20


def comparison(values, guess=0.0):
    interval = t_interval(values)
    return GuessComparison(
        ("finetune", "m", "f", "CoLA", 500, "mean", "{}"), "mcc", guess, interval, interval.high
    )


@pytest.mark.parametrize("n", [2, 3, 5])
def test_few_trials_of_a_model_that_learned_rarely_say_that_it_did_not(n):
    """A Matthews correlation of 0.25: at n = 2, most intervals include zero."""
    rng = np.random.default_rng(n)
    found = [comparison(values) for values in rng.normal(0.25, 0.06, (2000, n))]
    assert np.mean([one.failed for one in found]) <= 0.005
    if n == 2:
        assert np.mean([not one.better for one in found]) > 0.5
    limit = [comparison(values).failed for values in rng.normal(0.1, 0.01, (2000, n))]  # learned just enough
    assert np.mean(limit) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 2000)


def test_a_model_that_did_not_learn_is_found_with_enough_trials():
    rng = np.random.default_rng(0)
    found = [comparison(values) for values in rng.normal(0.0, 0.03, (500, 5))]
    assert np.mean([one.failed for one in found]) > 0.9
    assert comparison([0.0, 0.0]).failed  # one class in all trials
    undecided = comparison([0.3, 0.1, 0.4])
    assert (undecided.better, undecided.failed) == (False, False)
    assert undecided.result == "not shown to be better than guessing: too few trials"
    gain, sd = np.mean([0.3, 0.1, 0.4]), np.std([0.3, 0.1, 0.4], ddof=1)
    solved = TTestPower().solve_power(gain / sd, alpha=0.05, power=0.8)
    assert undecided.trials_needed == np.ceil(solved)
    assert comparison([-0.3, 0.4, -0.2]).trials_needed > 3  # to exclude a gain of 0.1
    assert comparison([0.0, 0.0]).trials_needed is None
    assert comparison([0.95, 0.95, 0.96], guess=0.95).margin == pytest.approx(0.005)


@pytest.mark.parametrize("n", [2, 3])
def test_equal_scores_of_a_small_dev_set_are_not_better_by_chance(n):
    """Accuracies on 100 dev examples: two or three are equal in many studies, and have no interval."""
    rng = np.random.default_rng(n)
    found = [comparison(values, 0.5) for values in np.round(rng.normal(0.5, 0.015, (4000, n)), 2)]
    equal = [one for one in found if one.interval.sd == 0]
    assert len(equal) > 0.03 * len(found)
    assert np.mean([one.better for one in found]) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 4000)
    if n == 2:  # without the rule for equal scores
        assert np.mean([one.interval.low > one.guess for one in found]) > 0.045
    assert comparison([0.8] * n, 0.5).better
    assert not comparison([0.549] * n, 0.5).better


def test_equal_scores_above_guessing_do_not_exclude_learning(tmp_path):
    points = incremental(tasks=("SST-2", "QNLI"), trials=2)
    rows = read(
        tmp_path, points, lambda p: 0.52 if p.trial.task == "SST-2" else 0.5, {"SST-2": 0.5, "QNLI": 0.5}
    )
    found = {one.task: (one.better, one.failed) for one in compare_with_guessing(rows)}
    assert found == {"SST-2": (False, False), "QNLI": (False, True)}


@pytest.mark.parametrize("n", [3, 6])
def test_the_best_of_many_probes_is_rarely_called_better_by_chance(tmp_path, n):
    """Twelve layers, none of which is better than guessing: the interval of the best one is too high."""
    points = [
        Point("probing", "", layer, dataclasses.replace(trial(seed=seed), probe=Probe(layer=layer)))
        for layer in range(12)
        for seed in range(n)
    ]
    rows = read(tmp_path, points, lambda p: 0.5, {"SST-2": 0.5}).sort_values(["seed", "x"])
    rng, better, at_95, naive = np.random.default_rng(n), 0, 0, 0
    for i in range(1500):
        values = rng.normal(0.5, 0.02, (n, 12))
        interval, best = t_interval(cross_fitted(values)[1], 0.98), values.mean(0).argmax()
        better += interval.low > 0.5
        at_95 += t_interval(cross_fitted(values)[1]).low > 0.5
        naive += t_interval(values[:, best]).low > 0.5
        if i < 5:
            (found,) = compare_with_guessing(rows.assign(value=values.ravel()))
            assert (found.interval, found.layer) == (interval, best)
            assert found.ceiling == pytest.approx(max(t_interval(column).high for column in values.T))
    assert better / 1500 <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 1500)
    assert at_95 / 1500 > 0.04  # why the level is higher than 95%: 2.5% is nominal
    assert naive > 2 * better


# --- claims ---


def scores(failing):
    """Lifelike scores; about 0.5 for the tasks in `failing`, whatever is re-initialized."""
    lively = lifelike(6)

    def noise(p):
        return np.random.default_rng(int(p.trial.id, 16) % 2**32).normal(0, 0.004)

    return lambda p: 0.5 + noise(p) if p.trial.task in failing else lively(p)


def claims(folder, failing, guess, tasks=("SST-2", "QNLI")):
    points = read(folder, incremental(tasks=tasks, sizes=(500, 50_000), trials=5), scores(failing), guess)
    return {claim.id: claim for claim in evaluate_claims(points)}


def test_claims_are_judged_without_data_no_better_than_guessing(tmp_path):
    guess = {"SST-2": 0.5, "QNLI": 0.5}
    found = claims(tmp_path / "1", ("QNLI",), guess)
    alone = claims(tmp_path / "2", (), guess, tasks=("SST-2",))
    reason = "not judged on QNLI (500 examples) and QNLI (50,000 examples): no better than guessing"
    changed = [id for id, claim in found.items() if reason in claim.details]
    assert "T1" in changed
    for id, claim in found.items():
        assert claim.verdict == alone[id].verdict
        assert [test.about for test in claim.tests] == [test.about for test in alone[id].tests]
        assert claim.p == pytest.approx(alone[id].p, nan_ok=True)
        if id not in changed:
            assert claim.details == alone[id].details
    assert "D4" not in changed  # the study has no data for it


def test_the_reason_says_whether_trials_are_missing(tmp_path):
    noisy = scores(())

    def score(p):
        if p.trial.task == "QNLI":
            return 0.6 + 0.1 * (p.trial.seed - 2)  # 0.6, with an interval from 0.4 to 0.8
        return 0.5 + 0.002 * p.trial.seed if p.trial.task == "RTE" else noisy(p)

    points = read(
        tmp_path,
        incremental(tasks=("SST-2", "QNLI", "RTE"), sizes=(500, 50_000), trials=5),
        score,
        {"SST-2": 0.5, "QNLI": 0.5, "RTE": 0.52},
    )
    found = [c.details for c in evaluate_claims(points) if "not judged" in c.details]
    assert found
    assert all(
        details.endswith(
            "not judged on RTE (500 examples) and RTE (50,000 examples): no better than guessing; not judged on QNLI "
            "(500 examples) and QNLI (50,000 examples): not shown to be better than guessing: too few trials"
        )
        for details in found
    )


def test_a_claim_without_other_data_is_not_tested(tmp_path):
    known = claims(tmp_path / "1", ("SST-2",), {"SST-2": 0.5}, tasks=("SST-2",))
    unknown = claims(tmp_path / "2", ("SST-2",), None, tasks=("SST-2",))
    assert {claim.verdict for claim in known.values()} == {NOT_TESTED}
    assert known["T1"].details == (
        "not judged on SST-2 (500 examples) and SST-2 (50,000 examples): no better than guessing"
    )
    assert unknown["T1"].verdict not in (NOT_TESTED, HOLDS)
    assert "guessing" not in unknown["T1"].details


def test_a_claim_that_only_some_studies_test(tmp_path):
    """P1 is left out of studies without pruned models; here no results of pruned models are left."""
    pruned = prune(size=500, trials=4)
    score = lambda p: 0.5 + 0.001 * p.trial.seed - 0.01 * p.x  # noqa: E731
    learned = {c.id: c for c in evaluate_claims(read(tmp_path / "1", pruned, score, {"SST-2": 0.3}))}
    guessed = {c.id: c for c in evaluate_claims(read(tmp_path / "2", pruned, score, {"SST-2": 0.6}))}
    assert list(guessed) == list(learned)
    assert learned["P1"].tests
    assert (guessed["P1"].verdict, guessed["P1"].tests) == (NOT_TESTED, ())
    assert guessed["P1"].details == "not judged on SST-2 (500 examples): no better than guessing"


def test_claims_do_not_change_where_all_results_are_better(tmp_path):
    known = claims(tmp_path / "1", (), {"SST-2": 0.5, "QNLI": 0.5})
    unknown = claims(tmp_path / "2", (), None)
    assert repr(known) == repr(unknown)


def test_no_points_have_no_comparison(tmp_path):
    points = read(tmp_path, incremental(), lifelike(6), {"SST-2": 0.5})
    assert compare_with_guessing(points.head(0)) == []
    assert isinstance(judged_points(points)[0], pd.DataFrame)
