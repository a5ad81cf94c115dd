"""Load GLUE tasks from the Hugging Face hub or from a local glue_data folder.

    load_glue("CoLA")                                      # with `datasets`
    load_glue("CoLA", Path("glue_data"))                   # glue_data/CoLA/train.tsv, dev.tsv
    load_glue("QNLI", Path("glue_data"), train="train_subset.tsv")   # another file in the task's folder

The test sets have no public labels and are not loaded.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.data.file_task import RawExamples, encode_labels, parse_targets, read_examples
from whichlayers.data.readers import column_names
from whichlayers.data.tasks import BadData, BadRows, Kind, Split, Task
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

HUB_DATASET = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueSpec:
    """Columns, labels and metrics of a GLUE task. Columns are (text, pair); pair is None for single-sentence tasks."""

    config: str  # its configuration name on the hub
    label_names: tuple[str, ...]  # in the hub's order; () for regression
    columns: tuple[str, str | None]  # in the TSV files
    hub_columns: tuple[str, str | None]
    label_columns: tuple[str, ...] = ("label",)  # in the TSV files; the first that exists is used
    file_labels: tuple[str, ...] = ("0", "1")  # class labels in the TSV files
    metrics: tuple[str, ...] = ("accuracy",)  # the first is the primary metric
    header: tuple[str, ...] | None = None  # column names of files without a header line
    evals: tuple[tuple[str, str, str], ...] = (("", "dev", "validation"),)  # (name, file, split on the hub)
    official_rows: tuple[int, ...] = ()  # train, then each evaluation split
    unlabeled: str | None = None  # label of rows without a gold label, skipped as in the official scripts
    # official files have malformed lines (skipped, as on the hub) and empty texts (kept)
    known_flaws: bool = False

    @property
    def kind(self) -> Kind:
        return "classification" if self.label_names else "regression"


ENTAILMENT = ("entailment", "not_entailment")
SENTENCES = ("sentence1", "sentence2")
GLUE: dict[str, GlueSpec] = {
    "SST-2": GlueSpec(
        config="sst2",
        label_names=("negative", "positive"),
        columns=("sentence", None),
        hub_columns=("sentence", None),
        official_rows=(67_349, 872),
    ),
    "CoLA": GlueSpec(
        config="cola",
        label_names=("unacceptable", "acceptable"),
        columns=("sentence", None),
        hub_columns=("sentence", None),
        metrics=("mcc", "accuracy"),
        header=("source", "label", "mark", "sentence"),
        official_rows=(8_551, 1_043),
    ),
    "QNLI": GlueSpec(
        config="qnli",
        label_names=ENTAILMENT,
        columns=("question", "sentence"),
        hub_columns=("question", "sentence"),
        file_labels=ENTAILMENT,
        official_rows=(104_743, 5_463),
    ),
    "RTE": GlueSpec(
        config="rte",
        label_names=ENTAILMENT,
        columns=SENTENCES,
        hub_columns=SENTENCES,
        file_labels=ENTAILMENT,
        official_rows=(2_490, 277),
    ),
    "MRPC": GlueSpec(
        config="mrpc",
        label_names=("not_equivalent", "equivalent"),
        columns=("#1 String", "#2 String"),
        hub_columns=SENTENCES,
        label_columns=("Quality",),
        metrics=("accuracy", "f1"),
        official_rows=(3_668, 408),
    ),
    "STS-B": GlueSpec(
        config="stsb",
        label_names=(),
        columns=SENTENCES,
        hub_columns=SENTENCES,
        label_columns=("score",),
        metrics=("pearson", "spearman"),
        official_rows=(5_749, 1_500),
    ),
    "MNLI": GlueSpec(
        config="mnli",
        label_names=("entailment", "neutral", "contradiction"),
        columns=SENTENCES,
        hub_columns=("premise", "hypothesis"),
        label_columns=("gold_label", "label"),
        file_labels=("entailment", "neutral", "contradiction"),
        evals=(
            ("", "dev_matched", "validation_matched"),
            ("mismatched", "dev_mismatched", "validation_mismatched"),
        ),
        official_rows=(392_702, 9_815, 9_832),
        unlabeled="-",
        known_flaws=True,
    ),
    "QQP": GlueSpec(
        config="qqp",
        label_names=("not_duplicate", "duplicate"),
        columns=("question1", "question2"),
        hub_columns=("question1", "question2"),
        label_columns=("is_duplicate",),
        metrics=("accuracy", "f1"),
        official_rows=(363_846, 40_430),
        known_flaws=True,
    ),
    "WNLI": GlueSpec(
        config="wnli",
        label_names=("not_entailment", "entailment"),
        columns=SENTENCES,
        hub_columns=SENTENCES,
        official_rows=(635, 71),
    ),
}
ALIASES = {"sst": "SST-2", "sts": "STS-B", "multinli": "MNLI", "quora": "QQP"}


def glue_name(name: str) -> str | None:
    """The official name of a GLUE task, ignoring case and hyphens; None if it is not a GLUE task."""
    normalized = _normalize(name)
    return next((task for task in GLUE if _normalize(task) == normalized), ALIASES.get(normalized))


def load_glue(
    name: str, folder: str | Path | None = None, train: str | None = None, dev: str | None = None
) -> Task:
    """Load a GLUE task.

    Args:
        name: Name of the task.
        folder: glue_data folder, or the folder of the task itself; None loads from the hub.
        train, dev: Other files in the task's folder, such as train_subset.tsv or dev.tsv.gz.
    """
    task = glue_name(name)
    if task is None:
        close = difflib.get_close_matches(_normalize(name), [_normalize(known) for known in GLUE], n=1)
        hint = f" (did you mean {glue_name(close[0])}?)" if close else ""
        raise WhichlayersError(f"unknown GLUE task {name!r}{hint}; choose one of {', '.join(GLUE)}")
    spec = GLUE[task]
    notes: list[str] = []
    if folder is None:
        if train or dev:
            raise WhichlayersError(
                f"{task}: train and dev are file names in a local folder; also set source to a glue_data folder"
            )
        splits = _from_hub(task, spec)
    else:
        splits = _from_folder(task, spec, Path(folder), train, dev, notes)
    for (split_name, split), official in zip(splits.items(), spec.official_rows, strict=False):
        if len(split) != official:
            label = split_name.replace("eval/", "dev ").strip()
            notes.append(f"{label} has {counted(len(split), 'row')}, the official split has {official:,}")
    return Task(
        name=task,
        kind=spec.kind,
        label_names=spec.label_names,
        metric=spec.metrics[0],
        metrics=spec.metrics,
        train=splits.pop("train"),
        evals={name.removeprefix("eval/"): split for name, split in splits.items()},
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


def _normalize(name: str) -> str:
    """Lower case, letters and digits only."""
    return "".join(c for c in name.lower() if c.isalnum())
