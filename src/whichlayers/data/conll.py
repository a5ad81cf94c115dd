"""Read tagged corpora: CoNLL columns, CoNLL-U and the Parallel Meaning Bank (PMB).

Files are parsed strictly: the first row that does not match the format is an error with its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

CONLLU_COLUMNS = {"upos": 3, "xpos": 4}
PMB_LAYERS = {"sym": 2, "sem": 3, "cat": 4, "sns": 5, "rol": 6}
Row = tuple[int, list[str]]  # line number, cells


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    number: int  # line of its first word in the file; index from 1 in a built-in corpus


@dataclass(frozen=True)
class TaggedCorpus:
    """The sentences of one split of a tagged corpus."""

    name: str
    sentences: list[TaggedSentence]
    documents: int | None = None  # number of documents, if the file gives it

    @property
    def n_words(self) -> int:
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def tag_names(self) -> tuple[str, ...]:
        """All tags in the corpus, sorted."""
        return tuple(sorted({tag for sentence in self.sentences for tag in sentence.tags}))


class BadCorpus(WhichlayersError):
    """A tagged corpus that cannot be read or used."""


def read_tagged(
    path: str | Path, format: Literal["conll", "conllu", "pmb"], column: str | int | None = None
) -> TaggedCorpus:
    """Read a tagged corpus.

    Args:
        path: The file.
        format: "conll", "conllu" or "pmb".
        column: Which tag to read. For conll a column number from 0 (default: the last column), for conllu
            "upos" (default) or "xpos", for pmb a layer such as "sem" (default).
    """
    if format == "conll":
        if isinstance(column, str):
            raise WhichlayersError(
                f"{path}: column = {column!r}: columns of a conll file are numbers; use 1, 2, ..., or -1 for the last"
            )
        return read_conll(path, tag_column=-1 if column is None else column)
    if format == "conllu":
        return read_conllu(path, "upos" if column is None else str(column))
    if format == "pmb":
        return read_pmb(path, "sem" if column is None else str(column))
    raise WhichlayersError(f"unknown format {format!r}; choose one of conll, conllu, pmb")


def read_conll(path: str | Path, word_column: int = 0, tag_column: int = -1) -> TaggedCorpus:
    """Read columns separated by whitespace, with empty lines between sentences. There are no comments: # is a word."""
    path = Path(path)
    blocks = _blocks(path, lambda line: False, str.split)
    return _corpus(path, blocks, word_column, tag_column)


def read_conllu(path: str | Path, tag: str = "upos") -> TaggedCorpus:
    """Read a CoNLL-U file (Universal Dependencies).

    Multiword tokens (3-4) and empty nodes (8.1) are skipped; the syntactic words 3 and 4 follow with their own tags.
    """
    column = _column_of(tag, CONLLU_COLUMNS, "a CoNLL-U file")
    path = Path(path)
    blocks = (
        [(number, cells) for number, cells in block if not ("-" in cells[0] or "." in cells[0])]
        for block in _blocks(path, lambda line: line.startswith("#"), _split_tabs)
    )
    return _corpus(path, blocks, 1, column)


def read_pmb(path: str | Path, layer: str = "sem") -> TaggedCorpus:
    """Read a file of the Parallel Meaning Bank. A multiword token (Charles~de~Gaulle) is treated as one word."""
    column = _column_of(layer, PMB_LAYERS, "a PMB file")
    path = Path(path)
    documents = sum(line.startswith("# newdoc") for line in _lines(path))
    return _corpus(path, _blocks(path, _is_pmb_comment, _split_tabs), 0, column, documents or None)


def _is_pmb_comment(line: str) -> bool:
    """Whether a line is a comment such as `# raw sent = ...`; a row whose word is # or #1 is not."""
    return line.startswith(("# ", "##")) or (line.startswith("#") and "\t" not in line)


def _corpus(
    path: Path, blocks: Iterator[list[Row]], word_column: int, tag_column: int, documents: int | None = None
) -> TaggedCorpus:
    sentences = []
    for block in blocks:
        words, tags = [], []
        for number, cells in block:
            if tag_column in (word_column, word_column - len(cells)):
                raise BadCorpus(
                    f"{path}:{number}: column {tag_column} contains the words; set column to that of the tags"
                )
            word, tag = (_cell(path, number, cells, column) for column in (word_column, tag_column))
            if not word.strip():
                raise BadCorpus(
                    f"{path}:{number}: the word (column {word_column}) is empty; add it or delete the row"
                )
            if not tag.strip():
                raise BadCorpus(
                    f"{path}:{number}: the tag of {word!r} (column {tag_column}) is empty; add a tag"
                )
            words.append(word)
            tags.append(tag)
        if words:
            sentences.append(TaggedSentence(tuple(words), tuple(tags), block[0][0]))
    if not sentences:
        raise BadCorpus(
            f"{path} has no tagged words; expected one word per line and empty lines between sentences"
        )
    return TaggedCorpus(path.stem, sentences, documents)


def _cell(path: Path, number: int, cells: list[str], column: int) -> str:
    if not -len(cells) <= column < len(cells):
        raise BadCorpus(
            f"{path}:{number}: no column {column}; the row has {counted(len(cells), 'column')}, numbered from 0"
        )
    return cells[column]


def _blocks(
    path: Path, is_comment: Callable[[str], bool], split_line: Callable[[str], list[str]]
) -> Iterator[list[Row]]:
    """Yield the rows of each sentence; all rows must have as many columns as the first."""
    block: list[Row] = []
    width: int | None = None
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            if block:
                yield block
            block = []
        elif not is_comment(line):
            cells = split_line(line)
            if width is None and len(cells) == 1:
                separator = "tabs" if split_line is _split_tabs else "whitespace"
                raise BadCorpus(
                    f"{path}:{number}: only one column: {line[:50]!r}; expected a word and its tag, separated by "
                    f"{separator}"
                )
            width = len(cells) if width is None else width
            if len(cells) != width:
                raise BadCorpus(
                    f"{path}:{number}: {counted(len(cells), 'column')}, but the first row has {width}: {line[:50]!r}; "
                    "all rows must have the same number of columns"
                )
            block.append((number, cells))
    if block:
        yield block


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadCorpus(f"{path} cannot be read ({error.strerror}); check the path") from error
    if not raw.strip():
        raise BadCorpus(f"{path} is empty; expected one word per line and empty lines between sentences")
    try:
        decoded = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise BadCorpus(
            f"{path}:{number}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file to UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in decoded.split("\n")]  # splitlines would also split at U+2028


def _split_tabs(line: str) -> list[str]:
    return line.split("\t")


def _column_of(name: str, columns: dict[str, int], file_type: str) -> int:
    """Column number of a named tag."""
    if name not in columns:
        raise WhichlayersError(
            f"column = {name!r} does not exist in {file_type}; choose one of {', '.join(columns)}"
        )
    return columns[name]
