"""[[corpora]] of a study file: the tagged words that the linguistic experiments ask about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from whichlayers.config.errors import close_match, one_of, refuse
from whichlayers.config.sections import Count, Section, Text, absolute

BUILTIN_CORPORA = ("builtin:pos", "builtin:chunk")
FOLDER_CORPORA = ("UD-EWT:xpos", "UD-EWT:upos", "CoNLL-2000:pos", "CoNLL-2000:chunk", "PMB:sem")
TAGS = {
    "conllu": ("upos", "xpos"),
    "pmb": ("sym", "sem", "cat", "sns", "rol"),
}  # of conll: numbers of columns
FILE_KEYS = ("train", "test", "dev", "format", "column")


class CorpusSpec(Section):
    """A corpus in which every word has a tag: built in, one of the papers', or your own files."""

    name: Text = Field(
        description=f"{', '.join((*BUILTIN_CORPORA, *FOLDER_CORPORA))}, or any name for your own files."
    )
    source: Text | None = Field(
        default=None, description="Of the papers' corpora: the folder that holds them.", examples=["./data"]
    )
    train: Text | None = Field(
        default=None,
        description="Of your own: the file that probes are trained on.",
        examples=["train.conll"],
    )
    test: Text | None = Field(
        default=None, description="The file they are scored on.", examples=["test.conll"]
    )
    dev: Text | None = Field(
        default=None,
        description="The file that lambdas are chosen by. Left out, a part of the training sentences.",
        examples=["dev.conll"],
    )
    format: Literal["conll", "conllu", "pmb"] | None = Field(
        default=None,
        description="conll (columns between white space), conllu (Universal Dependencies) or pmb.",
        examples=["conll"],
    )
    column: Annotated[int, Field(strict=True)] | Text | None = Field(
        default=None,
        description="Which tags: of conll the number of a column, 0 is the word's; of conllu upos or xpos; of pmb "
        "a layer such as sem. Left out: the last column, upos, sem.",
        examples=[1],
    )
    train_words: Count | None = Field(
        default=None,
        description="Most words to train on: whole sentences, drawn at random.",
        examples=[20_000],
    )
    test_words: Count | None = Field(default=None, description="Most words to score on.", examples=[5_000])

    @property
    def origin(self) -> Literal["builtin", "folder", "files"]:
        if self.name.startswith("builtin:"):
            return "builtin"
        return "files" if any(getattr(self, key) is not None for key in FILE_KEYS) else "folder"

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        settings = {"name": value} if isinstance(value, str) else value
        if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
            return settings
        known = {name.lower(): name for name in (*BUILTIN_CORPORA, *FOLDER_CORPORA)}
        return {**settings, "name": known.get(settings["name"].lower(), settings["name"])}

    @model_validator(mode="after")
    def _fits_together(self) -> CorpusSpec:
        problems = list(self._problems())
        if problems:
            refuse(*problems)
        return self

    def _problems(self) -> list[tuple[str, str]]:
        known = (*BUILTIN_CORPORA, *FOLDER_CORPORA)
        if self.origin == "files":
            missing = [key for key in ("train", "test", "format") if getattr(self, key) is None]
            problems = [(key, f"a corpus of your own files needs `{key}`") for key in missing]
            if self.test is not None and self.test == self.train:
                problems.append(("test", "the same file as `train`; scores must come from other sentences"))
            if wrong_column := self._wrong_column():
                problems.append(("column", wrong_column))
            if self.source is not None:
                problems.append(("source", "your own files have full paths in `train` and `test`; remove it"))
            if self.name in known:
                problems.append(("name", f"{self.name} is a known corpus: give your own files another name"))
            return problems
        if self.name not in known:
            return [
                (
                    "name",
                    f"no such corpus;{close_match(self.name, known)} allowed: {one_of(known)}, "
                    "or your own files under any name, with the keys train, test and format",
                )
            ]
        if self.origin == "builtin":
            keys = [key for key in ("source", *FILE_KEYS) if getattr(self, key) is not None]
            return [(key, f"{self.name} is built in and takes no `{key}`; remove it") for key in keys]
        return []

    def _wrong_column(self) -> str | None:
        if self.column is None or self.format is None:
            return None
        if self.format in TAGS:
            names = TAGS[self.format]
            return None if self.column in names else f"of {self.format}, allowed: {one_of(names)}"
        if isinstance(self.column, str):
            return "the columns of a conll file are numbered; give 1, 2, ..., or -1 for the last"
        return "this is the column of the words; give that of the tags" if self.column == 0 else None

    def resolved(self, base: Path) -> CorpusSpec:
        keys = ("train", "test", "dev") if self.origin == "files" else ("source",)
        paths = {key: getattr(self, key) for key in keys}
        return self.model_copy(update={k: absolute(p, base) for k, p in paths.items() if p is not None})
