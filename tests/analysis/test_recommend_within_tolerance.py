"""The last variant within the tolerance: numbers against scipy and statsmodels, and the sentences that state them."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from whichlayers.analysis.recommend.base import Candidate
from whichlayers.analysis.recommend.within_tolerance import last_within_tolerance

NOISE = np.array([0.003, -0.004, 0.001, 0.006, -0.002, -0.004])  # sums to zero
BASELINE = 0.9 + np.array([0.02, -0.01, 0.0, 0.01, -0.03, 0.005])
UNLIKE = NOISE[[2, 0, 5, 1, 3, 4]]  # the same noise in another order
TOLERANCE = 0.01


def candidate(name, differences, steps):
    """A variant whose scores differ from those of the baseline by `differences`, one per seed."""
    n = len(differences)
    columns = {"seed": range(n), "value": BASELINE[:n] + differences, "seconds": 90.0}
    columns |= {"trial_id": [f"{name} {seed}" for seed in range(n)]}
    return Candidate(name, pd.DataFrame(columns), layers=(1, steps), steps=steps)


def answer(*series, tolerance=TOLERANCE):
    """The answer for several series of (name, differences); the curve has a point for each, and the baseline."""
    candidates = [
        [candidate(name, differences, i) for i, (name, differences) in enumerate(one, 1)] for one in series
    ]
    baseline = candidate("all layers", np.zeros(len(BASELINE)), 0)
    cells = [baseline.rows.assign(x=0)]
    cells += [c.rows.assign(x=10 * s + i) for s, one in enumerate(candidates) for i, c in enumerate(one, 1)]
    about = {"model": "m", "model_fingerprint": "f", "task": "SST-2", "variant": "", "metric": "accuracy"}
    about |= {"train_size": 500, "depth": 6, "experiment": "prune", "condition": ""}
    return last_within_tolerance(
        "smallest",
        pd.concat(cells).assign(**about),
        candidates,
        baseline,
        tolerance,
        compared="these",
        keep="keep all",
        alternative="smaller model",
    )


def interval(differences, level):
    found = stats.ttest_1samp(differences, 0.0).confidence_interval(level)
    return np.mean(differences), found.low, found.high


def about(minutes):
    return f"about {int(minutes // 60)} h {int(minutes % 60):02d} min"


def trials_needed(differences, alpha, tolerance=TOLERANCE):
    """For the one-sided test of a mean above -tolerance, by statsmodels."""
    effect = (np.mean(differences) + tolerance) / np.std(differences, ddof=1)
    return math.ceil(TTestPower().solve_power(effect, alpha=alpha, power=0.8, alternative="larger"))


def test_a_recommendation_has_the_numbers_of_scipy():
    within, undecided = NOISE - 0.002, 2 * NOISE - 0.006
    found = answer([("a", within), ("b", undecided), ("c", NOISE)])
    mean, low, high = interval(within, 0.9)
    assert (found.verdict, found.choice, found.layers, found.trial_id) == ("recommended", "a", (1, 1), "a 0")
    assert (found.difference, found.low, found.high) == pytest.approx((mean, low, high))
    assert (found.level, found.n) == (pytest.approx(0.9), 6)
    assert found.score == pytest.approx((BASELINE + within).mean())
    assert (found.baseline, found.baseline_trial_id) == ("all layers", "all layers 0")
    more = trials_needed(undecided, 0.05) - 6
    assert (found.more_trials, found.minutes) == (
        more,
        pytest.approx(more * 4 * 1.5),
    )  # four points, 90 s each
    assert found.outlook == (
        f"To decide on the next one: {more} more trials of the compared points, {about(6 * more)} of one worker."
    )
    assert found.text == (
        "Use a: −0.2 points of accuracy (90% interval −0.5 to +0.1, 6 trials) compared with all layers, within the "
        "tolerance of 1.0 points of accuracy. Compared: these, in this order, up to the first that was not within "
        "it. Stopped at b: −0.6 points of accuracy (90% interval −1.3 to +0.1, 6 trials)."
    )
    compared = {c.name: c for c in found.compared}
    assert [c.result for c in found.compared] == ["within the tolerance", "not enough trials", "not tested"]
    for name, differences in (("a", within), ("b", undecided), ("c", NOISE)):
        c = compared[name]
        assert (c.difference, c.low, c.high) == pytest.approx(interval(differences, 0.9))
        assert (c.score, c.level, c.n) == pytest.approx(((BASELINE + differences).mean(), 0.9, 6))


def test_two_series_share_the_level_and_the_longer_one_wins():
    found = answer([("a", NOISE), ("b", NOISE - 0.001)], [("c", NOISE + 0.003)])
    assert (found.choice, found.level) == ("b", pytest.approx(0.95))
    assert (found.difference, found.low, found.high) == pytest.approx(interval(NOISE - 0.001, 0.95))
    assert {c.level for c in found.compared} == {found.level}
    assert (
        "up to the first that was not within it; the level of 5% is divided by 2. All of them" in found.text
    )
    assert found.text.endswith("All of them are within it.")
    assert (found.more_trials, found.minutes, found.outlook) == (None, None, "")


def test_of_two_series_of_equal_length_the_better_one_is_chosen():
    assert answer([("a", NOISE)], [("b", UNLIKE + 0.001)]).choice == "b"
    assert answer([("a", NOISE + 0.001)], [("b", UNLIKE)]).choice == "a"


def test_the_test_that_stopped_each_series_is_stated():
    found = answer([("a", NOISE), ("b", NOISE - 0.1)], [("c", NOISE), ("d", UNLIKE - 0.05)], [("e", NOISE)])
    level = 1 - 2 * 0.05 / 3
    ends = []
    for name, differences in (("b", NOISE - 0.1), ("d", UNLIKE - 0.05)):
        mean, low, high = (f"{100 * value:.1f}".replace("-", "−") for value in interval(differences, level))
        ends.append(f"{name}: {mean} points of accuracy (96.67% interval {low} to {high}, 6 trials)")
    assert found.text.endswith(f" Stopped at {ends[0]}; {ends[1]}.")
    assert found.more_trials is None  # both are shown to lose more


def test_nothing_to_gain_only_if_every_series_loses_more():
    found = answer([("a", NOISE - 0.1)], [("b", NOISE - 0.05)])
    assert found.verdict == "nothing to gain"
    a, b = (
        f"{name}: −{drop} points of accuracy (95% interval −{-100 * low:.1f} to −{-100 * high:.1f}, 6 trials)"
        for name, drop, (_, low, high) in (
            ("a", "10.0", interval(NOISE - 0.1, 0.95)), ("b", "5.0", interval(NOISE - 0.05, 0.95))
        )
    )  # fmt: skip
    assert found.text == (
        f"Nothing to gain: keep all. More than 1.0 points of accuracy lower: {a}; {b}. Compared: these, "
        "all of them; the level of 5% is divided by 2."
    )
    undecided = 2 * NOISE - 0.006
    found = answer([("a", NOISE - 0.1)], [("b", undecided)])
    more = trials_needed(undecided, 0.025) - 6
    _, low, high = interval(undecided, 0.95)
    assert (found.verdict, found.more_trials) == ("not enough trials", more)
    assert found.text == (
        "Not enough trials to show that a smaller model is within 1.0 points of accuracy of all layers (b: −0.6 points "
        f"of accuracy (95% interval −{-100 * low:.1f} to +{100 * high:.1f}, 6 trials)). Until then, keep all. To "
        f"decide: {more} more trials of the compared points, {about(4.5 * more)} of one worker."
    )


def test_nothing_to_gain_only_if_what_comes_after_the_first_failure_loses_more_too():
    """The first variant diverged; the second is as good as the baseline, but comes after it."""
    found = answer([("a", NOISE - 0.1), ("c", UNLIKE - 0.001)])
    a, c = (
        f"{name}: {points} points of accuracy (90% interval {low} to {high}, 6 trials)"
        for name, points, low, high in (("a", "−10.0", "−10.3", "−9.7"), ("c", "−0.1", "−0.4", "+0.2"))
    )
    assert (found.verdict, found.choice, found.more_trials) == ("not enough trials", "", None)
    assert found.text == (
        "Not enough trials to say that nothing can be gained: more than 1.0 points of accuracy lower: "
        f"{a}; not shown to be that much lower: {c}. Until then, keep all. Compared: these, in this order, up to the "
        "first that was not within it. What comes after the first that fails cannot be recommended from these trials. "
        "More trials of this study will not decide on them. Test them in a study of their own, with another `seed`."
    )
    assert [c.result for c in found.compared] == ["below the tolerance", "not tested"]
    every = answer([("a", NOISE - 0.1), ("c", UNLIKE - 0.2)])
    assert (every.verdict, "Compared: these, all of them." in every.text) == (
        "nothing to gain",
        True,
    )
    assert [c.result for c in every.compared] == ["below the tolerance"] * 2


def test_trials_that_would_show_that_nothing_can_be_gained():
    """What comes after the first failure seems to lose more than the tolerance, but that is not shown yet."""
    noisy = 4 * NOISE - 0.014
    found = answer([("a", NOISE - 0.1), ("b", NOISE - 0.1), ("c", noisy)])
    more = trials_needed(-noisy - 2 * TOLERANCE, 0.05) - 6
    assert (found.verdict, found.more_trials) == ("not enough trials", more)
    assert f"To show that they are that much lower, too: {more} more trials" in found.text
    assert answer([("a", NOISE - 0.1), ("c", np.array([-0.03]))]).more_trials == 2
    close = answer([("a", NOISE - 0.1), ("b", noisy), ("c", NOISE)])
    assert (close.more_trials, close.minutes) == (None, None)


def test_of_many_variants_those_with_the_highest_scores_are_named():
    series = [(name, np.roll(NOISE, i) - 0.05 - 0.01 * i) for i, name in enumerate("abcde")]
    text = answer(series).text
    assert text.startswith(
        "Nothing to gain: keep all. More than 1.0 points of accuracy lower: a: −5.0 points"
    )
    assert (
        "; c: −7.0 points of accuracy (90% interval −7.3 to −6.7, 6 trials); 2 others with lower means."
        in text
    )


def test_the_undecided_series_that_needs_fewer_trials_is_decided_first():
    soon, late = 2 * NOISE - 0.005, 2 * NOISE - 0.007
    needed = [trials_needed(differences, 0.025) for differences in (soon, late)]
    assert needed[0] < needed[1]
    for order in ((soon, late), (late, soon)):
        found = answer([("a", order[0])], [("b", order[1])])
        assert found.more_trials == needed[0] - 6
        assert found.minutes == pytest.approx(4.5 * (needed[0] - 6))


def test_estimates_beyond_the_loss_and_estimates_that_need_too_many_trials():
    beyond = 4 * NOISE - 0.011
    found = answer([("a", beyond)])
    assert (found.verdict, found.more_trials, found.minutes) == ("not enough trials", None, None)
    assert found.text.endswith(
        "The estimates are below that tolerance, so more trials will probably not show it."
    )
    close = 4 * NOISE - 0.0099  # within the tolerance, by less than any feasible number of trials would show
    for differences in ([("a", close)], [("a", beyond)]), ([("a", beyond)], [("b", close)]):
        text = answer(*differences).text
        assert text.endswith(
            "To decide: the number of trials it would take cannot be estimated, or is more than 1,000."
        )
    exactly = np.array([-0.375, -0.125])  # mean and tolerance have no rounding error
    assert "below that tolerance" in answer([("a", exactly)], tolerance=0.25).text


@pytest.mark.parametrize(
    ("differences", "more", "described"),
    [
        ([-0.02], 2, "−2.0, a single trial"),
        ([0.02], 2, "+2.0, a single trial"),
        ([-0.02, -0.02], 1, "−2.0 in all 2 trials, without variance"),
        ([0.01] * 5, 1, "+1.0 in all 5 trials, without variance"),
    ],
)
def test_without_variance_at_least_three_trials_are_needed(differences, more, described):
    found = answer([("a", np.array(differences))])
    assert (found.verdict, found.more_trials) == ("not enough trials", more)
    assert found.minutes == pytest.approx(more * 2 * 1.5)
    assert f"(a: {described})" in found.text


def test_of_several_series_without_variance_the_one_with_most_trials_is_decided_first():
    single, equal = np.array([-0.02]), np.full(5, -0.02)
    for one, other in ((single, equal), (equal, single)):
        assert answer([("a", one)], [("b", other)]).more_trials == 1
    noisy = 2 * NOISE[:2] - 0.006
    assert answer([("a", single)], [("b", noisy)]).more_trials == 1  # min(2, 1): the other one has two trials
    assert answer([("a", noisy)]).more_trials == trials_needed(noisy, 0.05) - 2


def test_a_variant_that_shares_no_seed_with_the_baseline_ends_its_series():
    """As in a study that is still running."""
    found = answer([("a", NOISE), ("b", NOISE[:0]), ("c", NOISE)])
    assert (found.choice, found.more_trials) == ("a", 3)
    assert found.text.endswith("Stopped at b: no trial with a seed of the baseline.")
    assert [(c.name, c.result) for c in found.compared] == [
        ("a", "within the tolerance"),
        ("c", "not tested"),
    ]


def test_no_series_no_answer():
    nothing = pd.DataFrame()
    assert (
        last_within_tolerance("smallest", nothing, [], None, TOLERANCE, compared="", keep="", alternative="")
        is None
    )


def test_a_variant_of_several_series_is_named_once():
    shared = ("adapters everywhere", -0.004 + 3 * NOISE)
    found = answer([shared, ("first", -0.05 + NOISE)], [shared, ("last", -0.05 + UNLIKE)])
    assert found.verdict == "not enough trials"
    assert found.text.count("adapters everywhere: ") == 1
    worse = ("adapters everywhere", -0.05 + NOISE)
    found = answer([worse, ("first", -0.06 + NOISE)], [worse, ("last", -0.07 + UNLIKE)])
    assert found.verdict == "nothing to gain"
    assert found.text.count("adapters everywhere: ") == 1
