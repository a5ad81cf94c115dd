"""Decisions from noisy trials: how often they are wrong, by simulation, and their parts against scipy."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from whichlayers.analysis.decisions import cross_fit, cross_fitted, fixed_sequence, non_inferiority
from whichlayers.analysis.intervals import t_interval
from whichlayers.analysis.recommend import few_parameters

TOLERANCE = 0.01
SD = 0.01


def noisy_scores(rng, means, n, correlation):
    """(n, len(means)) scores of n seeds; the noise of neighboring columns has this correlation, as that of models that
    keep k and k + 1 layers."""
    noise = rng.normal(size=(n, len(means)))
    for k in range(1, len(means)):
        noise[:, k] = correlation * noise[:, k - 1] + math.sqrt(1 - correlation**2) * noise[:, k]
    return np.asarray(means) + SD * noise


def simultaneous(differences):
    """(m,) whether each column is significantly above zero, adjusted for the number of columns, as in `best_of`."""
    n, m = differences.shape
    p = stats.t.sf(differences.mean(0) / differences.std(0, ddof=1) * math.sqrt(n), n - 1)
    return p < 0.025 / m


def test_non_inferiority_is_the_one_sided_t_test_of_scipy():
    differences = np.random.default_rng(0).normal(-0.003, SD, 12)
    test = non_inferiority(differences, TOLERANCE)
    assert test.p == pytest.approx(stats.ttest_1samp(differences, -TOLERANCE, alternative="greater").pvalue)
    assert test.p_worse == pytest.approx(
        stats.ttest_1samp(differences, -TOLERANCE, alternative="less").pvalue
    )
    assert test.within == (test.interval.low > -TOLERANCE)


def test_a_better_model_is_within_the_loss_and_equal_values_decide_nothing():
    assert non_inferiority(0.2 + SD * np.random.default_rng(0).normal(size=8), TOLERANCE).within
    equal = non_inferiority(np.zeros(5), TOLERANCE)
    assert not equal.within
    assert not equal.worse
    assert equal.trials_needed is None
    assert not non_inferiority(np.array([0.1]), TOLERANCE).within


def test_a_sequence_stops_at_the_first_failure():
    rng = np.random.default_rng(1)
    good, bad = SD * rng.normal(size=(3, 20)), SD * rng.normal(size=20) - 0.05
    sequence = fixed_sequence([good[0], bad, good[1], good[2]], TOLERANCE)
    assert len(sequence.tests) == 2
    assert sequence.passed == 1
    assert sequence.failed is not None
    assert sequence.failed.worse
    assert fixed_sequence(good, TOLERANCE).failed is None
    assert fixed_sequence([], TOLERANCE).passed == 0


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("n", [4, 10])
def test_a_fixed_sequence_rarely_goes_too_far(correlation, n):
    """Every step from the third on loses exactly the tolerance: the worst case for recommending it."""
    rng = np.random.default_rng(n)
    means = [0.9, 0.9, 0.9, *[0.9 - TOLERANCE] * 5]  # baseline, two good steps, five that are not
    wrong, right = 0, 0
    for _ in range(1500):
        scores = noisy_scores(rng, means, n, correlation)
        passed = fixed_sequence(list((scores[:, 1:] - scores[:, :1]).T), TOLERANCE).passed
        wrong += passed > 2
        right += passed == 2
    assert wrong / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    if n == 10 and correlation == 0.9:
        assert right / 1500 > 0.8  # with little noise the two good steps are found


PARTS = ("biases", "norms", "head")


def few_parameters_rows(scores, lrs):
    """Points of `freeze` with n seeds: (n, 1 + 3 * lrs) scores of the baseline and of `PARTS` by learning rate."""
    conditions = [f"{part}, lr {lr}" for lr in range(lrs) for part in PARTS]
    columns = {"seed": np.arange(len(scores)), "seconds": 1.0, "x": 0.0, "depth": 6, "train_size": 500}
    names = ("experiment", "model", "model_fingerprint", "task", "variant")
    columns |= dict.fromkeys(names, "m") | {"metric": "accuracy"}
    frames = [
        pd.DataFrame(columns | {"condition": condition, "value": values, "trial_id": condition})
        for condition, values in zip(["all pretrained", *conditions], scores.T, strict=True)
    ]
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("lrs", "good"), [(1, 0), (3, 0), (3, 1)])
def test_few_trained_parameters_are_rarely_recommended_if_they_lose_too_much(lrs, good, correlation):
    """At each learning rate, the first `good` of biases, norms and head are as good as training all parameters; the
    others lose exactly the tolerance: the worst case for recommending them."""
    rng = np.random.default_rng(lrs)
    losses = np.array(([0.0] * good + [TOLERANCE] * (3 - good)) * lrs)
    wrong, right, uncorrected = 0, 0, 0
    for study in range(1500):
        scores = noisy_scores(rng, [0.9, *(0.9 - losses)], 8, correlation)
        differences = (scores[:, 1:] - scores[:, :1]).T
        passed = max(
            fixed_sequence(differences[3 * lr : 3 * lr + 3], TOLERANCE, 0.05 / lrs).passed
            for lr in range(lrs)
        )
        wrong += passed > good
        right += 0 < passed <= good
        uncorrected += any(non_inferiority(d, TOLERANCE).within for d in differences[losses > 0])
        if study < 25:  # the recommendation is what was simulated
            choice = few_parameters.answer(few_parameters_rows(scores, lrs), TOLERANCE).choice
            expected = f"the {('', 'biases', 'layer norms', 'head')[passed]} alone"
            assert choice.partition(" (")[0] == (expected if passed else "")
    assert wrong / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    assert uncorrected > 1.5 * wrong  # the fewest parameters of all that pass: in 10% to 28% of studies
    if good and correlation == 0.9:
        assert right / 1500 > 0.8


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("lrs", "loss"), [(1, 0.0), (1, TOLERANCE), (3, TOLERANCE)])
def test_nothing_to_gain_is_rarely_said_if_there_is_something(lrs, loss, correlation):
    """At each learning rate, biases and norms diverge. The head alone loses `loss` at the first, where it is as good as
    training all parameters or loses exactly the tolerance (the worst case), and far more at the others."""
    rng = np.random.default_rng(lrs)
    losses = np.array([0.25, 0.25, loss] + [0.25] * 3 * (lrs - 1))
    wrong, first_only = 0, 0
    for study in range(1500):
        scores = noisy_scores(rng, [0.9, *(0.9 - losses)], 4, correlation)
        differences = (scores[:, 1:] - scores[:, :1]).T
        sequences = [
            fixed_sequence(differences[3 * lr : 3 * lr + 3], TOLERANCE, 0.05 / lrs) for lr in range(lrs)
        ]
        said = all(sequence.all_worse for sequence in sequences)
        wrong += said
        first_only += all(s.failed is not None and s.failed.worse for s in sequences)
        if study < 25:  # the verdict is what was simulated
            verdict = few_parameters.answer(few_parameters_rows(scores, lrs), TOLERANCE).verdict
            assert (verdict == "nothing to gain") == said
    assert wrong / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    assert first_only / 1500 > 0.95  # why all of them are tested


def test_nothing_to_gain_is_said_if_everything_loses_much():
    rng = np.random.default_rng(8)
    said = 0
    for _ in range(500):
        scores = noisy_scores(rng, [0.9, *[0.9 - 5 * TOLERANCE] * 11], 8, 0.9)
        said += fixed_sequence((scores[:, 1:] - scores[:, :1]).T, TOLERANCE).all_worse
    assert said / 500 > 0.9
    assert not fixed_sequence([], TOLERANCE).all_worse


def test_needed_trials_reach_the_power():
    """With as many trials as needed, the test succeeds in about 80% of studies with that mean and sd."""
    rng = np.random.default_rng(3)
    pilot = np.array([-0.006, -0.002, 0.002, 0.006]) - 0.002
    needed = non_inferiority(pilot, TOLERANCE).trials_needed
    assert needed is not None
    mean, sd = pilot.mean(), pilot.std(ddof=1)
    successes = [non_inferiority(rng.normal(mean, sd, needed), TOLERANCE).within for _ in range(2000)]
    assert 0.78 < np.mean(successes) < 0.95  # trials are whole numbers
    assert (
        non_inferiority(pilot - 0.01, TOLERANCE).trials_needed is None
    )  # the estimate is beyond the tolerance
    beyond = pilot - 0.014
    needed = non_inferiority(beyond, TOLERANCE).trials_for_worse
    successes = [non_inferiority(rng.normal(beyond.mean(), sd, needed), TOLERANCE).worse for _ in range(2000)]
    assert 0.78 < np.mean(successes) < 0.95
    assert non_inferiority(pilot, TOLERANCE).trials_for_worse is None


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [4, 7, 16])
def test_cross_fitting_rarely_finds_a_gain_where_there_is_none(correlation, n):
    rng = np.random.default_rng(n)
    found, cross, naive, errors = 0, 0, 0, []
    for _ in range(1500):
        scores = noisy_scores(rng, [0.9] * 11, n, correlation)
        fit = cross_fit(scores[:, 1:], scores[:, 0])
        adjusted = simultaneous(scores[:, 1:] - scores[:, :1])
        cross += fit.shown
        found += fit.shown or adjusted.any()  # as in `recommend`
        naive += t_interval(scores[:, 1 + fit.chosen] - scores[:, 0]).low > 0
        errors.append((fit.gain.mean, fit.naive))
    assert found / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    assert naive > 2 * cross  # what cross-fitting is for
    unbiased, inflated = np.mean(errors, axis=0)
    assert abs(unbiased) < 0.1 * inflated


def differences_without_gain(rng, dependence, n, m):
    """(n, m) differences from a baseline whose noise is the least favorable for cross-fitting."""
    noise = rng.normal(size=(n, m))
    if dependence == "unequal noise":
        return noise * np.linspace(0.3, 2, m)
    if dependence == "baseline is the mean":  # as for the places of adapters
        return noise - noise.mean(1, keepdims=True)
    return noise  # of a baseline without noise


@pytest.mark.parametrize("dependence", ["exact baseline", "unequal noise", "baseline is the mean"])
@pytest.mark.parametrize(("n", "m"), [(8, 5), (20, 11)])
def test_gains_are_rarely_found_where_there_are_none_whatever_the_dependence(dependence, n, m):
    rng = np.random.default_rng(n)
    found, at_95 = 0, 0
    for _ in range(1500):
        differences = differences_without_gain(rng, dependence, n, m)
        fit = cross_fit(differences, np.zeros(n))
        found += fit.shown or simultaneous(differences).any()
        at_95 += fit.agree and t_interval(cross_fitted(differences)[1]).low > 0
    assert found / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    assert at_95 / 1500 > 0.04  # why the level is higher than 95%: 2.5% is nominal


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_cross_fitting_finds_a_gain_and_does_not_overstate_it(correlation):
    rng = np.random.default_rng(5)
    means = [0.9, 0.9, 0.9, 0.93, 0.9, 0.9]
    fits = []
    for _ in range(800):
        scores = noisy_scores(rng, means, 12, correlation)
        fits.append(cross_fit(scores[:, 1:], scores[:, 0]))
    assert np.mean([fit.chosen == 2 for fit in fits]) > 0.95
    assert np.mean([fit.shown for fit in fits]) > 0.9
    assert all(fit.halves == (fit.chosen, fit.chosen) for fit in fits if fit.shown)
    assert np.mean([fit.gain.low <= 0.03 <= fit.gain.high for fit in fits]) > 0.92
    assert np.mean([fit.gain.low > 0.03 for fit in fits]) < 0.025


@pytest.mark.parametrize("effect", [0.5, 1.0])
def test_the_interval_of_the_best_covers_its_gain_where_the_choice_is_uncertain(effect):
    """Half of the seeds often choose another candidate than all of them; the gains of their choices are too low."""
    rng, covered, missed, too_low = np.random.default_rng(7), 0, 0, 0
    for _ in range(1000):
        gains = np.array([0.0] * 9 + [effect * SD])
        scores = noisy_scores(rng, [0.9, *(0.9 + gains)], 10, 0.0)
        fit = cross_fit(scores[:, 1:], scores[:, 0])
        true = gains[fit.chosen]
        covered += fit.gain.low <= true <= fit.gain.high
        missed += fit.gain.high < true  # a gain would be excluded that there is
        halves = (
            scores[1::2, 1 + fit.halves[0]] - scores[1::2, 0],
            scores[::2, 1 + fit.halves[1]] - scores[::2, 0],
        )
        too_low += t_interval(np.concatenate(halves)).high < true
    assert covered / 1000 > 0.93
    assert missed / 1000 < 0.035
    assert too_low > 2 * missed  # what the upper bound of the naive interval is for


@pytest.mark.parametrize("noise", [1.0, 4.0])
@pytest.mark.parametrize("n", [4, 8, 20])
def test_a_gain_that_one_of_eleven_has_is_rarely_excluded(n, noise):
    """The good one gains exactly the margin, ten others half of it; it may be noisier than they are."""
    rng, wrong, by_interval = np.random.default_rng(n), 0, 0
    for _ in range(1500):
        scores = noisy_scores(rng, [0.9, 0.9 + TOLERANCE, *[0.9 + TOLERANCE / 2] * 10], n, 0.0)
        scores[:, 2:] += 0.75 * (scores[:, :1] - scores[:, 2:] + TOLERANCE / 2)  # paired with the baseline
        scores[:, 1] += (noise - 1) * SD * rng.normal(size=n)
        fit = cross_fit(scores[:, 1:], scores[:, 0])
        wrong += fit.excluded(TOLERANCE)
        by_interval += fit.gain.high < TOLERANCE  # of the one with the highest mean, which may be another
    assert wrong / 1500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)
    if n == 20 and noise == 4.0:
        assert by_interval / 1500 > 0.1


def test_cross_fitting_needs_four_seeds_and_uses_the_other_half():
    assert cross_fit(np.zeros((3, 2)), np.zeros(3)) is None
    assert cross_fit(np.zeros((4, 0)), np.zeros(4)) is None
    candidates = np.array([[1.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.0, 3.0]])
    fit = cross_fit(candidates, np.zeros(4))
    assert fit.halves == (0, 1)
    assert not fit.agree
    assert fit.chosen == 1
    assert fit.gain.mean == 0.0  # what each half chose is worth nothing on the other
    assert fit.naive == 1.5


def test_a_gain_can_be_excluded_or_need_more_trials():
    rng = np.random.default_rng(6)
    scores = 0.001 * rng.normal(size=(20, 4))
    fit = cross_fit(scores[:, 1:], scores[:, 0])
    assert fit.excluded(0.01)
    few = cross_fit(scores[:4, 1:], scores[:4, 0])
    assert not few.excluded(0.0005)
    assert few.trials_needed(0.0005) > few.trials_needed(0.001) > 4
