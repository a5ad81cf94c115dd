"""Data of the live page: loss curves of running trials, and the table of trials."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

from whichlayers.cli.format import UNCHANGED, describe_trial
from whichlayers.cli.status import Status
from whichlayers.results.connection import read_snapshot
from whichlayers.results.folder import StudyFolder
from whichlayers.results.losses import LossCurve, read_losses
from whichlayers.results.reader import IN_STUDY
from whichlayers.results.trial_details import TRIAL_COLUMNS, TrialTable
from whichlayers.text import format_score, short_names
from whichlayers.trial import Trial

MAX_CURVES = 32  # running trials whose loss is shown
MAX_ROWS = 200  # of the table of trials that are sent at once
MAX_UNFINISHED = 0.999  # share of a study that has trials to finish


def running_losses(folder: StudyFolder) -> list[dict[str, Any]]:
    """Loss curves of running trials: id, label, color, lines of the tooltip, number of steps and [step, loss] pairs.

    The color is that of the label, in the light and in the dark theme; `place` is the label's in the legend. At most
    `MAX_CURVES`; trials without a loss so far are left out.
    """
    query = "SELECT id, trial_json FROM trials WHERE status = 'running' ORDER BY started DESC, id"
    with read_snapshot(folder.database) as db:
        running = {trial_id: Trial.from_json(text) for trial_id, text in db.execute(query)}
    curves = read_losses(folder.path, running)
    names = short_names(trial.model for trial in running.values())
    shown = [trial_id for trial_id in running if trial_id in curves and curves[trial_id].steps][:MAX_CURVES]
    texts = {i: describe_trial(replace(running[i], model=names[running[i].model])) for i in shown}
    labels = dict(zip(shown, curve_labels(list(texts.values())), strict=True))
    order = _order(labels.values())
    colors = _colors(len(order))
    return [
        {
            "id": trial_id,
            "label": labels[trial_id],
            "place": order.index(labels[trial_id]),
            "color": colors[order.index(labels[trial_id])],
            "lines": [texts[trial_id], _last_loss(curves[trial_id], running[trial_id].steps)],
            "steps": running[trial_id].steps,
            "points": list(zip(curves[trial_id].steps, curves[trial_id].losses, strict=True)),
        }
        for trial_id in shown
    ]


def curve_labels(descriptions: Sequence[str]) -> list[str]:
    """What distinguishes each of these trials, from `describe_trial`; the seed only if nothing else does."""
    parts = [text.removesuffix(")").replace(" (", ", ").split(", ") for text in descriptions]
    shared = set(parts[0]).intersection(*parts) if parts else set()
    differing = [[part for part in one if part not in shared] for one in parts]
    without_seed = [[part for part in one if not part.startswith("seed ")] for one in differing]
    return [", ".join(one) for one in (without_seed if any(without_seed) else differing)]


def _order(labels: Iterable[str]) -> list[str]:
    """The labels without duplicates, numbers in them by size; unchanged models last, after re-initialized ones."""

    def key(label: str) -> tuple[bool, list[str]]:
        return UNCHANGED in label, [part.zfill(6) for part in re.split(r"(\d+)", label)]

    return sorted(set(labels), key=key)


def _colors(n: int) -> list[tuple[str, str]]:
    """n pairs of a light and a dark color: distinct ones if there are enough, else a ramp."""
    from whichlayers.plots.style import DARK, LIGHT

    if n <= len(LIGHT.conditions):
        return list(zip(LIGHT.conditions, DARK.conditions, strict=True))[:n]
    return list(zip(LIGHT.sizes(n), DARK.sizes(n), strict=True))


def _last_loss(curve: LossCurve, steps: int) -> str:
    return f"step {curve.steps[-1]:,} of {steps:,}: loss {curve.losses[-1]:.3f}"


@dataclass
class StepCounter:
    """The share of a study that is done, in the steps that the run itself counts.

    Of a study without probes, it is up to date: loss curves tell how far running trials are. Of a study with probes, it
    is as of the run's last note of the steps that are left. Sums over trials are read again when results have changed.
    """

    folder: StudyFolder
    version: str = ""
    steps: StudySteps = field(default_factory=lambda: StudySteps(0, 0, 0, False))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def share(self, status: Status) -> float:
        """Share of all steps that done and running trials have taken; below 1 until all trials are done."""
        counts = status.counts
        with self.lock:
            if (version := f"{counts}") != self.version:
                self.steps, self.version = count_steps(self.folder), version
            steps = self.steps
        if counts.done == counts.total or not steps.total:
            return counts.done / max(1, counts.total)
        done = steps.done
        if status.running and not steps.with_probes:
            done += running_steps(self.folder)
        elif status.running and (left := steps_left(self.folder)) is not None:
            done = max(done, steps.total - steps.failed - left)
        return min(done / steps.total, MAX_UNFINISHED)


@dataclass(frozen=True)
class StudySteps:
    """Steps of the trials of a study, as `plan.total_steps` counts them."""

    total: int
    done: int  # a model that is word-probed counts when all its probes are done
    failed: int
    with_probes: bool  # whether some trials are probes


def count_steps(folder: StudyFolder) -> StudySteps:
    """The steps of the trials of the study."""
    batch = "json_extract(trial_json, '$.training.batch_size')"
    query = (
        f"SELECT status, SUM((train_size + {batch} - 1) / {batch} * epochs) FROM trials"  # as `Trial.steps`
        f" WHERE {IN_STUDY} GROUP BY status"
    )
    probes = f"SELECT 1 FROM trials WHERE kind != 'finetune' AND {IN_STUDY} LIMIT 1"
    with read_snapshot(folder.database) as db:
        if db.execute(probes).fetchone() is None:
            steps = dict(db.execute(query))
            return StudySteps(sum(steps.values()), steps.get("done", 0), steps.get("failed", 0), False)
        rows = db.execute(f"SELECT status, trial_json FROM trials WHERE {IN_STUDY}").fetchall()
    from whichlayers.runs.plan import total_steps

    trials = [(status, Trial.from_json(text)) for status, text in rows]
    total = total_steps(trial for _, trial in trials)
    done = total - total_steps(trial for status, trial in trials if status != "done")
    failed = total - done - total_steps(trial for status, trial in trials if status not in ("done", "failed"))
    return StudySteps(total, done, failed, True)


def steps_left(folder: StudyFolder) -> int | None:
    """The steps that the present run has left, as it last noted; None if it has not yet."""
    with read_snapshot(folder.database) as db:
        stored = db.execute("SELECT value FROM meta WHERE key = 'time_left'").fetchone()
        run = db.execute("SELECT MAX(run_id) FROM runs").fetchone()
    record = json.loads(stored[0]) if stored else {}
    return record.get("steps") if record.get("run") == run[0] else None


def running_steps(folder: StudyFolder) -> int:
    """The steps that running trials have done, by the last step of their loss curves."""
    with read_snapshot(folder.database) as db:
        running = [row[0] for row in db.execute("SELECT id FROM trials WHERE status = 'running'")]
    return sum(curve.steps[-1] for curve in read_losses(folder.path, running).values() if curve.steps)


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
