"""The [[corpora]] section of a study file: tagged corpora for word-level probing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from whichlayers.catalog import BUILTIN, CORPORA, TAG_COLUMNS, CorpusFormat
from whichlayers.config.errors import close_match, format_choices
from whichlayers.config.sections import Count, NamedSection, Text
from whichlayers.config.validators import index_or_name

FILE_KEYS = ("train", "test", "dev", "format", "column")


class CorpusSpec(NamedSection):
    """A corpus with one tag per word: built in, one of the corpora of Durrani et al. 2021, or your own files."""

    name: Text = Field(description=f"One of {', '.join(CORPORA)}, or any name for your own files.")
    source: Text | None = Field(
        default=None,
        description="Folder with the corpora of Durrani et al. 2021.",
        examples=["./data"],
    )
    train: Text | None = Field(
        default=None,
        description="Your own files: file with the words that probes are trained on.",
        examples=["train.conll"],
    )
    test: Text | None = Field(
        default=None, description="File with the words that probes are evaluated on.", examples=["test.conll"]
    )
    dev: Text | None = Field(
        default=None,
        description="File for selecting lambdas and neuron sets. Default: part of the training sentences.",
        examples=["dev.conll"],
    )
    format: CorpusFormat | None = Field(
        default=None,
        description="File format: conll (columns separated by white space), conllu (Universal Dependencies) or pmb "
        "(Parallel Meaning Bank).",
        examples=["conll"],
    )
    column: Annotated[Annotated[int, Field(strict=True)] | Text | None, BeforeValidator(index_or_name)] = (
        Field(
            default=None,
            description="Tags to predict. conll: index of a column, where 0 is the word; conllu: upos or xpos; pmb: a "
            "layer such as sem. Default: the last column, upos or sem.",
            examples=[1],
        )
    )
    train_words: Count | None = Field(
        default=None,
        description="Maximum number of training words: a random sample of whole sentences. Default: all words.",
        examples=[20_000],
    )
    test_words: Count | None = Field(
        default=None, description="Maximum number of test words. Default: all words.", examples=[5_000]
    )

    @property
    def origin(self) -> Literal["builtin", "folder", "files"]:
        """Where the corpus comes from: built in, the folder `source`, or your own files."""
        if self.name.startswith(BUILTIN):
            return "builtin"
        return "files" if any(getattr(self, key) is not None for key in FILE_KEYS) else "folder"

    @classmethod
    def official_name(cls, settings: Mapping[str, Any]) -> str:
        """The name of a known corpus in its official spelling."""
        known = {name.lower(): name for name in CORPORA}
        return known.get(settings["name"].lower(), settings["name"])

    def problems(self) -> Iterator[tuple[str, str]]:
        """Pairs of key and message for keys that are missing, invalid or not allowed for this kind of corpus."""
        if self.origin == "files":
            yield from self.missing("train", "test", "format")
            if self.test is not None and self.test == self.train:
                yield "test", "the same file as `train`; test sentences must not be training sentences"
            if message := self._column_error():
                yield "column", message
            if self.source is not None:
                yield "source", "not used with your own files; remove it and give paths in `train` and `test`"
            if self.name in CORPORA:
                yield (
                    "name",
                    f"{self.name} is the name of a known corpus; choose another name for your own files",
                )
        elif self.name not in CORPORA:
            text = f"unknown corpus;{close_match(self.name, CORPORA)} allowed: {format_choices(CORPORA)}, or any name"
            yield "name", f"{text} for your own files, with the keys train, test and format"
        elif self.origin == "builtin":
            for key in self.given("source", *FILE_KEYS):
                yield key, f"{self.name} is built in and has no key `{key}`; remove it"

    def _column_error(self) -> str | None:
        """The error message for an invalid `column`."""
        if self.column is None or self.format is None:
            return None
        if names := TAG_COLUMNS.get(self.format):
            return None if self.column in names else f"allowed for {self.format}: {format_choices(names)}"
        if isinstance(self.column, str):
            return "columns of a conll file are given by index: 1, 2, ..., or -1 for the last"
        return "column 0 holds the words; give the column of the tags" if self.column == 0 else None

    def path_keys(self, base: Path) -> tuple[str, ...]:
        """The data files, or the folder of a known corpus."""
        return ("train", "test", "dev") if self.origin == "files" else ("source",)
