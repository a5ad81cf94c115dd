"""JSON output of the commands with --json. Scores are in units of the metric, times in seconds, sizes in bytes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from whichlayers.analysis.compare_studies import StudyComparison
    from whichlayers.analysis.power import PowerEstimate
    from whichlayers.cli.status import Status
    from whichlayers.runs.estimate import Estimate
    from whichlayers.study.study_file import Study

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(data: Any) -> None:
    """Print data as JSON; NaN and infinity become null."""
    typer.echo(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False))


def plain(value: Any) -> Any:
    """A value made of dicts, lists, strings, finite numbers, booleans and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # a scalar of numpy
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dicts."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def plan_data(study: Study, folder: Path, estimate: Estimate) -> dict[str, Any]:
    """What `whichlayers plan` prints."""
    from whichlayers.runs.plan import plan_rows

    return {
        "study": study.name,
        "folder": folder,
        "trials": len(estimate.trials),
        "trials_done": estimate.done,
        "trials_failed": estimate.failed,
        "trials_done_of_other_settings": estimate.other_done,
        "steps": sum(stack.steps for stack in estimate.stacks),
        "stacks": len(estimate.stacks),
        "rows": plan_rows(estimate.stacks),
        "tasks": estimate.tasks,
        "corpora": estimate.corpora,
        "notes": estimate.notes,
        "workers": estimate.resources.workers,
        "devices": estimate.resources.devices,
        "seconds": estimate.here,
        "seconds_without_other_programs": estimate.alone,
        "seconds_on_gpus": estimate.on_gpus,
        "trials_not_timed": estimate.untimed,
        "disk_bytes": estimate.disk,
    }


def status_data(status: Status) -> dict[str, Any]:
    """What `whichlayers status` prints, with all failures."""
    failures = [{"trial_id": one.trial.id, "error": one.error} for one in status.failures]
    return {
        "study": status.study,
        "folder": status.folder,
        "trials": {**plain(status.counts), "total": status.counts.total},
        "trials_done_of_other_settings": status.other_done,
        "running": status.running,
        "seconds_left": status.seconds_left,
        "last_outcome": status.last_outcome,
        "notes": status.notes,
        "failures": failures,
        "disk_bytes": status.disk,
    }


def power_data(
    estimates: list[PowerEstimate], difference: float, unit: str, notes: list[str]
) -> dict[str, Any]:
    """One record per comparison, and notes on the seeds of the study."""
    keys = ("experiment", "model", "model_fingerprint", "task", "train_size", "variant")
    return {
        "difference": difference,
        "unit": unit,
        "comparisons": [
            dict(zip(keys, one.curve, strict=True))
            | {"about": one.about, "mean": one.mean, "sd": one.sd, "n": one.n}
            | {"estimable": one.estimable, "needed": one.needed, "additional": one.additional}
            | {"minutes_per_trial": one.minutes_per_trial}
            for one in estimates
        ],
        "notes": notes,
    }


def comparison_data(comparison: StudyComparison, verdict: str) -> dict[str, Any]:
    """Differences B - A of curves and of points, and what differs between the studies."""
    return {
        "a": comparison.a,
        "b": comparison.b,
        "verdict": verdict,
        "differs": [{"setting": name, "a": a, "b": b} for name, a, b in comparison.differs],
        "curves": records(comparison.curves),
        "points": records(comparison.points),
        "unpaired": [{"reason": reason, "results": count} for reason, count in comparison.unpaired],
        "notes": comparison.notes,
    }
