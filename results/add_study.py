"""Add the results of a study to this folder, or bring them up to date.

    python results/add_study.py STUDY_FOLDER NAME                       # all figures
    python results/add_study.py STUDY_FOLDER NAME incremental layers    # these figures

Writes results/NAME: study.toml, results.csv.gz (one row per point and finished trial), weight_change.csv.gz (norms of
the change of each weight matrix, of the models that were finetuned as pretrained), trials.csv (trials of each
experiment by status), runs.csv, claims.csv, summary.csv and figures/. STUDY_FOLDER has results.db, or results.db.xz.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import sys
import tempfile
from pathlib import Path, PurePath

import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from recompute import RESULTS, write_tables

from whichlayers.plots.figures import draw_named, figure_names, save_as
from whichlayers.results.export import points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import load_baseline_weight_change, load_points, load_runs

RUN_COLUMNS = ["run_id", "started", "finished", "last_trial", "outcome", "device", "threads", "git_commit"]
FIXED_GZIP = {"method": "gzip", "mtime": 1}  # the same bytes each time


def add_study(source: Path, name: str, figures: list[str]) -> Path:
    """Write the files of one study, and return their folder."""
    target = RESULTS / name
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        folder = with_database(source, Path(unpacked))
        results(folder).to_csv(target / "results.csv.gz", index=False, compression=FIXED_GZIP)
        weights = load_baseline_weight_change(folder)
        if len(weights):
            weights.to_csv(target / "weight_change.csv.gz", index=False, compression=FIXED_GZIP)
        statuses(folder).to_csv(target / "trials.csv", index=False)
        load_runs(folder)[RUN_COLUMNS].to_csv(target / "runs.csv", index=False)
        (target / "figures").mkdir(exist_ok=True)
        for figure in figures or figure_names(folder):
            save_as(draw_named(folder, figure, overlay=True), target / "figures" / f"{figure}.png")
    if source.resolve() != target.resolve():
        text = (source / "study.toml").read_text(encoding="utf-8")
        (target / "study.toml").write_text(without_folders(text), encoding="utf-8", newline="\n")
    write_tables(target)
    return target


def results(folder: Path) -> pd.DataFrame:
    """The rows of `whichlayers export`, with the family of the model and, where it is known, the score of guessing."""
    points = load_points(folder).drop_duplicates("trial_id").set_index("trial_id")
    rows = points_frame(StudyFolder(folder))
    rows["model"] = rows["model"].map(
        lambda name: PurePath(name).name if name.startswith(("/", ".")) else name
    )
    further = {name: rows["trial_id"].map(points[name]) for name in ("family", "guess")}
    return rows.assign(**{name: values for name, values in further.items() if values.notna().any()})


def without_folders(text: str) -> str:
    """The text of a study file with the last part of each path alone: no paths of one machine."""
    return re.sub(r'"(?:\.{0,2}/[^"\n]*/|\.{1,2}/)([^"/\n]+)"', r'"\1"', text)


def statuses(folder: Path) -> pd.DataFrame:
    """experiment, task, train_size, status, trials: a trial that several experiments share counts in each."""
    keys = ["experiment", "task", "train_size", "status"]
    points = load_points(folder).drop_duplicates(["trial_id", *keys])
    return points.groupby(keys, sort=False).size().rename("trials").reset_index()


def with_database(source: Path, unpacked: Path) -> Path:
    """The folder itself, or one with its results.db.xz decompressed."""
    if (source / "results.db").is_file():
        return source
    with lzma.open(source / "results.db.xz") as packed, (unpacked / "results.db").open("wb") as database:
        shutil.copyfileobj(packed, database)
    return unpacked


def main() -> None:
    parser = argparse.ArgumentParser(description="Add the results of a study to this folder.")
    parser.add_argument("source", type=Path, metavar="STUDY_FOLDER")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("figures", nargs="*", metavar="FIGURE")
    given = parser.parse_args()
    print(add_study(given.source, given.name, given.figures))


if __name__ == "__main__":
    main()
