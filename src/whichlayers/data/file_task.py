"""Your own task from TSV, CSV, JSONL or Parquet files, with named columns for text, pair and label.

    load_file_task("tickets", "train.csv", "dev.csv", text="body", label="team")

`rows.py` says how each format is read. A row that cannot be used is an error that names its line:
nothing is dropped or mended without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whichlayers.data.metrics import choose_metrics
from whichlayers.data.readers import records
from whichlayers.data.tasks import BadData, BadRows, Kind, Split, Task
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

WHOLE = re.compile(r"-?[0-9]+(\.0+)?")
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass
class Examples:
    """What one file holds, its labels still as written."""

    bad: BadRows
    texts: list[str] = field(default_factory=list)
    pairs: list[str] | None = None
    labels: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def split(self, labels: np.ndarray) -> Split:
        return Split(self.texts, self.pairs, labels)


def load_file_task(
    name: str,
    train: str | Path,
    dev: str | Path | None,
    text: str,
    label: str,
    pair: str | None = None,
    kind: Kind | None = None,
    metric: str | None = None,
) -> Task:
    """Without `kind`, labels that are all numbers, not all of them whole, make a regression task."""
    if dev is None:
        raise WhichlayersError(
            f"task {name!r} has no dev file: name one with dev = ..., with the same columns as {train} and "
            "examples that are not in it"
        )
    if kind not in (None, "classification", "regression"):
        raise WhichlayersError(f"task {name!r}: kind = {kind!r}; allowed are classification and regression")
    if label in (text, pair) or text == pair:
        raise WhichlayersError(
            f"task {name!r}: text = {text!r}, {'' if pair is None else f'pair = {pair!r}, '}label = {label!r}; "
            "each must be a column of its own"
        )
    if Path(train).resolve() == Path(dev).resolve():
        raise WhichlayersError(
            f"task {name!r}: train and dev are the same file ({train}); scores must come from other examples"
        )
    train_examples, dev_examples = (read_examples(Path(p), text, label, pair) for p in (train, dev))
    kind = kind or _guess_kind(train_examples)
    notes = list(_in_both(train_examples, dev_examples))
    if kind == "regression":
        label_names: tuple[str, ...] = ()
        labels = [number_targets(examples) for examples in (train_examples, dev_examples)]
        for examples, targets in zip((train_examples, dev_examples), labels, strict=True):
            _refuse_constant(examples, targets)
    else:
        _spell_whole_numbers_alike(train_examples, dev_examples)
        label_names = _label_names(train_examples, label)
        numbers = {label_name: i for i, label_name in enumerate(label_names)}
        labels = [number_classes(examples, numbers) for examples in (train_examples, dev_examples)]
        if len(np.unique(labels[1])) == 1:
            notes.append(
                f"every dev example has the label {label_names[labels[1][0]]!r}: scores cannot tell a good model "
                "from one that always gives it"
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
) -> Examples:
    """Texts and raw labels. `header` names the columns of a file that has none. Rows with a wrong number of
    columns go to `malformed` where one is given; all other bad rows wait in the result's `bad`."""
    examples = Examples(BadRows(str(path)), pairs=None if pair is None else [])
    columns = [text, label] if pair is None else [text, label, pair]
    texts_and_names = [(0, text)] if pair is None else [(0, text), (2, pair)]
    for line, values in records(path, columns, examples.bad, header, malformed or examples.bad):
        for i, column in texts_and_names:
            complaint = _text_complaint(values[i], column, empty_ok)
            if complaint:
                examples.bad.add(line, complaint)
                break
        else:
            examples.texts.append(values[0])
            examples.labels.append(values[1])
            examples.lines.append(line)
            if examples.pairs is not None:
                examples.pairs.append(values[2])
    if not examples.texts and not examples.bad.count:
        raise BadData(f"{path} has no rows")
    return examples


def number_classes(examples: Examples, numbers: dict[str, int]) -> np.ndarray:
    """Labels as class numbers; raises for every bad row of the file, those found while reading included."""
    labels = np.zeros(len(examples.labels), dtype=np.int64)
    for i, raw in enumerate(examples.labels):
        label = _label_text(raw)
        number = numbers.get(label) if label is not None else None
        if number is not None:
            labels[i] = number
            continue
        known = ", ".join(map(repr, list(numbers)[:8])) + (", ..." if len(numbers) > 8 else "")
        complaint = "no label" if label is None else f"unknown label {label[:60]!r}"
        examples.bad.add(examples.lines[i], f"{complaint}; known labels: {known}")
    examples.bad.raise_if_any()
    return labels


def number_targets(examples: Examples) -> np.ndarray:
    """Labels as float32; raises for every bad row of the file, those found while reading included."""
    labels = np.zeros(len(examples.labels), dtype=np.float32)
    for i, raw in enumerate(examples.labels):
        number = _number(raw)
        if number is None:
            examples.bad.add(examples.lines[i], f"label {str(raw)[:60]!r} is not a number")
        else:
            labels[i] = number
    examples.bad.raise_if_any()
    return labels


def _text_complaint(value: Any, column: str, empty_ok: bool) -> str | None:
    if not isinstance(value, str):
        kind = type(value).__name__
        found = "nothing" if value is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        return f"{column!r} holds {found}, not text"
    if not empty_ok and not value.strip():
        return f"{column!r} is empty"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON can spell half a surrogate pair
            return f"{column!r} holds a character that is not valid Unicode"
    return None


def _label_text(raw: Any) -> str | None:
    """A label in one spelling, so that 1, 1.0 and "1" of three formats are one class."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, float):
        if not math.isfinite(raw):
            return None
        return str(int(raw)) if raw.is_integer() else str(raw)
    return (str(raw).strip() or None) if isinstance(raw, str | int) else None


def _spell_whole_numbers_alike(*files: Examples) -> None:
    """Where all labels are whole numbers, 1.0 is the class 1: pandas writes 1.0 where some label is missing."""
    names = {_label_text(raw) for examples in files for raw in examples.labels} - {None}
    if all(WHOLE.fullmatch(str(name)) for name in names):
        for examples in files:
            examples.labels = [
                raw.partition(".")[0] if isinstance(raw, str) else raw for raw in examples.labels
            ]


def _in_both(train: Examples, dev: Examples) -> Iterator[str]:
    """A note on dev examples that a model has seen in training, whatever their labels there."""
    asked = dev.texts if dev.pairs is None else list(zip(dev.texts, dev.pairs, strict=True))
    seen = set(asked).intersection(
        train.texts if train.pairs is None else zip(train.texts, train.pairs, strict=True)
    )
    if count := sum(example in seen for example in asked):
        are = "is" if count == 1 else "are"
        yield f"{count:,} of {counted(len(asked), 'dev example')} {are} in the training file, too"


def _refuse_constant(examples: Examples, targets: np.ndarray) -> None:
    if targets.min() == targets.max():
        raise BadData(
            f"{examples.bad.file}: every row has the label {targets[0]:g}; a regression task needs two or more"
        )


def _number(raw: Any) -> float | None:
    if raw is None or isinstance(raw, bool) or (isinstance(raw, str) and "_" in raw):
        return None
    try:
        number = float(raw)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= FLOAT32_MAX else None  # also refuses NaN


def _guess_kind(examples: Examples) -> Kind:
    numbers = [_number(raw) for raw in examples.labels]
    if any(n is None for n in numbers):
        return "classification"
    return "classification" if all(float(n or 0).is_integer() for n in numbers) else "regression"


def _label_names(examples: Examples, column: str) -> tuple[str, ...]:
    file = examples.bad.file
    names = {name for raw in examples.labels if (name := _label_text(raw)) is not None}
    if len(examples.labels) >= 20 and len(names) > len(examples.labels) / 2:
        raise BadData(
            f"{file}: {len(examples.labels):,} rows have {len(names):,} different values of {column!r}; "
            'name the column that holds the label, or set kind = "regression" if it is a number to predict'
        )
    if len(names) == 1 and not examples.bad.count:
        raise BadData(
            f"{file}: every row has the label {names.pop()!r}; a classification task needs two or more"
        )
    whole = all(len(name) < 19 and name.removeprefix("-").isdecimal() for name in names)
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if whole else None))
