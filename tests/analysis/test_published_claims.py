"""The published numbers have the sign and size that the claims ask for, and trials simulated around them hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from whichlayers.analysis.claims import ClaimThresholds
from whichlayers.analysis.claims.durrani2021 import d1, d2, d3, d4
from whichlayers.analysis.claims.singh2020 import s3, s4
from whichlayers.analysis.claims.tamkin2020_sizes import t1
from whichlayers.analysis.correlations import correlate
from whichlayers.analysis.incremental_curves import small_ks
from whichlayers.analysis.published import (
    PUBLISHED_FAMILIES,
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
@pytest.mark.parametrize("family", PUBLISHED_FAMILIES)
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
    compared = [test for test in found.tests if test.about.endswith("against BERT")]
    assert len(compared) == 2 * len(CORPORA) * len(TASKS)
    test = next(t for t in compared if t.about == "PMB:sem after SST-2: bottom neurons, xlnet against BERT")
    loss = {
        family: published_word_probing(family, "PMB:sem", "SST-2")["bottom"]
        - published_word_probing(family, "PMB:sem", "")["bottom"]
        for family in ("bert", "xlnet")
    }
    assert test.effect == pytest.approx(loss["xlnet"] - loss["bert"], abs=0.003)


def test_d3_fails_if_roberta_behaves_as_bert_and_says_nothing_of_other_families():
    assert d3(neuron_rows(["roberta"], bert_like=["roberta"]), THRESHOLDS).verdict != "holds"
    other = d3(neuron_rows(["mpnet"], bert_like=["mpnet"]), THRESHOLDS)
    assert other.verdict == "not tested"
    assert "no claim about other models and tasks" in other.details


@pytest.mark.parametrize("family", PUBLISHED_FAMILIES)
def test_d4_holds_around_the_published_numbers(family):
    rows = []
    for task in ("SST-2", "MNLI", "QNLI"):
        published = published_pruning(family, task)
        assert published["prune bottom 6"] < published["prune top 6"] - MARGIN
        for condition in ("top", "bottom"):
            row = {"task": task, "condition": condition, "value": published[f"prune {condition} 6"]}
            rows.append(row | {"model": family, "family": family, "x": 6})
    assert d4(frame(rows, experiment="prune"), THRESHOLDS).verdict == "holds"


def test_d4_dropped_bottom_layers_cost_roberta_and_xlnet_more_than_bert_on_average_over_tasks():
    """Table 2: on QNLI alone, XLNet and BERT both lose 7.4 points."""
    tasks, loss = ("SST-2", "MNLI", "QNLI"), {}
    rows = []
    for family in PUBLISHED_FAMILIES:
        published = {task: published_pruning(family, task) for task in tasks}
        loss[family] = np.mean([published[t]["prune bottom 6"] - published[t]["none"] for t in tasks])
        for task in tasks:
            row = {"task": task, "model": family, "family": family, "train_size": len(task)}
            parts = (
                ("top", 6, "prune top 6"),
                ("bottom", 6, "prune bottom 6"),
                ("all pretrained", 0, "none"),
            )
            rows += [row | {"condition": c, "x": x, "value": published[task][q]} for c, x, q in parts]
    found = d4(frame(rows, experiment="prune"), THRESHOLDS)
    assert found.verdict == "holds"
    compared = {test.about: test.effect for test in found.tests if "against BERT" in test.about}
    about = "MNLI, QNLI and SST-2: bottom 6 dropped against none"
    assert compared == {
        f"{about}, roberta against BERT": pytest.approx(loss["roberta"] - loss["bert"], abs=0.002),
        f"{about}, xlnet against BERT": pytest.approx(loss["xlnet"] - loss["bert"], abs=0.002),
    }
    assert max(compared.values()) < -MARGIN
    alike = [row | {"value": 0.8 if row["condition"] == "bottom" else 0.9} for row in rows]
    assert d4(frame(alike, experiment="prune"), THRESHOLDS).verdict == "does not hold"
    one = [row for row in rows if row["family"] == "bert" or row["task"] == "SST-2"]
    names = [
        t.about for t in d4(frame(one, experiment="prune"), THRESHOLDS).tests if "against BERT" in t.about
    ]
    assert names[0] == "SST-2: bottom 6 dropped against none, roberta against BERT"


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
    assert d1(probing_rows("bert", {"RTE": 0.01, "MRPC": 0.0}), THRESHOLDS).verdict == "not tested"
    assert d1(probing_rows("bert", {"CoLA": 0.1}), THRESHOLDS).verdict == "not tested"


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
    assert d2(spread_rows("mpnet", 0.8), THRESHOLDS).verdict == "not tested"


def test_d1_and_d2_compare_the_architectures_of_a_study():
    """The drop is "much more catastrophic" in RoBERTa and XLNet, and BERT's top neurons do not move."""
    worse = {task: loss + (0.2 if loss > 0.05 else 0.0) for task, loss in AS_DESCRIBED.items()}
    for more, verdict in ((worse, "holds"), (AS_DESCRIBED, "does not hold")):
        points = pd.concat([probing_rows("bert", AS_DESCRIBED), probing_rows("xlnet", more)])
        found = d1(points, THRESHOLDS)
        compared = [test for test in found.tests if test.about.endswith("xlnet against BERT")]
        assert len(compared) == 3
        assert compared[0].effect == pytest.approx(-0.2 if more is worse else 0.0, abs=0.002)
        assert found.verdict == verdict
    for shift, verdict in ((0.8, "holds"), (0.0, "does not hold")):
        found = d2(pd.concat([spread_rows("bert", 0.0), spread_rows("roberta", shift)]), THRESHOLDS)
        assert (
            found.tests[-1].about
            == "UD-EWT:xpos after SST-2: mean layer of the top neurons, roberta against BERT"
        )
        assert found.tests[-1].verdict == verdict
        assert found.tests[-1].unit == "layers"


# --- Singh & Giovanardi 2020 ---


def singh_curves(experiment):
    curves = published_curves().query(f"experiment == '{experiment}' and source == 'singh-giovanardi-cs224n'")
    curves = curves[curves["task"].isin(["SST-2", "QNLI"])]
    return {key: rows.set_index("x")["value"] for key, rows in curves.groupby(["task", "train_size"])}


SIZES = {"SST-2": 67_349, "QNLI": 104_743}


def test_s3_holds_around_the_published_curves():
    curves, rows = singh_curves("incremental"), []
    for (task, size), curve in curves.items():
        if size != "1%":
            assert curve[0] < curves[task, "1%"][12] - MARGIN
        row = {"model": "bert", "task": task, "train_size": round(SIZES[task] * float(size[:-1]) / 100)}
        rows += [row | {"x": x, "value": value} for x, value in curve.items()]
    found = s3(frame(rows, experiment="incremental"), THRESHOLDS)
    assert found.verdict == "holds"
    assert [test.about.partition(":")[0] for test in found.tests] == ["QNLI", "QNLI", "SST-2", "SST-2"]
    expected = curves["SST-2", "100%"][0] - curves["SST-2", "1%"][12]
    test = next(t for t in found.tests if "67,349" in t.about)
    assert test.about == "SST-2: 67,349 examples without pretrained layers against 673 with all"
    assert test.effect == pytest.approx(expected, abs=0.002)
    scratch = [row | {"value": 0.95 if row["x"] == 0 else 0.85} for row in rows]
    assert s3(frame(scratch, experiment="incremental"), THRESHOLDS).verdict == "does not hold"


def test_s4_holds_around_the_published_curves():
    rows = []
    for (task, _), curve in singh_curves("probing").items():
        assert curve[[11, 12]].mean() < curve[10] - MARGIN
        rows += [{"model": "bert", "task": task, "x": x, "value": value} for x, value in curve.items()]
    found = s4(frame(rows, experiment="probing"), THRESHOLDS)
    assert found.verdict == "holds"
    assert found.tests[1].about == "SST-2: layers 11 and 12 against 10"
    assert found.tests[1].effect == pytest.approx((0.69 + 0.611) / 2 - 0.726, abs=0.002)
    rising = [row | {"value": 0.5 + 0.03 * row["x"]} for row in rows]
    assert s4(frame(rising, experiment="probing"), THRESHOLDS).verdict == "does not hold"
