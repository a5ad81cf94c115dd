"""The published numbers have the sign and size that the claims ask for, and trials simulated around them hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.durrani2021 import d1, d2, d3, d4
from whichlayers.analysis.claims.tamkin2020_sizes import t1
from whichlayers.analysis.correlations import correlate
from whichlayers.analysis.incremental_curves import small_ks
from whichlayers.analysis.published import (
    FAMILIES,
    published_correlations,
    published_curves,
    published_pruning,
    published_word_probing,
)

THRESHOLDS = ClaimThresholds()
MARGIN = 0.01
TASKS = ("MRPC", "QNLI", "MNLI", "RTE", "SST-2", "STS-B")
CORPORA = ("UD-EWT:xpos", "CoNLL-2000:chunk", "PMB:sem")
TRIALS = 5


def frame(rows, **columns):
    """Points with all columns that the claims read; `rows` are dicts with a level, repeated over seeds with noise."""
    rng, found = np.random.default_rng(0), []
    for row in rows:
        found += [row | {"seed": s, "value": row["value"] + rng.normal(0, 0.001)} for s in range(TRIALS)]
    settings = {"variant": "", "metric": "accuracy", "depth": 12, "train_size": 5000, "condition": ""}
    settings |= {"keep_layer_norm": False, "reinit_lr_factor": 1.0} | columns
    table = pd.DataFrame(found)
    return table.assign(**{name: value for name, value in settings.items() if name not in table})


# --- Tamkin et al. 2020 ---


def early_fraction(curve):
    at_0, at_12 = curve[0], curve[12]
    return (curve[small_ks(12)].mean() - at_0) / (at_12 - at_0)


def test_published_curves_reach_more_of_the_gain_at_small_k_with_more_data():
    curves = published_curves().query("experiment == 'incremental' and task == 'SST-2'")
    by_size = {
        size: rows.set_index("x")["value"]
        for size, rows in curves.query("source == 'tamkin2020-authors-plots'").groupby("train_size")
    }
    fractions = {size: early_fraction(curve) for size, curve in by_size.items()}
    assert fractions["50000"] - fractions["500"] > THRESHOLDS.gain_margin
    assert fractions["50000"] - fractions["5000"] > THRESHOLDS.gain_margin
    rows = [
        {
            "experiment": "incremental",
            "model": "bert",
            "task": "SST-2",
            "train_size": int(size),
            "x": x,
            "value": v,
        }
        for size, curve in by_size.items()
        for x, v in curve.items()
    ]
    assert t1(frame(rows), THRESHOLDS).verdict == "holds"


def test_published_correlations_of_tasks_are_above_the_margin_and_significant_with_ten_permutations():
    spearman = {pair: r for (pair, kind), (r, _) in published_correlations().items() if kind == "spearman"}
    assert len(spearman) == 3
    rng = np.random.default_rng(1)
    for rho in spearman.values():
        assert rho > THRESHOLDS.task_correlation
        a = rng.normal(size=(400, 10))
        b = rho * a + np.sqrt(1 - rho**2) * rng.normal(size=(400, 10))
        found = next(
            c
            for x, y in zip(a, b, strict=True)
            if (c := correlate(pd.Series(x), pd.Series(y), ranks=True)) and abs(c.r - rho) < 0.02
        )
        assert found.p < 0.05


# --- Durrani et al. 2021 ---


def neuron_rows(families, bert_like=()):
    rows = []
    for family in families:
        for corpus in CORPORA:
            for task in ("", *TASKS):
                source = "bert" if family in bert_like else family
                published = published_word_probing(source, corpus, task)
                for which in ("top", "bottom"):
                    row = {"model": family, "family": family, "task": corpus, "finetuned_on": task}
                    rows.append(row | {"neurons": which, "x": 0, "value": published[which]})
    return frame(rows, experiment="neurons", share=0.05, ranking="lca")


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("family", FAMILIES)
def test_published_losses_of_bottom_neurons_have_the_size_that_d3_asks_for(family, corpus):
    base = published_word_probing(family, corpus, "")
    for task in TASKS:
        after = published_word_probing(family, corpus, task)
        loss = (after["bottom"] - base["bottom"]) - (after["top"] - base["top"])
        assert loss > -MARGIN if family == "bert" else loss < -MARGIN


def test_d3_holds_around_the_published_numbers_of_all_families():
    for families in (["bert"], ["roberta"], ["xlnet"], ["bert", "roberta", "xlnet"]):
        found = d3(neuron_rows(families), THRESHOLDS)
        assert found.verdict == "holds", families
    assert any("against BERT's" in test.about for test in found.tests)


def test_d3_fails_if_roberta_behaves_as_bert_and_says_nothing_of_other_families():
    assert d3(neuron_rows(["roberta"], bert_like=["roberta"]), THRESHOLDS).verdict != "holds"
    other = d3(neuron_rows(["mpnet"], bert_like=["mpnet"]), THRESHOLDS)
    assert other.verdict == "not asked for"
    assert "no claim about other models" in other.details


@pytest.mark.parametrize("family", FAMILIES)
def test_d4_holds_around_the_published_numbers(family):
    rows = []
    for task in ("SST-2", "MNLI", "QNLI"):
        published = published_pruning(family, task)
        assert published["prune bottom 6"] < published["prune top 6"] - MARGIN
        for condition in ("top", "bottom"):
            row = {"task": task, "condition": condition, "value": published[f"prune {condition} 6"]}
            rows.append(row | {"model": family, "family": family, "x": 6})
    assert d4(frame(rows, experiment="prune"), THRESHOLDS).verdict == "holds"


def probing_rows(family, losses, lower=0.0):
    """Layer-wise accuracy; after each task the upper quarter loses what `losses` say, the lower layers `lower`."""
    rows = []
    for task in ("", *losses):
        for layer in range(13):
            loss = losses.get(task, 0.0) if layer > 9 else lower if task and layer <= 4 else 0.0
            row = {"model": family, "family": family, "task": "UD-EWT:xpos", "finetuned_on": task}
            rows.append(row | {"x": layer, "value": 0.95 - loss})
    return frame(rows, experiment="word_probing", neurons="layer", share=1.0)


AS_DESCRIBED = {"SST-2": 0.1, "QNLI": 0.08, "MNLI": 0.06, "RTE": 0.01, "MRPC": 0.0, "STS-B": 0.01}


def test_d1_distinguishes_tasks_that_forget_from_tasks_that_preserve():
    """The paper's first finding: STS-B, RTE and MRPC preserve what SST-2, QNLI and MNLI forget."""
    described = d1(probing_rows("bert", AS_DESCRIBED), THRESHOLDS)
    assert described.verdict == "holds"
    assert len(described.tests) == 9  # two of each task that forgets, one of each that preserves
    all_forget = dict.fromkeys(AS_DESCRIBED, 0.08)
    assert d1(probing_rows("bert", all_forget), THRESHOLDS).verdict == "does not hold"
    none_forget = dict.fromkeys(AS_DESCRIBED, 0.0)
    assert d1(probing_rows("bert", none_forget), THRESHOLDS).verdict == "does not hold"
    assert d1(probing_rows("bert", {"RTE": 0.01, "MRPC": 0.0}), THRESHOLDS).verdict == "not asked for"
    assert d1(probing_rows("bert", {"CoLA": 0.1}), THRESHOLDS).verdict == "not asked for"


def test_d1_allows_roberta_and_xlnet_a_loss_of_less_than_two_points_in_the_lower_layers():
    assert d1(probing_rows("roberta", AS_DESCRIBED, lower=0.014), THRESHOLDS).verdict == "holds"
    assert d1(probing_rows("bert", AS_DESCRIBED, lower=0.014), THRESHOLDS).verdict == "does not hold"
    assert d1(probing_rows("xlnet", AS_DESCRIBED, lower=0.03), THRESHOLDS).verdict == "does not hold"


def spread_rows(family, shift):
    rows = []
    for task in ("", "SST-2"):
        weights = np.ones(13) + (shift * np.linspace(1, -1, 13) if task else 0)
        for layer, value in enumerate(weights / weights.sum()):
            row = {"model": family, "family": family, "task": "UD-EWT:xpos", "finetuned_on": task}
            rows.append(row | {"x": layer, "value": value})
    return frame(rows, experiment="neuron_spread", neurons="top", share=0.05, ranking="lca")


def test_d2_expects_a_shift_in_roberta_and_xlnet_and_none_in_bert():
    for family in ("roberta", "xlnet"):
        assert d2(spread_rows(family, 0.8), THRESHOLDS).verdict == "holds"
        assert d2(spread_rows(family, 0.0), THRESHOLDS).verdict != "holds"
    assert d2(spread_rows("bert", 0.0), THRESHOLDS).verdict == "holds"
    assert d2(spread_rows("bert", 0.8), THRESHOLDS).verdict == "does not hold"
    assert d2(spread_rows("mpnet", 0.8), THRESHOLDS).verdict == "not asked for"
