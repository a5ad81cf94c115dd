"""Everything that results.db and losses.db hold about one trial, and a table of trials to search."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whichlayers.errors import WhichlayersError
from whichlayers.results.connection import DATABASE, read_snapshot
from whichlayers.results.losses import LossCurve, read_losses
from whichlayers.trial import Trial

MAX_LISTED = 8  # trials that an error message lists
PER_LAYER = ("lr_factors", "parameters")  # settings of training that differ between points of one curve
TRIAL_COLUMNS = (
    "experiment",
    "condition",
    "x",
    "model",
    "task",
    "examples",
    "seed",
    "status",
    "score",
    "seconds",
)
TABLE = """
SELECT t.id AS trial_id, p.experiment, p.condition, p.x, t.model, t.task, t.train_size AS examples, t.seed, t.status,
    (SELECT e.value FROM epochs e WHERE e.trial_id = t.id AND e.metric = t.primary_metric
     ORDER BY e.epoch DESC LIMIT 1) AS score, t.primary_metric AS metric, t.seconds, t.error
FROM points p JOIN trials t ON t.id = p.trial_id
"""


@dataclass(frozen=True)
class TrialDetails:
    """One trial: its settings, where it belongs in the study, and its results."""

    trial_id: str
    # its row in the table `trials`, with prompt, BOS token and probe in place of trial_json
    row: dict[str, Any]
    training: dict[str, Any]
    points: list[dict[str, Any]]  # experiment, condition and x of each point it belongs to
    epochs: list[dict[str, Any]]  # one dict per epoch: epoch, and the values by metric
    weight_change: list[dict[str, Any]]  # by layer: layer, mean Frobenius and spectral norm over its matrices
    run: dict[str, Any] | None  # the run that trained it
    loss: LossCurve  # training loss by step; empty if losses.db does not have it


def trial_ids(folder: Path, start: str) -> list[str]:
    """Ids of the trials of a study that start with this text, in order."""
    with read_snapshot(folder / DATABASE) as db:
        rows = db.execute("SELECT id FROM trials WHERE substr(id, 1, ?) = ? ORDER BY id", (len(start), start))
        return [trial_id for (trial_id,) in rows]


def trial_details(folder: Path, trial_id: str) -> TrialDetails:
    """Everything about the trial whose id is, or starts with, `trial_id`.

    Raises:
        WhichlayersError: No trial of the study has such an id, or several have.
    """
    with read_snapshot(folder / DATABASE) as db:
        full_id = _find(db, folder, trial_id)

        def rows(query: str) -> list[dict[str, Any]]:
            cursor = db.execute(query, (full_id,))
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

        (row,) = rows("SELECT * FROM trials WHERE id = ?")
        epochs: dict[int, dict[str, Any]] = {}
        for one in rows("SELECT epoch, metric, value FROM epochs WHERE trial_id = ? ORDER BY epoch, metric"):
            epochs.setdefault(one["epoch"], {"epoch": one["epoch"]})[one["metric"]] = one["value"]
        change = rows(
            "SELECT layer, AVG(CASE kind WHEN 'frobenius' THEN value END) AS frobenius,"
            " AVG(CASE kind WHEN 'spectral' THEN value END) AS spectral"
            " FROM weight_change WHERE trial_id = ? GROUP BY layer ORDER BY layer"
        )
        runs = rows("SELECT * FROM runs WHERE run_id = (SELECT run_id FROM trials WHERE id = ?)")
        points = rows("SELECT experiment, condition, x FROM points WHERE trial_id = ? ORDER BY experiment, x")
    stored = row.pop("trial_json")
    trial, probe = json.loads(stored), Trial.from_json(stored).probe
    row |= {name: trial.get(name) for name in ("pair_template", "bos")}
    row["probe"] = None if probe is None else dataclasses.asdict(probe)
    training = json.loads(row.pop("training") or "{}")
    training |= {name: trial["training"][name] for name in PER_LAYER if trial["training"].get(name)}
    loss = read_losses(folder, [full_id]).get(full_id, LossCurve())
    run = runs[0] | {"versions": json.loads(runs[0]["versions"] or "{}")} if runs else None
    return TrialDetails(full_id, row, training, points, list(epochs.values()), change, run, loss)


def _find(db: sqlite3.Connection, folder: Path, prefix: str) -> str:
    """The only trial id that starts with `prefix`."""
    ids = [
        row[0]
        for row in db.execute("SELECT id FROM trials WHERE substr(id, 1, ?) = ?", (len(prefix), prefix))
    ]
    if len(ids) == 1 or prefix in ids:
        return prefix if prefix in ids else ids[0]
    if not ids:
        raise WhichlayersError(
            f"{folder} has no trial {prefix}; ids are in the column trial_id of: whichlayers export {folder}"
        )
    listed = ", ".join(sorted(ids)[:MAX_LISTED]) + (", ..." if len(ids) > MAX_LISTED else "")
    raise WhichlayersError(
        f"{len(ids):,} trials of {folder} start with {prefix}: {listed}; give more characters"
    )


@dataclass(frozen=True)
class TrialTable:
    """The points of a study as rows that can be searched and sorted; loaded once, in memory.

    Args:
        rows: Dicts with trial_id, `TRIAL_COLUMNS`, metric and error.
    """

    rows: Sequence[dict[str, Any]]

    @staticmethod
    def load(folder: Path) -> TrialTable:
        """Read all points with their trials."""
        with read_snapshot(folder / DATABASE) as db, closing(db.execute(TABLE)) as cursor:
            names = [column[0] for column in cursor.description]
            return TrialTable([dict(zip(names, row, strict=True)) for row in cursor])

    def select(
        self, search: str = "", status: str = "", sort: str = "", descending: bool = False, limit: int = 200
    ) -> tuple[list[dict[str, Any]], int]:
        """Rows that match, and how many match in all.

        Args:
            search: Words that must all occur in the row (in any column, ignoring case).
            status: pending, running, done or failed; empty: any.
            sort: A column; empty: the order of the study. Empty values come last.
            descending: Whether the largest values come first.
            limit: Most rows to return.
        """
        words = search.lower().split()
        found = [
            row
            for row in self.rows
            if (not status or row["status"] == status) and all(word in _text(row) for word in words)
        ]
        if sort in TRIAL_COLUMNS:
            known = [row for row in found if row[sort] is not None]
            known.sort(key=lambda row: row[sort], reverse=descending)
            found = known + [row for row in found if row[sort] is None]
        return found[:limit], len(found)


def _text(row: dict[str, Any]) -> str:
    """What a search looks at."""
    parts = [row["trial_id"], *(row[name] for name in TRIAL_COLUMNS if name not in ("score", "seconds"))]
    return " ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts).lower()
