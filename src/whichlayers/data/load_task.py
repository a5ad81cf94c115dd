"""From what a study file says about a task to the task: built in, from GLUE, or from your own files.

load_task("builtin:sentiment", source=None)
load_task("SST-2", source="hub")                        # or source="glue_data"
load_task("tickets", source=None, train="train.csv", dev="dev.csv", text="body", label="team")
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import cast

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
    """`source` is None or "hub", or a folder: of GLUE data, or the one that train and dev are relative to.

    A GLUE name with text and label columns is the user's own file that happens to be called so.
    """
    folder = None if source in (None, "", "hub") else Path(cast(str | Path, source))
    columns: dict[str, object] = {"text": text, "pair": pair, "label": label, "kind": kind}
    if name.startswith(BUILTIN_PREFIX):
        _refuse(name, "a built-in task", {**columns, "source": folder, "train": train, "dev": dev})
        return _with_metric(_builtin(name.removeprefix(BUILTIN_PREFIX)), metric)
    if glue_name(name) and text is None and label is None:
        _refuse(name, "a GLUE task", columns)
        files = [None if file is None else str(file) for file in (train, dev)]
        return _with_metric(load_glue(name, folder, *files), metric)
    if train is None:
        raise WhichlayersError(_unknown(name))
    missing = [key for key in ("text", "label") if columns[key] is None]
    if missing:
        raise WhichlayersError(
            f"task {name!r}: {' and '.join(missing)} not given; name the columns of {train} that hold them"
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
    from whichlayers.data.grammar import BUILTIN, write_task

    if name not in BUILTIN:
        raise WhichlayersError(_unknown(BUILTIN_PREFIX + name))
    return write_task(name)


def _with_metric(task: Task, metric: str | None) -> Task:
    if metric is None or metric == task.metric:
        return task
    if metric not in task.metrics:
        raise WhichlayersError(
            f"task {task.name!r}: metric = {metric!r}; choose one of {', '.join(task.metrics)}"
        )
    return dataclasses.replace(task, metric=metric)


def _refuse(name: str, what: str, settings: dict[str, object]) -> None:
    given = [key for key, value in settings.items() if value is not None]
    if given:
        raise WhichlayersError(f"task {name!r} is {what} and takes no {', '.join(given)}; remove it")


def _unknown(name: str) -> str:
    from whichlayers.data.grammar import BUILTIN

    allowed = [BUILTIN_PREFIX + builtin for builtin in BUILTIN] + list(GLUE)
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in allowed], n=1, cutoff=0.5)
    hint = next((f" (did you mean {known!r}?)" for known in allowed if known.lower() in close), "")
    return (
        f"no task is called {name!r}{hint}; allowed are {', '.join(allowed)}, or a task of your own with "
        "train, dev, text and label"
    )
