"""Parts of recommendations: pairing, texts, savings and costs."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from whichlayers.analysis.recommend import QUESTIONS
from whichlayers.analysis.recommend.base import (
    Answer,
    Candidate,
    describe_interval,
    describe_layers,
    more_trials_text,
    points_of,
    score_matrix,
    training_savings,
)
from whichlayers.analysis.recommend.costs import cost_text
from whichlayers.results.costs import ModelCost

ANSWER = ("freeze", "recommended", "text", "m", "f", "SST-2", 1000, "", "accuracy", "all", 6)


def test_candidates_are_paired_in_the_order_of_seeds():
    def candidate(seeds, values):
        columns = {"seed": seeds, "value": values, "trial_id": [f"t{seed}" for seed in seeds]}
        return Candidate("x", pd.DataFrame(columns))

    one, other = candidate([3, 1, 2], [0.3, 0.1, 0.2]), candidate([1, 3, 4], [0.05, 0.1, 0.9])
    assert one.differences(other) == pytest.approx([0.05, 0.2])
    assert (one.trial_id, one.steps) == ("t1", 0)
    scores, reference = score_matrix([one, one], other)
    assert scores.tolist() == [[0.1, 0.1], [0.3, 0.3]]
    assert reference.tolist() == [0.05, 0.1]


def test_the_title_of_an_answer_and_the_topic_of_a_question():
    assert Answer(*ANSWER).title == "SST-2, 1,000 examples"
    assert (
        dataclasses.replace(Answer(*ANSWER), variant="as released").title
        == "SST-2, 1,000 examples, as released"
    )
    assert Answer(*ANSWER).n == 0
    assert QUESTIONS["adapters"].topic == "layers with adapters"


def test_layers_intervals_and_units_in_words():
    assert describe_layers((1, 3, 5)) == "layers 1, 3 and 5"
    assert describe_layers((1, 2, 4, 5, 6)) == "layers 1-2 and 4-6"
    assert describe_layers((2, 3)) == "layers 2-3"
    assert describe_layers((7,)) == "layer 7"
    text = describe_interval(0.003, -0.0012, 0.0072, 97.5, 1, "mcc")
    assert text == "+0.3 points of Matthews correlation (97.5% interval −0.1 to +0.7, 1 trial)"
    assert (points_of("selectivity"), points_of("compression")) == ("points of selectivity", "compression")


def test_what_it_takes_to_decide_in_words():
    assert more_trials_text(None, None) == (
        "the number of trials it would take cannot be estimated, or is more than 1,000"
    )
    assert (
        more_trials_text(1, None) == "1 more trial of the compared points, less than a minute of one worker"
    )
    assert (
        more_trials_text(3, 0.99) == "3 more trials of the compared points, less than a minute of one worker"
    )
    assert more_trials_text(3, 1.0) == "3 more trials of the compared points, about 1 min 00 s of one worker"
    assert more_trials_text(3, 2.5) == "3 more trials of the compared points, about 2 min 30 s of one worker"


def test_trials_of_a_stack_are_one_measurement_of_time():
    def candidate(seconds, stacks):
        rows = {"seed": range(len(seconds)), "seconds": seconds, "value": 0.9}
        return Candidate("x", pd.DataFrame(rows | ({} if stacks is None else {"stack": stacks})))

    slow, quick = [10.0, 10.001, 10.002, 10.003], [5.0, 5.001, 5.002, 5.003]
    apart = list("abcd")
    assert training_savings(candidate(quick, apart), candidate(slow, apart)) == {
        "training time": pytest.approx(0.5, abs=0.01)
    }
    for stacks in ("aaaa", "aaab", None):  # one or two measurements that happen to agree, or unknown
        mine = None if stacks is None else list(stacks)
        assert training_savings(candidate(quick, mine), candidate(slow, list("cccc"))) == {}
    two = [[10.0, 10.2, 11.0, 10.8], [5.0, 5.2, 5.6, 5.4]]
    assert training_savings(candidate(two[1], list("aabb")), candidate(two[0], list("ccdd"))) == {
        "training time": pytest.approx(0.5, abs=0.02)
    }


def test_time_differs_significantly_in_5_percent_of_comparisons_without_a_difference():
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(1000):
        stacks = np.repeat(np.arange(3), 4)
        sides = []
        for _ in range(2):
            seconds = np.exp(rng.normal(0, 0.3, 3)[stacks] + rng.normal(0, 1e-5, 12))
            rows = {"seed": range(12), "seconds": seconds, "value": 0.9, "stack": stacks.astype(str)}
            sides.append(Candidate("x", pd.DataFrame(rows)))
        found += bool(training_savings(*sides))
    assert found < 70  # of 1000 at a level of 5%; treating trials as independent finds most


def test_savings_that_are_not_known_or_too_small_are_left_out():
    def candidate(seconds, **columns):
        seeds = range(len(seconds))
        rows = {"seed": seeds, "seconds": seconds, "value": 0.9, "stack": [f"1 {seed}" for seed in seeds]}
        return Candidate("x", pd.DataFrame(rows | columns))

    full = candidate([10.0, 11.0, 12.0, 10.5])
    half = candidate([5.0, 5.4, 6.1, 5.2])
    assert training_savings(half, full) == {"training time": pytest.approx(0.5, abs=0.01)}
    slow = training_savings(full, half)
    assert slow == {
        "training time": pytest.approx(
            1 - math.exp(-math.log(1 - training_savings(half, full)["training time"]))
        )
    }
    unknown = candidate([0.0, 5.4, 6.1, 5.2])
    assert training_savings(unknown, full) == training_savings(half, unknown) == {}
    assert training_savings(candidate([5.0]), candidate([10.0])) == {}  # a single trial is not significant
    quick = candidate([0.5, 0.54, 0.61, 0.52])
    assert training_savings(quick, full) == {"training time": pytest.approx(0.95, abs=0.01)}
    quicker = candidate([0.051, 0.054, 0.06, 0.053])
    assert training_savings(quicker, quick) == {"training time": pytest.approx(0.9, abs=0.01)}
    same = [10.0, 10.0]
    assert training_savings(candidate(same, memory=988.0), candidate(same, memory=1000.0)) == {
        "training memory": pytest.approx(0.012)
    }
    assert training_savings(candidate(same, memory=991.0), candidate(same, memory=1000.0)) == {}
    for own, other in ((0.0, 5.0), (5.0, 0.0), (math.nan, 5.0)):
        assert training_savings(candidate(same, memory=own), candidate(same, memory=other)) == {}
    assert training_savings(candidate(same, memory=0.25), candidate(same, memory=0.5)) == {
        "training memory": 0.5
    }
    assert training_savings(candidate(same, memory=5.0), candidate(same)) == {}
    assert training_savings(candidate(same), candidate(same, memory=5.0)) == {}


def test_costs_in_words():
    answer = dataclasses.replace(Answer(*ANSWER), layers=(1, 2), savings={"training time": 0.25})
    small = ModelCost("f", (1, 2), 1_234_567, 4_900_000, 3.21, 128, "cpu")
    full = ModelCost("f", (1, 2, 3, 4, 5, 6), 12_000_000, 48_000_000, 9.9, 128, "cpu")
    assert cost_text(answer, [small, full]) == (
        "1.23M parameters instead of 12M, 4.9 MB on disk instead of 48.0 MB, 3.21 ms per text of 128 tokens instead of "
        "9.9 ms (cpu); 25% less training time."
    )
    for known in ([small], [full], []):
        assert cost_text(answer, known) == "25% less training time."
    tiny = [dataclasses.replace(small, parameters=99_999), dataclasses.replace(full, parameters=100_000)]
    assert cost_text(answer, tiny).startswith("99,999 parameters instead of 0.1M")
    assert cost_text(Answer(*ANSWER), [small, full]) == ""
    trained = dataclasses.replace(Answer(*ANSWER), savings={"trained parameters": 0.5})
    assert cost_text(trained, []) == "50% fewer trained parameters."
