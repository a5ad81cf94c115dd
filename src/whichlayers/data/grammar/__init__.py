"""The built-in grammar: labelled English without a download.

It writes three tasks, and text whose parts of speech and chunks are known by construction. The dev split has
other nouns, verbs and adjectives than the training split, so what is learnt of a word does not help with the
next one: what helps is what the model knew about English before.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.data.grammar import acceptability, questions, sentiment
from whichlayers.data.grammar.phrases import Speaker, read, text
from whichlayers.data.grammar.words import SIDES, Side
from whichlayers.data.tasks import Split, Task
from whichlayers.errors import WhichlayersError
from whichlayers.rng import permutation

BUILTIN: dict[str, str] = {
    "acceptability": "is the sentence English? (minimal pairs: agreement, verb forms, word order, case, ...)",
    "sentiment": "is the review kind or unkind? (with negation and contrast)",
    "question-answer": "does the sentence answer the question? (both share their words either way)",
}
MOST_ROWS = {"train": 20_000, "dev": 4_000}
SEED = 0

Example = tuple[str, str | None]  # text, second text


def write_task(name: str, train_rows: int = 2000, dev_rows: int = 400) -> Task:
    """The same call gives the same task on every machine. Labels are balanced, no example comes twice."""
    if name not in BUILTIN:
        raise WhichlayersError(f"builtin task {name!r} does not exist; there are {', '.join(BUILTIN)}")
    label_names, metrics = {
        "acceptability": (("unacceptable", "acceptable"), ("accuracy", "mcc")),
        "sentiment": (("negative", "positive"), ("accuracy",)),
        "question-answer": (("entailment", "not_entailment"), ("accuracy",)),
    }[name]
    return Task(
        name=name,
        kind="classification",
        label_names=label_names,
        metric=metrics[0],
        metrics=metrics,
        train=_split(name, "train", train_rows),
        evals={"": _split(name, "dev", dev_rows)},
    )


def write_tagged(
    n: int, split: Side = "train", tags: Literal["upos", "xpos", "chunk"] = "upos"
) -> TaggedCorpus:
    """n sentences of all three tasks, all of them acceptable, each once."""
    if tags not in ("upos", "xpos", "chunk"):
        raise WhichlayersError(f"tags {tags!r} are not known; there are upos, xpos, chunk")
    _check_rows("tagged", split, n)
    speaker, kinds = Speaker(split, f"{SEED}/tagged"), (True, False)

    def template() -> str:
        kind = speaker.pick(kinds)
        return speaker.pick((
            lambda: acceptability.pair(speaker)[0],
            lambda: sentiment.review(speaker, kind),
            lambda: speaker.pick(questions.question_and_sentence(speaker, kind)),
        ))()  # fmt: skip

    sentences: dict[str, TaggedSentence] = {}
    while len(sentences) < n:
        one = template()
        words = read(one)
        sentences.setdefault(
            text(one),
            TaggedSentence(
                words=tuple(w.form for w in words),
                tags=tuple(getattr(w, tags) for w in words),
                number=len(sentences) + 1,
            ),
        )
    return TaggedCorpus(f"builtin:{split}:{tags}", list(sentences.values()))


def _split(name: str, side: Side, rows: int) -> Split:
    _check_rows(name, side, rows)
    speaker = Speaker(side, f"{SEED}/{name}")
    examples: list[tuple[Example, int]] = []
    seen: set[Example] = set()
    while len(examples) < rows:
        both = _one_of_each(name, speaker)
        if seen.isdisjoint(both) and both[0] != both[1]:
            seen.update(both)
            examples += [(both[0], 0), (both[1], 1)]
    order = permutation(SEED, f"{name}/{side}", rows)  # an odd number of rows leaves out the last partner
    shuffled = [examples[i] for i in order]
    pairs = [example[1] for example, _ in shuffled if example[1] is not None]
    return Split(
        texts=[example[0] for example, _ in shuffled],
        pairs=pairs or None,
        labels=np.array([label for _, label in shuffled], dtype=np.int64),
    )


def _one_of_each(name: str, speaker: Speaker) -> tuple[Example, Example]:
    """An example of label 0 and one of label 1."""
    if name == "acceptability":
        right, wrong = acceptability.pair(speaker)
        return (text(wrong), None), (text(right), None)
    if name == "sentiment":
        unkind, kind = (sentiment.review(speaker, label) for label in (False, True))
        return (text(unkind), None), (text(kind), None)
    yes, no = (questions.question_and_sentence(speaker, label) for label in (True, False))
    return (text(yes[0]), text(yes[1])), (text(no[0]), text(no[1]))


def _check_rows(name: str, side: Side, rows: int) -> None:
    if side not in SIDES:
        raise WhichlayersError(f"builtin:{name}: split {side!r} does not exist; there are {', '.join(SIDES)}")
    if not 1 <= rows <= MOST_ROWS[side]:
        raise WhichlayersError(
            f"builtin:{name}: {rows} {side} rows asked for; the grammar writes 1 to {MOST_ROWS[side]}"
        )
