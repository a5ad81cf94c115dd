"""Runs the word probe trials of one model on one corpus: one forward pass, then all probes.

    store = ActivationStore("cuda", folder)
    for results in run_word_probes(trials, encoder, tokenizer, corpus, store):
        ...    # some trials at a time, as they finish

Trials that need the same intermediate result, such as a neuron ranking, share it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from transformers import PreTrainedModel

from whichlayers.data.corpora import Corpus
from whichlayers.engine.results import EpochRecord, OnStep, TrialResult
from whichlayers.probes.activations import ActivationStore
from whichlayers.probes.labels import majority_accuracy, tag_ids, training_tags, word_majority_accuracy
from whichlayers.probes.lambda_search import LambdaSearch
from whichlayers.probes.probing_dataset import (
    Metrics,
    ProbingDataset,
    RankedNeurons,
    probe_training,
)
from whichlayers.probes.progress import WORD_PROBE_STEPS, OnProgress
from whichlayers.trial import Measure, Trial, get_word_probe

ENCODER_FRACTION = 0.4  # of the progress, for the forward pass
NeuronList = list[tuple[int, int]]  # (layer, neuron), most important first
JOINT_SEED_DEVICES = {"cuda"}  # device types with enough memory to train the probes of all seeds together


def run_word_probes(
    trials: Sequence[Trial],
    encoder: PreTrainedModel,
    tokenizer: Any,
    corpus: Corpus,
    store: ActivationStore,
    on_step: OnStep | None = None,
    lambda_search: LambdaSearch | None = None,
) -> Iterator[list[TrialResult]]:
    """Run word probe trials of one model on one corpus.

    Args:
        trials: Word probe trials.
        encoder: The frozen model, pretrained or finetuned. It is not changed.
        tokenizer: Its fast tokenizer.
        corpus: The tagged corpus.
        store: Holds the hidden states of the corpus' words.
        on_step: Progress callback: WORD_PROBE_STEPS steps per trial.
        lambda_search: Provides L1 and L2 of trials that do not set them. Default: search with this encoder.

    Yields:
        Results of some trials, as soon as they are known; their seconds are those since the previous results.
    """
    last = time.perf_counter()
    progress = _Progress(on_step, len(trials), corpus.n_words)
    baselines = _baselines(corpus)
    for _, group in _group_by(trials, lambda t: (get_word_probe(t).vector, get_word_probe(t).standardize)):
        dataset = ProbingDataset.from_encoder(
            encoder, tokenizer, corpus, get_word_probe(group[0]), store, progress.add_words
        )
        for metrics, neurons in _compute_metrics(group, dataset, lambda_search or LambdaSearch(), progress):
            progress.add_finished(len(metrics))
            seconds, last = time.perf_counter() - last, time.perf_counter()
            yield [
                _trial_result(t, metrics[t.id], neurons.get(t.id), baselines, seconds)
                for t in group
                if t.id in metrics
            ]
    progress.finish()


def _trial_result(
    trial: Trial, metrics: Metrics, neurons: NeuronList | None, baselines: Metrics, seconds: float
) -> TrialResult:
    measure = next(iter(metrics))  # the measure of the trial comes first
    if not math.isfinite(metrics[measure]):
        lr = get_word_probe(trial).lr
        error = f"{measure} is not a finite number: a probe diverged; try a smaller probe_lr (now {lr:g})"
        return TrialResult(trial.id, error=error, seconds=seconds)
    record = EpochRecord(1, math.nan, math.nan, {**metrics, **baselines}, seconds)
    return TrialResult(trial.id, [record], seconds=seconds, top_neurons=neurons)


def _compute_metrics(
    trials: Sequence[Trial], dataset: ProbingDataset, lambda_search: LambdaSearch, progress: _Progress
) -> Iterator[tuple[dict[str, Metrics], dict[str, NeuronList]]]:
    """Yields metrics and the selected top neurons, by trial id.

    The accuracies of single layers come first. Trials that need a ranking, a search of penalties or a control task
    follow by training settings: for all seeds together on devices with enough memory, otherwise seed by seed, so that
    results are available earlier.
    """
    layer_trials = [trial for trial in trials if _is_plain_layer_probe(trial)]
    for training, group in _group_by(layer_trials, probe_training):
        yield dataset.layer_accuracies(group, training, progress.fitting(len(group), training.epochs)), {}
    ranked_trials = [trial for trial in trials if not _is_plain_layer_probe(trial)]
    joint_seeds = dataset.train.device.type in JOINT_SEED_DEVICES

    def settings(trial: Trial) -> tuple[Any, ...]:
        lambdas = lambda_search.lambdas(trial, dataset, progress.set_search_fraction)
        return probe_training(trial), lambdas, None if joint_seeds else trial.seed

    for (training, lambdas, _), group in _group_by(ranked_trials, settings):
        seeds = list(dict.fromkeys(trial.seed for trial in group))
        penalties = dict(zip(("l1", "l2"), lambdas, strict=True))
        ranked, by_id = RankedNeurons(dataset, training, lambdas, seeds), {trial.id: trial for trial in group}
        for found in _ranked_metrics(ranked, group, progress):
            sets = {
                trial_id: ranked.selected(by_id[trial_id], metrics) for trial_id, metrics in found.items()
            }
            neurons = {trial_id: chosen for trial_id, chosen in sets.items() if chosen is not None}
            yield {trial_id: {**metrics, **penalties} for trial_id, metrics in found.items()}, neurons


def _is_plain_layer_probe(trial: Trial) -> bool:
    """Whether a trial is the accuracy of one layer with given penalties, for all seeds and layers at once."""
    probe = get_word_probe(trial)
    return probe.neurons == "layer" and probe.measure == "accuracy" and probe.lambdas is not None


def _ranked_metrics(
    ranked: RankedNeurons, trials: Sequence[Trial], progress: _Progress
) -> Iterator[dict[str, Metrics]]:
    """Yields metrics by trial id, measure by measure."""
    by_measure = {
        measure: [trial for trial in trials if get_word_probe(trial).measure == measure]
        for measure in get_args(Measure)
    }
    if by_measure["accuracy"]:
        yield ranked.accuracy(by_measure["accuracy"])
    for trial in by_measure["spread"]:
        yield {trial.id: ranked.spread(trial)}
    if by_measure["neurons"]:
        yield from ranked.minimal_sets(by_measure["neurons"])
    if selective := by_measure["selectivity"]:
        # two probes per trial
        yield ranked.selectivity(selective, progress.fitting(len(selective), 2 * ranked.training.epochs))
    if by_measure["compression"]:
        yield ranked.compression(by_measure["compression"])


class _Progress:
    """Converts progress into WORD_PROBE_STEPS steps per trial: a fraction for the forward pass, the rest for probes.

    A search for L1 and L2 gets half of what is left when it starts.
    """

    def __init__(self, on_step: OnStep | None, trials: int, words: int):
        self.on_step, self.trials, self.words = on_step, trials, words
        self.words_seen, self.trials_finished, self.steps_reported = 0, 0, 0
        self.fraction = 0.0
        self.start = ENCODER_FRACTION  # fraction at which the trials, or a search, started
        self.search_fraction = 1.0  # of the last search

    def add_words(self, words: int) -> None:
        """More words went through the encoder."""
        self.words_seen += words
        self._report(ENCODER_FRACTION * min(1.0, self.words_seen / self.words))

    def set_search_fraction(self, fraction: float) -> None:
        """This fraction of a search for L1 and L2 is done."""
        if fraction < self.search_fraction:  # a new search
            self.start = self.fraction
        self.search_fraction = fraction
        self._report(self.start + fraction * (1 - self.start) / 2)
        if fraction == 1:
            self.start = self.fraction

    def fitting(self, trials: int, epochs: int) -> OnProgress:
        """Callback for the training of some trials' probes, with the number of epochs that were run of a trial's."""
        before, seen = self.trials_finished, 0

        def add_epochs(count: int) -> None:
            nonlocal seen
            seen += count
            self._report_trials(before + trials * min(1.0, seen / (trials * epochs)))

        return add_epochs

    def add_finished(self, trials: int) -> None:
        """More trials are finished."""
        self.trials_finished += trials
        self._report_trials(self.trials_finished)

    def _report_trials(self, finished: float) -> None:
        self._report(self.start + (1 - self.start) * finished / self.trials)

    def finish(self) -> None:
        """Report all remaining steps."""
        self._report(1.0)

    def _report(self, fraction: float) -> None:
        self.fraction = max(self.fraction, fraction)
        now = round(WORD_PROBE_STEPS * self.trials * self.fraction)
        if self.on_step is not None and now > self.steps_reported:
            self.on_step(now - self.steps_reported)
        self.steps_reported = now


def _baselines(corpus: Corpus) -> Metrics:
    """Baselines without a model: the most frequent tag, and the most frequent tag of each word type."""
    tags = training_tags(corpus.train)
    train, test = tag_ids(corpus.train, tags), tag_ids(corpus.test, tags)
    return {
        "majority_accuracy": majority_accuracy(train, test, len(tags)),
        "word_majority_accuracy": word_majority_accuracy(corpus.train, corpus.test),
    }


def group_by_corpus(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Word probe trials in groups with the same corpus."""
    return [group for _, group in _group_by(trials, lambda trial: get_word_probe(trial).fingerprint)]


def _group_by(trials: Sequence[Trial], key: Callable[[Trial], Any]) -> list[tuple[Any, list[Trial]]]:
    """(key, trials) in the order in which the keys first occur."""
    found: dict[Any, list[Trial]] = {}
    for trial in trials:
        found.setdefault(key(trial), []).append(trial)
    return list(found.items())
