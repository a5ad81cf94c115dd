"""The measured part of docs/freezing.md is what the results in results/ give."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from synthetic_results import trial, write_results

from whichlayers.conditions import own_lr
from whichlayers.results.frames import finished, load_points
from whichlayers.trial import Adapter, Point, Training

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "freezing.md").read_text(encoding="utf-8")


def script(path):
    if path.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[path.stem])
    return sys.modules[path.stem]


script(ROOT / "results" / "recompute.py")
check_freezing = script(ROOT / "docs" / "check_freezing.py")


def test_the_page_agrees_with_the_results():
    assert check_freezing.problems(PAGE) == []
    for name in check_freezing.STUDIES:
        assert f"results/{name}/figures/freeze.png" in PAGE


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("| 63.9 ±5.9 |", "| 64.9 ±5.9 |", "the generated part is not up to date"),
        ("| 595,074 |", "| 595,075 |", "the generated part is not up to date"),
        ("SST-2: holds", "SST-2: does not hold", "the generated part is not up to date"),
        ("## What freezing saves", "Freezing all layers costs us 1.2 ±0.3 points here.", "not computed: "),
        ("<!-- generated: studies -->", "", "no generated part"),
    ],
)
def test_another_number_is_found(before, after, problem):
    assert before in PAGE
    (found,) = check_freezing.problems(PAGE.replace(before, after))
    assert found.startswith(problem)


def test_a_table_of_two_tasks(tmp_path):
    """Layer norms gain 0.1 on SST-2 and nothing on CoLA; adapters are in layer 2 of 3.

    `top` and `bottom` have the trial of the baseline: only their names matter here.
    """
    conditions = {
        "all pretrained": (0, {}),
        "top": (2, {}),
        "bottom": (2, {}),
        "norms, lr 0.001": (0, {"training": Training(lr=1e-3)}),
        "head, lr 0.002": (3, {"training": Training(lr=2e-3)}),
        "single": (2, {"adapter": Adapter("lora", (2,), ("query",))}),
    }
    points = [
        Point("freeze", condition, x, trial(task, seed=seed, **settings))
        for task in ("SST-2", "CoLA")
        for seed in range(4)
        for condition, (x, settings) in conditions.items()
    ]

    def score(point):
        gain = 0.1 * (point.condition.startswith("norms") and point.trial.task == "SST-2")
        return 0.5 + gain + 0.01 * (point.trial.seed % 2) * bool(point.trial.training.lr > 1e-4)

    rows = finished(load_points(write_results(tmp_path, points, score, depth=3)))
    adapted = rows["condition"] == "single"
    rows = rows.assign(
        lr=rows["condition"].map(own_lr).fillna(2e-5),
        trained_parameters=1234,
        memory=2e6,
        method=adapted.map({True: "LoRA of rank 8", False: ""}),
        layers=[(2,) if one else () for one in adapted],
    )
    lines = check_freezing.table(rows).splitlines()
    assert lines == [
        "| trained | learning rate | parameters | SST-2: accuracy × 100 | CoLA: Matthews correlation × 100 | "
        "memory per trial |",
        "|---|---|---|---|---|---|",
        "| all parameters | 2e-05 | 1,234 | 50.0 ±0.0 | 50.0 ±0.0 | 2.0 MB |",
        "| layer 3 | 2e-05 | 1,234 | 50.0 ±0.0 | 50.0 ±0.0 | 2.0 MB |",
        "| layer 1 | 2e-05 | 1,234 | 50.0 ±0.0 | 50.0 ±0.0 | 2.0 MB |",
        r"| layer norms | 0.001 | 1,234 | 60.5 ±0.9\* | 50.5 ±0.9 | 2.0 MB |",
        "| head only | 0.002 | 1,234 | 50.5 ±0.9 | 50.5 ±0.9 | 2.0 MB |",
        "| LoRA of rank 8 in layer 2 | 2e-05 | 1,234 | 50.0 ±0.0 | 50.0 ±0.0 | 2.0 MB |",
    ]
