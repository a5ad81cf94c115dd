"""Numbers, tables and figures of the report, computed from results/ and benchmarks/results.

Every number of report.typ comes from `numbers`: text under a name, or a table as a list of rows.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "results")]

from recompute import read_points, studies, subjects  # noqa: E402
from reproduction_mpnet import REBUILT, TASKS, falling  # noqa: E402
from reproduction_numbers import (  # noqa: E402
    MPNET,
    RECIPES,
    RESULTS,
    SMALL,
    TAMKIN,
    early_gain,
    finished_and_planned,
    gain,
    mean,
    points,
    pts,
    published,
    run_of,
    same_trials,
    step,
    steps,
    test_of,
    trial_counts,
    values,
    wall_minutes,
)  # fmt: skip
from reproduction_reasons import by_agreement, norm_ratios, probe_curves, small_k_by_recipe  # noqa: E402
from reproduction_words import CORPORA, FINETUNED, upper_change  # noqa: E402

from whichlayers.analysis.claims.base import BELOW_MARGIN, FAILS, HOLDS, UNDECIDED  # noqa: E402
from whichlayers.analysis.intervals import paired_difference  # noqa: E402
from whichlayers.analysis.published import published_pruning  # noqa: E402
from whichlayers.plots.claims_grid import TITLES, draw_claims_grid  # noqa: E402
from whichlayers.plots.draw_layers import draw_layers  # noqa: E402
from whichlayers.plots.extra_figures import extra_figures  # noqa: E402
from whichlayers.plots.figures import draw, save_as  # noqa: E402
from whichlayers.plots.layer_diagram import layer_diagrams  # noqa: E402
from whichlayers.report.claim_table import effect_text  # noqa: E402
from whichlayers.text import join_list  # noqa: E402
from whichlayers.version import __version__  # noqa: E402

BENCHMARKS = ROOT / "benchmarks" / "results"


def numbers() -> dict[str, Any]:
    """All numbers of the report by name."""
    return _with_minus_signs(
        {
            "version": __version__,
            **_subjects(),
            **_engine(),
            **_incremental(),
            **_claims(),
            **_words(),
            **_text_and_code(),
        }
    )


def _with_minus_signs(value: Any) -> Any:
    """Text, also inside dicts and lists, with a minus sign in place of the hyphen before a number."""
    if isinstance(value, dict):
        return {name: _with_minus_signs(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_minus_signs(item) for item in value]
    return re.sub(r"(?<![\w.])-(?=\d)", "−", value)


def draw_figures(folder: Path) -> None:
    """claims.svg, incremental.svg, layers.svg and weight_change.svg."""
    save_as(draw_claims_grid(subjects()), folder / "claims.svg")
    rows = points(TAMKIN).assign(train_rows=np.nan)  # published sizes are numbers of examples, not fractions
    save_as(draw(rows, "incremental", overlay=True), folder / "incremental.svg")
    save_as(draw_layers(layer_diagrams(rows[rows["experiment"] == "incremental"])[0]), folder / "layers.svg")
    weights = pd.read_csv(RESULTS / TAMKIN / "weight_change.csv.gz")
    further = {figure.key: figure for figure in extra_figures(rows, weights=weights)}
    save_as(further["weight_change"].draw(), folder / "weight_change.svg")
    save_as(further["weight_change_scaled"].draw(), folder / "weight_change_scaled.svg")


def _subjects() -> dict[str, Any]:
    rows, all_trials = [], 0
    for folder in studies():
        found = read_points(folder)
        tasks = list(dict.fromkeys(found["task"]))
        depths = join_list(f"{depth:.0f}" for depth in dict.fromkeys(found["depth"]))
        trials = found["trial_id"].nunique()
        all_trials += trials
        rows.append([folder.name, depths, join_list(tasks), f"{trials:,}"])
    models = {str(model) for folder in studies() for model in read_points(folder)["model"]}
    done, planned = finished_and_planned(TAMKIN)
    left = trial_counts(TAMKIN).query("status != 'done'")["trials"].sum()
    same, apart, correlation = same_trials(TAMKIN, MPNET)
    return {
        "studies": rows,
        "n_studies": str(len(rows)),
        "n_models": str(len(models)),
        "all_trials": f"{all_trials:,}",
        "done": f"{done:,}",
        "planned": f"{planned:,}",
        "left": f"{left:,}",
        "steps": run_of(TAMKIN)[1].removesuffix(" trial-steps"),
        "minutes": f"{wall_minutes(TAMKIN):.0f}",
        "same_trials": str(same),
        "same_apart": pts(apart),
        "same_correlation": f"{correlation:.4f}",
    }


def _engine() -> dict[str, Any]:
    table = []
    for file, workloads in (("h200", ("32", "64", "128")), ("h200-second", ("SST-2",))):
        rows = json.loads((BENCHMARKS / f"{file}.json").read_text(encoding="utf-8"))["rows"]
        for workload in workloads:
            of_workload = [row for row in rows if str(row["workload"]) == workload]
            (ours,) = (row for row in of_workload if row["way"] == "whichlayers")
            rivals = {r["way"]: r["trial_steps_per_s"] for r in of_workload if r["way"] != "whichlayers"}
            trainer = next(rate for way, rate in rivals.items() if "Trainer" in way)
            rate, best = ours["trial_steps_per_s"], max(rivals.values())
            name = "real SST-2 batches" if workload == "SST-2" else f"{workload} tokens"
            table.append(
                [name, str(ours["trials"]), f"{rate:.0f}", f"{rate / best:.0f}", f"{rate / trainer:.0f}"]
            )
    packed = json.loads((BENCHMARKS / "h200-packed.json").read_text(encoding="utf-8"))
    of_sst = [row for row in _rows(packed) if row["task"] == "SST-2"]
    sst = {row["packed"]: row["trial_steps_per_s"] for row in of_sst}
    cpu = re.search(r"ratios are ([\d.]+)x, ([\d.]+)x", (BENCHMARKS / "cpu.md").read_text(encoding="utf-8"))
    assert cpu is not None
    return {
        "speed": table,
        "packed_trials": str(of_sst[0]["trials"]),
        "packed": f"{sst[True]:,.0f}",
        "padded": f"{sst[False]:,.0f}",
        "cpu_one": cpu[1],
        "cpu_two": cpu[2],
    }


def _rows(stored: Any) -> list[dict[str, Any]]:
    """The rows of a benchmark file, which is a list of rows or has them under a key."""
    return stored if isinstance(stored, list) else stored["rows"]


def _incremental() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for task, name in zip(TASKS, ("sst", "cola", "qnli"), strict=True):
        for size in (500, 5000):
            one = gain(TAMKIN, task, size)
            found[f"gain_{name}_{size}"] = pts(one.gain)
            found[f"k90_{name}_{size}"] = str(int(one.reaches_90))
        early = early_gain(TAMKIN, task)
        sign = -1 if early.mean < 0 else 1
        ends = sorted((sign * early.low, sign * early.high))
        found[f"early_{name}"] = f"{pts(sign * early.mean, 0)} ({pts(ends[0], 0)} to {pts(ends[1], 0)})"
        found[f"interaction_{name}"] = pts(test_of(TAMKIN, "T1", f"{task}: interaction").effect)
    found["zero_sst"] = pts(mean(TAMKIN, experiment="incremental", task="SST-2", train_size=500, x=0))
    found["zero_small"] = pts(mean(SMALL, experiment="incremental", task="SST-2", train_size=500, x=0))
    found["zero_published"] = pts(published("SST-2", "500", 0))
    falls = [f"layer {k} on {task} by {pts(-step(TAMKIN, task, 500, k).mean)}" for task, k in falling()]
    found["falls"] = join_list(falls)
    found["n_falls"] = str(len(falls))
    curve = [values(TAMKIN, experiment="incremental", task="CoLA", train_size=500, x=k) for k in range(13)]
    best = int(np.argmax([scores.mean() for scores in curve]))
    d = paired_difference(curve[best], curve[12])
    found["cola_k"] = str(best)
    widths = steps(TAMKIN).query("train_size == 500").assign(half=lambda t: (t["high"] - t["low"]) / 2)
    for task, name in zip(TASKS, ("sst", "cola", "qnli"), strict=True):
        found[f"half_{name}"] = pts(widths.loc[widths["task"] == task, "half"].max())
    found["cola_best"] = f"{pts(d.mean)} ({pts(d.low)} to {pts(d.high)})"
    lost = test_of(TAMKIN, "T4", "CoLA: permuted")
    found["permuted"] = f"{pts(-lost.effect)} ({pts(-lost.high)} to {pts(-lost.low)})"
    sst, qnli = (test_of(TAMKIN, "S3", task).effect for task in ("SST-2", REBUILT))
    found["s3_sst"], found["s3_qnli"] = pts(-sst), pts(-qnli)
    moved = [float(np.exp(test_of(TAMKIN, "S2", task).effect)) for task in TASKS]
    found["s2"] = f"{min(moved):.1f} to {max(moved):.1f}"
    small = [mean(SMALL, experiment="localized", task="QNLI", condition=c, x=x)
             for c, x in (("block preserved", 3), ("all pretrained", 0), ("none pretrained", 0))]  # fmt: skip
    found["block"], found["block_all"], found["block_none"] = map(pts, small)
    return found


def _claims() -> dict[str, Any]:
    agreement = by_agreement()
    for claim in ("S2", "T4", "D4"):  # of which the abstract says that they carry over
        texts = agreement["small" if claim == "D4" else "holding"]
        assert any(text.startswith(f"{claim} ") for text in texts), f"{claim} does not hold everywhere"
    of_tests = [one for one in subjects() if one.test is not None]
    counts = {v: sum(one.verdict == v for one in of_tests) for v in (HOLDS, FAILS, UNDECIDED)}
    ratios = norm_ratios()
    spectral = [float(np.exp(v.mean())) for (norm, *_), v in ratios.items() if norm == "spectral"]
    frobenius = [f"{task} {np.exp(ratios['frobenius', task, 500].mean()):.2f} to "
                 f"{np.exp(ratios['frobenius', task, 5000].mean()):.2f}" for task in TASKS]  # fmt: skip
    new, old = probe_curves()
    recipes, d = small_k_by_recipe()
    correlations = [test_of(s, "T2", "CoLA: correlation with probing at").effect for s in (TAMKIN, MPNET)]
    sst = test_of(MPNET, "T2", "SST-2: correlation with probing at")
    assert [test_of(s, "T2", "CoLA: correlation with probing at").verdict for s in (TAMKIN, MPNET)] == [
        HOLDS
    ] * 2
    share = [(published("SST-2", n, 4) - published("SST-2", n, 0))
             / (published("SST-2", n, 12) - published("SST-2", n, 0)) for n in ("500", "5000")]  # fmt: skip
    rows = []
    for claim in dict.fromkeys(one.claim for one in of_tests):
        verdicts = [one.verdict for one in of_tests if one.claim == claim]
        count = [verdicts.count(v) for v in (HOLDS, BELOW_MARGIN, FAILS, UNDECIDED)]
        rows.append([claim, TITLES[claim], *(str(c) if c else "" for c in count)])
    shown = [
        [one.claim, one.model, one.task, one.verdict_label, effect_text(one.test), str(one.test.n)]
        for one in of_tests
        if one.claim in ("T1", "T2", "S3") and one.verdict in (HOLDS, FAILS, BELOW_MARGIN)
    ]
    return {
        "counts": rows,
        "effects": shown,
        "holding": join_list(agreement["holding"]),
        "small": join_list(agreement["small"]),
        "failing": join_list(agreement["failing"]),
        "mixed": join_list(agreement["mixed"]),
        "verdicts": str(len(of_tests)),
        "verdicts_hold": str(counts[HOLDS]),
        "verdicts_fail": str(counts[FAILS]),
        "verdicts_open": str(counts[UNDECIDED]),
        "spectral": f"{min(spectral):.1f} to {max(spectral):.1f}",
        "frobenius": join_list(frobenius),
        "probe_new": pts(max(new)),
        "probe_old": pts(max(old)),
        "r_new": f"{correlations[0]:.2f}",
        "r_old": f"{correlations[1]:.2f}",
        "r_sst": f"{sst.effect:.2f}",
        "early_recipe": pts(recipes["as_described"].mean(), 0),
        "early_recipe_difference": f"{pts(d.mean)}, {pts(d.low)} to {pts(d.high)}",
        "published_500": pts(share[0], 0),
        "published_5000": pts(share[1], 0),
    }


def _words() -> dict[str, Any]:
    changes = {m: [upper_change(m, c, t) for c in CORPORA for t in FINETUNED] for m in (MPNET, SMALL)}
    dropped = {m: test_of(f"{m}-words", "D4", "QNLI").effect for m in (MPNET, SMALL)}
    bert = published_pruning("bert", "QNLI")
    table = [
        [model, name, *(pts(upper_change(model, corpus, task)) for task in FINETUNED)]
        for model in (MPNET, SMALL)
        for corpus, name in CORPORA.items()
    ]
    return {
        "words": table,
        "finetuned": list(FINETUNED),
        "words_mpnet": f"{pts(-max(changes[MPNET]))} to {pts(-min(changes[MPNET]))}",
        "words_small": f"{pts(-max(changes[SMALL]))} to {pts(-min(changes[SMALL]))}",
        "drop_mpnet": pts(-dropped[MPNET]),
        "drop_small": pts(-dropped[SMALL]),
        "drop_bert": pts(bert["prune top 6"] - bert["prune bottom 6"]),
    }


def _text_and_code() -> dict[str, Any]:
    text, code = (stats.truncnorm(-b, b, scale=0.02).std() for b in (2, 0.04))
    # the interval of the code: 2.667 / sqrt(n) times the standard deviation over n
    covered = {n: 2 * stats.t.cdf(2.667 * np.sqrt((n - 1) / n), n - 1) - 1 for n in (3, 50)}
    found = [
        paired_difference(*(values(RECIPES, x=k, recipe=r) for r in ("as_described", "as_released")))
        for k in range(3)
    ]
    return {
        "truncation": f"{text / code:.0f}",
        "coverage_3": f"{100 * covered[3]:.0f}",
        "coverage_50": f"{100 * covered[50]:.1f}",
        "recipe": join_list(
            f"{pts(d.mean)} (k\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{k})" for k, d in enumerate(found)
        ),
        "results_mb": f"{sum(p.stat().st_size for p in RESULTS.rglob('*') if p.is_file()) / 1e6:.1f}",
    }
