"""losses.db: the training loss of each trial during training, for the live page and for TensorBoard.

It is a file of its own beside results.db, so that it can be deleted at any time and never delays or endangers results.
A trial has at most `MAX_POINTS` values, each the mean loss over the steps since the value before; the file keeps the
`MAX_TRIALS` trials that were trained last. Losses of whole epochs are in results.db for all trials.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

LOSSES = "losses.db"
MAX_POINTS = 64  # values per trial
MAX_TRIALS = 2_000
FLUSH_SECONDS = 1.0
TABLE = "CREATE TABLE IF NOT EXISTS losses(trial_id TEXT PRIMARY KEY, steps TEXT, losses TEXT, updated REAL)"


@dataclass(frozen=True)
class LossCurve:
    """Mean training losses: `losses[i]` over the steps up to and including `steps[i]`."""

    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()

    def plus(self, step: int, loss: float) -> LossCurve:
        """The curve with one more value; values of this step and later ones are from an earlier attempt and dropped."""
        kept = sum(earlier < step for earlier in self.steps)
        return LossCurve((*self.steps[:kept], step), (*self.losses[:kept], loss))


class LossLog:
    """Writes losses.db during a run. A file that cannot be written is given up silently: it holds no results.

    Args:
        folder: Study folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOSSES
        self.curves: dict[str, LossCurve] = {}  # of running trials
        self.changed: set[str] = set()
        self.last_flush = 0.0
        self.broken = False

    def record(self, step: int, losses: Mapping[str, float]) -> None:
        """Add one value to the curve of each trial: the mean loss up to `step`, by trial id."""
        for trial_id, loss in losses.items():
            self.curves[trial_id] = self.curves.get(trial_id, LossCurve()).plus(step, loss)
        self.changed.update(losses)
        if time.monotonic() - self.last_flush >= FLUSH_SECONDS:
            self.flush()

    def forget(self, trial_ids: Iterable[str]) -> None:
        """These trials ended: write their curves and drop them from memory."""
        self.flush()
        for trial_id in trial_ids:
            self.curves.pop(trial_id, None)

    def flush(self) -> None:
        """Write what has changed."""
        if self.broken or not self.changed:
            return
        now = time.time()
        rows = [
            (trial_id, json.dumps(curve.steps), json.dumps([round(loss, 6) for loss in curve.losses]), now)
            for trial_id in self.changed
            if (curve := self.curves.get(trial_id)) is not None
        ]
        try:
            with closing(sqlite3.connect(self.path, timeout=1.0)) as db, db:
                db.execute("PRAGMA synchronous = OFF")
                db.execute(TABLE)
                db.executemany("INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?)", rows)
                db.execute(
                    "DELETE FROM losses WHERE trial_id IN "
                    "(SELECT trial_id FROM losses ORDER BY updated DESC, trial_id LIMIT -1 OFFSET ?)",
                    (MAX_TRIALS,),
                )
        except (sqlite3.Error, OSError):
            self.broken = True
        self.changed.clear()
        self.last_flush = time.monotonic()


def read_losses(folder: Path, trial_ids: Iterable[str] | None = None) -> dict[str, LossCurve]:
    """Loss curves by trial id: of these trials, or of all; without those that losses.db does not have."""
    path = Path(folder).resolve() / LOSSES  # a relative path has no URI
    if not path.is_file():
        return {}
    wanted = None if trial_ids is None else set(trial_ids)
    found = {}
    with (
        suppress(sqlite3.Error, ValueError),
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db,
    ):
        for trial_id, steps, losses in db.execute("SELECT trial_id, steps, losses FROM losses"):
            if wanted is None or trial_id in wanted:
                found[trial_id] = LossCurve(tuple(json.loads(steps)), tuple(json.loads(losses)))
    return found
