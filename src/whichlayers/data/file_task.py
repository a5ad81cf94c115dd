"""Load a custom task from TSV, CSV, JSONL or Parquet files, given the columns of text, pair and label.

    load_file_task("tickets", "train.csv", "dev.csv", text="body", label="team")

See `readers` for how each format is parsed. Invalid rows are an error that gives their lines; no row is skipped or
corrected silently.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.catalog import Kind
from whichlayers.data.metrics import choose_metrics
from whichlayers.data.readers import no_examples, read_records
from whichlayers.data.tasks import BadData, BadRows, Split, Task
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

INTEGER = re.compile(r"-?[0-9]+(\.0+)?")
FLOAT32_MAX = float(np.finfo(np.float32).max)
LONG_TEXT = 1_000_000  # characters; only the first `max_length` tokens of a text are used
MAX_COMPARED = 200  # classes whose names are compared with each other


@dataclass
class RawExamples:
    """Rows of one file, with labels as written in it."""

    bad: BadRows
    texts: list[str] = field(default_factory=list)
    pairs: list[str] | None = None
    labels: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    remarks: dict[str, list[int]] = field(default_factory=dict)  # lines of valid but unusual texts

    def notes(self) -> list[str]:
        """A note on each kind of unusual text, with its first line."""
        return [
            f"{self.bad.file}:{lines[0]}: a text {remark}"
            + (f", as in {counted(len(lines) - 1, 'other row')}" if len(lines) > 1 else "")
            for remark, lines in self.remarks.items()
        ]

    def split(self, labels: np.ndarray) -> Split:
        """The texts with these encoded labels."""
        return Split(self.texts, self.pairs, labels)


def load_file_task(
    name: str,
    train: str | Path,
    dev: str | Path,
    text: str,
    label: str,
    pair: str | None = None,
    kind: Kind | None = None,
    metric: str | None = None,
) -> Task:
    """Load a task from a training file and a dev file.

    Args:
        name: Name of the task, for messages and results.
        train, dev: Data files with the same columns.
        text, label, pair: Column names; `pair` is the second text of a sentence-pair task.
        kind: None infers it from the labels: regression if all are numbers and not all are integers.
        metric: Primary metric; None selects the default for the kind.
    """
    if os.path.realpath(train) == os.path.realpath(dev):  # Path.resolve raises for a loop of links
        raise WhichlayersError(
            f"task {name!r}: train and dev are the same file ({train}); set dev to a file of held-out examples"
        )
    train_examples, dev_examples = (read_examples(Path(p), text, label, pair) for p in (train, dev))
    kind = kind or _infer_kind(train_examples)
    notes = [*_overlap_note(train_examples, dev_examples), *train_examples.notes(), *dev_examples.notes()]
    if kind == "regression":
        label_names: tuple[str, ...] = ()
        labels = [parse_targets(examples) for examples in (train_examples, dev_examples)]
        for examples, targets in zip((train_examples, dev_examples), labels, strict=True):
            _check_not_constant(examples, targets)
    else:
        _normalize_integer_labels(train_examples, dev_examples)
        label_names = _label_names(train_examples, label)
        class_ids = {label_name: i for i, label_name in enumerate(label_names)}
        notes += _similar_names(Counter(map(_label_text, train_examples.labels)))
        labels = [encode_labels(examples, class_ids) for examples in (train_examples, dev_examples)]
        if len(np.unique(labels[1])) == 1:
            notes.append(
                f"every dev example has the label {label_names[labels[1][0]]!r}, so scores cannot distinguish a good "
                "model from one that always predicts this label"
            )
    primary, metrics = choose_metrics(kind, len(label_names), metric, where=f"task {name!r}: metric")
    return Task(
        name=name,
        kind=kind,
        label_names=label_names,
        metric=primary,
        metrics=metrics,
        train=train_examples.split(labels[0]),
        evals={"": dev_examples.split(labels[1])},
        notes=tuple(notes),
    )


def read_examples(
    path: Path,
    text: str,
    label: str,
    pair: str | None = None,
    *,
    header: Sequence[str] | None = None,
    malformed: BadRows | None = None,
    empty_ok: bool = False,
) -> RawExamples:
    """Read texts and raw labels from a file.

    Args:
        path: Data file.
        text, label, pair: Column names.
        header: Column names of a file without a header line.
        malformed: Collects rows with a wrong number of columns; None collects them in the result's `bad`.
        empty_ok: Accept empty texts.

    Returns:
        The valid rows; all other invalid rows are collected in its `bad`, to be raised later.
    """
    examples = RawExamples(BadRows(str(path)), pairs=None if pair is None else [])
    columns = [text, label] if pair is None else [text, label, pair]
    text_columns = [(0, text)] if pair is None else [(0, text), (2, pair)]
    for line, values in read_records(path, columns, examples.bad, header, malformed or examples.bad):
        for i, column in text_columns:
            problem = _text_problem(values[i], column, empty_ok)
            if problem:
                examples.bad.add(line, problem)
                break
        else:
            for i, _ in text_columns:
                if remark := _text_remark(values[i]):
                    examples.remarks.setdefault(remark, []).append(line)
            examples.texts.append(values[0])
            examples.labels.append(values[1])
            examples.lines.append(line)
            if examples.pairs is not None:
                examples.pairs.append(values[2])
    if not examples.texts and not examples.bad.count:
        if header is not None:
            raise BadData(f"{path} has no examples; expected one row per example")
        raise no_examples(path, columns)
    return examples


def encode_labels(examples: RawExamples, class_ids: dict[str, int]) -> np.ndarray:
    """Labels as class indices, (n,) int64. Raises for all invalid rows, including those found while reading."""
    labels = np.zeros(len(examples.labels), dtype=np.int64)
    for i, raw in enumerate(examples.labels):
        label = _label_text(raw)
        class_id = class_ids.get(label) if label is not None else None
        if class_id is not None:
            labels[i] = class_id
            continue
        known = ", ".join(map(repr, list(class_ids)[:8])) + (", ..." if len(class_ids) > 8 else "")
        problem = _label_problem(raw) if label is None else f"unknown label {label[:60]!r}"
        examples.bad.add(examples.lines[i], f"{problem}; known labels: {known or 'none'}")
    examples.bad.raise_if_any()
    return labels


def parse_targets(examples: RawExamples) -> np.ndarray:
    """Regression targets, (n,) float32. Raises for all invalid rows, including those found while reading."""
    labels = np.zeros(len(examples.labels), dtype=np.float32)
    for i, raw in enumerate(examples.labels):
        number = _parse_number(raw)
        if number is None:
            examples.bad.add(examples.lines[i], f"label {str(raw)[:60]!r} is not a number")
        else:
            labels[i] = number
    examples.bad.raise_if_any()
    return labels


def _text_problem(value: Any, column: str, empty_ok: bool) -> str | None:
    """Why a value is not a valid text; None if it is valid."""
    if value is None:
        return f"column {column!r} has no value; expected text"
    if not isinstance(value, str):
        return f"column {column!r} has type {type(value).__name__}; expected text"
    if not empty_ok and not value.strip():
        return f"column {column!r} is empty"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON can contain half of a surrogate pair
            return f"column {column!r} contains a character that is not valid Unicode"
    return None


def _text_remark(text: str) -> str | None:
    """What is unusual about a valid text; None for most texts."""
    if len(text) > LONG_TEXT:
        return f"has more than {LONG_TEXT:,} characters: check that quotes and line endings are right"
    if "\0" in text:
        return "contains a NUL character, which tokenizers remove or treat as unknown: check its encoding"
    return None


def _similar_names(counts: Counter[str | None]) -> Iterator[str]:
    """Notes on classes that are probably one: they differ in case or spaces only, or one is rare and misspelled."""
    names = sorted(name for name in counts if name is not None)
    same: dict[str, str] = {}
    told: list[set[str]] = []
    for name in names:
        other = same.setdefault(re.sub(r"[\s_]+", "", name.casefold()).rstrip(".,;:!"), name)
        if other == name and counts[name] == 1 and len(names) <= MAX_COMPARED:
            without_digits = [
                n for n in names if n != name and re.sub(r"\d", "", n) != re.sub(r"\d", "", name)
            ]
            other = next(iter(difflib.get_close_matches(name, without_digits, n=1, cutoff=0.85)), name)
        if other != name and {name, other} not in told:
            told.append({name, other})
            yield (
                f"the classes {other!r} ({counted(counts[other], 'row')}) and {name!r} ({counted(counts[name], 'row')})"
                " have similar names: check that they are different classes"
            )


def _label_problem(raw: Any) -> str:
    """Why a value is no label."""
    if raw is None or isinstance(raw, str):
        return "no label"
    if isinstance(raw, float):
        return f"the label is {raw}, which is no class"
    return f"the label has type {type(raw).__name__}; expected text, a number or true/false"


def _label_text(raw: Any) -> str | None:
    """A label as text, so that 1, 1.0 and "1" in different formats are the same class; None if missing."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, float):
        if not math.isfinite(raw):
            return None
        return str(int(raw)) if raw.is_integer() else str(raw)
    return (str(raw).strip() or None) if isinstance(raw, str | int) else None


def _normalize_integer_labels(*files: RawExamples) -> None:
    """If all labels are integers, treat 1.0 as class 1: pandas writes 1.0 if some label is missing."""
    names = {_label_text(raw) for examples in files for raw in examples.labels} - {None}
    if all(INTEGER.fullmatch(str(name)) for name in names):
        for examples in files:
            examples.labels = [
                raw.partition(".")[0] if isinstance(raw, str) else raw for raw in examples.labels
            ]


def _overlap_note(train: RawExamples, dev: RawExamples) -> Iterator[str]:
    """A note if dev examples also occur in the training file, with any label."""
    dev_rows = dev.texts if dev.pairs is None else list(zip(dev.texts, dev.pairs, strict=True))
    shared = set(dev_rows).intersection(
        train.texts if train.pairs is None else zip(train.texts, train.pairs, strict=True)
    )
    if count := sum(example in shared for example in dev_rows):
        are = "is" if count == 1 else "are"
        yield f"{count:,} of {counted(len(dev_rows), 'dev example')} {are} also in the training file"


def _check_not_constant(examples: RawExamples, targets: np.ndarray) -> None:
    """Raise if all targets are equal: a correlation with a constant is undefined."""
    if targets.min() == targets.max():
        raise BadData(
            f"{examples.bad.file}: every row has the label {targets[0]:g}; a regression task needs at least two "
            "different values"
        )


def _parse_number(raw: Any) -> float | None:
    """A label as a number; None if it is not a finite float32 number."""
    if raw is None or isinstance(raw, bool) or (isinstance(raw, str) and "_" in raw):
        return None
    try:
        number = float(raw)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= FLOAT32_MAX else None  # also excludes NaN


def _infer_kind(examples: RawExamples) -> Kind:
    """Regression if all labels are numbers and not all are integers."""
    numbers = [_parse_number(raw) for raw in examples.labels]
    if any(n is None for n in numbers):
        return "classification"
    return "classification" if all(float(n or 0).is_integer() for n in numbers) else "regression"


def _label_names(examples: RawExamples, column: str) -> tuple[str, ...]:
    """Sorted class names of the training file; integers in numeric order."""
    file = examples.bad.file
    names = {name for raw in examples.labels if (name := _label_text(raw)) is not None}
    if len(examples.labels) >= 20 and len(names) > len(examples.labels) / 2:
        raise BadData(
            f"{file}: column {column!r} has {len(names):,} different values in {len(examples.labels):,} rows, too "
            'many for class labels; set label to the column of the labels, or set kind = "regression" if the '
            "values are numbers to predict"
        )
    all_valid = not examples.bad.count and all(_label_text(raw) is not None for raw in examples.labels)
    if len(names) == 1 and all_valid:
        raise BadData(
            f"{file}: every row has the label {names.pop()!r}; a classification task needs at least two "
            "different labels"
        )
    all_integers = all(len(name) < 19 and name.removeprefix("-").isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if all_integers else None))
