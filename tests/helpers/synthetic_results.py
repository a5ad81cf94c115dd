"""Writes results.db files by the documented schema, so that readers are tested independently of the writer."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from whichlayers.trial import COMPONENTS, Point, Surgery, Training, Trial

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE tasks(fingerprint TEXT PRIMARY KEY, name, kind, metric, metrics, train_rows, guess_scores, class_counts);
CREATE TABLE models(fingerprint TEXT PRIMARY KEY, name, revision, family, depth);
CREATE TABLE trials(id TEXT PRIMARY KEY, model, model_fingerprint, task, task_fingerprint, train_size, seed,
    head, recipe, keep_layer_norm, reinit_lr_factor REAL, trial_json,
    status TEXT CHECK (status IN ('pending', 'running', 'done', 'failed')), error TEXT,
    started REAL, finished REAL, seconds REAL, run_id INTEGER,
    kind, primary_metric, finetuned_on, neurons, share REAL, ranking, reinit, layer_order, epochs, lr REAL, training,
    seed_subset, seed_order, seed_init, seed_head, seed_dropout);
CREATE TABLE points(experiment, condition, x REAL, trial_id, PRIMARY KEY(experiment, condition, x, trial_id));
CREATE TABLE epochs(trial_id, epoch INTEGER, metric TEXT, value REAL, PRIMARY KEY(trial_id, epoch, metric));
CREATE TABLE runs(run_id INTEGER PRIMARY KEY, started REAL, finished REAL, outcome TEXT, host TEXT,
    pid INTEGER, device TEXT, threads INTEGER, versions TEXT, git_commit TEXT, command TEXT);
"""
VERSION_1 = 18  # `trials` had its first 18 columns in version 1
# differs between the trials of a curve, so it is not in `training`
WHAT_IS_TRAINED = ("lr_factors", "parameters")
METRICS = {"CoLA": "mcc", "STS-B": "pearson"}

Score = Callable[[Point], float | str | None]  # a value; None: pending; a text: failed with this error


def write_results(
    folder: Path,
    points: Iterable[Point],
    score: Score,
    *,
    depth: int = 6,
    name: str = "a study",
    version: int = 3,
    epochs: int = 2,
    moved: Callable[[Point, int], float] | None = None,
    train_rows: int = 67349,
    guess: dict[str, float] | None = None,
) -> Path:
    """Write `folder`/results.db with one trial per distinct trial of `points`, and return the folder.

    Args:
        folder: Created if it does not exist.
        points: Points of the study.
        score: The primary metric of each point's trial in the last epoch; the first epoch is lower by 0.1.
        depth: Number of layers of every model.
        name: Name of the study.
        version: schema_version to store; a file of version 1 has the tables of that version.
        epochs: Epochs of every trial.
        moved: How far the output matrix of each layer moved; without it, the table weight_change is empty.
        train_rows: Size of every task's training set.
        guess: Score of guessing of each task or corpus; unknown for those that are not in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(folder / "results.db")
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(SCHEMA)
    meta = {
        "schema_version": version,
        "study_name": name,
        "created": "2026-01-02T03:04:05Z",
        "whichlayers_version": "0.1.0",
    }
    db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    versions = json.dumps({"torch": "2.13.0", "transformers": "5.22.2", "python": "3.11.4"})
    run = (
        1,
        1.7e9,
        1.7e9 + 3723,
        "finished",
        "a-host",
        4242,
        "cpu",
        2,
        versions,
        "0123abcd",
        "whichlayers run study.toml",
    )
    db.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", run)
    db.execute("CREATE TABLE weight_change(trial_id, name, layer, kind, value)")
    seen: set[str] = set()
    for point in points:
        t, result = point.trial, score(point)
        db.execute(
            "INSERT INTO points VALUES (?, ?, ?, ?)", (point.experiment, point.condition, point.x, t.id)
        )
        if t.id in seen:
            continue
        seen.add(t.id)
        data = (
            (t.task_fingerprint, t.task)
            if t.word_probe is None
            else (t.word_probe.fingerprint, t.word_probe.corpus)
        )
        word_probe = (None,) * 4
        if (w := t.word_probe) is not None:
            word_probe = (t.task, w.neurons, w.share, w.ranking)
        metric = METRICS.get(t.task, "accuracy") if t.word_probe is None else t.word_probe.measure
        known = (guess or {}).get(data[1])
        scores = None if known is None else json.dumps({metric: known})
        counts = None if known is None else json.dumps({"no": 40, "yes": 60})
        task = (*data, "classification", metric, json.dumps([metric, "f1"]), train_rows, scores, counts)
        db.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", task)
        family = next((f for f in ("roberta", "xlnet") if f in t.model), "bert")
        model = (t.model_fingerprint, t.model, None, family, depth)
        db.execute("INSERT OR IGNORE INTO models VALUES (?, ?, ?, ?, ?)", model)
        failed = isinstance(result, str)
        status = "failed" if failed else "pending" if result is None else "done"
        factor = dict(t.training.lr_factors).get(depth, 1.0) if t.surgery.reinit else 1.0
        surgery = t.surgery
        row = (t.id, t.model, t.model_fingerprint, data[1], data[0], t.train_size, t.seed, t.head)
        row += (
            surgery.recipe,
            surgery.keep_layer_norm,
            factor,
            t.to_json(),
            status,
            result if failed else None,
        )
        row += (1.7e9, 1.7e9 + 60, 60.0, 1)
        training = {key: value for key, value in asdict(t.training).items() if key not in WHAT_IS_TRAINED}
        row += (t.kind, metric, *word_probe, _layers(surgery.reinit), _layers(surgery.order or ()))
        row += (t.training.epochs, t.training.lr, json.dumps(training, sort_keys=True, separators=(",", ":")))
        row += tuple(dict(t.seeds).get(component) for component in COMPONENTS)
        db.execute(f"INSERT INTO trials VALUES ({','.join('?' * len(row))})", row)
        if status == "done":
            for epoch in range(1, epochs + 1):
                value = result - 0.1 * (epochs - epoch) / max(1, epochs - 1)
                values = {
                    metric: value,
                    "f1": 0.5,
                    "dev_loss": 1 - value,
                    "train_loss": 0.9 - value,
                    "seconds": 30.0,
                }
                if t.word_probe is not None and t.word_probe.measure in ("selectivity", "compression"):
                    values[
                        f"control_{'accuracy' if t.word_probe.measure == 'selectivity' else t.word_probe.measure}"
                    ] = 0.5
                db.executemany(
                    "INSERT INTO epochs VALUES (?, ?, ?, ?)", [(t.id, epoch, m, v) for m, v in values.items()]
                )
        if moved and status == "done":
            for layer in range(1, depth + 1):
                name = f"layer.{layer - 1}.output.dense.weight"
                db.execute(
                    "INSERT INTO weight_change VALUES (?, ?, ?, ?, ?)",
                    (t.id, name, layer, "frobenius", moved(point, layer)),
                )
    db.commit()
    db.close()
    if version == 1:
        downgrade(folder / "results.db")
    return folder


def downgrade(database: Path) -> None:
    """Turn results.db into a file of version 1, as carryover 0.1 wrote it."""
    db = sqlite3.connect(database)
    for column in [row[1] for row in db.execute("PRAGMA table_info(trials)")][VERSION_1:]:
        db.execute(f"ALTER TABLE trials DROP COLUMN {column}")
    for column in ("guess_scores", "class_counts"):
        db.execute(f"ALTER TABLE tasks DROP COLUMN {column}")
    db.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    db.execute("UPDATE meta SET key = 'carryover_version', value = '0.1.0' WHERE key = 'whichlayers_version'")
    db.commit()
    db.close()


def _layers(layers: Iterable[int]) -> str:
    return " ".join(map(str, layers))


def trial(
    task: str = "SST-2", size: int = 500, seed: int = 0, model: str = "bert-base-uncased", **changes
) -> Trial:
    """A trial of `task` with `size` examples; `changes` are further fields of Trial."""
    return Trial(model, f"{model}-fp", task, f"{task}-fp", size, seed, **changes)


def keeping(k: int, depth: int, recipe: str = "as_described", **changes) -> Surgery:
    """The surgery that re-initializes all layers above the first k."""
    return Surgery(reinit=tuple(range(k + 1, depth + 1)), recipe=recipe, **changes)


def incremental(
    tasks=("SST-2",),
    sizes=(500,),
    trials=3,
    depth=6,
    recipes=("as_described",),
    models=("bert-base-uncased",),
    ks=None,
) -> list[Point]:
    """Points of the incremental experiment; `trials` is a number, or one per size."""
    points: dict[tuple[float, str], Point] = {}
    for model in models:
        for task in tasks:
            for size in sizes:
                for recipe in recipes:
                    for k in range(depth + 1) if ks is None else ks:
                        for seed in range(trials[size] if isinstance(trials, dict) else trials):
                            surgery = keeping(k, depth, recipe).canonical()  # the full model runs once
                            t = trial(task, size, seed, model, surgery=surgery)
                            points[k, t.id] = Point("incremental", "", k, t)
    return list(points.values())


def baselines(experiment: str, task: str, size: int, seeds: range, depth: int) -> list[Point]:
    """The two baselines of an experiment: all and no layers pretrained."""
    points = []
    for seed in seeds:
        points.append(Point(experiment, "all pretrained", 0, trial(task, size, seed)))
        points.append(
            Point(experiment, "none pretrained", 0, trial(task, size, seed, surgery=keeping(0, depth)))
        )
    return points


def localized(tasks=("SST-2",), size=5000, trials=3, depth=6, block=3) -> list[Point]:
    """Points of the localized experiment, with blocks of `block` layers."""
    points = []
    for task in tasks:
        points += baselines("localized", task, size, range(trials), depth)
        for first in range(1, depth - block + 2):
            inside = tuple(range(first, first + block))
            outside = tuple(n for n in range(1, depth + 1) if n not in inside)
            for condition, layers in (("block reinitialized", inside), ("block preserved", outside)):
                for seed in range(trials):
                    t = trial(task, size, seed, surgery=Surgery(reinit=layers))
                    points.append(Point("localized", condition, first, t))
    return points


def permutation(tasks=("SST-2",), size=5000, permutations=10, trials=1, depth=6) -> list[Point]:
    """Points of the permutation experiment."""
    points = []
    for task in tasks:
        points += baselines("permutation", task, size, range(trials), depth)
        for n in range(1, permutations + 1):
            order = tuple(int(i) + 1 for i in np.random.RandomState(n).permutation(depth))
            for seed in range(trials):
                t = trial(task, size, seed, surgery=Surgery(order=order))
                points.append(Point("permutation", "permuted", n, t))
    return points


def single_layer(tasks=("SST-2",), size=5000, trials=3, depth=6) -> list[Point]:
    """Points of the single_layer experiment."""
    points = []
    for task in tasks:
        points += baselines("single_layer", task, size, range(trials), depth)
        for layer in range(1, depth + 1):
            for seed in range(trials):
                points.append(
                    Point(
                        "single_layer", "", layer, trial(task, size, seed, surgery=Surgery(reinit=(layer,)))
                    )
                )
    return points


def prune(tasks=("SST-2",), size=5000, trials=3, depth=6, counts=(1, 2, 3)) -> list[Point]:
    """Points of the prune experiment, dropping each number in `counts` from the top and from the bottom."""
    points = []
    for task in tasks:
        points += [
            b for b in baselines("prune", task, size, range(trials), depth) if b.condition == "all pretrained"
        ]
        for n in counts:
            for condition, order in (("top", range(1, depth - n + 1)), ("bottom", range(n + 1, depth + 1))):
                for seed in range(trials):
                    t = trial(task, size, seed, surgery=Surgery(order=tuple(order)))
                    points.append(Point("prune", condition, n, t))
    return points


FLOOR = {"SST-2": 0.5, "QNLI": 0.5, "CoLA": 0.0}
CEILING = {"SST-2": 0.92, "QNLI": 0.9, "CoLA": 0.56}
MIDPOINT = {"SST-2": 0.55, "QNLI": 0.3, "CoLA": 0.6}  # fraction of the depth at which curves are steepest


def lifelike(depth: int = 12, training: Training | None = None) -> Score:
    """Scores shaped like the published curves: with more data they rise at smaller k and are less noisy."""

    def score(point: Point) -> float:
        t = point.trial
        kept = depth - len(t.surgery.reinit)  # number of layers with pretrained weights
        order = t.surgery.order
        if order and sorted(order) == list(range(1, depth + 1)):
            kept = 1 + sum(a + 1 == b for a, b in itertools.pairwise(order))
        elif order:
            kept = len(order) - (2 if order[0] != 1 else 0)
        floor, ceiling = FLOOR.get(t.task, 0.5), CEILING.get(t.task, 0.85)
        log_size = np.log10(t.train_size / 500) / 2  # 0 at 500, 1 at 50k
        start = floor + (ceiling - floor) * (0.05 + 0.45 * log_size)
        top = ceiling - (ceiling - floor) * 0.2 * (1 - log_size)
        midpoint = depth * MIDPOINT.get(t.task, 0.5) * (1.3 - 0.9 * log_size)
        rise = 1 / (1 + np.exp(-(kept - midpoint) / (depth / 9)))
        end = 1 / (1 + np.exp(-(depth - midpoint) / (depth / 9)))
        scale = 0.4 if t.surgery.recipe == "as_released" and kept < depth else 0.0
        shared = np.random.default_rng(t.seed).normal(0, 0.012 * (1.6 - log_size))
        own = np.random.default_rng(int(t.id, 16) % 2**32).normal(0, 0.014 * (1.8 - 1.5 * log_size))
        return float(start + (top - start) * (rise + scale * (end - rise)) / end + shared + own)

    return score
