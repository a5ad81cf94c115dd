"""The tables of results.db, parts of queries for points, and the rows of trials, weight changes and runs."""

from __future__ import annotations

import json
from typing import Any

from whichlayers.results.records import RunRow, WeightChangeLike
from whichlayers.trial import Trial

# a change of the tables increases connection.SCHEMA_VERSION
SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE tasks(
    fingerprint TEXT PRIMARY KEY, name TEXT, kind TEXT, metric TEXT, metrics TEXT, train_rows INTEGER);
CREATE TABLE models(fingerprint TEXT PRIMARY KEY, name TEXT, revision TEXT, family TEXT, depth INTEGER);
CREATE TABLE trials(
    id TEXT PRIMARY KEY, model TEXT, model_fingerprint TEXT, task TEXT, task_fingerprint TEXT,
    train_size INTEGER, seed INTEGER, head TEXT, recipe TEXT, keep_layer_norm INTEGER, reinit_lr_factor REAL,
    trial_json TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    error TEXT, started REAL, finished REAL, seconds REAL, run_id INTEGER);
CREATE TABLE points(experiment TEXT, condition TEXT, x REAL, trial_id TEXT REFERENCES trials(id),
    PRIMARY KEY (experiment, condition, x, trial_id));
CREATE INDEX points_trial ON points(trial_id);
CREATE TABLE epochs(trial_id TEXT REFERENCES trials(id), epoch INTEGER, metric TEXT, value REAL,
    PRIMARY KEY (trial_id, epoch, metric)) WITHOUT ROWID;
CREATE TABLE weight_changes(
    trial_id TEXT REFERENCES trials(id), name TEXT, layer INTEGER, frobenius REAL, spectral REAL,
    start_frobenius REAL, start_spectral REAL, PRIMARY KEY (trial_id, name)) WITHOUT ROWID;
CREATE TABLE runs(
    run_id INTEGER PRIMARY KEY, started REAL, finished REAL, outcome TEXT, host TEXT, pid INTEGER,
    device TEXT, threads INTEGER, versions TEXT, git_commit TEXT, command TEXT);
CREATE VIEW weight_change AS
    SELECT trial_id, name, layer, 'frobenius' AS kind, frobenius AS value FROM weight_changes UNION ALL
    SELECT trial_id, name, layer, 'spectral', spectral FROM weight_changes UNION ALL
    SELECT trial_id, name, layer, 'frobenius, relative', frobenius / start_frobenius FROM weight_changes UNION ALL
    SELECT trial_id, name, layer, 'spectral, relative', spectral / start_spectral FROM weight_changes;
"""

# Parts of queries for points. '$.words.ask' is the stored name of `Trial.word_probe.measure` (see trial.STORED_NAMES).
POINT_TABLES = """points p JOIN trials t ON t.id = p.trial_id
LEFT JOIN tasks k ON k.fingerprint = t.task_fingerprint
LEFT JOIN models m ON m.fingerprint = t.model_fingerprint"""
MEASURE = "json_extract(t.trial_json, '$.words.ask')"  # NULL unless the trial is a word probe
PRIMARY_METRIC = f"COALESCE({MEASURE}, k.metric)"


def trial_row(trial_id: str, trial: Trial) -> tuple[Any, ...]:
    """The row of a trial in the table `trials`.

    The columns `task` and `task_fingerprint` say what the metric was computed on: for a word probe the corpus, not the
    task that its model was finetuned on.
    """
    task = (trial.task, trial.task_fingerprint)
    if trial.word_probe is not None:
        task = (trial.word_probe.corpus, trial.word_probe.fingerprint)
    return (
        trial_id,
        trial.model,
        trial.model_fingerprint,
        *task,
        trial.train_size,
        trial.seed,
        trial.head,
        trial.surgery.recipe,
        int(trial.surgery.keep_layer_norm),
        reinit_lr_factor(trial),
        trial.to_json(),
    )


def weight_change_row(trial_id: str, change: WeightChangeLike) -> tuple[Any, ...]:
    """The row of one weight matrix of a trial in the table `weight_changes`."""
    norms = change.frobenius, change.spectral, change.start_frobenius, change.start_spectral
    return trial_id, change.name, change.layer, *norms


def run_row(run: RunRow) -> tuple[Any, ...]:
    """The row of a run in the table `runs`, from the column `host` on."""
    versions = json.dumps(run.versions, sort_keys=True)
    return run.host, run.pid, run.device, run.threads, versions, run.git_commit, run.command


def reinit_lr_factor(trial: Trial) -> float | None:
    """The learning rate factor of the re-initialized layers; None if they have different factors."""
    factors = dict(trial.training.lr_factors)
    found = {factors.get(layer, 1.0) for layer in trial.surgery.reinit}
    if not found:
        return 1.0
    return found.pop() if len(found) == 1 else None
