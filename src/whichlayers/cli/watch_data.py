"""Data of the live page: loss curves of running trials, and the table of trials."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

from whichlayers.cli.format import describe_trial
from whichlayers.results.connection import read_snapshot
from whichlayers.results.folder import StudyFolder
from whichlayers.results.losses import LossCurve, read_losses
from whichlayers.results.trial_details import TRIAL_COLUMNS, TrialTable
from whichlayers.text import format_score, short_names
from whichlayers.trial import Trial

MAX_CURVES = 32  # running trials whose loss is shown
MAX_ROWS = 200  # of the table of trials that are sent at once


def running_losses(folder: StudyFolder) -> list[dict[str, Any]]:
    """Loss curves of running trials: id, lines of the tooltip, number of steps and [step, loss] pairs.

    At most `MAX_CURVES`; trials without a loss so far are left out.
    """
    query = "SELECT id, trial_json FROM trials WHERE status = 'running' ORDER BY started DESC, id"
    with read_snapshot(folder.database) as db:
        running = {trial_id: Trial.from_json(text) for trial_id, text in db.execute(query)}
    curves = read_losses(folder.path, running)
    names = short_names(trial.model for trial in running.values())
    return [
        {
            "id": trial_id,
            "lines": [
                describe_trial(replace(trial, model=names[trial.model])),
                _last_loss(curve, trial.steps),
            ],
            "steps": trial.steps,
            "points": [[step, loss] for step, loss in zip(curve.steps, curve.losses, strict=True)],
        }
        for trial_id, trial in running.items()
        if (curve := curves.get(trial_id)) is not None and curve.steps
    ][:MAX_CURVES]


def _last_loss(curve: LossCurve, steps: int) -> str:
    return f"step {curve.steps[-1]:,} of {steps:,}: loss {curve.losses[-1]:.3f}"


@dataclass
class TrialSearch:
    """Answers searches in the table of trials; the table is read again when results have changed."""

    folder: StudyFolder
    version: str = ""
    table: TrialTable = field(default_factory=lambda: TrialTable([]))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, query: str, version: str) -> dict[str, Any]:
        """Rows for a query string such as "q=SST-2 done&sort=score&descending=1".

        Args:
            query: Keys q (words to search), status, sort (a column) and descending ("1").
            version: Changes when the results do.
        """
        with self.lock:
            if version != self.version:
                self.table, self.version = TrialTable.load(self.folder.path), version
            table = self.table
        given = {key: values[-1] for key, values in parse_qs(query).items()}
        rows, total = table.select(
            given.get("q", ""),
            given.get("status", ""),
            given.get("sort", ""),
            given.get("descending") == "1",
            MAX_ROWS,
        )
        names = short_names(row["model"] for row in table.rows)
        return {
            "columns": ["trial", *TRIAL_COLUMNS],
            "rows": [_cells(row, names) for row in rows],
            "total": total,
            "of": len(table.rows),
        }


def _cells(row: dict[str, Any], model_names: dict[str, str]) -> list[str]:
    """The cells of a row as text."""
    score, seconds = row["score"], row["seconds"]
    shown = row | {
        "model": model_names[row["model"]],
        "x": f"{row['x']:g}",
        "examples": f"{row['examples']:,}",
        "score": "" if score is None else format_score(score, row["metric"] or ""),
        "seconds": "" if seconds is None else f"{seconds:.1f}",
    }
    return [row["trial_id"], *("" if shown[name] is None else str(shown[name]) for name in TRIAL_COLUMNS)]
