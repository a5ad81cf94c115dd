"""Export of learning curves as TensorBoard event files, one run (folder) per trial."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

from whichlayers.errors import WhichlayersError
from whichlayers.results.connection import read_snapshot
from whichlayers.results.folder import StudyFolder
from whichlayers.results.losses import read_losses

FILE_NAME = "events.out.tfevents.{started:010d}.whichlayers"
MARKER = ".whichlayers"  # marks a folder that an earlier export wrote and that may be replaced
TRIALS = """
SELECT t.id, t.task, t.train_size, t.seed, t.started, t.training, MIN(p.experiment), p.condition, p.x
FROM trials t JOIN points p ON p.trial_id = t.id WHERE t.status IN ('done', 'running') GROUP BY t.id
"""
EPOCHS = "SELECT trial_id, epoch, metric, value FROM epochs ORDER BY trial_id, epoch"


def export_tensorboard(folder: StudyFolder, out: Path | None = None) -> Path:
    """Write event files that TensorBoard and other tools read.

    Each finished or running trial is a run with the scalars of its epochs ("epoch/accuracy", "epoch/train_loss" ...;
    the step is the epoch) and, if losses.db has it, "train/loss" by optimizer step.

    Args:
        folder: The study.
        out: Folder to write; replaced if an earlier export wrote it. Default: tensorboard/ in the study folder.

    Returns:
        The folder.

    Raises:
        WhichlayersError: The tensorboard package is missing, or `out` holds other files.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise WhichlayersError(
            "TensorBoard files need the tensorboard package: pip install tensorboard"
        ) from None
    target = out or folder.path / "tensorboard"
    _make_empty(target)
    with read_snapshot(folder.database) as db:
        trials = db.execute(TRIALS).fetchall()
        epochs: dict[str, list[tuple[int, str, float]]] = {}
        for trial_id, epoch, metric, value in db.execute(EPOCHS):
            epochs.setdefault(trial_id, []).append((epoch, metric, value))
    losses = read_losses(folder.path)
    for trial_id, task, size, seed, started, _, experiment, condition, x in trials:
        run = target / _run_name(task, size, experiment, condition, x, seed, trial_id)
        run.mkdir(parents=True, exist_ok=True)
        start, seconds = float(started or 0.0), 0.0
        with (run / FILE_NAME.format(started=int(start))).open("wb") as file:
            writer = RecordWriter(file)

            def write(step: int, time: float, writer: Any = writer, **content: Any) -> None:
                writer.write(Event(wall_time=time, step=step, **content).SerializeToString())

            write(0, start, file_version="brain.Event:2")
            curve = losses.get(trial_id)
            for step, loss in zip(curve.steps, curve.losses, strict=True) if curve else ():
                write(step, start, summary=_scalar(Summary, "train/loss", loss))
            for epoch, metric, value in epochs.get(trial_id, ()):
                if metric == "seconds":
                    seconds += value
                elif value is not None and math.isfinite(value):
                    write(epoch, start + seconds, summary=_scalar(Summary, f"epoch/{metric}", value))
    return target


def _scalar(summary: Any, tag: str, value: float) -> Any:
    return summary(value=[summary.Value(tag=tag, simple_value=value)])


def _make_empty(target: Path) -> None:
    """Create the folder; delete what an earlier export wrote."""
    if target.exists():
        if not (target / MARKER).is_file():
            raise WhichlayersError(
                f"{target} exists and was not written by this command; choose another folder with --out"
            )
        shutil.rmtree(target)
    target.mkdir(parents=True)
    (target / MARKER).write_text("Written by whichlayers export --format tensorboard.\n", encoding="utf-8")


def _run_name(
    task: str, size: int, experiment: str, condition: str, x: float, seed: int, trial_id: str
) -> str:
    """The folder of a trial, such as "SST-2-500/incremental/x-3/seed-0-1a2b3c4d"."""
    what = f"{experiment}-{condition}" if condition else experiment
    parts = (f"{task}-{size}", what, f"x-{x:g}", f"seed-{seed}-{trial_id[:8]}")
    return "/".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)
