"""Reading results.db: the trials of the study, its progress and what is known about its data.

`ResultsDB` in results/db.py adds opening and writing; the data frames of reports are read in results/frames.py.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from typing import Any

from whichlayers.results.records import Counts, Failure
from whichlayers.trial import Trial

IN_STUDY = "EXISTS (SELECT 1 FROM points WHERE points.trial_id = trials.id)"


class ResultsReader:
    """What can be asked of a connection to results.db whose rows are `sqlite3.Row`."""

    connection: sqlite3.Connection

    def meta(self, key: str) -> str | None:
        """The value of a key in the table `meta`; None if it is not there."""
        row = self.connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def notes(self) -> list[str]:
        """The stored notes about the data."""
        truncated = json.loads(self.meta("truncated") or "{}")
        return [*json.loads(self.meta("notes") or "[]"), *truncated.values()]

    def time_left(self, run_id: int, now: float) -> float | None:
        """Seconds that a run still takes by its last estimate; None if there is none.

        Args:
            run_id: The run.
            now: The current time, in seconds since 1970.
        """
        stored = json.loads(self.meta("time_left") or "{}")
        if stored.get("run") != run_id:
            return None
        return max(0.0, stored["seconds"] - (now - stored["at"]))

    def trials(self, *statuses: str) -> list[Trial]:
        """The trials of the study with one of these statuses, in the order of the study file."""
        placeholders = ", ".join("?" * len(statuses))
        rows = self.connection.execute(
            f"""SELECT trial_json FROM trials
                JOIN (SELECT trial_id, MIN(rowid) AS place FROM points GROUP BY trial_id) ON trial_id = id
                WHERE status IN ({placeholders}) ORDER BY place""",
            statuses,
        )
        return [Trial.from_json(row[0]) for row in rows]

    def trial_ids(self, *statuses: str, in_study: bool = False, run_id: int | None = None) -> set[str]:
        """Ids of the trials with one of these statuses.

        Args:
            statuses: "pending", "running", "done" or "failed".
            in_study: Only those of the current study.
            run_id: Only those that this run started last.
        """
        placeholders = ", ".join("?" * len(statuses))
        query = f"SELECT id FROM trials WHERE status IN ({placeholders})" + f" AND {IN_STUDY}" * in_study
        values: list[str | int] = [*statuses]
        if run_id is not None:
            query += " AND run_id = ?"
            values.append(run_id)
        return {row[0] for row in self.connection.execute(query, values)}

    def penalties(self) -> list[tuple[Trial, tuple[float, float]]]:
        """The done word probes whose L1 and L2 are stored, with these."""
        rows = self.connection.execute(
            "SELECT trial_json, MAX(value) FILTER (WHERE metric = 'l1'), MAX(value) FILTER (WHERE metric = 'l2')"
            " FROM trials JOIN epochs ON id = trial_id"
            " WHERE status = 'done' AND metric IN ('l1', 'l2') GROUP BY trial_id"
        )
        return [(Trial.from_json(row[0]), (row[1], row[2])) for row in rows]

    def unfinished_trials(self) -> list[Trial]:
        """The trials of the study that are pending, or were running when a run was killed."""
        return self.trials("pending", "running")

    def interrupted_stacks(self) -> list[list[str]]:
        """Trial ids of each stack that was running when an earlier run stopped."""
        rows = self.connection.execute(
            "SELECT run_id, started, id FROM trials WHERE status IN ('pending', 'running')"
            " AND started IS NOT NULL ORDER BY run_id, started, rowid"
        )
        return [
            [row[2] for row in group] for _, group in itertools.groupby(rows, key=lambda row: tuple(row)[:2])
        ]

    def counts(self) -> Counts:
        """Number of trials of the current study, by status."""
        rows = self.connection.execute(
            f"SELECT status, COUNT(*) FROM trials WHERE {IN_STUDY} GROUP BY status"
        )
        return Counts(**dict(rows.fetchall()))

    def failures(self) -> list[Failure]:
        """The failed trials of the study in the order in which they failed."""
        rows = self.connection.execute(
            f"SELECT trial_json, error FROM trials WHERE status = 'failed' AND {IN_STUDY} ORDER BY finished"
        )
        return [Failure(Trial.from_json(row[0]), row[1] or "") for row in rows]

    def last_run(self) -> dict[str, Any] | None:
        """The last row of the table `runs` by column name; None if there was no run."""
        row = self.connection.execute("SELECT * FROM runs ORDER BY run_id DESC LIMIT 1").fetchone()
        return dict(row) if row else None
