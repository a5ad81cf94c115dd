"""Read tagged corpora: CoNLL columns, CoNLL-U and the Parallel Meaning Bank (PMB).

Files are parsed strictly: the first row that does not match the format is an error with its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from whichlayers.catalog import TAG_COLUMNS, CorpusFormat
from whichlayers.data.readers import read_lines
from whichlayers.data.tasks import BadData, BadRows
from whichlayers.text import counted

Row = tuple[int, list[str]]  # line number, cells


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    number: int  # line of its first word in the file


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


def read_tagged(path: str | Path, format: CorpusFormat, column: str | int | None = None) -> TaggedCorpus:
    """Read a tagged corpus.

    Args:
        path: The file.
        format: "conll", "conllu" or "pmb".
        column: Which tag to read. For conll a column number from 0 (default: the last column), for conllu
            "upos" (default) or "xpos", for pmb a layer such as "sem" (default).
    """
    if format == "conll":
        return read_conll(path, tag_column=-1 if column is None else int(column))
    if format == "conllu":
        return read_conllu(path, "upos" if column is None else str(column))
    return read_pmb(path, "sem" if column is None else str(column))


def read_conll(path: str | Path, word_column: int = 0, tag_column: int = -1) -> TaggedCorpus:
    """Read columns separated by whitespace, with empty lines between sentences. There are no comments: # is a word."""
    path = Path(path)
    blocks = _blocks(path, lambda line: False, str.split)
    return _corpus(path, blocks, word_column, tag_column)


def read_conllu(path: str | Path, tag: str = "upos") -> TaggedCorpus:
    """Read a CoNLL-U file (Universal Dependencies).

    Multiword tokens (3-4) and empty nodes (8.1) are skipped; the syntactic words 3 and 4 follow with their own tags.
    """
    path = Path(path)
    blocks = (
        [(number, cells) for number, cells in block if not ("-" in cells[0] or "." in cells[0])]
        for block in _blocks(path, lambda line: line.startswith("#"), _split_tabs)
    )
    return _corpus(path, blocks, 1, TAG_COLUMNS["conllu"][tag])


def read_pmb(path: str | Path, layer: str = "sem") -> TaggedCorpus:
    """Read a file of the Parallel Meaning Bank. A multiword token (Charles~de~Gaulle) is treated as one word."""
    path, column = Path(path), TAG_COLUMNS["pmb"][layer]
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
                raise BadData(
                    f"{path}:{number}: column {tag_column} contains the words; set column to that of the tags"
                )
            word, tag = (_cell(path, number, cells, column) for column in (word_column, tag_column))
            if not word.strip():
                raise BadData(
                    f"{path}:{number}: the word (column {word_column}) is empty; add it or delete the row"
                )
            if not tag.strip():
                raise BadData(
                    f"{path}:{number}: the tag of {word!r} (column {tag_column}) is empty; add a tag"
                )
            words.append(word)
            tags.append(tag)
        if words:
            sentences.append(TaggedSentence(tuple(words), tuple(tags), block[0][0]))
    if not sentences:
        raise BadData(
            f"{path} has no tagged words; expected one word per line and empty lines between sentences"
        )
    return TaggedCorpus(path.stem, sentences, documents)


def _cell(path: Path, number: int, cells: list[str], column: int) -> str:
    if not -len(cells) <= column < len(cells):
        raise BadData(
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
                raise BadData(
                    f"{path}:{number}: only one column: {line[:50]!r}; expected a word and its tag, separated by "
                    f"{separator}"
                )
            width = len(cells) if width is None else width
            if len(cells) != width:
                raise BadData(
                    f"{path}:{number}: {counted(len(cells), 'column')}, but the first row has {width}: {line[:50]!r}; "
                    "all rows must have the same number of columns"
                )
            block.append((number, cells))
    if block:
        yield block


def _lines(path: Path) -> list[str]:
    """All lines, without their line endings."""
    bad = BadRows(str(path))
    lines = [line.removesuffix("\n").removesuffix("\r") for line in read_lines(path, bad)]
    bad.raise_if_any()
    if not any(map(str.strip, lines)):
        raise BadData(f"{path} is empty; expected one word per line and empty lines between sentences")
    return lines


def _split_tabs(line: str) -> list[str]:
    return line.split("\t")
