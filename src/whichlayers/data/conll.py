"""Corpora in which every word has a tag: CoNLL columns, CoNLL-U and the Parallel Meaning Bank.

Files are read strictly: the first row that is not as the format says is an error with its file and line.
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
    words: tuple[str, ...]
    tags: tuple[str, ...]
    number: int  # line of its first word in the file; its place in a corpus that was never a file


@dataclass(frozen=True)
class TaggedCorpus:
    name: str
    sentences: list[TaggedSentence]
    documents: int | None = None  # how many documents the sentences come from, where the file says so

    @property
    def n_words(self) -> int:
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def tag_names(self) -> tuple[str, ...]:
        return tuple(sorted({tag for sentence in self.sentences for tag in sentence.tags}))


class BadCorpus(WhichlayersError):
    """A row of a corpus that cannot be read."""


def read_tagged(
    path: str | Path, format: Literal["conll", "conllu", "pmb"], column: str | int | None = None
) -> TaggedCorpus:
    """`column` says which tag: for conll a number from 0 (default: the last column), for conllu upos or xpos
    (default upos), for pmb a layer such as sem (default)."""
    if format == "conll":
        if isinstance(column, str):
            raise WhichlayersError(
                f"{path}: column {column!r}: the columns of a conll file are numbered; give 1, 2, ..., or -1 for "
                "the last"
            )
        return read_conll(path, tag_column=-1 if column is None else column)
    if format == "conllu":
        return read_conllu(path, "upos" if column is None else str(column))
    if format == "pmb":
        return read_pmb(path, "sem" if column is None else str(column))
    raise WhichlayersError(f"format {format!r} is not known; there are conll, conllu, pmb")


def read_conll(path: str | Path, word_column: int = 0, tag_column: int = -1) -> TaggedCorpus:
    """Columns parted by white space, sentences by empty lines. No comments: # is a word like any other."""
    path = Path(path)
    blocks = _blocks(path, lambda line: False, str.split)
    return _corpus(path, blocks, word_column, tag_column)


def read_conllu(path: str | Path, tag: str = "upos") -> TaggedCorpus:
    """Universal Dependencies. Rows such as 3-4 (one written word, two syntactic ones) and 8.1 (a word left
    unsaid) are passed over; the words 3 and 4 follow with their own tags."""
    column = _column_of(tag, CONLLU_COLUMNS, "a CoNLL-U file")
    path = Path(path)
    blocks = (
        [(number, cells) for number, cells in block if not ("-" in cells[0] or "." in cells[0])]
        for block in _blocks(path, lambda line: line.startswith("#"), _at_tabs)
    )
    return _corpus(path, blocks, 1, column)


def read_pmb(path: str | Path, layer: str = "sem") -> TaggedCorpus:
    """The Parallel Meaning Bank's tables. A token of several words (Charles~de~Gaulle) is one word here."""
    column = _column_of(layer, PMB_LAYERS, "a PMB file")
    path = Path(path)
    documents = sum(line.startswith("# newdoc") for line in _lines(path))
    return _corpus(path, _blocks(path, _is_pmb_comment, _at_tabs), 0, column, documents or None)


def _is_pmb_comment(line: str) -> bool:
    """`# raw sent = ...`, `### Generated ...`; but a row whose word is # or #1 is none."""
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
                    f"{path}:{number}: column {tag_column} holds the words; give the column of their tags"
                )
            word, tag = (_cell(path, number, cells, column) for column in (word_column, tag_column))
            if not word.strip():
                raise BadCorpus(
                    f"{path}:{number}: the word (column {word_column}) is empty; give it or delete the row"
                )
            if not tag.strip():
                raise BadCorpus(
                    f"{path}:{number}: the tag of {word!r} (column {tag_column}) is empty; give it one"
                )
            words.append(word)
            tags.append(tag)
        if words:
            sentences.append(TaggedSentence(tuple(words), tuple(tags), block[0][0]))
    if not sentences:
        raise BadCorpus(
            f"{path}: has no tagged words; expected one word a line and empty lines between sentences"
        )
    return TaggedCorpus(path.stem, sentences, documents)


def _cell(path: Path, number: int, cells: list[str], column: int) -> str:
    if not -len(cells) <= column < len(cells):
        raise BadCorpus(
            f"{path}:{number}: there is no column {column}; the row has {counted(len(cells), 'column')}, numbered "
            "from 0"
        )
    return cells[column]


def _blocks(
    path: Path, is_comment: Callable[[str], bool], cut: Callable[[str], list[str]]
) -> Iterator[list[Row]]:
    """The rows between empty lines; all rows of a file have as many cells as its first."""
    block: list[Row] = []
    width: int | None = None
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            if block:
                yield block
            block = []
        elif not is_comment(line):
            cells = cut(line)
            if width is None and len(cells) == 1:
                between = "tabs" if cut is _at_tabs else "white space"
                raise BadCorpus(
                    f"{path}:{number}: one column: {line[:50]!r}; a word and its tag are needed, {between} between"
                )
            width = len(cells) if width is None else width
            if len(cells) != width:
                raise BadCorpus(
                    f"{path}:{number}: {counted(len(cells), 'column')} where the first row has {width}: {line[:50]!r}; "
                    "every row needs the same number"
                )
            block.append((number, cells))
    if block:
        yield block


def _lines(path: Path) -> list[str]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadCorpus(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not raw.strip():
        raise BadCorpus(
            f"{path}: the file is empty; expected one word a line and empty lines between sentences"
        )
    try:
        decoded = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        raise BadCorpus(
            f"{path}:{number}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file to UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in decoded.split("\n")]  # splitlines would also cut at U+2028


def _at_tabs(line: str) -> list[str]:
    return line.split("\t")


def _column_of(name: str, known: dict[str, int], where: str) -> int:
    if name not in known:
        raise WhichlayersError(f"{where} has no tags called {name!r}; there are {', '.join(known)}")
    return known[name]
