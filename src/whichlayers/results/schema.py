"""The tables of results.db, and the rows of trials, weight changes and runs.

To change a table, increase SCHEMA_VERSION and say in migrations.py how older files get the new columns.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from whichlayers.results.records import EpochLike, RunRow, TaskRow, WeightChangeLike
from whichlayers.trial import COMPONENTS, LATER_FIELDS, Adapter, Training, Trial

SCHEMA_VERSION = 5
REQUIRED_TABLES = {"meta", "trials", "points", "epochs", "runs"}  # of any version

WEIGHT_CHANGES = """
CREATE TABLE IF NOT EXISTS weight_changes(
    trial_id TEXT REFERENCES trials(id), name TEXT, layer INTEGER, frobenius REAL, spectral REAL,
    start_frobenius REAL, start_spectral REAL, PRIMARY KEY (trial_id, name)) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS weight_change AS
    SELECT trial_id, name, layer, 'frobenius' AS kind, frobenius AS value FROM weight_changes UNION ALL
    SELECT trial_id, name, layer, 'spectral', spectral FROM weight_changes UNION ALL
    SELECT trial_id, name, layer, 'frobenius, relative', frobenius / start_frobenius FROM weight_changes UNION ALL
    SELECT trial_id, name, layer, 'spectral, relative', spectral / start_spectral FROM weight_changes;
"""
SCHEMA = f"""
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE tasks(
    fingerprint TEXT PRIMARY KEY, name TEXT, kind TEXT, metric TEXT, metrics TEXT, train_rows INTEGER,
    guess_scores TEXT, class_counts TEXT);
CREATE TABLE models(fingerprint TEXT PRIMARY KEY, name TEXT, revision TEXT, family TEXT, depth INTEGER);
CREATE TABLE trials(
    id TEXT PRIMARY KEY, model TEXT, model_fingerprint TEXT, task TEXT, task_fingerprint TEXT,
    train_size INTEGER, seed INTEGER, head TEXT, recipe TEXT, keep_layer_norm INTEGER, reinit_lr_factor REAL,
    trial_json TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    error TEXT, started REAL, finished REAL, seconds REAL, run_id INTEGER,
    kind TEXT, primary_metric TEXT, finetuned_on TEXT, neurons TEXT, share REAL, ranking TEXT, reinit TEXT,
    layer_order TEXT, epochs INTEGER, lr REAL, training TEXT,
    seed_subset INTEGER, seed_order INTEGER, seed_init INTEGER, seed_head INTEGER, seed_dropout INTEGER,
    reinit_pooler INTEGER, adapter TEXT, trained_parameters INTEGER, memory REAL,
    top_neurons TEXT);
CREATE TABLE points(experiment TEXT, condition TEXT, x REAL, trial_id TEXT REFERENCES trials(id),
    PRIMARY KEY (experiment, condition, x, trial_id));
CREATE INDEX points_trial ON points(trial_id);
CREATE TABLE epochs(trial_id TEXT REFERENCES trials(id), epoch INTEGER, metric TEXT, value REAL,
    PRIMARY KEY (trial_id, epoch, metric)) WITHOUT ROWID;
CREATE TABLE runs(
    run_id INTEGER PRIMARY KEY, started REAL, finished REAL, outcome TEXT, host TEXT, pid INTEGER,
    device TEXT, threads INTEGER, versions TEXT, git_commit TEXT, command TEXT);
{WEIGHT_CHANGES}"""


def statements(script: str) -> list[str]:
    """The SQL statements of a script; `executescript` would commit the open transaction."""
    return [statement for statement in script.split(";") if statement.strip()]


def trial_row(trial_id: str, trial: Trial, task_metric: str | None) -> dict[str, Any]:
    """The row of a trial in the table `trials`, by column.

    The columns `task` and `task_fingerprint` say what the metric was computed on: for a word probe the corpus, not the
    task that its model was finetuned on.

    Args:
        trial_id: The trial's id.
        trial: The trial.
        task_metric: Primary metric of its task.
    """
    task, fingerprint, metric = trial.task, trial.task_fingerprint, task_metric
    finetuned_on = neurons = share = ranking = None
    if (probe := trial.word_probe) is not None:
        task, fingerprint, metric = probe.corpus, probe.fingerprint, probe.measure
        finetuned_on, neurons, share, ranking = trial.task, probe.neurons, probe.share, probe.ranking
    return {
        "id": trial_id,
        "model": trial.model,
        "model_fingerprint": trial.model_fingerprint,
        "task": task,
        "task_fingerprint": fingerprint,
        "train_size": trial.train_size,
        "seed": trial.seed,
        "head": trial.head,
        "recipe": trial.surgery.recipe,
        "keep_layer_norm": int(trial.surgery.keep_layer_norm),
        "reinit_lr_factor": reinit_lr_factor(trial),
        "trial_json": trial.to_json(),
        "kind": trial.kind,
        "primary_metric": metric,
        "finetuned_on": finetuned_on,
        "neurons": neurons,
        "share": share,
        "ranking": ranking,
        "reinit": " ".join(map(str, trial.surgery.reinit)),
        "layer_order": " ".join(map(str, trial.surgery.order or ())),
        "epochs": trial.training.epochs,
        "lr": trial.training.lr,
        "training": training_json(trial.training),
        **seed_columns(trial),
        "reinit_pooler": int(trial.surgery.reinit_pooler),
        "adapter": None if trial.adapter is None else adapter_json(trial.adapter),
    }


def seed_columns(trial: Trial) -> dict[str, int | None]:
    """The seed of each component that has its own; None: `seed`, or it has no effect."""
    own = dict(trial.used_seeds())
    return {f"seed_{component}": own.get(component) for component in COMPONENTS}


def training_json(training: Training) -> str:
    """The training settings as compact JSON, without what is trained, which differs between the trials of a curve.

    Equal settings must give equal texts: trials are compared by them. Later settings are left out at their default, as
    in files that were written before.
    """
    settings = dataclasses.asdict(training)
    for name in LATER_FIELDS["training"]:
        if settings[name] == getattr(Training, name):
            del settings[name]
    for name in ("lr_factors", "parameters"):
        settings.pop(name, None)
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def adapter_json(adapter: Adapter) -> str:
    """The adapters of a trial as compact JSON, without the settings that its method does not use."""
    unused = ("rank", "alpha", "dropout") if adapter.method == "ia3" else ()
    settings = {key: value for key, value in dataclasses.asdict(adapter).items() if key not in unused}
    return json.dumps(settings, separators=(",", ":"), sort_keys=True)


def task_row(task: TaskRow) -> dict[str, Any]:
    """The row of a task or corpus in the table `tasks`, by column; lists and dicts as JSON."""
    values = dataclasses.asdict(task)
    return {name: json.dumps(v) if isinstance(v, dict | list | tuple) else v for name, v in values.items()}


def epoch_rows(trial_id: str, epoch: EpochLike) -> list[tuple[Any, ...]]:
    """The rows of an epoch in the table `epochs`, one per metric.

    NaN, the loss of a diverged trial, becomes NULL: SQLite has no NaN.
    """
    losses = {"train_loss": epoch.train_loss, "dev_loss": epoch.dev_loss, "seconds": epoch.seconds}
    return [(trial_id, epoch.epoch, name, float(value)) for name, value in (losses | epoch.metrics).items()]


def weight_change_row(trial_id: str, change: WeightChangeLike) -> tuple[Any, ...]:
    """The row of one weight matrix of a trial in the table `weight_changes`."""
    norms = change.frobenius, change.spectral, change.start_frobenius, change.start_spectral
    return trial_id, change.name, change.layer, *norms


def neurons_text(neurons: Sequence[tuple[int, int]] | None) -> str | None:
    """The value of `top_neurons`: "3:117 0:5" for neuron 117 of layer 3, then neuron 5 of layer 0."""
    return None if neurons is None else " ".join(f"{layer}:{neuron}" for layer, neuron in neurons)


def read_neurons(text: str) -> tuple[tuple[int, int], ...]:
    """The inverse of `neurons_text`."""
    pairs = (pair.split(":") for pair in text.split())
    return tuple((int(layer), int(neuron)) for layer, neuron in pairs)


def run_row(run: RunRow) -> tuple[Any, ...]:
    """The row of a run in the table `runs`, from the column `host` on."""
    versions = json.dumps(run.versions, sort_keys=True)
    return run.host, run.pid, run.device, run.threads, versions, run.git_commit, run.command


def reinit_lr_factor(trial: Trial) -> float | None:
    """The learning rate factor of the re-initialized layers; None if they have different factors.

    If other layers have factors, too, learning rates decay from layer to layer: that of the highest one.
    """
    factors, reinit = dict(trial.training.lr_factors), trial.surgery.reinit
    if reinit and any(factor != 1 and layer not in reinit for layer, factor in factors.items()):
        return factors.get(max(reinit), 1.0)
    found = {factors.get(layer, 1.0) for layer in reinit}
    if not found:
        return 1.0
    return found.pop() if len(found) == 1 else None
