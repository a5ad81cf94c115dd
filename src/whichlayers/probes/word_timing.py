"""How long the questions about words take that are asked of one model: a few sentences through it, one epoch of a
probe of all neurons on them, and how many such epochs the questions come to."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from whichlayers.data.corpora import Corpus
from whichlayers.probes.elastic_net import ProbeTraining, Problem, fit_probes
from whichlayers.probes.extract_words import corpus_fingerprint, extract_words
from whichlayers.probes.regularization import PROBES, SEEDS
from whichlayers.probes.tags import tag_ids, training_tags
from whichlayers.probes.word_table import WordTable
from whichlayers.trial import Trial, WordProbe

SAMPLE = 64  # sentences
GRID = PROBES + 2 * len(SEEDS)  # of a search over L1 and L2, the masked ones of a seed as two
SMALLEST = 25  # of sets of 1%, 2% ... in all: a half of what looking through every set would take
ONLINE = 2.0  # an online code trains on portions that add up to about twice the corpus


def seconds_of_questions(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    tokenizer: Any,
    corpus_of: Callable[[Trial], Corpus],
    device: str | torch.device,
) -> float:
    """Of all questions that the trials ask of one model; the search for L1 and L2 is the pretrained one's."""
    by_corpus: dict[str, list[Trial]] = {}
    for trial in trials:
        assert trial.word_probe is not None
        by_corpus.setdefault(trial.word_probe.fingerprint, []).append(trial)
    seconds, seen = 0.0, set[str]()
    for mine in by_corpus.values():
        corpus = corpus_of(mine[0])
        passing, probing = _a_sample(encoder, tokenizer, corpus, device)  # seconds a word
        for split in corpus.splits.values():
            if (words := corpus_fingerprint(split)) not in seen:  # UPOS and XPOS share a pass
                seen.add(words)
                seconds += passing * split.n_words
        layers = encoder.config.num_hidden_layers + 1
        seconds += (
            probing
            * corpus.train.n_words
            * sum(_epochs(trial.word_probe, layers) for trial in mine if trial.word_probe)
        )
        searched = {
            t.word_probe.epochs
            for t in mine
            if t.word_probe and t.word_probe.lambdas is None and not t.train_size
        }
        seconds += probing * corpus.train.n_words * sum(GRID * epochs for epochs in searched)
    return seconds


def _a_sample(
    encoder: PreTrainedModel, tokenizer: Any, corpus: Corpus, device: str | torch.device
) -> tuple[float, float]:
    places = np.linspace(0, len(corpus.train.sentences) - 1, SAMPLE).round().astype(int)
    chosen = [corpus.train.sentences[i] for i in dict.fromkeys(places.tolist())]
    sample = dataclasses.replace(corpus.train, sentences=chosen)
    warm = dataclasses.replace(sample, sentences=chosen[:1])
    extract_words(encoder, tokenizer, warm, device=device)
    began = time.perf_counter()
    on_device = torch.device(device).type == "cuda"
    states = extract_words(encoder, tokenizer, sample, device=device, on_device=on_device).states
    passing = time.perf_counter() - began
    tags = training_tags(corpus.train)
    table = WordTable(states, device)
    problem = Problem(table.everything())
    began = time.perf_counter()
    fit_probes(table, tag_ids(sample, tags), len(tags), [problem], ProbeTraining(epochs=2))
    probing = (time.perf_counter() - began) / 2
    return passing / sample.n_words, probing / sample.n_words


def _epochs(words: WordProbe, layers: int) -> float:
    """In epochs of a probe of all neurons."""
    share = 1 / layers if words.neurons == "layer" else words.share or 1.0
    times = {
        "accuracy": 1.0,
        "neurons": SMALLEST,
        "spread": 0.0,
        "selectivity": 2.0,
        "compression": 2 * ONLINE,
    }
    return words.epochs * share * times[words.measure]
