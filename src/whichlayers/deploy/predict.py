"""Predict the labels of the texts in a file, a chunk of rows at a time.

Memory does not depend on the size of the file: rows are read, predicted and written in chunks.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from whichlayers.data.readers import FORMATS, read_records
from whichlayers.data.tasks import BadData, BadRows
from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write

if TYPE_CHECKING:
    from whichlayers.deploy.text_model import Prediction, TextModel

CHUNK = 1024  # rows in memory
PREDICTION, PROBABILITY = "prediction", "probability"

OnRows = Callable[[int, int], None]  # predicted rows, all rows


@dataclass(frozen=True)
class TextColumns:
    """Columns of a file of texts."""

    text: str
    pair: str | None = None
    keep: tuple[str, ...] = ()  # further columns to copy to the output

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in (self.text, self.pair, *self.keep) if name is not None))


class RowWriter(Protocol):
    """Writes rows, each with the values of the same columns."""

    def write(self, rows: Sequence[Sequence[Any]]) -> None: ...
    def close(self) -> None: ...


Types = dict[str, set[type]]  # the types of the values of each column, without None


def check_rows(path: Path, columns: TextColumns) -> tuple[int, Types]:
    """Read a file of texts completely; returns its number of rows and the types of its columns.

    Raises:
        BadData: The file has no rows, or rows without a text.
    """
    bad, count = BadRows(str(path)), 0
    types: Types = {name: set() for name in columns.names}
    for line, values in read_records(path, columns.names, bad, None, bad):
        count += 1
        for key, value in zip(columns.names, values, strict=True):
            if value is not None:
                types[key].add(type(value))
        for name in (columns.text, columns.pair):
            if name is not None and not _is_text(values[columns.names.index(name)]):
                bad.add(line, f"column {name!r} has no text")
                break
    bad.raise_if_any()
    if not count:
        raise BadData(f"{path} has no rows; add texts")
    return count, types


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def predict_file(
    model: TextModel,
    path: Path,
    columns: TextColumns,
    out: Path | IO[str],
    *,
    batch_size: int = 32,
    on_rows: OnRows | None = None,
) -> int:
    """Predict all rows of a file and write them with their predictions.

    Args:
        model: The model.
        path: A TSV, CSV, JSONL or Parquet file.
        columns: Its columns.
        out: File to write, whose extension is that of its format, or an open text file, to which CSV is written. A
            file is complete or does not exist.
        batch_size: Texts in a batch.
        on_rows: Called after each chunk.

    Returns:
        The number of rows. The output has the columns in `columns`, then prediction and, for classification,
        probability (of the predicted class) and "p LABEL" for every label.
    """
    if (columns.pair is not None) != model.metadata.pairs:
        needed = "two texts: give --pair" if model.metadata.pairs else "one text: leave out --pair"
        raise WhichlayersError(f"the model was finetuned on {model.metadata.task} and takes {needed}")
    if isinstance(out, Path) and out.exists() and path.exists() and out.samefile(path):
        raise WhichlayersError(
            f"--out {out} is the file of the texts, which would be replaced: choose another name"
        )
    total, types = check_rows(path, columns)  # before hours of prediction
    header = [*columns.names, PREDICTION]
    if model.labels:
        header += [PROBABILITY, *(f"p {label}" for label in model.labels)]
    if len(set(header)) < len(header):
        clash = sorted({name for name in header if header.count(name) > 1})
        raise WhichlayersError(
            f"{path}: the output also has a column {clash[0]!r}; rename the column, or do not keep it"
        )
    done = 0
    with _open_writer(out, header, types) as writer:
        for chunk in _chunks(path, columns):
            texts = [row[columns.names.index(columns.text)] for row in chunk]
            pairs = [row[columns.names.index(columns.pair)] for row in chunk] if columns.pair else None
            predictions = model.predict(texts, pairs, batch_size)
            writer.write([[*row, *_values(p)] for row, p in zip(chunk, predictions, strict=True)])
            done += len(chunk)
            if on_rows is not None:
                on_rows(done, total)
    return done


def _chunks(path: Path, columns: TextColumns) -> Iterator[list[list[Any]]]:
    bad = BadRows(str(path))
    rows = (values for _, values in read_records(path, columns.names, bad, None, bad))
    while chunk := list(itertools.islice(rows, CHUNK)):
        yield chunk


def _values(prediction: Prediction) -> list[Any]:
    if prediction.probability is None:
        return [prediction.label]
    return [prediction.label, prediction.probability, *prediction.probabilities.values()]


def check_output(out: Path, file: Path) -> None:
    """Raise WhichlayersError unless predictions for the texts in `file` may be written to `out`.

    Its extension must be one of `FORMATS`, and it must not be `file`.
    """
    if out.suffix.lower() not in FORMATS:
        raise WhichlayersError(
            f"--out {out}: unknown file format; the extension must be one of {', '.join(FORMATS)}"
        )
    if out.is_dir():
        raise WhichlayersError(f"--out {out} is a folder: give a file, such as {out / 'predictions.csv'}")
    if out.exists() and file.exists() and out.samefile(file):
        raise WhichlayersError(f"--out {out} is the file of the texts; choose another name")


@contextlib.contextmanager
def _open_writer(out: Path | IO[str], header: list[str], types: Types) -> Iterator[RowWriter]:
    if not isinstance(out, Path):
        yield _DelimitedWriter(out, header, ",")
        return
    extension = out.suffix.lower()
    if extension not in FORMATS:
        raise WhichlayersError(
            f"{out}: unknown file format; the extension must be one of {', '.join(FORMATS)}"
        )
    with atomic_write(out) as partial:
        writer: RowWriter
        if extension == ".parquet":
            writer = _ParquetWriter(partial, header, types)
        else:
            file = open(partial, "w", encoding="utf-8", newline="")  # noqa: SIM115 (closed below)
            if extension == ".jsonl":
                writer = _JsonWriter(file, header)
            else:
                writer = _DelimitedWriter(file, header, "," if extension == ".csv" else "\t")
        try:
            yield writer
        finally:
            writer.close()


class _DelimitedWriter:
    """CSV as in RFC 4180, or TSV without quoting, as `readers` reads them."""

    def __init__(self, file: IO[str], header: list[str], separator: str):
        self.file, self.separator = file, separator
        self.csv = csv.writer(file, lineterminator="\n") if separator == "," else None
        self._line(header)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._line(["" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in row])

    def _line(self, values: Sequence[Any]) -> None:
        if self.csv is not None:
            self.csv.writerow(values)
            return
        texts = [str(value) for value in values]
        if any(mark in text for text in texts for mark in "\t\n\r"):
            raise WhichlayersError(
                "a value contains a tab or a line break, which TSV cannot hold: write .csv, .jsonl or .parquet"
            )
        self.file.write(self.separator.join(texts) + "\n")

    def close(self) -> None:
        self.file.close()


class _JsonWriter:
    def __init__(self, file: IO[str], header: list[str]):
        self.file, self.header = file, header

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self.file.write(
                json.dumps(dict(zip(self.header, row, strict=True)), ensure_ascii=False, default=str) + "\n"
            )

    def close(self) -> None:
        self.file.close()


class _ParquetWriter:
    """One row group per chunk. Kept columns with values of several types are text; integers and floats are floats."""

    def __init__(self, path: Path, header: list[str], types: Types):
        self.path, self.header, self.types = path, header, types
        self.writer: Any = None

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        import pyarrow
        import pyarrow.parquet

        schema = None if self.writer is None else self.writer.schema
        columns = dict(zip(self.header, zip(*rows, strict=True), strict=True))
        arrays = [
            self._array(name, values, None if schema is None else schema.field(name).type)
            for name, values in columns.items()
        ]
        table = pyarrow.table(arrays, names=self.header)
        if self.writer is None:
            self.writer = pyarrow.parquet.ParquetWriter(self.path, table.schema)
        self.writer.write_table(table)

    def _array(self, name: str, values: Sequence[Any], known: Any) -> Any:
        """The values of a column, with the type that all of its values have; `known` is that of earlier chunks."""
        import pyarrow

        types = self.types.get(name)
        if types is None:  # a prediction
            return pyarrow.array(values)
        simple = {
            bool: pyarrow.bool_(),
            int: pyarrow.int64(),
            float: pyarrow.float64(),
            str: pyarrow.string(),
        }
        if types == {int, float}:
            types = {float}
            values = [None if v is None else float(v) for v in values]
        elif len(types) > 1:
            types = {str}
            values = [None if v is None else str(v) for v in values]
        # others, such as dates, have the type of the first chunk
        kind = simple.get(next(iter(types), object), known)
        try:
            return pyarrow.array(values, type=kind)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError) as error:
            raise WhichlayersError(
                f"column {name!r} cannot be written as Parquet: {error}; write .jsonl or .csv, or do not keep it"
            ) from error

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
