"""Facts of the sections of reproduction.md about all claims: what holds where, why claims fail, what was not run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
from recompute import RESULTS, subjects
from reproduction_mpnet import REBUILT, TASKS
from reproduction_numbers import (
    MPNET,
    RECIPES,
    SMALL,
    TAMKIN,
    claims,
    gain,
    mean,
    points,
    pts,
    published,
    test_of,
    trial_counts,
)  # fmt: skip
from reproduction_words import CORPORA, FINETUNED, upper_change
from scipy import stats

from whichlayers.analysis.claims.base import BELOW_MARGIN, FAILS, HOLDS
from whichlayers.analysis.claims.singh2020 import movement
from whichlayers.analysis.incremental_curves import early_gain_fractions
from whichlayers.analysis.intervals import PairedDifference, paired_difference, t_interval
from whichlayers.text import join_list

SIZES_OF_TASKS = {
    "SST-2": 10_000,
    "CoLA": 8551,
    "RTE": 2490,
    "MRPC": 3668,
    "QNLI": 12_096,
}  # of the word studies


def by_agreement() -> dict[str, list[str]]:
    """Claims by whether their verdicts agree over studies, models and tasks: holding, small, failing or mixed.

    Small are those that fail nowhere, and whose effect is below the margin somewhere. Where trials do not suffice, a
    claim is not decided.
    """
    found: dict[str, list[str]] = {"holding": [], "small": [], "failing": [], "mixed": []}
    for claim in dict.fromkeys(one.claim for one in subjects()):
        verdicts = [one.verdict for one in subjects() if one.claim == claim]
        holds, small, fails = (verdicts.count(v) for v in (HOLDS, BELOW_MARGIN, FAILS))
        decided = holds + small + fails
        if decided == 0:
            continue
        text = f"{claim} ({holds} of {decided}{f', {small} below the margin' if small else ''})"
        if fails:
            found["mixed" if holds + small else "failing"].append(text)
        else:
            found["small" if small else "holding"].append(text)
    return found


def reasons() -> Iterator[str]:
    """Likely reasons for claims that fail, with tests."""
    yield from _small_k()
    yield from _probes()
    yield from _norms()
    yield from _weak_pretraining()
    yield from _order_of_three_layers()
    yield from _numbers_of_examples()


def _share(curve: list[float], k: int) -> float:
    return (curve[k] - curve[0]) / (curve[-1] - curve[0])


def _small_k() -> Iterator[str]:
    shares = {n: _share([published("SST-2", str(n), k) for k in range(13)], 4) for n in (500, 5000)}
    yield f"At k = 4 the published curves have {pts(shares[500], 0)}% of the gain with 500 examples and {pts(shares[5000], 0)}% with 5,000"
    curves = {
        n: [mean(TAMKIN, experiment="incremental", task="SST-2", train_size=n, x=k) for k in range(13)]
        for n in (500, 5000)
    }
    yield f"here {pts(_share(curves[500], 4), 0)}% and {pts(_share(curves[5000], 4), 0)}%"
    flat = [published("SST-2", "500", k) for k in range(4)]
    assert max(flat) - min(flat) < 0.005
    yield f"BERT-Base stays at {pts(flat[0])}, near chance, up to k = 3, while all-mpnet-base-v2 reaches {pts(curves[500][0])} with no pretrained layer"
    starts = mean(SMALL, experiment="incremental", task="SST-2", train_size=500, x=0)
    yield f"carryover-bert-small, a masked language model, reaches {pts(starts)}"
    early, d = small_k_by_recipe()
    yield f"small k (mean over k = 1 to 4) reach {pts(early['as_described'].mean(), 0)}% of the gain with either recipe (difference {pts(d.mean)} percentage points, {pts(d.low)} to {pts(d.high)})"
    assert pts(early["as_described"].mean(), 0) == pts(early["as_released"].mean(), 0)


def small_k_by_recipe() -> tuple[dict[str, pd.Series], PairedDifference]:
    """Fraction of the gain at small k on CoLA by recipe, one value per seed, and the paired difference."""
    rows = points(RECIPES)
    early = {r: early_gain_fractions(rows[rows["recipe"] == r]) for r in ("as_described", "as_released")}
    return early, paired_difference(early["as_described"], early["as_released"])


def probe_curves() -> list[list[float]]:
    """Scores of the probes of layers 1 to 12 on CoLA at the paper's learning rate, and at the default one."""
    return [
        [mean(study, experiment="probing", task="CoLA", x=k) for k in range(1, 13)]
        for study in (TAMKIN, MPNET)
    ]


def _probes() -> Iterator[str]:
    new, old = probe_curves()
    best = [int(np.argmax(curve)) + 1 for curve in (new, old)]
    r = [test_of(study, "T2", "CoLA: correlation with probing at").effect for study in (TAMKIN, MPNET)]
    yield f"probes trained at 2e-5 reach at most {pts(max(new))} (layer {best[0]}) and {pts(new[-1])} at layer 12; at 1e-3, with early stopping in both, {pts(max(old))} (layer {best[1]}) and {pts(old[-1])}, and the correlation with the curve at 5,000 examples is {r[1]:.2f} instead of {r[0]:.2f}"


@cache
def norm_ratios() -> dict[tuple[str, str, int], pd.Series]:
    """(norm, task, size) -> log ratio of the movement of the upper to that of the lower half, one value per seed."""
    weights = pd.read_csv(RESULTS / TAMKIN / "weight_change.csv.gz")
    ratios = {}
    for norm in ("frobenius", "spectral"):
        for (task, size), rows in movement(points(TAMKIN), weights, norm).groupby(["task", "train_size"]):
            table = rows.pivot(index="seed", columns="layer", values="value")
            upper, lower = table.loc[:, 7:].mean(axis=1), table.loc[:, :6].mean(axis=1)
            ratios[norm, task, size] = np.log(upper / lower)
    return ratios


def _norms() -> Iterator[str]:
    ratios = norm_ratios()
    spectral = [values for (norm, *_), values in ratios.items() if norm == "spectral"]
    assert all(t_interval(values).low > np.log(1.05) for values in spectral)
    factors = [float(np.exp(values.mean())) for values in spectral]
    yield f"by the spectral norm, which their code computes, the upper half moves more in all {len(factors)} cases, {min(factors):.1f} to {max(factors):.1f} times as far as the lower half"
    changes = []
    for task in TASKS:
        few, many = (ratios["frobenius", task, n] for n in (500, 5000))
        d = paired_difference(many, few)
        assert d.high < 0
        changes.append(float(np.exp(few.mean())))
        changes.append(float(np.exp(many.mean())))
    a, b, c, d, e, f = (f"{value:.2f}" for value in changes)
    yield f"its ratio falls with ten times the data on every task (SST-2 {a} to {b}, CoLA {c} to {d}, QNLI rebuilt {e} to {f}; all significant, paired by seed)"


def _weak_pretraining() -> Iterator[str]:
    sst, qnli = claims(SMALL)["S3"].tests
    more = mean(SMALL, experiment="incremental", task="SST-2", train_size=5000, x=0) - mean(
        SMALL, experiment="incremental", task="SST-2", train_size=500, x=0
    )
    yield f"its pretraining adds {pts(gain(SMALL, 'SST-2', 500).gain)} points with 500 examples, ten times the examples {pts(more)}"
    yield f"On QNLI, where pretraining adds {pts(gain(SMALL, 'QNLI', 500).gain)}, S3 holds by {pts(-qnli.effect)}"
    assert (sst.verdict, qnli.verdict) == ("does not hold", "holds")


def _order_of_three_layers() -> Iterator[str]:
    rows = points(SMALL).query("experiment == 'permutation' and task == 'QNLI' and condition == 'permuted'")
    in_order = np.array([order.index(3) < order.index(4) < order.index(5) for order in rows["order"]])
    kept, others = rows["value"][in_order], rows["value"][~in_order]
    p = stats.mannwhitneyu(kept, others, alternative="greater", method="exact").pvalue
    yield f"The {len(kept)} permutations that keep layers 3, 4 and 5 in order average {pts(kept.mean())}, the other {len(others)} {pts(others.mean())} (p = {p:.3f}, exact rank test)"


def _numbers_of_examples() -> Iterator[str]:
    found = []
    for model in (SMALL, MPNET):
        lost = [-np.mean([upper_change(model, corpus, task) for corpus in CORPORA]) for task in FINETUNED]
        rho = stats.spearmanr([SIZES_OF_TASKS[task] for task in FINETUNED], lost).statistic
        found.append(f"{rho:.1f}")
    yield f"Over the five tasks, the drop in the upper layers and the number of training examples have a rank correlation of {found[0]} in carryover-bert-small and {found[1]} in all-mpnet-base-v2"


def not_run() -> Iterator[str]:
    """Trials that are left of the study at the paper's trials."""
    counts = trial_counts(TAMKIN).query("status != 'done'").groupby("experiment")["trials"].sum()
    order = ("localized", "incremental", "probing", "single_layer", "permutation", "epochs")
    assert set(counts.index) == set(order)
    names = {
        "localized": "re-initialized and preserved blocks",
        "incremental": "five times the learning rate and kept layer norms",
        "probing": f"probing of SST-2 and {REBUILT}",
        "single_layer": "single layers",
        "permutation": f"permutations on SST-2 and {REBUILT}",
        "epochs": "longer training",
    }
    yield (
        f"{counts.sum():,} trials of the study of all-mpnet-base-v2 at the paper's trials are left: "
        + join_list(f"{names[name]} ({counts[name]})" for name in order)
    )
