"""A corpus as one model sees it, and what its neurons are worth: the answers to questions about words.

Lambdas are chosen, and smallest sets found, on the corpus's dev sentences, or on the last tenth of its training
sentences where it has none; what is reported is the accuracy on its test sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from whichlayers.data.conll import TaggedCorpus
from whichlayers.data.corpora import Corpus
from whichlayers.errors import WhichlayersError
from whichlayers.probes.activations import Shelf
from whichlayers.probes.control_task import control_ids
from whichlayers.probes.elastic_net import ProbeTraining, Problem, accuracies, fit_probes
from whichlayers.probes.extract_words import OnWords
from whichlayers.probes.mdl import online_code
from whichlayers.probes.neuron_ranking import (
    bottom,
    count_of,
    random_set,
    rank_by_means,
    rank_by_weight,
    spread,
    top,
)
from whichlayers.probes.neuron_selection import Candidate, minimal_sets, retrained
from whichlayers.probes.tags import tag_frequencies, tag_ids, training_tags
from whichlayers.probes.word_table import WordTable
from whichlayers.trial import Trial, WordProbe

HELD_OUT = 0.1  # of the training sentences, where a corpus has no dev sentences

Answer = dict[str, float]  # by metric; the first is what was asked for


@dataclass(frozen=True)
class Studied:
    """A corpus as a model sees it: the vectors of its words, and their tags as numbers."""

    corpus: Corpus
    tags: tuple[str, ...]
    train: WordTable
    test: WordTable
    dev: WordTable | None  # of a corpus that has dev sentences
    labels: dict[str, np.ndarray]  # by the names of the tables

    @staticmethod
    def of(
        encoder: PreTrainedModel,
        tokenizer: Any,
        corpus: Corpus,
        words: WordProbe,
        shelf: Shelf,
        on_words: OnWords,
    ) -> Studied:
        """`words`: how a word becomes a vector, as any of its questions says it."""
        splits = corpus.splits
        tags = training_tags(corpus.train)
        states = shelf.states(encoder, tokenizer, splits, words.vector, on_words)
        labels = {name: tag_ids(split, tags) for name, split in splits.items()}
        tables = {name: WordTable(states[name], shelf.place) for name in splits}
        if words.standardize:
            scale = tables["train"].measured()
            tables = {name: table.scaled(scale) for name, table in tables.items()}
        return Studied(corpus, tags, tables["train"], tables["test"], tables.get("dev"), labels)

    @cached_property
    def to_choose(self) -> tuple[WordTable, np.ndarray, WordTable, np.ndarray]:
        """What lambdas and sets are chosen with, and what they are chosen by, each with its labels."""
        train, labels = self.train, self.labels
        if self.dev is not None:
            return train, labels["train"], self.dev, labels["dev"]
        words = words_before(self.corpus.train, 1 - HELD_OUT)
        return (
            *(train.part(slice(words)), labels["train"][:words]),
            *(train.part(slice(words, None)), labels["train"][words:]),
        )

    def layers(self, trials: Sequence[Trial], training: ProbeTraining) -> dict[str, Answer]:
        problems = []
        for trial in trials:
            words = word_probe_of(trial)
            assert words.layer is not None
            l1, l2 = words.lambdas or (0.0, 0.0)
            problems.append(Problem(self.train.layer(words.layer), l1, l2, trial.seed))
        probes = fit_probes(self.train, self.labels["train"], len(self.tags), problems, training)
        found = accuracies(self.test, self.labels["test"], probes)
        return {trial.id: {"accuracy": float(value)} for trial, value in zip(trials, found, strict=True)}


@dataclass
class Ranked:
    """The neurons of all layers in order, and what follows from it, for some seeds and one way of training.

    What all seeds ask is trained together.
    """

    studied: Studied
    training: ProbeTraining
    lambdas: tuple[float, float]  # L1 and L2
    seeds: Sequence[int]

    @cached_property
    def by_weight(self) -> dict[int, np.ndarray]:
        """All neurons by Linguistic Correlation Analysis, for each seed."""
        s = self.studied
        problems = [Problem(s.train.everything(), *self.lambdas, seed) for seed in self.seeds]
        probes = fit_probes(s.train, s.labels["train"], len(s.tags), problems, self.training)
        orders = [rank_by_weight(probe.weight).order for probe in probes]
        return dict(zip(self.seeds, orders, strict=True))

    @cached_property
    def by_means(self) -> np.ndarray:
        s = self.studied
        return rank_by_means(s.train, s.labels["train"], len(s.tags))

    def order(self, trial: Trial) -> np.ndarray:
        return self.by_weight[trial.seed] if word_probe_of(trial).ranking == "lca" else self.by_means

    def neurons(self, trial: Trial) -> np.ndarray:
        table, words = self.studied.train, word_probe_of(trial)
        if words.neurons == "all":
            return table.everything()
        count = count_of(words.share or 1.0, table.neurons)
        if words.neurons == "random":
            return random_set(table.everything(), count, trial.seed)
        return (top if words.neurons == "top" else bottom)(self.order(trial), count)

    def problem(self, trial: Trial, neurons: np.ndarray | None = None, task: int = 0) -> Problem:
        mine = self.neurons(trial) if neurons is None else neurons
        return Problem(mine, *self.lambdas, trial.seed, task)

    def tested(self, problems: Sequence[Problem]) -> list[float]:
        """Accuracies of probes trained anew on each set of neurons alone."""
        s = self.studied
        data = (s.train, s.labels["train"], s.test, s.labels["test"], len(s.tags))
        return retrained(*data, problems, self.training).tolist()

    def accuracies(self, trials: Sequence[Trial]) -> dict[str, Answer]:
        problems = [self.problem(trial) for trial in trials]
        return {
            trial.id: {"accuracy": accuracy, "neurons_used": float(len(problem.neurons))}
            for trial, problem, accuracy in zip(trials, problems, self.tested(problems), strict=True)
        }

    def spread(self, trial: Trial) -> Answer:
        table, neurons, layer = self.studied.train, self.neurons(trial), word_probe_of(trial).layer
        assert layer is not None
        count = int(spread(neurons, table.layers, table.hidden)[layer])
        return {"spread": count / len(neurons), "neurons_in_layer": float(count)}

    def smallest(self, trials: Sequence[Trial]) -> Iterator[dict[str, Answer]]:
        s = self.studied
        candidates = [
            Candidate(self.order(trial), *self.lambdas, trial.seed, word_probe_of(trial).delta)
            for trial in trials
        ]
        for found in minimal_sets(*s.to_choose, len(s.tags), candidates, training=self.training):
            sets = {trials[c]: least for c, least in found.items() if not math.isnan(least.oracle)}
            answers = {trials[c].id: {"neurons": math.nan} for c in found}
            tested = self.tested([self.problem(t, least.neurons) for t, least in sets.items()])
            for (trial, least), accuracy in zip(sets.items(), tested, strict=True):
                answers[trial.id] = {
                    "neurons": least.count / s.train.neurons,
                    "neurons_used": float(least.count),
                    "accuracy": accuracy,
                    "dev_accuracy": least.accuracy,
                    "dev_oracle": least.oracle,
                }
            yield answers

    @cached_property
    def control(self) -> dict[str, np.ndarray]:
        """(1 + seeds, n) for train and test: the tags, and those of each seed's control task."""
        s = self.studied
        frequencies = tag_frequencies(s.labels["train"], len(s.tags))
        splits = {"train": s.corpus.train, "test": s.corpus.test}
        return {
            name: np.stack([s.labels[name], *(control_ids(split, frequencies, seed) for seed in self.seeds)])
            for name, split in splits.items()
        }

    def _both(self, trials: Sequence[Trial]) -> list[Problem]:
        """Of every trial the tags and, next, its control task."""
        tasks = {seed: 1 + i for i, seed in enumerate(self.seeds)}
        return [self.problem(trial, task=task) for trial in trials for task in (0, tasks[trial.seed])]

    def selectivity(self, trials: Sequence[Trial]) -> dict[str, Answer]:
        s = self.studied
        problems = self._both(trials)
        probes = fit_probes(s.train, self.control["train"], len(s.tags), problems, self.training)
        found = accuracies(s.test, self.control["test"], probes).reshape(-1, 2).tolist()
        return {
            trial.id: {"selectivity": real - control, "accuracy": real, "control_accuracy": control}
            for trial, (real, control) in zip(trials, found, strict=True)
        }

    def compression(self, trials: Sequence[Trial]) -> dict[str, Answer]:
        s = self.studied
        codes = online_code(
            s.train, self.control["train"], len(s.tags), self._both(trials), training=self.training
        )
        return {
            trial.id: {
                "compression": real.compression,
                "bits": real.bits,
                "control_compression": control.compression,
                "control_bits": control.bits,
            }
            for trial, real, control in zip(trials, codes[::2], codes[1::2], strict=True)
        }


def words_before(corpus: TaggedCorpus, share: float) -> int:
    """How many words the first share of the sentences has; some on either side."""
    sentences = corpus.sentences
    if len(sentences) < 2:
        raise WhichlayersError(
            f"corpus {corpus.name}: one sentence is too few to hold any out; give it a dev file"
        )
    first = min(max(1, round(share * len(sentences))), len(sentences) - 1)
    return sum(len(sentence.words) for sentence in sentences[:first])


def word_probe_of(trial: Trial) -> WordProbe:
    if trial.word_probe is None:
        raise WhichlayersError(f"trial {trial.id} asks nothing about words")
    return trial.word_probe


def training_of(trial: Trial) -> ProbeTraining:
    words = word_probe_of(trial)
    return ProbeTraining(epochs=words.epochs, batch_size=words.batch_size, lr=words.lr, norm=words.norm)
