"""Load a task by name: a built-in task, a GLUE task, or a custom task from data files.

    load_task("builtin:sentiment")
    load_task("SST-2", source="hub")                        # or source="glue_data"
    load_task("tickets", train="train.csv", dev="dev.csv", text="body", label="team")

The built-in tasks are synthetic English sentences in data/builtin/, with balanced labels and no duplicates. The dev
files use other nouns, verbs and adjectives than the training files, so memorizing words does not help; knowledge of
English from pretraining does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np

from whichlayers.catalog import BUILTIN, BUILTIN_TASKS, GLUE, Kind
from whichlayers.data.file_task import load_file_task
from whichlayers.data.glue import load_glue
from whichlayers.data.tasks import Split, Task

BUILTIN_FOLDER = Path(__file__).parent / "builtin"


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
    """Load a task from the settings of a study file, which are validated there.

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
    if text is not None and label is not None and train is not None and dev is not None:
        base = folder or Path()
        return load_file_task(
            name, base / train, base / dev, text, label, pair, cast(Kind | None, kind), metric
        )
    if name in BUILTIN_TASKS:
        task = _load_builtin(name)
    elif name in GLUE:
        task = load_glue(name, folder, *(None if file is None else str(file) for file in (train, dev)))
    else:
        raise ValueError(f"{name} is not in the catalog, and train, dev, text and label are not all given")
    return dataclasses.replace(task, metric=metric or task.metric)


def _load_builtin(name: str) -> Task:
    """Load a task of `BUILTIN_TASKS`."""
    builtin, stem = BUILTIN_TASKS[name], name.removeprefix(BUILTIN)
    return Task(
        name=stem,
        kind="classification",
        label_names=builtin.label_names,
        metric=builtin.metrics[0],
        metrics=builtin.metrics,
        train=_read_builtin(f"{stem}-train.tsv"),
        evals={"": _read_builtin(f"{stem}-dev.tsv")},
    )


def _read_builtin(file: str) -> Split:
    """Read a file with a header line and the columns text, optional second text, and class index."""
    lines = (BUILTIN_FOLDER / file).read_text(encoding="ascii").splitlines()[1:]
    texts, *pairs, labels = (
        list(column) for column in zip(*(line.split("\t") for line in lines), strict=True)
    )
    return Split(texts=texts, pairs=pairs[0] if pairs else None, labels=np.array(labels, dtype=np.int64))
