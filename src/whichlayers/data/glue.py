"""Load GLUE tasks from the Hugging Face hub or from a local glue_data folder.

    load_glue("CoLA")                                      # with `datasets`
    load_glue("CoLA", Path("glue_data"))                   # glue_data/CoLA/train.tsv, dev.tsv
    load_glue("QNLI", Path("glue_data"), train="train_subset.tsv")   # another file in the task's folder

The test sets have no public labels and are not loaded. The tasks and their metrics are listed in `catalog.GLUE`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.catalog import GLUE, GlueSpec, glue_name
from whichlayers.data.file_task import RawExamples, encode_labels, parse_targets, read_examples
from whichlayers.data.readers import column_names
from whichlayers.data.tasks import BadData, BadRows, Split, Task
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

HUB_DATASET = "nyu-mll/glue"


def load_glue(
    name: str, folder: str | Path | None = None, train: str | None = None, dev: str | None = None
) -> Task:
    """Load a GLUE task.

    Args:
        name: Name of the task in `GLUE`.
        folder: glue_data folder, or the folder of the task itself; None loads from the hub.
        train, dev: Other files in the task's folder, such as train_subset.tsv or dev.tsv.gz.
    """
    spec = GLUE[name]
    notes: list[str] = []
    splits = (
        _from_hub(name, spec) if folder is None else _from_folder(name, spec, Path(folder), train, dev, notes)
    )
    for (split_name, split), official in zip(splits.items(), spec.official_rows, strict=False):
        if len(split) != official:
            label = split_name.replace("eval/", "dev ").strip()
            notes.append(f"{label} has {counted(len(split), 'row')}, the official split has {official:,}")
    return Task(
        name=name,
        kind=spec.kind,
        label_names=spec.label_names,
        metric=spec.metrics[0],
        metrics=spec.metrics,
        train=splits.pop("train"),
        evals={key.removeprefix("eval/"): split for key, split in splits.items()},
        notes=tuple(notes),
    )


def _from_folder(
    task: str, spec: GlueSpec, folder: Path, train: str | None, dev: str | None, notes: list[str]
) -> dict[str, Split]:
    """Read the splits of a task from a local folder."""
    task_folder = _task_folder(task, folder)
    evals = [("", "dev", "")] if dev else spec.evals
    files = {"train": _find_file(task_folder, "train", train, "train")}
    for name, stem, _ in evals:
        files[f"eval/{name}"] = _find_file(task_folder, stem, dev, "dev")
    return {name: _read_split(path, spec, notes) for name, path in files.items()}


def _read_split(path: Path, spec: GlueSpec, notes: list[str]) -> Split:
    """Read one TSV file; notes on skipped rows are appended to `notes`."""
    header = spec.header
    columns = column_names(path) if header is None else header
    label = next((column for column in spec.label_columns if column in columns), spec.label_columns[0])
    text, pair = spec.columns
    malformed = BadRows(str(path)) if spec.known_flaws else None
    examples = read_examples(
        path, text, label, pair, header=header, malformed=malformed, empty_ok=spec.known_flaws
    )
    notes += examples.notes()
    if malformed is not None and malformed.count:
        lines = ", ".join(str(line) for line, _ in malformed.first)
        notes.append(
            f"{path}: skipped {counted(malformed.count, 'malformed line')}, as on the hub (first: {lines})"
        )
    if spec.unlabeled is not None:
        skipped = _skip_label(examples, spec.unlabeled)
        if skipped:
            notes.append(
                f"{path}: skipped {counted(skipped, 'row')} without a gold label ({spec.unlabeled!r})"
            )
    if spec.kind == "regression":
        return examples.split(parse_targets(examples))
    return examples.split(encode_labels(examples, {label: i for i, label in enumerate(spec.file_labels)}))


def _skip_label(examples: RawExamples, label: str) -> int:
    """Remove all rows with this label; returns their number."""
    remaining = [i for i, raw in enumerate(examples.labels) if raw != label]
    skipped = len(examples.labels) - len(remaining)
    examples.texts = [examples.texts[i] for i in remaining]
    examples.labels = [examples.labels[i] for i in remaining]
    examples.lines = [examples.lines[i] for i in remaining]
    if examples.pairs is not None:
        examples.pairs = [examples.pairs[i] for i in remaining]
    return skipped


def _task_folder(task: str, folder: Path) -> Path:
    """The folder of a task: a subfolder of `folder` or of `folder`/glue, or `folder` itself."""
    if not folder.is_dir():
        raise WhichlayersError(
            f"{task}: source = {str(folder)!r} is not a folder; set it to a glue_data folder, or to 'hub'"
        )
    subfolders = sorted(p for p in folder.iterdir() if p.is_dir())
    in_glue = sorted((folder / "glue").iterdir()) if (folder / "glue").is_dir() else []  # next to corpora
    for candidate in [*subfolders, *in_glue, folder.resolve()]:
        if glue_name(candidate.name) == task:
            return candidate
    if any(folder.glob("train*.tsv*")):
        return folder
    found = ", ".join(p.name for p in subfolders) or "no folders"
    raise WhichlayersError(
        f"{task}: {folder} has no folder {task}; it has {found}. Set source to another folder."
    )


def _find_file(folder: Path, stem: str, override: str | None, setting: str) -> Path:
    """Path of a split's file: `override` unless it is None, otherwise the stem with .tsv or .tsv.gz."""
    names = [override] if override else [f"{stem}.tsv", f"{stem}.tsv.gz"]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    found = sorted(p.name for p in folder.iterdir() if p.name.endswith((".tsv", ".tsv.gz")))
    example = next((name for name in found if name.startswith(setting)), f"my_{setting}.tsv")
    raise WhichlayersError(
        f"{folder} has no {names[0]}; it has {', '.join(found) or 'no .tsv files'}. "
        f'Add {names[0]}, or set another file of that folder in the study file: {setting} = "{example}" '
        "(to get the study file of a preset, run `whichlayers presets NAME > my-study.toml`)"
    )


def _from_hub(task: str, spec: GlueSpec) -> dict[str, Split]:
    """Load the splits of a task with `datasets`."""
    names = {"train": "train"} | {f"eval/{name}": hub_split for name, _, hub_split in spec.evals}
    try:
        import datasets

        found = datasets.load_dataset(HUB_DATASET, spec.config, split=list(names.values()))
    except Exception as error:  # no network, offline mode, nothing cached: each has its own type
        raise WhichlayersError(
            f"{task} could not be loaded from the hub ({HUB_DATASET}, {spec.config}): "
            f"{type(error).__name__}: {error}\n"
            "Run once with network access to cache it, or set source to a glue_data folder that contains "
            f"{task}/train.tsv and {task}/{spec.evals[0][1]}.tsv"
        ) from error
    return {name: _hub_split(task, spec, rows) for name, rows in zip(names, found, strict=True)}


def _hub_split(task: str, spec: GlueSpec, rows: Any) -> Split:
    text, pair = spec.hub_columns
    columns = rows.select_columns([column for column in (text, pair, "label") if column])[:]
    raw = np.asarray(columns["label"])
    if spec.kind == "regression":
        labels = raw.astype(np.float32)
    else:
        labels = raw.astype(np.int64)
        if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(spec.label_names):
            raise BadData(
                f"{task}: labels on the hub range from {labels.min()} to {labels.max()}, expected 0 to "
                f"{len(spec.label_names) - 1}"
            )
    return Split(columns[text], columns[pair] if pair else None, labels)
