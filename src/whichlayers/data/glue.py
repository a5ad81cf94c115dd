"""The GLUE tasks, from the hub or from a folder in the classic glue_data layout.

    load_glue("CoLA")                                      # through `datasets`
    load_glue("CoLA", Path("glue_data"))                   # glue_data/CoLA/train.tsv, dev.tsv
    load_glue("QNLI", Path("glue_data"), train="train_subset.tsv")   # another file of that folder

The test sets have no public labels and are not read.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.data.file_task import Examples, number_classes, number_targets, read_examples
from whichlayers.data.readers import column_names
from whichlayers.data.tasks import BadData, BadRows, Kind, Split, Task
from whichlayers.errors import WhichlayersError

HUB_DATASET = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueSpec:
    """Where one GLUE task keeps things. Columns are (text, pair), pair None for tasks on one text."""

    config: str  # its name on the hub
    label_names: tuple[str, ...]  # in the hub's order; () for regression
    columns: tuple[str, str | None]  # in the TSV files
    hub_columns: tuple[str, str | None]
    label_columns: tuple[str, ...] = ("label",)  # in the TSV files; the first that is there
    file_labels: tuple[str, ...] = ("0", "1")  # how the TSV files write the classes
    metrics: tuple[str, ...] = ("accuracy",)  # the first is the primary one
    header: tuple[str, ...] | None = None  # the columns of a file without a header line
    evals: tuple[tuple[str, str, str], ...] = (("", "dev", "validation"),)  # (name, file, split on the hub)
    official_rows: tuple[int, ...] = ()  # train, then each evaluation split
    unlabelled: str | None = (
        None  # the label of rows without a gold label, left out as the official scripts do
    )
    known_flaws: bool = (
        False  # official files hold broken lines (left out, as on the hub) and empty texts (kept)
    )

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
        unlabelled="-",
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
    """The task's name as GLUE spells it, whatever the case and the hyphens; None if it is no such name."""
    plain = _plain(name)
    return next((task for task in GLUE if _plain(task) == plain), ALIASES.get(plain))


def load_glue(
    name: str, folder: str | Path | None = None, train: str | None = None, dev: str | None = None
) -> Task:
    """`folder` holds one folder a task (or is that folder); None means the hub. `train` and `dev` name other
    files in the task's folder, such as train_subset.tsv or dev.tsv.gz."""
    task = glue_name(name)
    if task is None:
        close = difflib.get_close_matches(_plain(name), [_plain(known) for known in GLUE], n=1)
        hint = f" (did you mean {glue_name(close[0])}?)" if close else ""
        raise WhichlayersError(f"no GLUE task is called {name!r}{hint}; the tasks are {', '.join(GLUE)}")
    spec = GLUE[task]
    notes: list[str] = []
    if folder is None:
        if train or dev:
            raise WhichlayersError(
                f"{task}: train and dev name files of a folder; give the folder too: source = 'glue_data'"
            )
        splits = _from_hub(task, spec)
    else:
        splits = _from_folder(task, spec, Path(folder), train, dev, notes)
    for (split_name, split), official in zip(splits.items(), spec.official_rows, strict=False):
        if len(split) != official:
            where = split_name.replace("eval/", "dev ").strip()
            notes.append(f"{where} has {len(split):,} rows, the official one {official:,}")
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
    home = _task_folder(task, folder)
    evals = [("", "dev", "")] if dev else spec.evals
    files = {"train": _file(home, "train", train, "train")}
    for name, stem, _ in evals:
        files[f"eval/{name}"] = _file(home, stem, dev, "dev")
    return {name: _read(path, spec, notes) for name, path in files.items()}


def _read(path: Path, spec: GlueSpec, notes: list[str]) -> Split:
    header = spec.header
    present = column_names(path) if header is None else header
    label = next((column for column in spec.label_columns if column in present), spec.label_columns[0])
    text, pair = spec.columns
    broken = BadRows(str(path)) if spec.known_flaws else None
    examples = read_examples(
        path, text, label, pair, header=header, malformed=broken, empty_ok=spec.known_flaws
    )
    if broken is not None and broken.count:
        lines = ", ".join(str(line) for line, _ in broken.first)
        notes.append(f"{path}: {broken.count:,} broken lines left out, as on the hub (the first: {lines})")
    if spec.unlabelled is not None:
        left_out = _leave_out(examples, spec.unlabelled)
        if left_out:
            notes.append(f"{path}: {left_out:,} rows without a gold label ({spec.unlabelled!r}) left out")
    if spec.kind == "regression":
        return examples.split(number_targets(examples))
    return examples.split(number_classes(examples, {label: i for i, label in enumerate(spec.file_labels)}))


def _leave_out(examples: Examples, label: str) -> int:
    kept = [i for i, raw in enumerate(examples.labels) if raw != label]
    left_out = len(examples.labels) - len(kept)
    examples.texts = [examples.texts[i] for i in kept]
    examples.labels = [examples.labels[i] for i in kept]
    examples.lines = [examples.lines[i] for i in kept]
    if examples.pairs is not None:
        examples.pairs = [examples.pairs[i] for i in kept]
    return left_out


def _task_folder(task: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise WhichlayersError(
            f"{task}: source = {str(folder)!r} is not a folder; name a glue_data folder, or 'hub'"
        )
    inside = sorted(p for p in folder.iterdir() if p.is_dir())
    beside = (
        sorted((folder / "glue").iterdir()) if (folder / "glue").is_dir() else []
    )  # with corpora next to it
    for candidate in [*inside, *beside, folder.resolve()]:
        if glue_name(candidate.name) == task:
            return candidate
    if any(folder.glob("train*.tsv*")):
        return folder
    found = ", ".join(p.name for p in inside) or "no folders"
    raise WhichlayersError(f"{task}: {folder} has no folder {task}; it has {found}")


def _file(home: Path, stem: str, override: str | None, setting: str) -> Path:
    names = [override] if override else [f"{stem}.tsv", f"{stem}.tsv.gz"]
    for name in names:
        if (home / name).is_file():
            return home / name
    found = sorted(p.name for p in home.iterdir() if p.name.endswith((".tsv", ".tsv.gz")))
    example = next((name for name in found if name.startswith(setting)), f"my_{setting}.tsv")
    raise WhichlayersError(
        f"{home} has no {names[0]}; it has {', '.join(found) or 'no .tsv files'}. "
        f'Put {names[0]} there, or name another file of that folder in the study file: {setting} = "{example}" '
        "(of a preset, `whichlayers presets NAME > my-study.toml` writes one)"
    )


def _from_hub(task: str, spec: GlueSpec) -> dict[str, Split]:
    names = {"train": "train"} | {f"eval/{name}": hub_split for name, _, hub_split in spec.evals}
    try:
        import datasets

        found = datasets.load_dataset(HUB_DATASET, spec.config, split=list(names.values()))
    except Exception as error:  # no network, offline mode, nothing cached: each has its own kind
        raise WhichlayersError(
            f"{task} could not be had from the hub ({HUB_DATASET}, {spec.config}): "
            f"{type(error).__name__}: {error}\n"
            "Run once where there is a network, so that it is cached, or set source to a glue_data folder "
            f"that holds {task}/train.tsv and {task}/{spec.evals[0][1]}.tsv"
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
            raise BadData(f"{task}: the hub's labels run from {labels.min()} to {labels.max()}")
    return Split(columns[text], columns[pair] if pair else None, labels)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
