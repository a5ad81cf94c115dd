"""Results as tables for other programs: CSV or Parquet.

`points`: one row a point and trial, the metrics of the last epoch in columns; trials that are not done are
left out. `epochs`: one row a point, trial, epoch and metric.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whichlayers.errors import WhichlayersError
from whichlayers.results.db import Store
from whichlayers.results.folder import StudyFolder

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "parquet"]
ENDINGS: dict[Format, tuple[str, ...]] = {
    "csv": (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip"),  # pandas compresses by the ending
    "parquet": (".parquet", ".pq"),
}

POINTS = """
SELECT p.experiment, p.condition, p.x, t.id AS trial_id, t.model, t.model_fingerprint, m.depth, t.task,
       t.task_fingerprint, t.train_size, t.seed, t.head, t.recipe, t.keep_layer_norm, t.reinit_lr_factor,
       COALESCE(json_extract(t.trial_json, '$.words.measure'), k.metric) AS primary_metric, t.seconds, t.trial_json
FROM points p JOIN trials t ON t.id = p.trial_id
LEFT JOIN models m ON m.fingerprint = t.model_fingerprint
LEFT JOIN tasks k ON k.fingerprint = t.task_fingerprint
WHERE t.status = 'done' ORDER BY p.rowid
"""
EPOCHS = (
    "SELECT trial_id, epoch, metric, value FROM epochs JOIN trials ON id = trial_id WHERE status = 'done'"
)
LAST_EPOCHS = """
WITH last AS (SELECT trial_id, MAX(epoch) AS epoch FROM epochs GROUP BY trial_id)
SELECT e.trial_id, e.metric, e.value FROM epochs e
JOIN last ON last.trial_id = e.trial_id AND last.epoch = e.epoch JOIN trials t ON t.id = e.trial_id
WHERE t.status = 'done' AND e.metric != 'seconds'  -- of one epoch; the trial's own stands in the points
"""
ROWS_AT_ONCE = 50_000  # as rows of Python's, all would take ten times the memory of the frame


def points_frame(folder: StudyFolder) -> pd.DataFrame:
    points, last = _read(folder, LAST_EPOCHS)
    final = last.pivot(index="trial_id", columns="metric", values="value")
    final.columns.name = None
    return points.merge(final, left_on="trial_id", right_index=True, how="left")


def epochs_frame(folder: StudyFolder) -> pd.DataFrame:
    points, epochs = _read(folder, EPOCHS)
    return points.drop(columns="seconds").merge(epochs, on="trial_id")


def _read(folder: StudyFolder, of_epochs: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    with Store.read(folder.database) as store:
        points, epochs = (_in_parts(query, store) for query in (POINTS, of_epochs))
    facts = [_facts(text) for text in points.pop("trial_json")]
    points["keep_layer_norm"] = points["keep_layer_norm"].astype(bool)
    for place, column in enumerate(("order", "reinit", "epochs", "lr", "finetuned_on")):
        points[column] = [fact[place] for fact in facts]
    if points["finetuned_on"].isna().all():  # no trial asks about words
        del points["finetuned_on"]
    return points, epochs


def _in_parts(query: str, store: Store) -> pd.DataFrame:
    import pandas as pd

    parts = pd.read_sql_query(query, store.connection, chunksize=ROWS_AT_ONCE)
    return pd.concat(list(parts), ignore_index=True)


def _facts(trial_json: str) -> tuple[str, str, int, float, str | None]:
    """Order, re-initialised layers, epochs and learning rate of a trial; and, if it asks about words, the task
    that its model was finetuned on: "" for none."""
    trial = json.loads(trial_json)
    surgery, training = trial["surgery"], trial["training"]
    orders = _listed(surgery["order"]), _listed(surgery["reinit"])
    return *orders, training["epochs"], training["lr"], trial["task"] if trial.get("words") else None


def _listed(layers: list[int] | None) -> str:
    return " ".join(map(str, layers or ()))


def export(
    folder: StudyFolder, form: Format | None = None, out: Path | None = None, by_epoch: bool = False
) -> Path:
    """Write the table and return where it is; `out` is by default a file in the study folder. The form is that of
    its ending, where none is given."""
    form = _form(form, out)
    frame = epochs_frame(folder) if by_epoch else points_frame(folder)
    if frame.empty:
        raise WhichlayersError(
            f"nothing has finished in {folder.path} yet: run the study with `whichlayers run`, then export it"
        )
    target = out or folder.path / f"{'epochs' if by_epoch else 'results'}.{form}"
    if target.is_dir():
        raise WhichlayersError(f"{target} is a folder: name a file, such as {target / 'results'}.{form}")
    if not target.parent.is_dir():
        raise WhichlayersError(
            f"there is no folder {target.parent} to write {target.name} into: make it first"
        )
    if form == "csv":
        frame.to_csv(target, index=False)
    else:
        with target.open("wb") as file:  # whose errors name it
            frame.to_parquet(file, index=False)
    return target


def _form(given: Format | None, out: Path | None) -> Format:
    """As asked for, or as the file's ending says; CSV where neither says anything."""
    if out is None or not out.suffix:
        return given or "csv"
    name = out.name.lower()
    told = next((form for form, endings in ENDINGS.items() if name.endswith(endings)), None)
    if given is not None and told not in (None, given):
        raise WhichlayersError(
            f"--out {out} has the ending of {told}, but --format is {given}: change one of them"
        )
    form = given or told
    if form is None:
        raise WhichlayersError(
            f"--out {out}: {out.suffix} is no form that is written; name a .csv or .parquet file, or give --format"
        )
    return form
