"""Each question of `recommend`: what is compared, by which names, and what the first trials of a study give."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from whichlayers.analysis.recommend import QUESTIONS, Recommendation, recommend
from whichlayers.analysis.recommend.base import (
    Answer,
    Candidate,
    baseline_of,
    subject,
)
from whichlayers.analysis.recommend.best_of import best_of
from whichlayers.analysis.recommend.smallest import nested_series
from whichlayers.errors import WhichlayersError

ANSWER = ("freeze", "recommended", "text", "m", "f", "SST-2", 1000, "", "accuracy", "all", 6)
NOISE = np.array([0.003, -0.004, 0.001, 0.006, -0.002, -0.004])  # sums to zero
SHARED = 0.8 + np.array([0.02, -0.01, 0.0, 0.01, -0.03, 0.005])


def frame(experiment, cells, depth=6, **columns):
    """Finished points of one curve; `cells` maps (condition, x) to scores, one per seed."""
    rows = [
        {
            "condition": condition,
            "x": float(x),
            "seed": seed,
            "value": value,
            "trial_id": f"{condition} {x} {seed}",
        }
        for (condition, x), scores in cells.items()
        for seed, value in enumerate(scores)
    ]
    settings = {"model": "m", "model_fingerprint": "f", "task": "SST-2", "train_size": 500, "variant": ""}
    settings |= {
        "metric": "accuracy",
        "depth": depth,
        "experiment": experiment,
        "seconds": 90.0,
        "guess": math.nan,
    }
    settings |= {"kind": "finetune", "head": "linear", "training": "{}", "untouched": False}
    found = pd.DataFrame(rows).assign(**settings | columns)
    return found if "order" in columns else found.assign(order=[()] * len(found))


def pruned(cells, depth=6):
    """As `frame`, for pruned models: `cells` maps kept layers to scores; all layers are the baseline."""
    parts = [
        frame(
            "prune",
            {
                (
                    "all pretrained" if layers == tuple(range(1, depth + 1)) else "top",
                    depth - len(layers),
                ): scores
            },
            depth,
        )
        for layers, scores in cells.items()
    ]
    parts = [part.assign(order=[layers] * len(part)) for part, layers in zip(parts, cells, strict=True)]
    return pd.concat(parts, ignore_index=True)


# --- the best of several ---


def choose(*differences, margin=0.01, **columns):
    """The answer for candidates a, b, ... whose scores differ from those of the baseline by `differences`."""
    cells = {("base", 0): SHARED} | {
        (name, 1): SHARED[: len(d)] + d for name, d in zip("abc", differences, strict=False)
    }
    rows = frame("lr_decay", cells, **columns)
    base, *candidates = [Candidate(str(name), cell) for name, cell in rows.groupby("condition", sort=False)]
    return best_of("lr_decay", rows, candidates, base, margin, compared="these", keep="keep it")


def half_gains(*differences):
    """(n,) gains of what one half of the seeds chooses, on the other half."""
    table = np.array(differences)  # (candidates, seeds)
    gains = np.empty(table.shape[1])
    gains[1::2] = table[table[:, ::2].mean(1).argmax(), 1::2]
    gains[::2] = table[table[:, 1::2].mean(1).argmax(), ::2]
    return gains


def interval(values, level=0.95):
    found = stats.ttest_1samp(values, 0.0).confidence_interval(level)
    return np.mean(values), found.low, found.high


def test_a_gain_is_that_on_the_other_half_of_the_seeds():
    better, worse, same = NOISE + 0.03, NOISE[::-1] - 0.03, 2 * NOISE
    found = choose(same, better, worse)
    gains = half_gains(same, better, worse)
    assert (found.verdict, found.choice, found.trial_id) == ("recommended", "b", "b 1 0")
    assert (found.difference, found.low, found.high) == pytest.approx(interval(gains, 0.98))
    assert (found.score, found.level, found.n) == pytest.approx(((SHARED + better).mean(), 0.98, 6))
    low, high = (f"+{100 * end:.1f}" for end in interval(gains, 0.98)[1:])
    assert found.text == (
        f"Use b: +3.0 points of accuracy (98% interval {low} to {high}, 6 trials). The gain is estimated on other "
        "seeds than those that made the choice; both halves of the seeds chose the same. Compared: these, each with "
        "base."
    )
    assert [c.result for c in found.compared] == ["not enough trials", "better", "worse"]
    for c, differences in zip(found.compared, (same, better, worse), strict=True):
        level = 1 - 0.05 / 3  # for three candidates together
        assert (c.difference, c.low, c.high) == pytest.approx(interval(differences, level))
        assert (c.score, c.level, c.n) == pytest.approx(((SHARED + differences).mean(), level, 6))


@pytest.mark.parametrize(("seeds", "result"), [(3, "not enough trials"), (4, "better"), (5, "better")])
def test_a_single_candidate_is_called_better_with_four_seeds(seeds, result):
    found = choose(NOISE[:seeds] / 10 + 0.05)
    assert [c.result for c in found.compared] == [result]


@pytest.mark.parametrize("others", [(), (NOISE - 0.03,)])
def test_a_gain_that_is_excluded_for_every_candidate(others):
    found = choose(NOISE, *others)
    assert found.verdict == "nothing to gain"
    bound = f"+{100 * interval(NOISE)[2]:.1f} (6 trials)"
    several = (
        f"for each of them: the highest upper bound of their 95% intervals is {bound}. Compared: these, each"
    )
    one = f"the upper bound of its 95% interval is {bound}. Compared: these"
    assert found.text == (
        "Nothing to gain: keep it. A gain of 1.0 points of accuracy is excluded"
        f"{f' {several}' if others else f': {one}'} with base."
    )
    assert choose(NOISE, 9 * NOISE[::-1] - 0.002).verdict == "not enough trials"  # the second may gain more


def test_the_recommended_candidate_is_the_one_whose_gain_is_given():
    """Each half of the seeds chooses another candidate; a third one is best over all seeds."""
    odd = np.arange(6) % 2
    first, second, third = (NOISE + 0.04 + 0.02 * (1 - odd), NOISE + 0.04 + 0.02 * odd, 0.5 * NOISE + 0.055)
    found = choose(first, second, third)
    assert (found.verdict, found.choice) == ("recommended", "c")
    assert (found.difference, found.low, found.high) == pytest.approx(interval(third, 1 - 0.05 / 3))
    low, high = (f"+{100 * end:.1f}" for end in (found.low, found.high))
    assert found.text == (
        f"Use c: +5.5 points of accuracy (98.33% interval {low} to {high}, 6 trials). "
        "The interval is adjusted for the choice among 3. The halves of the seeds chose a and b, so which one is best "
        "is not certain. Compared: these, each with base."
    )


def test_no_candidate_is_called_better_unless_one_is_recommended():
    """One of three is significantly better without adjustment, and not with it."""
    one = 4 * NOISE + 0.0172
    assert interval(one)[1] > 0 > interval(one, 1 - 0.05 / 3)[1]
    assert choose(one).verdict == "recommended"
    found = choose(one, 5 * NOISE[::-1] + 0.016, NOISE - 0.1)
    assert found.verdict == "not enough trials"
    assert [c.result for c in found.compared] == ["not enough trials", "not enough trials", "worse"]


def test_what_is_recommended_has_a_gain_of_its_own():
    """On random studies: "better" stands beside a recommendation only, whose gain is that of its candidate."""
    rng, verdicts = np.random.default_rng(0), set()
    for _ in range(60):
        differences = [rng.normal(gain, 0.012, 6) for gain in (0.015, 0.015, 0.0)]
        found = choose(*differences)
        verdicts.add(found.verdict)
        if found.verdict == "recommended":
            gains = differences["abc".index(found.choice)]
            assert found.difference == pytest.approx(gains.mean())
            assert found.low == pytest.approx(interval(gains, found.level)[1])
            assert found.low > 0
        else:
            assert "better" not in {c.result for c in found.compared}
    assert {"recommended", "not enough trials"} <= verdicts


def test_trials_that_show_a_gain_of_the_margin():
    one, other = 4 * NOISE, 4 * NOISE[::-1]
    found = choose(one, other)
    gains = half_gains(one, other)
    effect = 0.01 / np.std(gains, ddof=1)
    more = math.ceil(TTestPower().solve_power(effect, alpha=0.02, power=0.8)) - 6
    assert (found.verdict, found.more_trials) == ("not enough trials", more)
    assert found.minutes == pytest.approx(more * 3 * 1.5)  # three points of 90 s
    assert "The halves of the seeds chose a and b, so which one is best is not certain" in found.text
    hours = f"{int(found.minutes // 60)} h {int(found.minutes % 60):02d} min"
    assert found.text.endswith(
        f"To detect a gain of 1.0 points of accuracy: {more} more trials of the compared points, "
        f"about {hours} of one worker."
    )
    assert choose(one, other, margin=1e-5).more_trials is None
    equal = choose(np.full(6, 0.5))  # without variance nothing is shown, and nothing can be estimated
    assert (equal.verdict, equal.more_trials, equal.minutes) == ("not enough trials", None, None)
    assert [c.result for c in equal.compared] == ["not enough trials"]


def test_two_seeds_are_too_few_to_choose():
    found = choose(NOISE[:2], NOISE)
    assert (found.verdict, found.more_trials, found.minutes) == ("not enough trials", 2, pytest.approx(9.0))
    assert found.text == (
        "Not enough trials: choosing the best of 2 and estimating its gain on other seeds takes at least 4 trials, "
        "there are 2. Next: 2 more trials of the compared points, about 9 min 00 s of one worker."
    )
    assert best_of("q", pd.DataFrame(), [], None, 0.01, compared="", keep="") is None


# --- series of models ---


def test_series_of_pruned_models():
    def series(*sets, depth=5):
        found = nested_series([Candidate("", None, layers) for layers in sets], depth)
        return [[c.layers for c in one] for one in found]

    # top, bottom, then the rest by the number of dropped layers, whatever order they are given in
    top, bottom, middle, gap = (1, 2, 3, 4), (2, 3, 4, 5), (2, 3, 4), (1, 2, 4, 5)
    assert series(gap, middle, bottom, top) == [[top, middle], [bottom], [gap]]
    assert series((3, 4, 5), bottom, (1, 2), (1,), top) == [[top, (1, 2), (1,)], [bottom, (3, 4, 5)]]
    assert series(bottom, top) == [[top], [bottom]]
    assert series(gap, bottom) == [[bottom], [gap]]
    assert series(gap, (3, 4, 5)) == [[(3, 4, 5)], [gap]]  # one layer less, but in order
    assert series((3,), gap, top) == [[top, (3,)], [gap]]
    assert series((1, 3, 4, 5), gap) == [[(1, 3, 4, 5)], [gap]]
    assert series((2, 3, 4), (1, 3, 4, 5)) == [[(1, 3, 4, 5)], [(2, 3, 4)]]


def test_pruned_models_keep_some_but_not_all_layers():
    rows = pruned({(1, 2, 3): SHARED, (1, 2): SHARED + NOISE, (3, 2, 1): SHARED, (): SHARED - 0.1}, depth=3)
    (answer,) = recommend(rows).answers
    assert [c.name for c in answer.compared] == ["layers 1-2 of 3"]
    assert answer.layers == (1, 2)
    assert "Compared: layers 1-2 of 3." in answer.text  # one model has no order
    assert recommend(rows[rows["condition"] == "top"]).answers == ()  # no baseline


# --- a study whose first trials have finished ---


@pytest.mark.parametrize(
    ("experiment", "cells"),
    [
        ("prune", {("all pretrained", 0): [0.9]}),
        ("freeze", {("all pretrained", 0): [0.9]}),
        ("adapt", {("all pretrained", 0): [0.9]}),
        ("lr_decay", {("all pretrained", 1): [0.9]}),
        ("incremental", {("", 6): [0.9]}),
        ("probing", {("", 6): [0.9]}),
        ("adapt_layers", {("single", 1): [0.9]}),
        ("prune", {("top", 1): [0.9]}),
        ("freeze", {("top", 1): [0.9]}),
        ("adapt", {("last", 1): [0.9]}),
        ("lr_decay", {("", 0.9): [0.9]}),
    ],
)
def test_a_single_trial_gives_no_answer(experiment, cells):
    found = recommend(frame(experiment, cells))
    assert found.answers == ()
    assert len(found.unasked) == len(QUESTIONS)


def test_the_baseline_is_found_in_a_single_row():
    rows = frame("freeze", {("all pretrained", 0): [0.9]})
    assert baseline_of(rows).name == "all 6 layers"
    assert baseline_of(rows.assign(condition="top")) is None
    about = subject(rows)
    assert (about["model"], about["task"], about["train_size"], about["depth"]) == ("m", "SST-2", 500, 6)


# --- questions: names, order and what is compared ---


def test_frozen_layers_by_name():
    cells = {("all pretrained", 0): SHARED, ("top", 0): SHARED} | {("top", k): SHARED + NOISE for k in (2, 1)}
    cells |= {("bottom", k): SHARED + NOISE - 0.2 for k in (1, 3)} | {("norms", 0): SHARED + NOISE - 0.3}
    answer, alone = recommend(frame("freeze", cells)).answers
    assert (alone.verdict, [c.name for c in alone.compared]) == ("nothing to gain", ["the layer norms alone"])
    assert [c.name for c in answer.compared] == [
        "layer 1 and the embeddings frozen",
        "layers 1-2 and the embeddings frozen",
        "layer 6 frozen",
        "layers 4-6 frozen",
    ]
    assert answer.choice == "layers 1-2 and the embeddings frozen"
    assert "Compared: 2 series (layers frozen: 1 and 2; 1 and 3), each, in this order" in answer.text
    top = frame("freeze", {key: v for key, v in cells.items() if key[0] not in ("bottom", "norms")})
    (one,) = recommend(top).answers
    assert "Compared: 1 and 2 frozen layers, in this order" in one.text


def test_layers_with_adapters_by_name_and_rank():
    cells = {("all pretrained", 0): SHARED}
    for rank in (2, 8):
        cells |= {(f"everywhere, rank {rank}", 6): SHARED + NOISE, (f"first, rank {rank}", 2): SHARED + NOISE}
    cells |= {("last, rank 8", 5): SHARED + NOISE, ("everywhere, rank 16", 6): SHARED + NOISE}
    (answer,) = recommend(frame("adapt", cells)).answers
    assert [c.name for c in answer.compared] == [
        "adapters in all 6 layers (rank 2)",
        "adapters in layers 1-2 (rank 2)",
        "adapters in all 6 layers (rank 8)",
        "adapters in layers 1-2 (rank 8)",
        "adapters in all 6 layers (rank 8)",
        "adapters in layers 2-6 (rank 8)",
        "adapters in all 6 layers (rank 16)",
    ]
    assert "4 series (layers with adapters: 6 and 2; 6 and 2; 6 and 5; 6), each" in answer.text
    assert answer.choice == "adapters in layers 1-2 (rank 2)"
    assert answer.baseline == "finetuning all 6 layers"
    (plain,) = recommend(
        frame(
            "adapt", {("all pretrained", 0): SHARED, ("last", 3): SHARED + NOISE, ("last", 1): SHARED + NOISE}
        )
    ).answers
    assert [c.name for c in plain.compared] == ["adapters in layers 4-6", "adapters in layer 6"]
    assert "Compared: adapters in 3 and 1 layers, in this order" in plain.text
    (apart,) = recommend(
        frame("adapt", {("all pretrained", 0): SHARED, ("first", 2): SHARED, ("last", 6): SHARED})
    ).answers
    assert [c.name for c in apart.compared] == ["adapters in layers 1-2", "adapters in all 6 layers"]


def test_the_place_of_adapters_is_compared_with_the_mean_of_all_places():
    scores = {("single, rank 8", 1): SHARED + NOISE, ("blocks, rank 8", 3): SHARED + NOISE[::-1] + 0.06}
    (answer,) = recommend(frame("adapt_layers", scores)).answers
    assert answer.choice == "adapters in the block that starts at layer 3 (rank 8)"
    mean = np.mean(list(scores.values()), axis=0)
    assert (answer.difference, answer.low, answer.high) == pytest.approx(
        interval(scores["blocks, rank 8", 3] - mean, 0.98)
    )
    assert answer.baseline_trial_id == "single, rank 8 1 0"
    assert answer.text.endswith(
        "Compared: layer 1 (rank 8) and the block that starts at layer 3 (rank 8), each with the mean of these places."
    )


@pytest.mark.parametrize(
    ("count", "listed"), [(8, "layer 1, layer 2, layer 3"), (9, "9 places from layer 1 to layer 9")]
)
def test_many_places_are_not_listed_one_by_one(count, listed):
    cells = {("single", layer): SHARED + np.roll(NOISE, layer) for layer in range(1, count + 1)}
    (answer,) = recommend(frame("adapt_layers", cells, depth=12)).answers
    assert f"Compared: {listed}" in answer.text


def test_features_of_the_embeddings_and_of_the_layers():
    cells = {("", layer): SHARED + np.roll(NOISE, layer) - 0.05 * abs(layer - 1) for layer in (3, 0, 1)}
    (answer,) = recommend(frame("probing", cells, depth=3)).answers
    assert [c.name for c in answer.compared] == ["the embeddings (layer 0)", "layer 1"]
    assert (answer.choice, answer.layers, answer.baseline) == ("layer 1", (1,), "the last layer (3)")
    assert "Compared: layers 0 and 1, each with the last layer (3)." in answer.text
    assert answer.text.startswith("As frozen features, use the hidden states of layer 1: +10.")


def test_reinitialized_layers_from_the_top():
    cells = {("", k): SHARED + np.roll(NOISE, k) - 0.05 * (k == 1) for k in (0, 3, 1, 2)}
    (answer,) = recommend(frame("incremental", cells, depth=3)).answers
    assert [c.name for c in answer.compared] == [
        f"the top {n} re-initialized" for n in ("layer", "2 layers", "3 layers")
    ]
    assert (
        "Compared: the top 1, 2 and 3 layers re-initialized, each with all 3 layers pretrained."
        in answer.text
    )


# --- the recommendation as a whole ---


def test_which_answer_to_follow():
    def answer(question, low, verdict="recommended"):
        return dataclasses.replace(Answer(*ANSWER), question=question, low=low, verdict=verdict)

    undecided, features = answer("smallest", 0.9, "not enough trials"), answer("features", 0.8)
    one, other = answer("reinit", 0.01), answer("lr_decay", 0.02)
    answers = (undecided, features, one, other)
    assert Recommendation(0.01, None, answers, ()).best(answers) is one  # features are another use of a model
    assert Recommendation(0.01, "accuracy", answers, ()).best([one, other]) is other
    assert Recommendation(0.01, "features", answers, ()).best([undecided, features]) is features
    assert Recommendation(0.01, "accuracy", answers, ()).best([undecided]) is None
    assert Recommendation(0.01, None, answers, ()).best([undecided]) is None
    assert Recommendation(0.01, None, answers, ()).of("lr_decay") == [other]


def test_a_recommendation_as_json():
    rows = pruned({(1, 2, 3): SHARED, (1, 2): SHARED + NOISE}, depth=3)
    stored = recommend(rows, goal="size").to_dict()
    assert (stored["tolerance"], stored["for"], stored["not_asked"]) == (0.01, "size", [])
    (answer,) = stored["answers"]
    assert (answer["title"], answer["layers"], answer["n"]) == ("Smallest model", [1, 2], 6)
    assert answer["difference"] == pytest.approx(0.0, abs=1e-9)
    assert answer["compared"][0]["n"] == 6
    (unasked,) = recommend(rows, goal="features").to_dict()["not_asked"]
    assert unasked["question"] == "features"
    assert unasked["title"] == "Frozen features"


@pytest.mark.parametrize("tolerance", [0.0, -0.01, math.inf, math.nan])
def test_a_loss_is_a_positive_number(tolerance):
    with pytest.raises(WhichlayersError, match="must be above 0"):
        recommend(pd.DataFrame(), tolerance=tolerance)


def test_only_the_model_task_and_size_that_did_not_learn_gets_no_answer():
    """Finetuning of model m on SST-2 with 500 examples scores as guessing does; others score higher."""
    full, other = (
        frame("prune", {("all pretrained", 0): scores}, untouched=True, guess=0.8)
        for scores in (SHARED, SHARED + 0.1)
    )
    small, other_small = (
        frame("prune", {("top", 1): scores}) for scores in (SHARED + NOISE, SHARED + 0.1 + NOISE)
    )
    small, other_small = (f.assign(order=[(1, 2, 3, 4, 5)] * len(f)) for f in (small, other_small))
    changes = [{"model": "n", "model_fingerprint": "g"}, {"task": "RTE"}, {"train_size": 5000}]
    parts = [full, small] + [part.assign(**change) for change in changes for part in (other, other_small)]
    probes = frame(
        "probing",
        {("", 6): SHARED + 0.1, ("", 3): SHARED + 0.1 + NOISE},
        untouched=True,
        guess=0.8,
        kind="probe",
    )
    found = recommend(pd.concat([*parts, probes], ignore_index=True), tolerance=0.02)
    verdicts = {(a.question, a.model, a.task, a.train_size): a.verdict for a in found.answers}
    assert verdicts == {
        ("smallest", "m", "SST-2", 500): "not learned",
        ("smallest", "n", "SST-2", 500): "recommended",
        ("smallest", "m", "RTE", 500): "recommended",
        ("smallest", "m", "SST-2", 5000): "recommended",
        ("features", "m", "SST-2", 500): "nothing to gain",
    }
    blank = found.of("smallest")[0]
    assert (blank.choice, blank.layers, blank.trial_id, blank.n, blank.outlook) == ("", None, None, 0, "")
    assert blank.text.startswith(
        "No answer: the model did not learn this task, so no layer can matter. It scores 79.9 "
    )
