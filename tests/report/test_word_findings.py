"""Sentences about words say what the numbers say."""

from __future__ import annotations

import pytest
from synthetic_results import write_results
from synthetic_words import forgetting, word_points

from carryover.analysis.frame import finished, load_points
from carryover.report.findings import findings

DEPTH = 6


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    made = word_points(models=("bert-base-uncased",), corpora=("UD-EWT:xpos",), depth=DEPTH)
    return finished(
        load_points(write_results(tmp_path_factory.mktemp("words"), made, forgetting(DEPTH, drop=0.3)))
    )


def test_the_best_layer_and_what_finetuning_costs_the_top(points):
    [found] = findings(points, "word_probing")
    probed = points[points["experiment"] == "word_probing"]
    before = probed[probed["finetuned_on"] == ""]
    best = before.groupby("x")["value"].mean().idxmax()
    assert "UD-EWT:xpos" in found.about
    assert f"layer {best:g} scores highest" in found.sentences[0]
    assert len(found.sentences) == 1 + 2, "one for each task that it was finetuned on"
    top = probed[probed["x"] == DEPTH]
    lost = top[top["finetuned_on"] == "RTE"]["value"].mean() - top[top["finetuned_on"] == ""]["value"].mean()
    told = next(s for s in found.sentences if "Finetuned on RTE" in s)
    assert f"layer {DEPTH} changes by −{abs(lost):.3f}" in told
    assert "3 trials" in told


def test_the_best_neurons_against_the_worst(points):
    [found] = findings(points, "neurons")
    assert found.sentences[0].startswith(
        "As pretrained, the top 5% of the neurons alone are ahead of the bottom 5%"
    )
    assert len(found.sentences) == 3
