"""results.db as tidy pandas frames, read without ever blocking or changing a study that is still running.

points = load_points(folder)      # one row per point, whatever its status
curves = finished(points)         # the points that have a value, ready to be averaged
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from whichlayers.analysis.frame_utils import each_row
from whichlayers.errors import WhichlayersError

SCHEMA_VERSION = 1
DATABASE = "results.db"
ROWS_AT_ONCE = 50_000

POINTS = """
WITH last AS (SELECT trial_id, MAX(epoch) AS epoch FROM epochs GROUP BY trial_id)
SELECT p.experiment, p.condition, p.x, t.model, t.model_fingerprint, t.task, t.task_fingerprint, t.train_size,
       t.seed, t.head, t.recipe, t.keep_layer_norm, t.reinit_lr_factor, t.id AS trial_id, t.status, t.error,
       COALESCE(json_extract(t.trial_json, '$.words.measure'), k.metric) AS metric, score.value AS value,
       dev.value AS dev_loss, train.value AS train_loss, last.epoch AS epochs,
       control.value AS control, t.seconds, m.depth, m.family, k.train_rows, t.trial_json
FROM points p
JOIN trials t ON t.id = p.trial_id
LEFT JOIN tasks k ON k.fingerprint = t.task_fingerprint
LEFT JOIN models m ON m.fingerprint = t.model_fingerprint
LEFT JOIN last ON last.trial_id = t.id AND t.status = 'done'
LEFT JOIN epochs score ON score.trial_id = t.id AND score.epoch = last.epoch
    AND score.metric = COALESCE(json_extract(t.trial_json, '$.words.measure'), k.metric)
LEFT JOIN epochs dev ON dev.trial_id = t.id AND dev.epoch = last.epoch AND dev.metric = 'dev_loss'
LEFT JOIN epochs train ON train.trial_id = t.id AND train.epoch = last.epoch AND train.metric = 'train_loss'
LEFT JOIN epochs control ON control.trial_id = t.id AND control.epoch = last.epoch
    AND control.metric = 'control_' || CASE json_extract(t.trial_json, '$.words.measure')
        WHEN 'selectivity' THEN 'accuracy' ELSE json_extract(t.trial_json, '$.words.measure') END
ORDER BY p.rowid  -- the order of the study file
"""

# Trials that an edited study asks for no more stay in the store, and count for nothing.
ASKED_FOR = "(SELECT trial_id FROM points)"
# What a recipe, a kept layer norm or a raised learning rate acts on is a re-initialised layer.
SURGICAL = ["recipe", "keep_layer_norm", "reinit_lr_factor"]
CURVE = ["experiment", "model", "model_fingerprint", "task", "train_size", "variant"]


@dataclass(frozen=True)
class ModelSummary:
    name: str
    fingerprint: str
    family: str
    depth: int


@dataclass(frozen=True)
class TaskSummary:
    name: str
    kind: str
    metric: str
    train_rows: int


@dataclass(frozen=True)
class StudyFacts:
    name: str
    created: str  # as stored: seconds since 1970
    whichlayers_version: str
    counts: dict[str, int]  # trials by status: pending, running, done, failed
    models: tuple[ModelSummary, ...]
    tasks: tuple[TaskSummary, ...]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def _in_parts(query: str, db: sqlite3.Connection) -> pd.DataFrame:
    """What the query finds; as rows of Python's it would take ten times the memory of the frame."""
    return pd.concat(list(pd.read_sql_query(query, db, chunksize=ROWS_AT_ONCE)), ignore_index=True)


def load_points(folder: Path) -> pd.DataFrame:
    """One row per point; value and losses are those of the last epoch, and of done trials alone."""
    with _reading(folder) as db:
        points = _in_parts(POINTS, db)
    for column in ("value", "dev_loss", "train_loss", "control", "epochs", "seconds"):
        points[column] = pd.to_numeric(points[column])
    points["keep_layer_norm"] = points["keep_layer_norm"].astype(bool)
    points["reinit_lr_factor"] = pd.to_numeric(points["reinit_lr_factor"]).astype(float)
    points["model"] = _one_name_each(points, "model", "model_fingerprint")
    points["task"] = _one_name_each(points, "task", "task_fingerprint")
    trials = _parsed(points.pop("trial_json"))
    points["reinit"] = pd.Series([tuple(t["surgery"]["reinit"]) for t in trials], dtype=object)
    points["order"] = pd.Series([tuple(t["surgery"]["order"] or ()) for t in trials], dtype=object)
    points["untouched"] = pd.Series([not layers for layers in points["reinit"]], dtype=bool)
    points["training"] = pd.Series([_settings(t["training"]) for t in trials], dtype=object)
    asked = [
        t.get("words") or {} for t in trials
    ]  # of trials that ask about words; others have none of these
    points["finetuned_on"] = pd.Series(
        [t["task"] if w else "" for t, w in zip(trials, asked, strict=True)], dtype=object
    )
    points["neurons"] = pd.Series([w.get("neurons", "") for w in asked], dtype=object)
    points["share"] = pd.Series([w.get("share") for w in asked], dtype=float)
    points["ranking"] = pd.Series([w.get("ranking", "") for w in asked], dtype=object)
    return points


def _parsed(texts: pd.Series) -> list[dict[str, Any]]:
    """Trials as they were written; what many of them have in common is kept once."""
    shared: dict[str, Any] = {}
    trials = []
    for text in texts:
        trial = json.loads(text)
        common = {key: trial.get(key) for key in ("task", "surgery", "training", "words")}
        trials.append(shared.setdefault(json.dumps(common), common))
    return trials


def load_epochs(folder: Path) -> pd.DataFrame:
    """trial_id, epoch, metric, value: the learning curves in long form."""
    with _reading(folder) as db:
        return _in_parts(
            f"SELECT * FROM epochs WHERE trial_id IN {ASKED_FOR} ORDER BY trial_id, epoch, metric", db
        )


def load_weight_change(folder: Path) -> pd.DataFrame:
    """trial_id, name, layer, kind, value: how far each matrix moved; empty where a study did not measure it."""
    columns = ["trial_id", "name", "layer", "kind", "value"]
    with _reading(folder) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'weight_change'").fetchone():
            return pd.DataFrame(columns=columns)
        query = f"SELECT {', '.join(columns)} FROM weight_change WHERE trial_id IN {ASKED_FOR}"
        return pd.read_sql_query(query, db)


def load_change_of_whole_models(folder: Path) -> pd.DataFrame:
    """The part of `load_weight_change` that claims and figures read: norms of models that were finetuned as they
    were pretrained, not those relative to the start. All of it would fill the memory where there are many trials."""
    columns = ["trial_id", "name", "layer", "kind", "value"]
    whole = (
        "SELECT id FROM trials WHERE json_extract(trial_json, '$.surgery.reinit') = '[]'"
        " AND coalesce(json_extract(trial_json, '$.surgery.order'), '[]') = '[]'"
    )
    with _reading(folder) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'weight_change'").fetchone():
            return pd.DataFrame(columns=columns)
        query = f"SELECT {', '.join(columns)} FROM weight_change WHERE kind IN ('frobenius', 'spectral')"
        return _in_parts(f"{query} AND trial_id IN ({whole} AND id IN {ASKED_FOR})", db)


def load_trials(folder: Path) -> pd.DataFrame:
    """One row per trial with what became of it, whichever points it serves."""
    columns = (
        "id AS trial_id, model, task, train_size, seed, head, recipe, status, error, seconds, trial_json"
    )
    order = "model, task, train_size, seed, id"
    with _reading(folder) as db:
        return _in_parts(f"SELECT {columns} FROM trials WHERE id IN {ASKED_FOR} ORDER BY {order}", db)


def load_runs(folder: Path) -> pd.DataFrame:
    """One row per call of `whichlayers run`; started, finished and last_trial (when the last one that it trained
    ended) are UTC times, versions a dict."""
    with _reading(folder) as db:
        last = "SELECT MAX(finished) FROM trials WHERE trials.run_id = runs.run_id"
        runs = pd.read_sql_query(f"SELECT *, ({last}) AS last_trial FROM runs ORDER BY run_id", db)
    for column in ("started", "finished", "last_trial"):
        runs[column] = pd.to_datetime(pd.to_numeric(runs[column]), unit="s", utc=True)
    runs["versions"] = pd.Series(
        [json.loads(text) if text else {} for text in runs["versions"]], dtype=object
    )
    return runs


def load_notes(folder: Path) -> list[str]:
    """What was noted about the data: fewer rows than the official ones, tags that training never shows."""
    with _reading(folder) as db:
        found = db.execute("SELECT value FROM meta WHERE key = 'notes'").fetchone()
    return [str(note) for note in json.loads(found[0])] if found else []


def study_facts(folder: Path) -> StudyFacts:
    trials = f"(SELECT * FROM trials WHERE id IN {ASKED_FOR})"
    with _reading(folder) as db:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        counts = dict(db.execute(f"SELECT status, COUNT(*) FROM {trials} GROUP BY status"))
        models = db.execute(
            "SELECT name, fingerprint, family, depth FROM models WHERE fingerprint IN"
            f" (SELECT model_fingerprint FROM {trials}) ORDER BY name"
        ).fetchall()
        tasks = db.execute(
            "SELECT name, kind, metric, train_rows FROM tasks WHERE fingerprint IN"
            f" (SELECT task_fingerprint FROM {trials}) ORDER BY name"
        ).fetchall()
    return StudyFacts(
        name=meta.get("study_name") or Path(folder).resolve().name,
        created=meta.get("created", ""),
        whichlayers_version=meta.get("whichlayers_version") or meta.get("carryover_version", ""),
        counts={status: counts.get(status, 0) for status in ("done", "failed", "running", "pending")},
        models=tuple(ModelSummary(*row) for row in models),
        tasks=tuple(TaskSummary(*row) for row in tasks),
    )


def finished(points: pd.DataFrame) -> pd.DataFrame:
    """The points that have a value, with a `variant` that names what else differs between curves.

    A model with nothing re-initialised is the same whatever the recipe says, so its trials run once; here
    they stand at the end of every recipe's curve.
    """
    done = points[(points["status"] == "done") & points["value"].notna()]
    if done.empty:
        counts = points.drop_duplicates("trial_id")["status"].value_counts()
        told = ", ".join(f"{n} {status}" for status, n in counts.items()) or "no trial at all"
        raise WhichlayersError(
            f"nothing has finished in this study yet ({told}): run it with `whichlayers run`, then ask again"
        )
    everywhere = _share_untouched(points)
    everywhere["condition"] = _conditions(everywhere)
    everywhere["variant"] = variant_names(everywhere)
    return everywhere[(everywhere["status"] == "done") & everywhere["value"].notna()].reset_index(drop=True)


def _share_untouched(points: pd.DataFrame) -> pd.DataFrame:
    setting = ["experiment", "model_fingerprint", "task", "train_size", "head", "training"]
    touched, untouched = points[~points["untouched"]], points[points["untouched"]]
    surgeries = touched[[*setting, *SURGICAL]].drop_duplicates()
    shared = (
        untouched.drop(columns=SURGICAL)
        .reset_index(names="row")
        .merge(surgeries, on=setting, how="left", indicator="found")
    )
    alone = shared.pop("found") == "left_only"
    as_stored = untouched.drop_duplicates("trial_id").set_index("trial_id")
    for column in SURGICAL:
        own = shared["trial_id"].map(as_stored[column])
        shared[column] = shared[column].where(~alone, own).astype(points[column].dtype)
    both = pd.concat([touched, shared.set_index("row")[points.columns]])
    return both.sort_index(kind="stable").reset_index(drop=True)


def _conditions(points: pd.DataFrame) -> pd.Series:
    """Conditions as stored, and more exact where one name at one x stands for several surgeries."""
    blocks = {
        "block reinitialized": points["reinit"].map(len),
        "block preserved": points["depth"] - points["reinit"].map(len),
    }
    exact = points["condition"].copy()
    localized = points["experiment"] == "localized"
    for condition, length in blocks.items():
        mine = localized & (points["condition"] == condition)
        if length[mine].nunique() > 1:
            exact = exact.where(~mine, condition + ", of " + length.astype(str))
    return exact.str.replace(r"^listed ", "without ", regex=True).str.replace(
        r"(?<=\d),(?=\d)", ", ", regex=True
    )


def variant_names(points: pd.DataFrame) -> pd.Series:
    """What tells apart two curves of the same experiment, model, task and size; '' where nothing does."""
    settings = pd.DataFrame([json.loads(text) for text in points["training"]], index=points.index)
    settings = pd.concat([points[[*SURGICAL, "head"]], settings.map(_plain)], axis=1)
    groups = [points[c] for c in ("experiment", "model_fingerprint", "task", "train_size")]
    varying = [str(c) for c in settings if (settings[c].groupby(groups).nunique(dropna=False) > 1).any()]
    labels = [
        ", ".join(in_words(name, value) for name, value in zip(varying, row, strict=True))
        for row in each_row(settings[varying])
    ]
    return pd.Series(labels, index=points.index, dtype=object)


def in_words(name: str, value: Any) -> str:
    if name == "recipe":
        return str(value)
    if name == "keep_layer_norm":
        return "layer norms kept" if value else "layer norms reset"
    if name == "reinit_lr_factor":
        if pd.isna(value):
            return "re-initialised layers at several lrs"
        return "one lr for all layers" if value == 1.0 else f"re-initialised layers at {value:g}× lr"
    return f"{name.replace('_', ' ')} {value}"


def _plain(value: object) -> object:
    return str(value) if isinstance(value, list) else value


def _settings(training: dict) -> str:
    return json.dumps({k: v for k, v in training.items() if k != "lr_factors"}, sort_keys=True)


def _one_name_each(points: pd.DataFrame, name: str, fingerprint: str) -> pd.Series:
    """Two models (or tasks) that go by one name are told apart by the start of their fingerprints."""
    doubled = points.groupby(name)[fingerprint].transform("nunique") > 1
    return points[name].where(~doubled, points[name] + "@" + points[fingerprint].str[:4])


@contextmanager
def _reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """One read-only snapshot of the database."""
    path = Path(folder) / DATABASE
    if not path.is_file():
        raise WhichlayersError(
            f"{folder}: there is no {DATABASE} here; give the folder of a study that has been run"
        )
    try:
        with closing(_connect(path)) as db:
            if not db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                raise WhichlayersError(
                    f"{path} holds no study yet: its run stopped before it began; run it again"
                )
            version = int(db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise WhichlayersError(
                    f"{path}: written by a newer whichlayers (schema_version {version}, this one reads up to "
                    f"{SCHEMA_VERSION}); upgrade with `pip install --upgrade whichlayers`"
                )
            db.execute("BEGIN")
            yield db
    except (sqlite3.DatabaseError, pd.errors.DatabaseError) as failure:
        raise WhichlayersError(f"{path}: cannot be read as a results database ({failure})") from failure


def _connect(path: Path) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}?mode=ro"
    db = sqlite3.connect(address, uri=True, timeout=30)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        if path.with_name(f"{DATABASE}-wal").exists():
            raise
        # A finished study on a read-only medium: SQLite cannot make the -shm file of WAL, and needs none.
        db = sqlite3.connect(f"{address}&immutable=1", uri=True)
    return db
