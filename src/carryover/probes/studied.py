"""A corpus as one model sees it, and what its neurons are worth: the answers to questions about words.

Lambdas are chosen, and smallest sets found, on the corpus's dev sentences, or on the last tenth of its training
sentences where it has none; what is reported is the accuracy on its test sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from carryover.data.corpora import Corpus
from carryover.data.tagged import TaggedCorpus
from carryover.probes.control import control_ids
from carryover.probes.elastic import ProbeTraining, Problem, accuracies, fit_probes
from carryover.probes.mdl import online_code
from carryover.probes.ranking import bottom, count_of, random_set, rank_by_means, rank_by_weight, spread, top
from carryover.probes.selection import minimal_set, retrained, search_lambdas
from carryover.probes.shelf import Shelf
from carryover.probes.table import WordTable
from carryover.probes.tags import tag_frequencies, tag_ids, training_tags
from carryover.probes.words import OnWords
from carryover.trial import CarryoverError, Trial, Words

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
        vector: Any,
        shelf: Shelf,
        on_words: OnWords,
    ) -> Studied:
        splits = {"train": corpus.train, "test": corpus.test}
        splits |= {"dev": corpus.dev} if corpus.dev is not None else {}
        tags = training_tags(corpus.train)
        states = shelf.states(encoder, tokenizer, splits, vector, on_words)
        labels = {name: tag_ids(split, tags) for name, split in splits.items()}
        tables = {name: WordTable(states[name], shelf.place) for name in splits}
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
            words = words_of(trial)
            assert words.layer is not None
            l1, l2 = words.lambdas or (0.0, 0.0)
            problems.append(Problem(self.train.layer(words.layer), l1, l2, trial.seed))
        probes = fit_probes(self.train, self.labels["train"], len(self.tags), problems, training)
        found = accuracies(self.test, self.labels["test"], probes)
        return {trial.id: {"accuracy": float(value)} for trial, value in zip(trials, found, strict=True)}


@dataclass
class Ranked:
    """The neurons of all layers in order, and what follows from it, for one seed and way of training."""

    studied: Studied
    training: ProbeTraining
    given: tuple[float, float] | None  # L1 and L2; None: they are searched for
    seed: int

    @cached_property
    def chosen(self) -> tuple[tuple[float, float], np.ndarray]:
        """(L1, L2), and all neurons by Linguistic Correlation Analysis."""
        s = self.studied
        if self.given is None:
            grid = search_lambdas(*s.to_choose, len(s.tags), seed=self.seed, training=self.training)
            return (grid.best.l1, grid.best.l2), grid.ranking.order
        problem = Problem(s.train.everything(), *self.given, seed=self.seed)
        probe = fit_probes(s.train, s.labels["train"], len(s.tags), [problem], self.training)[0]
        return self.given, rank_by_weight(probe.weight).order

    @property
    def lambdas(self) -> tuple[float, float]:
        return self.chosen[0] if self.given is None else self.given

    @cached_property
    def by_means(self) -> np.ndarray:
        s = self.studied
        return rank_by_means(s.train, s.labels["train"], len(s.tags))

    def order(self, words: Words) -> np.ndarray:
        return self.chosen[1] if words.ranking == "lca" else self.by_means

    def neurons(self, words: Words) -> np.ndarray:
        table = self.studied.train
        if words.neurons == "all":
            return table.everything()
        count = count_of(words.share or 1.0, table.neurons)
        if words.neurons == "random":
            return random_set(table.everything(), count, self.seed)
        return (top if words.neurons == "top" else bottom)(self.order(words), count)

    def accuracies(self, trials: Sequence[Trial]) -> dict[str, Answer]:
        """Of probes trained anew on each set of neurons alone."""
        if not trials:
            return {}
        s, (l1, l2) = self.studied, self.lambdas
        sets = {trial.id: self.neurons(words_of(trial)) for trial in trials}
        found = retrained(
            *(s.train, s.labels["train"], s.test, s.labels["test"], len(s.tags), sets),
            l1=l1,
            l2=l2,
            seeds=(self.seed,),
            training=self.training,
        )
        return {
            t: {"accuracy": float(found[t][0]), "neurons_used": float(len(sets[t])), "l1": l1, "l2": l2}
            for t in sets
        }

    def spread(self, words: Words) -> Answer:
        table, neurons = self.studied.train, self.neurons(words)
        assert words.layer is not None
        count = int(spread(neurons, table.layers, table.hidden)[words.layer])
        return {"spread": count / len(neurons), "neurons_in_layer": float(count)}

    def smallest(self, words: Words) -> Answer:
        s, (l1, l2) = self.studied, self.lambdas
        found = minimal_set(
            *(*s.to_choose, len(s.tags), self.order(words)),
            l1=l1,
            l2=l2,
            delta=words.delta,
            seeds=(self.seed,),
            training=self.training,
        )
        if math.isnan(found.oracle):
            return {"neurons": math.nan}
        tested = retrained(
            *(s.train, s.labels["train"], s.test, s.labels["test"], len(s.tags), {"set": found.neurons}),
            l1=l1,
            l2=l2,
            seeds=(self.seed,),
            training=self.training,
        )
        accuracy = {
            "accuracy": float(tested["set"][0]),
            "dev_accuracy": found.accuracy,
            "dev_oracle": found.oracle,
        }
        return {"neurons": found.count / s.train.neurons, "neurons_used": float(found.count), **accuracy}

    @cached_property
    def control(self) -> dict[str, np.ndarray]:
        """(2, n) for train and test: the tags, and those of the control task."""
        s = self.studied
        frequencies = tag_frequencies(s.labels["train"], len(s.tags))
        splits = {"train": s.corpus.train, "test": s.corpus.test}
        return {
            name: np.stack([s.labels[name], control_ids(split, frequencies, self.seed)])
            for name, split in splits.items()
        }

    def _both(self, words: Words) -> list[Problem]:
        neurons, (l1, l2) = self.neurons(words), self.lambdas
        return [Problem(neurons, l1, l2, self.seed, task) for task in (0, 1)]

    def selectivity(self, words: Words) -> Answer:
        s = self.studied
        probes = fit_probes(s.train, self.control["train"], len(s.tags), self._both(words), self.training)
        accuracy, control = (float(a) for a in accuracies(s.test, self.control["test"], probes))
        return {"selectivity": accuracy - control, "accuracy": accuracy, "control_accuracy": control}

    def compression(self, words: Words) -> Answer:
        s = self.studied
        real, control = online_code(
            s.train, self.control["train"], len(s.tags), self._both(words), training=self.training
        )
        return {
            "compression": real.compression,
            "bits": real.bits,
            "control_compression": control.compression,
            "control_bits": control.bits,
        }


def words_before(corpus: TaggedCorpus, share: float) -> int:
    """How many words the first share of the sentences has; some on either side."""
    sentences = corpus.sentences
    if len(sentences) < 2:
        raise CarryoverError(
            f"corpus {corpus.name}: one sentence is too few to hold any out; give it a dev file"
        )
    first = min(max(1, round(share * len(sentences))), len(sentences) - 1)
    return sum(len(sentence.words) for sentence in sentences[:first])


def words_of(trial: Trial) -> Words:
    if trial.words is None:
        raise CarryoverError(f"trial {trial.id} asks nothing about words")
    return trial.words
