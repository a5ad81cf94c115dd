"""The [[corpora]] section of a study file: tagged corpora for word-level probing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from whichlayers.catalog import BUILTIN, CORPORA, TAG_COLUMNS, CorpusFormat
from whichlayers.config.errors import close_match, format_choices, raise_problems
from whichlayers.config.sections import Count, Section, Text, absolute_path

FILE_KEYS = ("train", "test", "dev", "format", "column")


class CorpusSpec(Section):
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
    column: Annotated[int, Field(strict=True)] | Text | None = Field(
        default=None,
        description="Tags to predict. conll: index of a column, where 0 is the word; conllu: upos or xpos; pmb: a "
        "layer such as sem. Default: the last column, upos or sem.",
        examples=[1],
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

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        settings = {"name": value} if isinstance(value, str) else value
        if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
            return settings
        known = {name.lower(): name for name in CORPORA}
        return {**settings, "name": known.get(settings["name"].lower(), settings["name"])}

    @model_validator(mode="after")
    def _check_keys(self) -> CorpusSpec:
        problems = list(self._problems())
        if problems:
            raise_problems(*problems)
        return self

    def _problems(self) -> list[tuple[str, str]]:
        """Pairs of key and message for keys that are missing, invalid or not allowed for this kind of corpus."""
        if self.origin == "files":
            missing = [key for key in ("train", "test", "format") if getattr(self, key) is None]
            problems = [(key, f"`{key}` is required for your own files") for key in missing]
            if self.test is not None and self.test == self.train:
                problems.append(
                    ("test", "the same file as `train`; test sentences must not be training sentences")
                )
            if message := self._column_error():
                problems.append(("column", message))
            if self.source is not None:
                problems.append(
                    ("source", "not used with your own files; remove it and give paths in `train` and `test`")
                )
            if self.name in CORPORA:
                problems.append(
                    (
                        "name",
                        f"{self.name} is the name of a known corpus; choose another name for your own files",
                    )
                )
            return problems
        if self.name not in CORPORA:
            return [
                (
                    "name",
                    f"unknown corpus;{close_match(self.name, CORPORA)} allowed: {format_choices(CORPORA)}, "
                    "or any name for your own files, with the keys train, test and format",
                )
            ]
        if self.origin == "builtin":
            keys = [key for key in ("source", *FILE_KEYS) if getattr(self, key) is not None]
            return [(key, f"{self.name} is built in and has no key `{key}`; remove it") for key in keys]
        return []

    def _column_error(self) -> str | None:
        """The error message for an invalid `column`."""
        if self.column is None or self.format is None:
            return None
        if names := TAG_COLUMNS.get(self.format):
            return None if self.column in names else f"allowed for {self.format}: {format_choices(names)}"
        if isinstance(self.column, str):
            return "columns of a conll file are given by index: 1, 2, ..., or -1 for the last"
        return "column 0 holds the words; give the column of the tags" if self.column == 0 else None

    def resolved(self, base: Path) -> CorpusSpec:
        """A copy with absolute paths; relative ones start from `base`."""
        keys = ("train", "test", "dev") if self.origin == "files" else ("source",)
        paths = {key: getattr(self, key) for key in keys}
        return self.model_copy(update={k: absolute_path(p, base) for k, p in paths.items() if p is not None})
