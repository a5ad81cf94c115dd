"""Answer questions about the words of one corpus, asked of one model: one pass, then all probes.

    shelf = Shelf("cuda", folder)
    for outcomes in ask(trials, encoder, tokenizer, corpus, shelf):
        ...    # some at a time, as they are known

Questions that need the same thing (a ranking of the neurons, say) share it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from transformers import PreTrainedModel

from whichlayers.data.corpora import Corpus
from whichlayers.engine.results import EpochRecord, OnStep, Outcome
from whichlayers.probes.activations import Shelf
from whichlayers.probes.probing_dataset import Answer, Ranked, Studied, training_of, word_probe_of
from whichlayers.probes.regularization import OnShare, Penalties
from whichlayers.probes.steps import WORD_STEPS
from whichlayers.probes.tags import majority_accuracy, tag_ids, training_tags, word_majority_accuracy
from whichlayers.trial import Measure, Trial

SHARE_OF_PASS = 0.4  # of the progress
SEEDS_TOGETHER_ON = {"cuda"}  # kinds of device


def ask(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    tokenizer: Any,
    corpus: Corpus,
    shelf: Shelf,
    on_step: OnStep | None = None,
    penalties: Penalties | None = None,
) -> Iterator[list[Outcome]]:
    """One outcome a trial, given as soon as it is known, some at a time; their seconds are those since the last.

    `encoder` is asked as it is; `shelf`: where its word vectors lie meanwhile.

    `penalties`: where L1 and L2 come from that no trial names; without them this encoder is searched.
    """
    last = time.perf_counter()
    progress = _Progress(on_step, len(trials) * WORD_STEPS, corpus.n_words)
    baselines = _baselines(corpus)
    answered = 0
    for _, mine in _grouped(trials, lambda t: (word_probe_of(t).vector, word_probe_of(t).standardize)):
        studied = Studied.of(encoder, tokenizer, corpus, word_probe_of(mine[0]), shelf, progress.passed)
        for done in _answers(mine, studied, penalties or Penalties(), progress.searched):
            answered += len(done)
            progress.answered(answered / len(trials))
            seconds, last = time.perf_counter() - last, time.perf_counter()
            yield [_outcome(t, done[t.id], baselines, seconds) for t in mine if t.id in done]
    progress.finish()


def _outcome(trial: Trial, answer: Answer, baselines: Answer, seconds: float) -> Outcome:
    asked = next(iter(answer))  # what was asked for comes first
    if not math.isfinite(answer[asked]):
        lr = word_probe_of(trial).lr
        error = f"{asked} is not a finite number: a probe diverged; try a smaller probe_lr (now {lr:g})"
        return Outcome(trial.id, error=error, seconds=seconds)
    nan = math.nan
    return Outcome(trial.id, [EpochRecord(1, nan, nan, {**answer, **baselines}, seconds)], seconds=seconds)


def _answers(
    trials: Sequence[Trial], studied: Studied, penalties: Penalties, on_search: OnShare
) -> Iterator[dict[str, Answer]]:
    """Layers all at once; then by way of training what needs a ranking: on a GPU, which has room for more than one
    seed's probes, of all seeds together, elsewhere seed by seed, so that answers come sooner."""
    layers = [trial for trial in trials if word_probe_of(trial).neurons == "layer"]
    for training, mine in _grouped(layers, training_of):
        yield studied.layers(mine, training)
    others = [trial for trial in trials if word_probe_of(trial).neurons != "layer"]
    together = studied.train.device.type in SEEDS_TOGETHER_ON
    for (training, lambdas, _), mine in _grouped(
        others, lambda t: (training_of(t), penalties.of(t, studied, on_search), None if together else t.seed)
    ):
        seeds = list(dict.fromkeys(trial.seed for trial in mine))
        used = dict(zip(("l1", "l2"), lambdas, strict=True))
        for found in _ranked_answers(Ranked(studied, training, lambdas, seeds), mine):
            yield {trial_id: {**answer, **used} for trial_id, answer in found.items()}


def _ranked_answers(ranked: Ranked, trials: Sequence[Trial]) -> Iterator[dict[str, Answer]]:
    asking = {
        ask: [trial for trial in trials if word_probe_of(trial).measure == ask] for ask in get_args(Measure)
    }
    if asking["accuracy"]:
        yield ranked.accuracies(asking["accuracy"])
    for trial in asking["spread"]:
        yield {trial.id: ranked.spread(trial)}
    if asking["neurons"]:
        yield from ranked.smallest(asking["neurons"])
    if asking["selectivity"]:
        yield ranked.selectivity(asking["selectivity"])
    if asking["compression"]:
        yield ranked.compression(asking["compression"])


class _Progress:
    """Tells of steps: a share for the pass, the rest as questions are answered; a search for L1 and L2 has half of
    the way that is left when it begins."""

    def __init__(self, on_step: OnStep | None, steps: int, words: int):
        self.on_step, self.steps, self.words = on_step, steps, words
        self.seen, self.told = 0, 0
        self.share, self.before = 0.0, SHARE_OF_PASS  # before: where questions, or the search, set out
        self.searching = 1.0  # what is done of the last search

    def passed(self, words: int) -> None:
        self.seen += words
        self._tell(SHARE_OF_PASS * min(1.0, self.seen / self.words))

    def searched(self, share: float) -> None:
        if share < self.searching:  # another one
            self.before = self.share
        self.searching = share
        self._tell(self.before + share * (1 - self.before) / 2)
        if share == 1:
            self.before = self.share

    def answered(self, share: float) -> None:
        self._tell(self.before + (1 - self.before) * share)

    def finish(self) -> None:
        self._tell(1.0)

    def _tell(self, share: float) -> None:
        self.share = max(self.share, share)
        now = round(self.steps * self.share)
        if self.on_step is not None and now > self.told:
            self.on_step(now - self.told)
        self.told = now


def _baselines(corpus: Corpus) -> Answer:
    """What needs no model: always the commonest tag, and each word type's commonest."""
    tags = training_tags(corpus.train)
    train, test = tag_ids(corpus.train, tags), tag_ids(corpus.test, tags)
    return {
        "majority_accuracy": majority_accuracy(train, test, len(tags)),
        "word_majority_accuracy": word_majority_accuracy(corpus.train, corpus.test),
    }


def _grouped(trials: Sequence[Trial], key: Callable[[Trial], Any]) -> list[tuple[Any, list[Trial]]]:
    found: dict[Any, list[Trial]] = {}
    for trial in trials:
        found.setdefault(key(trial), []).append(trial)
    return list(found.items())
