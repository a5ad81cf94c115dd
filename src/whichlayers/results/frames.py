"""results.db as tidy pandas data frames. Reading neither blocks nor changes a study that is still running.

points = load_points(folder)      # one row per point, of any status
curves = finished(points)         # the points that have a value
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from whichlayers.conditions import own_lr
from whichlayers.errors import WhichlayersError
from whichlayers.results.connection import DATABASE, read_snapshot
from whichlayers.results.db import ResultsDB
from whichlayers.results.frame_utils import each_row
from whichlayers.results.records import DataStatistics
from whichlayers.results.schema import read_neurons
from whichlayers.results.shared_seeds import independent_trials
from whichlayers.trial import ALL_PRETRAINED, COMPONENTS

# One row per point, in the order of the study file. `epochs` is a setting, `last_epoch` the last one of a done trial.
POINTS = """
WITH last AS (SELECT trial_id, MAX(epoch) AS epoch FROM epochs GROUP BY trial_id)
SELECT p.experiment, p.condition, p.x, t.id AS trial_id, t.kind, t.model, t.model_fingerprint, m.depth, m.family,
       t.task, t.task_fingerprint, k.train_rows, t.train_size, t.seed, t.head, t.recipe, t.keep_layer_norm,
       t.reinit_lr_factor, t.primary_metric, t.status, t.error, t.seconds, t.layer_order, t.reinit, t.epochs, t.lr,
       t.training, t.finetuned_on, t.neurons, t.share, t.ranking, last.epoch AS last_epoch, score.value AS value,
       dev.value AS dev_loss, train.value AS train_loss, control.value AS control,
       COALESCE(t.seed_subset, t.seed) AS seed_subset, COALESCE(t.seed_order, t.seed) AS seed_order,
       COALESCE(t.seed_init, t.seed) AS seed_init, COALESCE(t.seed_head, t.seed) AS seed_head,
       COALESCE(t.seed_dropout, t.seed) AS seed_dropout,
       t.reinit_pooler, t.adapter, t.trained_parameters, t.memory,
       PRINTF('%d %.6f', t.run_id, t.started) AS stack,
       json_extract(k.guess_scores, '$."' || t.primary_metric || '"') AS guess
FROM points p JOIN trials t ON t.id = p.trial_id
LEFT JOIN tasks k ON k.fingerprint = t.task_fingerprint
LEFT JOIN models m ON m.fingerprint = t.model_fingerprint
LEFT JOIN last ON last.trial_id = t.id AND t.status = 'done'
LEFT JOIN epochs score ON score.trial_id = t.id AND score.epoch = last.epoch AND score.metric = t.primary_metric
LEFT JOIN epochs dev ON dev.trial_id = t.id AND dev.epoch = last.epoch AND dev.metric = 'dev_loss'
LEFT JOIN epochs train ON train.trial_id = t.id AND train.epoch = last.epoch AND train.metric = 'train_loss'
LEFT JOIN epochs control ON t.kind = 'word_probe' AND control.trial_id = t.id AND control.epoch = last.epoch
    AND control.metric = CASE t.primary_metric WHEN 'selectivity' THEN 'control_accuracy'
        ELSE 'control_' || t.primary_metric END
ORDER BY p.rowid
"""
# The trials of the current study. Finished trials that an edited study no longer contains stay in results.db unused.
STUDY_TRIALS = "(SELECT trial_id FROM points)"
# Settings that only have an effect on re-initialized layers.
REINIT_COLUMNS = ["recipe", "keep_layer_norm", "reinit_pooler", "reinit_lr_factor"]
# The seed of each component of a trial. All trials of a study with one `seed` agree in them, so `seed` pairs trials.
SEED_COLUMNS = [f"seed_{component}" for component in COMPONENTS]
# The columns that identify a curve.
CURVE = ["experiment", "model", "model_fingerprint", "task", "train_size", "variant"]
TOP_NEURON_COLUMNS = [
    "experiment", "condition", "trial_id", "model", "model_fingerprint", "family", "task", "finetuned_on",
    "train_size", "seed", "ranking", "share", "neurons",
]  # fmt: skip
CHUNK_ROWS = 50_000  # rows as Python objects take ten times the memory of the data frame


@dataclass(frozen=True)
class ModelSummary:
    """A model of a study."""

    name: str
    fingerprint: str
    family: str
    depth: int


@dataclass(frozen=True)
class TaskSummary:
    """A task or corpus of a study."""

    name: str
    kind: str
    metric: str
    train_rows: int
    class_counts: dict[str, int]  # training rows of each class; empty for regression, or if not known
    guess: float | None  # score of always predicting the most frequent class; None if not known


@dataclass(frozen=True)
class StudySummary:
    """A study in results.db: its name, models and tasks, and the number of trials by status."""

    name: str
    created: str  # as stored: seconds since 1970
    whichlayers_version: str
    counts: dict[str, int]  # trials by status: pending, running, done, failed
    models: tuple[ModelSummary, ...]
    tasks: tuple[TaskSummary, ...]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def read_in_chunks(query: str, db: sqlite3.Connection) -> pd.DataFrame:
    """The rows of a query, read CHUNK_ROWS at a time to save memory."""
    return pd.concat(list(pd.read_sql_query(query, db, chunksize=CHUNK_ROWS)), ignore_index=True)


def read_points(db: sqlite3.Connection) -> pd.DataFrame:
    """The rows of POINTS, as stored. `keep_layer_norm` is bool; values of unfinished trials are NaN."""
    points = read_in_chunks(POINTS, db)
    for column in (
        "value",
        "dev_loss",
        "train_loss",
        "control",
        "last_epoch",
        "seconds",
        "share",
        "guess",
        "memory",
    ):
        points[column] = pd.to_numeric(points[column])
    for column in ("keep_layer_norm", "reinit_pooler"):
        points[column] = points[column].astype(bool)
    points["reinit_lr_factor"] = pd.to_numeric(points["reinit_lr_factor"]).astype(float)
    return points


def load_points(folder: Path) -> pd.DataFrame:
    """One row per point. Value and losses are those of the last epoch, and NaN unless the trial is done.

    `epochs` is the last epoch of a done trial; `reinit` and `order` are tuples of layers; `training` is the JSON of the
    training settings (see `training_settings`); `seed_subset` and the like are the seeds of components; `guess` is
    the score of guessing (see `data.metrics.guess_scores`), NaN if it is not known; trials that were trained together
    have the same `stack`, and each has its part of the stack's time in `seconds`; `finetuned_on`,
    `neurons` and `ranking` are empty and `share` is NaN unless the trial is a word probe.
    """
    with read_snapshot(Path(folder) / DATABASE) as db:
        points = read_points(db)
    points = points.drop(columns=["epochs", "lr"])
    points = points.rename(
        columns={"primary_metric": "metric", "last_epoch": "epochs", "layer_order": "order"}
    )
    points["model"] = _unique_names(points, "model", "model_fingerprint")
    points["task"] = _unique_names(points, "task", "task_fingerprint")
    points["untouched"] = points["reinit"] == ""
    for column in ("reinit", "order"):
        points[column] = _map_distinct(points[column], lambda text: tuple(map(int, text.split())))
    for column in ("finetuned_on", "neurons", "ranking"):
        points[column] = points[column].astype(object).where(points[column].notna(), "")
    return points


def _map_distinct(values: pd.Series, function: Callable[[Any], Any]) -> pd.Series:
    """`function` of each value, called once per distinct value."""
    found = {value: function(value) for value in values.unique()}
    return pd.Series([found[value] for value in values], index=values.index, dtype=object)


def training_settings(points: pd.DataFrame) -> pd.DataFrame:
    """The training settings of each point, one column per setting; lists as text."""
    settings = _map_distinct(points["training"], json.loads)
    return pd.DataFrame(list(settings), index=points.index).map(
        lambda value: str(value) if isinstance(value, list) else value
    )


def load_epochs(folder: Path) -> pd.DataFrame:
    """The learning curves in long form: trial_id, epoch, metric, value."""
    with read_snapshot(Path(folder) / DATABASE) as db:
        return read_in_chunks(
            f"SELECT * FROM epochs WHERE trial_id IN {STUDY_TRIALS} ORDER BY trial_id, epoch, metric", db
        )


def load_baseline_weight_change(folder: Path) -> pd.DataFrame:
    """Norms of the change of each weight matrix: trial_id, name, layer, kind, value.

    Only models that were finetuned without surgery, and only absolute norms, which is what claims and figures use: all
    rows may not fit into memory in a study of many trials. Empty if the study has no finetuned models.
    """
    without_surgery = f"SELECT id FROM trials WHERE reinit = '' AND layer_order = '' AND id IN {STUDY_TRIALS}"
    with read_snapshot(Path(folder) / DATABASE) as db:
        return read_in_chunks(
            "SELECT trial_id, name, layer, kind, value FROM weight_change WHERE kind IN ('frobenius', 'spectral')"
            f" AND trial_id IN ({without_surgery})",
            db,
        )


def load_top_neurons(folder: Path, shared_seeds: bool = True) -> pd.DataFrame:
    """One row per finished trial that trained a word probe on the top neurons of a ranking.

    The column `neurons` has the (layer, neuron) pairs of its set, most important first; the others are those of
    `load_points`, with the share of all neurons in `share`, NaN for the smallest sets. Trials that were run before
    whichlayers stored their neurons are left out, and without `shared_seeds`, those that `finished` leaves out.
    """
    with read_snapshot(Path(folder) / DATABASE) as db:
        query = "SELECT id, top_neurons FROM trials WHERE status = 'done' AND top_neurons IS NOT NULL"
        stored = dict(db.execute(f"{query} AND id IN {STUDY_TRIALS}"))
    points = load_points(folder)
    if not shared_seeds and stored:
        points = independent_trials(points[points["status"] == "done"])
    points = points[points["trial_id"].isin(stored)].reset_index(drop=True)
    points["neurons"] = points["trial_id"].map(lambda trial_id: read_neurons(stored[trial_id]))
    return points[TOP_NEURON_COLUMNS]


def load_trials(folder: Path) -> pd.DataFrame:
    """One row per trial with its status, error and time."""
    columns = "id AS trial_id, model, task, train_size, seed, head, recipe, status, error, seconds"
    order = "model, task, train_size, seed, id"
    with read_snapshot(Path(folder) / DATABASE) as db:
        return read_in_chunks(f"SELECT {columns} FROM trials WHERE id IN {STUDY_TRIALS} ORDER BY {order}", db)


def load_runs(folder: Path) -> pd.DataFrame:
    """One row per call of `whichlayers run`.

    `started`, `finished` and `last_trial` (the end of the last trial of the run) are UTC times, `versions` is a dict.
    """
    with read_snapshot(Path(folder) / DATABASE) as db:
        last = "SELECT MAX(finished) FROM trials WHERE trials.run_id = runs.run_id"
        runs = pd.read_sql_query(f"SELECT *, ({last}) AS last_trial FROM runs ORDER BY run_id", db)
    for column in ("started", "finished", "last_trial"):
        runs[column] = pd.to_datetime(pd.to_numeric(runs[column]), unit="s", utc=True)
    runs["versions"] = pd.Series(
        [json.loads(text) if text else {} for text in runs["versions"]], dtype=object
    )
    return runs


def load_notes(folder: Path) -> list[str]:
    """Notes about the data, such as missing rows, or tags that do not occur in the training data."""
    with ResultsDB.open_readonly(Path(folder) / DATABASE) as db:
        return db.notes()


def load_data_statistics(folder: Path) -> pd.DataFrame:
    """One row per task and corpus of the study: name, kind, metric, and the fields of `DataStatistics`.

    Files that whichlayers wrote before it stored them have train alone, and NaN in the other columns.
    """
    used = "SELECT task_fingerprint FROM trials WHERE id IN" + STUDY_TRIALS
    with read_snapshot(Path(folder) / DATABASE) as db:
        found = db.execute("SELECT value FROM meta WHERE key = 'data_statistics'").fetchone()
        stored: dict[str, dict[str, Any]] = json.loads(found[0]) if found else {}
        query = "SELECT fingerprint, name, kind, metric, train_rows AS train FROM tasks ORDER BY name"
        tasks = pd.read_sql_query(query, db)
        in_study = set(stored) or {row[0] for row in db.execute(used)}
    tasks = tasks[tasks["fingerprint"].isin(in_study)]
    names = [field.name for field in dataclasses.fields(DataStatistics)]
    sizes = pd.DataFrame([stored.get(key, {}) for key in tasks["fingerprint"]], index=tasks.index)
    sizes = sizes.reindex(columns=names).apply(pd.to_numeric)
    sizes["train"] = sizes["train"].fillna(tasks["train"])
    return tasks[["name", "kind", "metric"]].join(sizes).reset_index(drop=True)


def load_study_summary(folder: Path) -> StudySummary:
    """Name, models and tasks of a study, and its number of trials by status."""
    trials = f"(SELECT * FROM trials WHERE id IN {STUDY_TRIALS})"
    with read_snapshot(Path(folder) / DATABASE) as db:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        counts = dict(db.execute(f"SELECT status, COUNT(*) FROM {trials} GROUP BY status"))
        models = db.execute(
            "SELECT name, fingerprint, family, depth FROM models WHERE fingerprint IN"
            f" (SELECT model_fingerprint FROM {trials}) ORDER BY name"
        ).fetchall()
        tasks = db.execute(
            "SELECT name, kind, metric, train_rows, class_counts, guess_scores FROM tasks WHERE fingerprint IN"
            f" (SELECT task_fingerprint FROM {trials}) ORDER BY name"
        ).fetchall()
    return StudySummary(
        name=meta.get("study_name") or Path(folder).resolve().name,
        created=meta.get("created", ""),
        whichlayers_version=meta.get("whichlayers_version") or meta.get("carryover_version", ""),
        counts={status: counts.get(status, 0) for status in ("done", "failed", "running", "pending")},
        models=tuple(ModelSummary(*row) for row in models),
        tasks=tuple(_task_summary(*row) for row in tasks),
    )


def _task_summary(
    name: str, kind: str, metric: str, train_rows: int, class_counts: str | None, guess_scores: str | None
) -> TaskSummary:
    guess = json.loads(guess_scores or "{}").get(metric)
    return TaskSummary(name, kind, metric, train_rows, json.loads(class_counts or "{}"), guess)


def finished(points: pd.DataFrame, shared_seeds: bool = False) -> pd.DataFrame:
    """The points that have a value, with a column `variant` that says which settings differ between curves.

    A model without re-initialized layers does not depend on the recipe, so its trials run once. Here its points are
    repeated for every recipe. Points with a learning rate of their own, which their condition names, have the
    `training` of their baseline, so that they are on the same curve. Linear probes with other settings, such as their
    pooling, are variants of the experiment: their curves are not compared with each other point by point.

    Args:
        points: Points of one study, as from `load_points`.
        shared_seeds: Whether to keep trials that share seeds of components with others (`vary_apart`), as
            `analysis.variance_components` needs them. Intervals and tests need independent trials.

    Raises:
        WhichlayersError: No trial has finished.
    """
    done = points[(points["status"] == "done") & points["value"].notna()]
    if done.empty:
        counts = points.drop_duplicates("trial_id")["status"].value_counts()
        statuses = ", ".join(f"{n} {status}" for status, n in counts.items()) or "it has no trials"
        raise WhichlayersError(
            f"no trial has finished in this study yet ({statuses}): run it with `whichlayers run`, or wait if it is"
            " running"
        )
    repeated = _repeat_untouched(_with_baseline_training(points))
    repeated["condition"] = _conditions(repeated)
    repeated["variant"] = variant_labels(repeated)
    probes = (repeated["kind"] == "probe") & (repeated["condition"] != "")
    labels = repeated["condition"].str.cat(repeated["variant"], sep=", ").str.removesuffix(", ")
    repeated["variant"] = repeated["variant"].where(~probes, labels)
    repeated["condition"] = repeated["condition"].where(~probes, "")
    found = repeated[(repeated["status"] == "done") & repeated["value"].notna()]
    return (found if shared_seeds else independent_trials(found)).reset_index(drop=True)


def _with_baseline_training(points: pd.DataFrame) -> pd.DataFrame:
    """`points` in which those with a learning rate of their own have the `training` of their baseline.

    If several baselines have training settings that differ in the learning rate alone, these points are repeated
    for each.
    """
    own = points["condition"].isin([c for c in points["condition"].unique() if own_lr(c) is not None])
    if not own.any():
        return points
    setting = ["experiment", "model_fingerprint", "task", "train_size", "head", "without_lr"]
    keyed = points.assign(without_lr=_map_distinct(points["training"], _without_lr))
    baselines = keyed.loc[keyed["condition"] == ALL_PRETRAINED, [*setting, "training"]].drop_duplicates()
    shared = (
        keyed[own]
        .reset_index(names="row")
        .merge(baselines, on=setting, how="left", suffixes=("_own", ""))
        .set_index("row")
    )
    shared["training"] = shared["training"].fillna(shared["training_own"])
    return pd.concat([points[~own], shared[points.columns]]).sort_index(kind="stable").reset_index(drop=True)


def _without_lr(training: str) -> str:
    """The JSON of training settings without the learning rate."""
    return json.dumps({name: value for name, value in json.loads(training).items() if name != "lr"})


def _repeat_untouched(points: pd.DataFrame) -> pd.DataFrame:
    """Repeat points without re-initialized layers for every recipe, layer norm and lr factor of their experiment."""
    setting = ["experiment", "model_fingerprint", "task", "train_size", "head", "training"]
    touched, untouched = points[~points["untouched"]], points[points["untouched"]]
    surgeries = touched[[*setting, *REINIT_COLUMNS]].drop_duplicates()
    shared = (
        untouched.drop(columns=REINIT_COLUMNS)
        .reset_index(names="row")
        .merge(surgeries, on=setting, how="left", indicator="found")
    )
    unmatched = shared.pop("found") == "left_only"  # these keep their stored settings
    stored = untouched.drop_duplicates("trial_id").set_index("trial_id")
    for column in REINIT_COLUMNS:
        own = shared["trial_id"].map(stored[column])
        shared[column] = shared[column].where(~unmatched, own).astype(points[column].dtype)
    both = pd.concat([touched, shared.set_index("row")[points.columns]])
    return both.sort_index(kind="stable").reset_index(drop=True)


def _conditions(points: pd.DataFrame) -> pd.Series:
    """The stored conditions; with the block length added where an experiment has blocks of several lengths."""
    blocks = {
        "block reinitialized": points["reinit"].map(len),
        "block preserved": points["depth"] - points["reinit"].map(len),
    }
    exact = points["condition"].copy()
    localized = points["experiment"] == "localized"
    for condition, length in blocks.items():
        selected = localized & (points["condition"] == condition)
        if length[selected].nunique() > 1:
            exact = exact.where(~selected, condition + ", of " + length.astype(str))
    return exact.str.replace(r"^listed ", "without ", regex=True).str.replace(
        r"(?<=\d),(?=\d)", ", ", regex=True
    )


def variant_labels(points: pd.DataFrame) -> pd.Series:
    """The settings that differ between curves of the same experiment, model, task and size; '' if none do."""
    settings = pd.concat([points[[*REINIT_COLUMNS, "head"]], training_settings(points)], axis=1)
    groups = [points[c] for c in ("experiment", "model_fingerprint", "task", "train_size")]
    varying = [str(c) for c in settings if (settings[c].groupby(groups).nunique(dropna=False) > 1).any()]
    labels = [
        ", ".join(setting_label(name, value) for name, value in zip(varying, row, strict=True))
        for row in each_row(settings[varying])
    ]
    return pd.Series(labels, index=points.index, dtype=object)


def setting_label(name: str, value: Any) -> str:
    """A setting and its value as a short label, such as "layer norms kept" or "lr 2e-05"."""
    if name == "recipe":
        return str(value)
    if name == "keep_layer_norm":
        return "layer norms kept" if value else "layer norms reset"
    if name == "reinit_pooler":
        return "pooler re-initialized" if value else "pooler kept"
    if name == "reinit_lr_factor":
        if pd.isna(value):
            return "re-initialized layers at several lrs"
        return "one lr for all layers" if value == 1.0 else f"re-initialized layers at {value:g}× lr"
    if name in ("bias_correction", "frozen_dropout"):  # left out of the stored settings if true
        label = {"bias_correction": "bias correction", "frozen_dropout": "dropout in frozen layers"}[name]
        return f"without {label}" if value is False else f"with {label}"
    return f"{name.replace('_', ' ')} {value}"


def _unique_names(points: pd.DataFrame, name: str, fingerprint: str) -> pd.Series:
    """Names of models or tasks; those that share a name get the start of their fingerprint appended."""
    ambiguous = points.groupby(name)[fingerprint].transform("nunique") > 1
    return points[name].where(~ambiguous, points[name] + "@" + points[fingerprint].str[:4])
