"""results.csv and epochs.csv against rows put together one by one from the stored trials."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from synthetic_results import incremental, lifelike, write_results

from whichlayers.errors import WhichlayersError
from whichlayers.results.export import epochs_frame, export, points_frame
from whichlayers.results.folder import StudyFolder
from whichlayers.results.frames import load_points
from whichlayers.trial import COMPONENTS, Trial

# a study of version 0.1 with finetuned models, probes and word probes, 76 of its 102 trials done
KILLED = Path(__file__).parents[1] / "golden" / "study" / "killed" / "results.db"


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    shutil.copy(KILLED, tmp_path / "results.db")
    return StudyFolder(tmp_path)


def stored_points(database: Path) -> list[tuple[sqlite3.Row, Trial, dict[int, dict[str, float]]]]:
    """(row of points and trials, trial, epoch -> metric -> value) of each point, in the order of the study file."""
    with closing(sqlite3.connect(database)) as db:
        db.row_factory = sqlite3.Row
        epochs: dict[str, dict[int, dict[str, float]]] = {}
        for row in db.execute("SELECT * FROM epochs"):
            epochs.setdefault(row["trial_id"], {}).setdefault(row["epoch"], {})[row["metric"]] = row["value"]
        rows = db.execute(
            "SELECT * FROM points JOIN trials ON id = trial_id ORDER BY points.rowid"
        ).fetchall()
    return [(row, Trial.from_json(row["trial_json"]), epochs.get(row["id"], {})) for row in rows]


def exported_row(row: sqlite3.Row, trial: Trial) -> dict[str, object]:
    """The columns of results.csv before those of the metrics."""
    word_probe, surgery = trial.word_probe, trial.surgery
    factor = dict(trial.training.lr_factors).get(surgery.reinit[0], 1.0) if surgery.reinit else 1.0
    return {
        "experiment": row["experiment"],
        "condition": row["condition"],
        "x": row["x"],
        "trial_id": trial.id,
        "model": trial.model,
        "model_fingerprint": trial.model_fingerprint,
        "depth": 3,
        "task": trial.task if word_probe is None else word_probe.corpus,
        "task_fingerprint": trial.task_fingerprint if word_probe is None else word_probe.fingerprint,
        "train_size": trial.train_size,
        "seed": trial.seed,
        "head": trial.head,
        "recipe": surgery.recipe,
        "keep_layer_norm": surgery.keep_layer_norm,
        "reinit_lr_factor": factor,
        "primary_metric": "accuracy" if word_probe is None else word_probe.measure,
        "seconds": row["seconds"],
        "order": " ".join(map(str, surgery.order or ())),
        "reinit": " ".join(map(str, surgery.reinit)),
        "epochs": trial.training.epochs,
        "lr": trial.training.lr,
        "finetuned_on": None if word_probe is None else trial.task,
    }


def assert_same(found: pd.DataFrame, rows: list[dict[str, object]], columns: list[str]) -> None:
    assert list(found) == columns
    reference = pd.DataFrame(rows, columns=columns)
    pd.testing.assert_frame_equal(found, reference, check_dtype=False, check_exact=True)


def test_results_csv_has_the_stored_trials_and_the_metrics_of_their_last_epoch(folder):
    expected = []
    for row, trial, epochs in stored_points(folder.database):
        if row["status"] == "done":
            last = {metric: v for metric, v in epochs[max(epochs)].items() if metric != "seconds"}
            expected.append(exported_row(row, trial) | last)
            settings = list(exported_row(row, trial))
    metrics = {name for row in expected for name in row} - set(settings)
    assert {"selectivity", "control_accuracy", "spread", "dev_loss"} <= metrics
    assert_same(points_frame(folder), expected, settings + sorted(metrics))


def test_epochs_csv_has_every_epoch_and_metric(folder):
    expected = []
    for row, trial, epochs in stored_points(folder.database):
        if row["status"] == "done":
            columns = exported_row(row, trial)
            del columns["seconds"]
            expected += [
                columns | {"epoch": epoch, "metric": metric, "value": value}
                for epoch, metrics in sorted(epochs.items())
                for metric, value in sorted(metrics.items())
            ]
    assert_same(epochs_frame(folder), expected, list(expected[0]))


def test_points_have_the_stored_trials_and_values(folder):
    points = load_points(folder.path)
    stored = stored_points(folder.database)
    assert len(points) == len(stored) == 106
    for point, (row, trial, epochs) in zip(points.to_dict("records"), stored, strict=True):
        last = max(epochs) if row["status"] == "done" else None
        values = epochs[last] if last else {}
        columns = exported_row(row, trial)
        metric = columns["primary_metric"]
        control = "control_accuracy" if metric == "selectivity" else f"control_{metric}"
        word_probe = trial.word_probe
        expected = {
            **{
                name: columns[name]
                for name in ("experiment", "condition", "x", "trial_id", "model", "task", "depth")
            },
            "kind": trial.kind,
            "metric": metric,
            "status": row["status"],
            "value": values.get(metric),
            "dev_loss": values.get("dev_loss"),
            "train_loss": values.get("train_loss"),
            "control": values.get(control) if word_probe else None,
            "epochs": last,
            "seconds": row["seconds"],
            "reinit": trial.surgery.reinit,
            "order": trial.surgery.order or (),
            "untouched": not trial.surgery.reinit,
            "finetuned_on": trial.task if word_probe else "",
            "neurons": word_probe.neurons if word_probe else "",
            "share": word_probe.share if word_probe else None,
            "ranking": word_probe.ranking if word_probe else "",
        }
        found = {
            name: None if pd.api.types.is_float(point[name]) and pd.isna(point[name]) else point[name]
            for name in expected
        }
        assert found == expected


def test_a_study_without_word_probes_has_no_column_for_them(folder):
    with closing(sqlite3.connect(folder.database)) as db:
        db.execute("DELETE FROM points WHERE experiment IN ('word_probing', 'neurons', 'selectivity')")
        db.execute(
            "DELETE FROM points WHERE experiment IN ('neuron_spread', 'smallest_set', 'description_length')"
        )
        db.commit()
    assert "finetuned_on" not in points_frame(folder)
    assert "finetuned_on" not in epochs_frame(folder)
    header = export(folder).read_text().splitlines()[0].split(",")
    assert header[:22] == [*list(points_frame(folder))[:22]]
    assert header[20] == "lr"


def test_seeds_of_components_are_columns_where_they_are_used(tmp_path):
    def table_of(name: str, **settings) -> pd.DataFrame:
        points = [
            dataclasses.replace(p, trial=dataclasses.replace(p.trial, **settings))
            for p in incremental(trials=2, sizes=(500,))
        ]
        return points_frame(StudyFolder(write_results(tmp_path / name, points, lifelike(6))))

    plain, own = table_of("plain"), table_of("own", seeds=(("subset", 0), ("head", 9)))
    added = [f"seed_{component}" for component in COMPONENTS]
    assert not set(added) & set(plain.columns)
    assert [c for c in own.columns if c not in plain.columns] == added
    assert (own["seed_subset"] == 0).all()
    assert (own["seed_head"] == 9).all()
    for column in ("seed_order", "seed_init", "seed_dropout"):
        assert (own[column] == own["seed"]).all()


def test_the_export_of_neurons_needs_stored_ones(folder):
    with pytest.raises(
        WhichlayersError, match=r"no finished trial in .* has top neurons: run the experiment"
    ):
        export(folder, rows="neurons")
