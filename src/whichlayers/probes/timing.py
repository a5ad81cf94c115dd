"""Estimates how long probes take, from a sample of the data.

Sentence-level probes: the forward pass of a sample of examples and one epoch of all probes are timed. Word-level
probes: a few sentences go through the model, and a probe on all neurons is trained on them; the cost of each trial is
expressed in epochs of such a probe.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from whichlayers.data.batches import select_rows, subset
from whichlayers.data.corpora import Corpus
from whichlayers.data.tokenize import TokenizedSplit, TokenizedTask
from whichlayers.engine.cost import StackTiming
from whichlayers.engine.timer import Timer
from whichlayers.probes.extract import corpus_fingerprint, extract_sentences, extract_words
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.labels import tag_ids, training_tags
from whichlayers.probes.lambda_search import PROBES, SEEDS
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.probing_dataset import probe_training
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes
from whichlayers.probes.run_word_probes import group_by_corpus
from whichlayers.trial import Trial, WordProbe, get_probe, get_word_probe

SAMPLE_EXAMPLES = 96
SAMPLE_SENTENCES = 64
SENTENCE_SAMPLE_ERROR = 0.1  # relative error of a time that is extrapolated from a sample of examples
MIN_SAMPLE_WORDS = 4096  # that a word probe is timed on; the sentences are repeated
WORD_PROBE_EPOCHS = 2  # that are timed
# costs of word probes in units of training one probe on all neurons
GRID_SEARCH_COST = PROBES + 2 * len(SEEDS)  # the ablated probes of a seed count as 2
MINIMAL_SET_COST = 25  # sets of 1%, 2%, ... of the neurons: half of the cost of trying every set
ONLINE_CODE_COST = 2.0  # the portions of an online code add up to about twice the corpus


def measure_probe_timing(
    trials: Sequence[Trial], encoder: PreTrainedModel, data: TokenizedTask, device: str | torch.device
) -> StackTiming:
    """The timing of a stack: `setup` is the forward pass of the encoder, and a step is one epoch of all probes."""
    first = trials[0]
    pooling = get_probe(first).pooling
    seeds = {trial.seed_of("subset") for trial in trials}
    used = np.unique(np.concatenate([subset(len(data.train), first.train_size, seed) for seed in seeds]))
    sample = select_rows(data.train, _sample_lengths(data.train, used))
    timer = Timer(torch.device(device))
    extract = partial(extract_sentences, encoder, sample, data.pad_id, pooling=pooling, device=device)
    states = HiddenStates(extract(), device)  # also warms up
    encoder_seconds = timer(extract)
    rows = np.arange(min(len(sample), first.train_size))
    probes = [dataclasses.replace(get_probe(trial), max_epochs=1) for trial in trials]
    jobs = [ProbeJob.of_trial(trial, rows, probe) for probe, trial in zip(probes, trials, strict=True)]
    fit = partial(fit_sentence_probes, states, sample.labels, jobs, data.n_outputs, data.kind)
    fit()  # warm-up
    epoch_seconds = timer(fit) * first.train_size / len(rows)
    dev_tokens = sum(int(split.offsets[-1]) for split in data.evals.values())
    tokens = int(np.diff(data.train.offsets)[used].sum()) + dev_tokens
    all_seconds = encoder_seconds * tokens / int(sample.offsets[-1])
    return StackTiming(
        trials=len(trials),
        setup=all_seconds,
        compile=0.0,
        capture=0.0,
        step=epoch_seconds,
        error=SENTENCE_SAMPLE_ERROR,
        evaluation=0.0,
        finish=0.0,
        slowdown=timer.slowdown,
    )


def _sample_lengths(split: TokenizedSplit, rows: np.ndarray) -> np.ndarray:
    """A sample of the rows with the same distribution of lengths."""
    by_length = rows[np.argsort(np.diff(split.offsets)[rows], kind="stable")]
    return by_length[np.unique(np.linspace(0, len(rows) - 1, SAMPLE_EXAMPLES).round().astype(int))]


def estimate_word_probe_seconds(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    tokenizer: Any,
    corpus_of: Callable[[Trial], Corpus],
    timer: Timer,
) -> float:
    """Estimated seconds of all word probe trials of one model, as costs of the timer.

    The grid search for L1 and L2 is counted only for trials of the pretrained model.
    """
    seconds, seen = 0.0, set[str]()
    for corpus_trials in group_by_corpus(trials):
        corpus = corpus_of(corpus_trials[0])
        training = probe_training(corpus_trials[0])
        # per word
        encoder_seconds, probe_seconds = _measure_sample(encoder, tokenizer, corpus, training, timer)
        for split in corpus.splits.values():
            if (fingerprint := corpus_fingerprint(split)) not in seen:  # UPOS and XPOS share a forward pass
                seen.add(fingerprint)
                seconds += encoder_seconds * split.n_words
        n_layers = encoder.config.num_hidden_layers + 1
        seconds += (
            probe_seconds
            * corpus.train.n_words
            * sum(equivalent_epochs(get_word_probe(t), n_layers) for t in corpus_trials)
        )
        searches = {
            get_word_probe(t).epochs
            for t in corpus_trials
            if get_word_probe(t).lambdas is None and not t.train_size
        }
        seconds += (
            probe_seconds * corpus.train.n_words * sum(GRID_SEARCH_COST * epochs for epochs in searches)
        )
    return seconds


def _measure_sample(
    encoder: PreTrainedModel, tokenizer: Any, corpus: Corpus, training: ProbeTraining, timer: Timer
) -> tuple[float, float]:
    """Seconds per word of the forward pass, and of one epoch of a probe on all neurons."""
    device = timer.device
    indices = np.linspace(0, len(corpus.train.sentences) - 1, SAMPLE_SENTENCES).round().astype(int)
    sentences = [corpus.train.sentences[i] for i in dict.fromkeys(indices.tolist())]
    sample = dataclasses.replace(corpus.train, sentences=sentences)
    extract = partial(
        extract_words, encoder, tokenizer, sample, device=device, on_device=device.type == "cuda"
    )
    hidden_states = extract().states  # also warms up
    encoder_seconds = timer(extract) / sample.n_words
    tags = training_tags(corpus.train)
    states = HiddenStates(hidden_states, device)
    specs, labels = [ProbeSpec(states.all_neurons())], tag_ids(sample, tags)
    rows = np.tile(np.arange(sample.n_words), -(-MIN_SAMPLE_WORDS // sample.n_words))

    def fit(epochs: int) -> None:
        fit_probes(states, labels, len(tags), specs, dataclasses.replace(training, epochs=epochs), rows=rows)

    fit(1)  # warm-up
    return encoder_seconds, timer(partial(fit, WORD_PROBE_EPOCHS)) / WORD_PROBE_EPOCHS / len(rows)


def equivalent_epochs(word_probe: WordProbe, n_layers: int) -> float:
    """The cost of a trial, in epochs of a probe on all neurons."""
    fraction = 1 / n_layers if word_probe.neurons == "layer" else word_probe.share or 1.0
    cost = {
        "accuracy": 1.0,
        "neurons": MINIMAL_SET_COST,
        "spread": 0.0,
        "selectivity": 2.0,
        "compression": 2 * ONLINE_CODE_COST,
    }
    return word_probe.epochs * fraction * cost[word_probe.measure]
