"""Read rows and their line numbers from TSV, CSV, JSONL and Parquet files.

The file extension determines the format; text formats may be gzipped (.tsv.gz). CSV is quoted as in RFC 4180. TSV
has no quoting, as in GLUE and most corpora: tabs separate columns, newlines end rows, and quotes are ordinary
characters. Text files are UTF-8, with or without a byte order mark. Blank lines are skipped.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from whichlayers.data.tasks import BadData, BadRows
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted, join_list

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
MAX_BYTES_TO_COUNT = 50_000_000  # takes about a second
Record = tuple[int, list[Any]]  # (line in the file, values of the requested columns)


def read_records(
    path: Path, columns: list[str], bad: BadRows, header: Sequence[str] | None, malformed: BadRows
) -> Iterator[Record]:
    """Yield the line number and the values of `columns` of every valid row.

    Args:
        path: Data file.
        columns: Names of the columns to read.
        bad: Collects rows that cannot be parsed.
        header: Column names of a file without a header line.
        malformed: Collects rows with a wrong number of columns.
    """
    extension = _format(path)
    _check_is_file(path)
    if header is None and path.stat().st_size == 0:
        raise empty_file(path, columns)
    if extension == ".parquet":
        yield from _parquet_values(path, columns)
    elif extension == ".jsonl":
        yield from _json_values(read_lines(path, bad), columns, bad)
    else:
        yield from _delimited_values(path, _records(path, bad), columns, header, bad, malformed)


def column_names(path: Path) -> list[str]:
    """Column names in the header of a TSV or CSV file."""
    bad = BadRows(str(path))
    return _header(_records(path, bad), bad)


def check_columns(path: Path, columns: list[str]) -> None:
    """Raise unless the file has these columns and a valid row; reads only up to the first valid row."""
    bad = BadRows(str(path))
    for _ in read_records(path, columns, bad, None, bad):
        return
    bad.raise_if_any()
    raise no_examples(path, columns)


def empty_file(path: Path, columns: Sequence[str]) -> BadData:
    """The error for a file without content: names the file, and what it should hold."""
    return BadData(f"{path} is empty; expected {_expected_rows(path, columns)}")


def no_examples(path: Path, columns: Sequence[str]) -> BadData:
    """The error for a file without examples, which may have a header."""
    return BadData(f"{path} has no examples; expected {_expected_rows(path, columns)}")


def _expected_rows(path: Path, columns: Sequence[str]) -> str:
    """What a data file of this format should hold: "a header line with the columns 'text' and 'label', ..." """
    named = join_list(map(repr, columns))
    if _format(path) == ".jsonl":
        return f"one JSON object per line, each with {'the keys' if len(columns) > 1 else 'the key'} {named}"
    noun = f"{'the columns' if len(columns) > 1 else 'the column'} {named}"
    if _format(path) == ".parquet":
        return f"a table with {noun} and one row per example"
    return f"a header line with {noun}, then one row per example"


def count_rows(path: Path) -> int | None:
    """Number of rows of a file, valid or not; None for a text file that is too large to count quickly."""
    extension, bad = _format(path), BadRows(str(path))
    _check_is_file(path)
    if path.stat().st_size == 0:
        return 0
    if extension == ".parquet":
        import pyarrow.parquet

        try:
            return int(pyarrow.parquet.read_metadata(path).num_rows)
        except (pyarrow.ArrowException, OSError) as error:
            raise BadData(f"{path} cannot be read as Parquet: {error}") from error
    if path.stat().st_size > MAX_BYTES_TO_COUNT:
        return None
    if extension == ".jsonl":
        return sum(1 for line in read_lines(path, bad) if line.strip())
    return max(0, sum(1 for _ in _records(path, bad)) - 1)  # without the header


def _check_is_file(path: Path) -> None:
    """Raise WhichlayersError unless there is a file at this path."""
    if path.is_file():
        return
    if path.exists():
        raise WhichlayersError(f"{path} is not a regular file (a device or a pipe); save the data as a file")
    if path.is_symlink():
        raise WhichlayersError(f"{path} is a symbolic link that does not lead to a file; check the link")
    raise WhichlayersError(f"{path}: no such file; check the path")


def _format(path: Path) -> str:
    """The file extension that determines the format, without .gz."""
    if path.is_dir():
        raise WhichlayersError(f"{path} is a folder; give a file")
    name = path.name.lower().removesuffix(".gz")
    extension = Path(name).suffix
    if extension not in FORMATS or (extension == ".parquet" and path.name.lower().endswith(".gz")):
        raise WhichlayersError(
            f"{path}: unknown file format; the extension must be one of {', '.join(FORMATS)} (text formats may be "
            "gzipped: .csv.gz)"
        )
    return extension


def read_lines(path: Path, bad: BadRows) -> Iterator[str]:
    """Decoded lines with their line endings. Only \\n ends a line: str.splitlines would also split at U+2028."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as handle:
            for number, raw in enumerate(handle, start=1):
                if number == 1:
                    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise BadData(f"{path} is UTF-16; save it as UTF-8")
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                    if not raw.endswith(b"\n") and b"\r" in raw.rstrip(b"\r"):
                        raise BadData(f"{path} has old Mac line endings (\\r); save it with \\n line endings")
                try:
                    yield raw.decode()
                except UnicodeDecodeError as error:
                    where = f"byte 0x{raw[error.start]:02x} at position {error.start + 1}"
                    bad.add(number, f"not UTF-8: {where}; save the file as UTF-8")
                    yield raw.decode(errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadData(f"{path} cannot be read: {reason}; check the file") from error


def _records(path: Path, bad: BadRows) -> Iterator[Record]:
    """Rows of a TSV or CSV file, including the header."""
    lines = read_lines(path, bad)
    return _csv_records(lines, bad) if _format(path) == ".csv" else _tsv_records(lines)


def _tsv_records(lines: Iterator[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        row = line.removesuffix("\n").removesuffix("\r")
        if row:
            yield number, row.split("\t")


def _csv_records(lines: Iterator[str], bad: BadRows) -> Iterator[Record]:
    reader = csv.reader(lines, strict=True)
    default_limit = csv.field_size_limit(2**31 - 1)  # long documents are allowed
    try:
        while True:
            first_line = reader.line_num + 1  # a quoted field may span several lines
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                bad.add(first_line, f"not valid CSV: {_csv_problem(error)}")
                return  # where the next row starts is unknown
            if row:
                yield first_line, row
    finally:
        csv.field_size_limit(default_limit)


def _csv_problem(error: csv.Error) -> str:
    """The message of a csv.Error in terms of the file instead of the csv module's API."""
    message = str(error)
    if "unexpected end of data" in message:
        return "a quote is opened but never closed"
    if "new-line character" in message:
        return "a \\r without \\n (old Mac line ending); save the file with \\n line endings"
    return message


def _header(rows: Iterator[Record], bad: BadRows) -> list[str]:
    """Column names from the first row; empty if the file is empty."""
    _, names = next(rows, (1, None))
    if names is None:
        bad.raise_if_any()
    return [name.strip() for name in names or ()]


def _delimited_values(
    path: Path,
    rows: Iterator[Record],
    columns: list[str],
    header: Sequence[str] | None,
    bad: BadRows,
    malformed: BadRows,
) -> Iterator[Record]:
    if header is None:
        header = _header(rows, bad)
        if not header:
            raise empty_file(path, columns)
        if not set(columns) <= set(header):
            bad.raise_if_any()  # the header itself may be invalid
    positions = _positions(path, columns, header)
    for line, fields in rows:
        if len(fields) == len(header):
            yield line, [fields[i] for i in positions]
        else:
            malformed.add(line, f"{counted(len(fields), 'column')}, expected {len(header)}")


def _json_values(lines: Iterator[str], columns: list[str], bad: BadRows) -> Iterator[Record]:
    rows, lacking, first = (
        0,
        dict[str, int](),
        dict[str, tuple[int, str]](),
    )  # by key: rows without it, the first
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        rows += 1
        try:
            row = json.loads(line.rstrip())
        except json.JSONDecodeError as error:
            bad.add(number, f"not valid JSON: {error.msg} at character {error.colno}")
            continue
        except (ValueError, RecursionError) as error:  # numbers with too many digits, lists nested too deeply
            bad.add(number, f"not valid JSON: {error}")
            continue
        if repeated := _repeated_key(line, columns):
            bad.add(number, f"the key {repeated!r} is given twice; remove one of them")
            continue
        if not isinstance(row, dict):
            bad.add(number, f"a JSON {type(row).__name__}, expected an object with keys {', '.join(columns)}")
        elif missing := [column for column in columns if column not in row]:
            found = ", ".join(map(repr, list(row)[:8])) or "no keys"
            message = f"no key {missing[0]!r}{_name_hint(missing[0], row)}; this row has {found}"
            bad.add(number, message)
            lacking[missing[0]] = lacking.get(missing[0], 0) + 1
            first.setdefault(missing[0], (number, message))
        else:
            yield number, [row[column] for column in columns]
    for key, count in lacking.items():
        if count == rows:
            line_number, message = first[key]
            raise BadData(
                f"{bad.file}:{line_number}: {message}. No row has this key: name one that the rows have"
            )


def _repeated_key(line: str, columns: list[str]) -> str | None:
    """The first of the columns that a JSON object has twice; None if there is none."""
    if all(line.count(json.dumps(column, ensure_ascii=False)) < 2 for column in columns):
        return None  # the usual case, without parsing the line again
    found: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        found[:] = [key for key, _ in pairs]  # the outermost object comes last

    json.loads(line, object_pairs_hook=collect)
    return next((column for column in columns if found.count(column) > 1), None)


def _parquet_values(path: Path, columns: list[str]) -> Iterator[Record]:
    """Rows of a Parquet file, which has no lines: rows are numbered from 1 instead."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        _positions(path, columns, file.schema_arrow.names)
        first = 1
        for batch in file.iter_batches(columns=list(dict.fromkeys(columns))):
            values = [batch.column(batch.schema.get_field_index(column)).to_pylist() for column in columns]
            for i, row in enumerate(zip(*values, strict=True)):
                yield first + i, list(row)
            first += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read as Parquet: {error}") from error


def _positions(path: Path, columns: list[str], header: Sequence[str]) -> list[int]:
    """Index of each column in the header; raises if one is missing or ambiguous."""
    for column in columns:
        if list(header).count(column) == 1:
            continue
        if column in header:
            raise BadData(
                f"{path}:1: {list(header).count(column)} columns are named {column!r}; rename all but one of them"
            )
        hint = _name_hint(column, header)
        found = ", ".join(repr(name[:40]) for name in header[:12]) or "none"
        raise BadData(
            f"{path}:1: no column {column!r}{hint}; the columns are {found}{_separator_hint(path, header)}"
        )
    return [list(header).index(column) for column in columns]


def _name_hint(name: str, known: Collection[str]) -> str:
    """ " (did you mean 'label'?)" for a name that is close to a known one, else ""."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _separator_hint(path: Path, header: Sequence[str]) -> str:
    """A hint if the only column name contains a separator of another format."""
    expected = {".csv": ",", ".tsv": "\t"}.get(_format(path))
    if expected is None or len(header) != 1:
        return ""
    found = next((name for mark, name in SEPARATORS.items() if mark != expected and mark in header[0]), None)
    return (
        f". The file seems to be separated by {found}; save it with {SEPARATORS[expected]}" if found else ""
    )
