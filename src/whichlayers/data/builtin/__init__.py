"""Load the built-in tasks and tagged corpora, whose files are in this folder.

They are synthetic English sentences with balanced labels, correct tags and no duplicates. The dev files use other
nouns, verbs and adjectives than the training files, so memorizing words does not help; knowledge of English from
pretraining does.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.data.tasks import Split, Task

FOLDER = Path(__file__).parent


class BuiltinTask(NamedTuple):
    """Labels and metrics of a task; its texts are in NAME-train.tsv and NAME-dev.tsv."""

    label_names: tuple[str, ...]
    metrics: tuple[str, ...]  # the first one is the primary metric


class BuiltinCorpus(NamedTuple):
    """Tags of a corpus, and their column in tagged-train.conll and tagged-dev.conll."""

    tags: str
    column: int


BUILTIN_TASKS: dict[str, BuiltinTask] = {
    # Is the sentence grammatical? Minimal pairs: agreement, verb forms, word order, case, ...
    "acceptability": BuiltinTask(("unacceptable", "acceptable"), ("accuracy", "mcc")),
    # Is the review positive or negative? With negation and contrast.
    "sentiment": BuiltinTask(("negative", "positive"), ("accuracy",)),
    # Does the sentence answer the question? Word overlap does not help.
    "question-answer": BuiltinTask(("entailment", "not_entailment"), ("accuracy",)),
}
BUILTIN_CORPORA: dict[str, BuiltinCorpus] = {
    "builtin:pos": BuiltinCorpus("xpos", 1),
    "builtin:chunk": BuiltinCorpus("chunk", 2),
}


def load_builtin_task(name: str) -> Task:
    """Load a task of `BUILTIN_TASKS`."""
    label_names, metrics = BUILTIN_TASKS[name]
    return Task(
        name=name,
        kind="classification",
        label_names=label_names,
        metric=metrics[0],
        metrics=metrics,
        train=_read_split(FOLDER / f"{name}-train.tsv"),
        evals={"": _read_split(FOLDER / f"{name}-dev.tsv")},
    )


def load_builtin_corpus(name: str) -> dict[str, TaggedCorpus]:
    """Load the splits, "train" and "test", of a corpus of `BUILTIN_CORPORA`."""
    return {"train": _read_tagged(name, "train"), "test": _read_tagged(name, "dev")}


def _read_split(path: Path) -> Split:
    """Read a file with a header line and the columns text, optional second text, and class index."""
    rows = [line.split("\t") for line in path.read_text(encoding="ascii").splitlines()[1:]]
    texts, *pairs, labels = (list(column) for column in zip(*rows, strict=True))
    return Split(texts=texts, pairs=pairs[0] if pairs else None, labels=np.array(labels, dtype=np.int64))


def _read_tagged(name: str, part: str) -> TaggedCorpus:
    """Read a file with the columns word, POS tag and chunk tag, and empty lines between sentences."""
    tags, column = BUILTIN_CORPORA[name]
    blocks = (FOLDER / f"tagged-{part}.conll").read_text(encoding="ascii").strip().split("\n\n")
    sentences = []
    for number, block in enumerate(blocks, start=1):
        columns = tuple(zip(*(line.split(" ") for line in block.split("\n")), strict=True))
        sentences.append(TaggedSentence(words=columns[0], tags=columns[column], number=number))
    return TaggedCorpus(f"builtin:{part}:{tags}", sentences)
