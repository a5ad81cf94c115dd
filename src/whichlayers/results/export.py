"""Export of results to CSV or Parquet.

`points_frame`: one row per point and finished trial, with the metrics of the last epoch as columns.
`epochs_frame`: one row per point, finished trial, epoch and metric.
`neurons_frame`: one row per neuron of the sets that word probes of top neurons selected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.results.connection import read_snapshot
from whichlayers.results.folder import StudyFolder

if TYPE_CHECKING:
    import pandas as pd

FileFormat = Literal["csv", "parquet"]
ExportRows = Literal["points", "epochs", "neurons"]
EXTENSIONS: dict[FileFormat, tuple[str, ...]] = {
    "csv": (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip"),
    "parquet": (".parquet", ".pq"),
}
COMPRESSIONS: dict[str, Literal["gzip", "bz2", "xz", "zip"]] = {
    ".gz": "gzip",
    ".bz2": "bz2",
    ".xz": "xz",
    ".zip": "zip",
}

# columns of results.csv before those of the metrics
COLUMNS = [
    "experiment",
    "condition",
    "x",
    "trial_id",
    "model",
    "model_fingerprint",
    "depth",
    "task",
    "task_fingerprint",
    "train_size",
    "seed",
    "head",
    "recipe",
    "keep_layer_norm",
    "reinit_lr_factor",
    "primary_metric",
    "seconds",
    "order",
    "reinit",
    "epochs",
    "lr",
    "finetuned_on",  # only in studies with word probes
]
NEURON_COLUMNS = [
    "trial_id", "model", "task", "finetuned_on", "train_size", "seed", "ranking", "set", "share",
]  # fmt: skip
COST_COLUMNS = ["trained_parameters", "memory"]  # of finetuned models, in files since version 0.2
EPOCHS = (
    "SELECT trial_id, epoch, metric, value FROM epochs JOIN trials ON id = trial_id WHERE status = 'done'"
)
# without the seconds of the last epoch: those of the whole trial are in POINTS
LAST_EPOCHS = """
WITH last AS (SELECT trial_id, MAX(epoch) AS epoch FROM epochs GROUP BY trial_id)
SELECT e.trial_id, e.metric, e.value FROM epochs e
JOIN last ON last.trial_id = e.trial_id AND last.epoch = e.epoch JOIN trials t ON t.id = e.trial_id
WHERE t.status = 'done' AND e.metric != 'seconds'
"""


def points_frame(folder: StudyFolder) -> pd.DataFrame:
    """One row per point and finished trial, with the metrics of its last epoch as columns."""
    points, last_epochs = _read(folder, LAST_EPOCHS)
    metrics = last_epochs.pivot(index="trial_id", columns="metric", values="value")
    metrics.columns.name = None
    return points.merge(metrics, left_on="trial_id", right_index=True, how="left")


def epochs_frame(folder: StudyFolder) -> pd.DataFrame:
    """One row per point, finished trial, epoch and metric."""
    points, epochs = _read(folder, EPOCHS)
    return points.drop(columns="seconds").merge(epochs, on="trial_id")


def neurons_frame(folder: StudyFolder) -> pd.DataFrame:
    """One row per neuron of each set of top neurons that a finished trial selected.

    The columns identify the trial; `set` is "top" or "smallest", `rank` counts from 1, the most important neuron;
    `layer` 0 is the embeddings and `neuron` the index within the layer.
    """
    import numpy as np
    import pandas as pd

    from whichlayers.results.frames import load_top_neurons

    sets = load_top_neurons(folder.path)
    counts = sets["neurons"].map(len).to_numpy(int)
    sets["set"] = np.where(sets["share"].isna(), "smallest", "top")
    named = sets[NEURON_COLUMNS].loc[np.repeat(np.arange(len(sets)), counts)].reset_index(drop=True)
    pairs = np.array([pair for chosen in sets["neurons"] for pair in chosen], int).reshape(-1, 2)
    ranks = np.concatenate([np.arange(1, count + 1) for count in counts]) if len(counts) else np.zeros(0, int)
    return named.join(pd.DataFrame({"rank": ranks, "layer": pairs[:, 0], "neuron": pairs[:, 1]}))


def _read(folder: StudyFolder, epochs_query: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The points of finished trials, and the rows of `epochs_query`."""
    from whichlayers.results.frames import SEED_COLUMNS, read_in_chunks, read_points

    with read_snapshot(folder.database) as db:
        points, epochs = read_points(db), read_in_chunks(epochs_query, db)
    done = points[points["status"] == "done"].rename(columns={"layer_order": "order"})
    finetuned = done["finetuned_on"].notna().any()
    columns = [column for column in COLUMNS if finetuned or column != "finetuned_on"]
    if done[SEED_COLUMNS].ne(done["seed"], axis=0).any(axis=None):  # components have seeds of their own
        columns = [*columns, *SEED_COLUMNS]
    if done["reinit_pooler"].any():
        columns = [*columns, "reinit_pooler"]
    if done["adapter"].notna().any():
        columns = [*columns, "adapter"]
    if done["memory"].notna().any():
        columns = [*columns, *COST_COLUMNS]
    return done[columns].reset_index(drop=True), epochs


def export(
    folder: StudyFolder,
    file_format: FileFormat | None = None,
    out: Path | None = None,
    rows: ExportRows = "points",
) -> Path:
    """Write the results as a table.

    Args:
        folder: Folder of the study.
        file_format: Default: chosen from the extension of `out`, else CSV.
        out: File to write. Default: results.csv, epochs.csv or neurons.csv (or .parquet) in the study folder.
        rows: One row per point and trial, per epoch and metric ("epochs"), or per top neuron ("neurons").

    Returns:
        The path of the file.
    """
    file_format = _choose_format(file_format, out)
    frame = {"points": points_frame, "epochs": epochs_frame, "neurons": neurons_frame}[rows](folder)
    if frame.empty and rows == "neurons":
        raise WhichlayersError(
            f"no finished trial in {folder.path} has top neurons: run the experiment `neurons`; trials that were run"
            " by whichlayers before schema version 5 did not store them"
        )
    if frame.empty:
        raise WhichlayersError(
            f"no trial has finished in {folder.path} yet: run the study with `whichlayers run`, then export it"
        )
    name = "results" if rows == "points" else rows
    target = out or folder.path / f"{name}.{file_format}"
    if target.is_dir():
        raise WhichlayersError(
            f"{target} is a folder: give a file, such as {target / 'results'}.{file_format}"
        )
    if target.exists() and target.samefile(folder.database):
        raise WhichlayersError(
            f"{target} has the results of the study and is not replaced: choose another name"
        )
    if not target.parent.is_dir():
        raise WhichlayersError(
            f"there is no folder {target.parent} to write {target.name} into: create it first"
        )
    with atomic_write(target) as partial:
        if file_format == "csv":
            frame.to_csv(partial, index=False, compression=_compression(target))
        else:
            with partial.open("wb") as file:  # pandas would choose another name for the file
                frame.to_parquet(file, index=False)
    return target


def _compression(target: Path) -> Literal["gzip", "bz2", "xz", "zip"] | None:
    """The compression of a CSV file by its extension, as pandas chooses it."""
    return COMPRESSIONS.get(target.suffix.lower())


def _choose_format(given: FileFormat | None, out: Path | None) -> FileFormat:
    """The given format, else the format of the extension of `out`, else CSV."""
    if out is None or not out.suffix:
        return given or "csv"
    name = out.name.lower()
    implied = next(
        (file_format for file_format, extensions in EXTENSIONS.items() if name.endswith(extensions)), None
    )
    if given is not None and implied not in (None, given):
        raise WhichlayersError(
            f"--out {out} has the extension of {implied}, but --format is {given}: change one of them"
        )
    file_format = given or implied
    if file_format is None:
        raise WhichlayersError(
            f"--out {out}: the extension {out.suffix} is not known; use .csv or .parquet, or give --format"
        )
    return file_format
