"""Load a task by name: a built-in task, a GLUE task, or a custom task from data files.

load_task("builtin:sentiment", source=None)
load_task("SST-2", source="hub")                        # or source="glue_data"
load_task("tickets", source=None, train="train.csv", dev="dev.csv", text="body", label="team")
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import cast

from whichlayers.data.builtin import BUILTIN_TASKS, load_builtin_task
from whichlayers.data.file_task import load_file_task
from whichlayers.data.glue import GLUE, glue_name, load_glue
from whichlayers.data.tasks import Kind, Task
from whichlayers.errors import WhichlayersError

BUILTIN_PREFIX = "builtin:"


def load_task(
    name: str,
    *,
    source: str | Path | None = None,
    train: str | Path | None = None,
    dev: str | Path | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    metric: str | None = None,
) -> Task:
    """Load a task from the settings of a study file.

    Args:
        name: builtin:NAME, the name of a GLUE task, or any name for a custom task. A GLUE name with text and
            label columns is treated as a custom task.
        source: None or "hub", or a folder: that of the GLUE data, or the one that train and dev are relative to.
        train, dev: Data files of a custom task, or other files in the folder of a GLUE task.
        text, pair, label: Column names of a custom task.
        kind: "classification" or "regression"; None infers it from the labels.
        metric: Primary metric; None selects the task's default.
    """
    folder = None if source in (None, "", "hub") else Path(cast(str | Path, source))
    columns: dict[str, object] = {"text": text, "pair": pair, "label": label, "kind": kind}
    if name.startswith(BUILTIN_PREFIX):
        _check_not_set(name, "a built-in task", {**columns, "source": folder, "train": train, "dev": dev})
        return _with_metric(_builtin(name.removeprefix(BUILTIN_PREFIX)), metric)
    if glue_name(name) and text is None and label is None:
        _check_not_set(name, "a GLUE task", columns)
        files = [None if file is None else str(file) for file in (train, dev)]
        return _with_metric(load_glue(name, folder, *files), metric)
    if train is None:
        raise WhichlayersError(_unknown_task_message(name))
    missing = [key for key in ("text", "label") if columns[key] is None]
    if missing:
        raise WhichlayersError(
            f"task {name!r}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; set "
            f"{'it' if len(missing) == 1 else 'them'} to the column names in {train}"
        )
    base = folder or Path()
    return load_file_task(
        name,
        base / train,
        None if dev is None else base / dev,
        text=cast(str, text),
        label=cast(str, label),
        pair=pair,
        kind=cast(Kind | None, kind),
        metric=metric,
    )


def _builtin(name: str) -> Task:
    if name not in BUILTIN_TASKS:
        raise WhichlayersError(_unknown_task_message(BUILTIN_PREFIX + name))
    return load_builtin_task(name)


def _with_metric(task: Task, metric: str | None) -> Task:
    """The task with `metric` as its primary metric; unchanged if it is None."""
    if metric is None or metric == task.metric:
        return task
    if metric not in task.metrics:
        raise WhichlayersError(
            f"task {task.name!r}: metric = {metric!r} is not available; choose one of {', '.join(task.metrics)}"
        )
    return dataclasses.replace(task, metric=metric)


def _check_not_set(name: str, source: str, settings: dict[str, object]) -> None:
    """Raise if a setting is set that this source of tasks does not use."""
    unused = [key for key, value in settings.items() if value is not None]
    if unused:
        raise WhichlayersError(
            f"task {name!r} is {source}, so {', '.join(unused)} cannot be set; remove "
            f"{'it' if len(unused) == 1 else 'them'}"
        )


def _unknown_task_message(name: str) -> str:
    """Error message that lists the available tasks, with the closest match."""
    allowed = [BUILTIN_PREFIX + builtin for builtin in BUILTIN_TASKS] + list(GLUE)
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in allowed], n=1, cutoff=0.5)
    hint = next((f" (did you mean {known!r}?)" for known in allowed if known.lower() in close), "")
    return (
        f"unknown task {name!r}{hint}; choose one of {', '.join(allowed)}, or define a custom task with "
        "train, dev, text and label"
    )
