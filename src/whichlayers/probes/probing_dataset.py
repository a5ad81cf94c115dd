"""A corpus as hidden states of one model with labels, and the measures of word probes on it.

Lambdas and minimal sets of neurons are selected on the corpus' dev sentences, or on the last tenth of its training
sentences if it has none; accuracies are reported on its test sentences.
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
from whichlayers.probes.activations import ActivationStore
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.extract import OnRows
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.labels import control_labels, tag_frequencies, tag_ids, training_tags
from whichlayers.probes.mdl import online_code
from whichlayers.probes.neuron_ranking import (
    MinimalSetSearch,
    bottom_neurons,
    minimal_sets,
    neuron_count,
    neurons_per_layer,
    random_neurons,
    rank_by_weight,
    rank_probeless,
    retrained_accuracies,
    top_neurons,
)
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.progress import OnProgress
from whichlayers.trial import Trial, WordProbe, get_word_probe

HELD_OUT_FRACTION = 0.1  # of the training sentences, if a corpus has no dev sentences

Metrics = dict[str, float]  # by name; the first is the measure of the trial


@dataclass(frozen=True)
class ProbingDataset:
    """Hidden states of a corpus' words in one model, and their tags as labels."""

    corpus: Corpus
    tags: tuple[str, ...]
    train: HiddenStates
    test: HiddenStates
    dev: HiddenStates | None  # None if the corpus has no dev sentences
    labels: dict[str, np.ndarray]  # (words,) by split: train, test, dev

    @staticmethod
    def from_encoder(
        encoder: PreTrainedModel,
        tokenizer: Any,
        corpus: Corpus,
        word_probe: WordProbe,
        store: ActivationStore,
        on_words: OnRows,
    ) -> ProbingDataset:
        """Extract the hidden states of all splits; `word_probe` determines pooling and standardization."""
        splits = corpus.splits
        tags = training_tags(corpus.train)
        hidden_states = store.hidden_states(encoder, tokenizer, splits, word_probe.vector, on_words)
        labels = {name: tag_ids(split, tags) for name, split in splits.items()}
        states = {name: HiddenStates(hidden_states[name], store.torch_device) for name in splits}
        if word_probe.standardize:
            scale = states["train"].compute_scale()
            states = {name: split.standardize(scale) for name, split in states.items()}
        return ProbingDataset(corpus, tags, states["train"], states["test"], states.get("dev"), labels)

    @cached_property
    def selection_splits(self) -> tuple[HiddenStates, np.ndarray, HiddenStates, np.ndarray]:
        """(train states, train labels, dev states, dev labels) for the selection of lambdas and minimal sets."""
        train, labels = self.train, self.labels
        if self.dev is not None:
            return train, labels["train"], self.dev, labels["dev"]
        n_words = count_leading_words(self.corpus.train, 1 - HELD_OUT_FRACTION)
        return (
            *(train.slice_rows(slice(n_words)), labels["train"][:n_words]),
            *(train.slice_rows(slice(n_words, None)), labels["train"][n_words:]),
        )

    def layer_accuracies(
        self, trials: Sequence[Trial], training: ProbeTraining, on_progress: OnProgress | None = None
    ) -> dict[str, Metrics]:
        """Test accuracies of probes on single layers with given penalties, by trial id."""
        specs = []
        for trial in trials:
            word_probe = get_word_probe(trial)
            assert word_probe.layer is not None
            assert word_probe.lambdas is not None
            neurons = self.train.layer_neurons(word_probe.layer)
            specs.append(ProbeSpec(neurons, *word_probe.lambdas, trial.seed))
        probes = fit_probes(self.train, self.labels["train"], len(self.tags), specs, training, on_progress)
        found = accuracies(self.test, self.labels["test"], probes)
        return {trial.id: {"accuracy": float(value)} for trial, value in zip(trials, found, strict=True)}


@dataclass
class RankedNeurons:
    """Neuron rankings of a dataset and the measures that depend on them, for some seeds and one training setting.

    The probes of all seeds are trained together. Methods that return a dict return metrics by trial id.
    """

    dataset: ProbingDataset
    training: ProbeTraining
    lambdas: tuple[float, float]  # L1 and L2
    seeds: Sequence[int]

    @cached_property
    def lca_orders(self) -> dict[int, np.ndarray]:
        """The ordering of all neurons by Linguistic Correlation Analysis, (neurons,) for each seed."""
        d = self.dataset
        specs = [ProbeSpec(d.train.all_neurons(), *self.lambdas, seed) for seed in self.seeds]
        probes = fit_probes(d.train, d.labels["train"], len(d.tags), specs, self.training)
        orders = [rank_by_weight(probe.weight).order for probe in probes]
        return dict(zip(self.seeds, orders, strict=True))

    @cached_property
    def probeless_order(self) -> np.ndarray:
        """The probeless ordering of all neurons, (neurons,)."""
        d = self.dataset
        return rank_probeless(d.train, d.labels["train"], len(d.tags))

    def order(self, trial: Trial) -> np.ndarray:
        """The neuron ordering by the trial's ranking method, (neurons,)."""
        return self.lca_orders[trial.seed] if get_word_probe(trial).ranking == "lca" else self.probeless_order

    def neurons(self, trial: Trial) -> np.ndarray:
        """The set of neurons that the trial's probe reads, (d,)."""
        states, word_probe = self.dataset.train, get_word_probe(trial)
        if word_probe.neurons == "all":
            return states.all_neurons()
        if word_probe.neurons == "layer":
            assert word_probe.layer is not None
            return states.layer_neurons(word_probe.layer)
        count = neuron_count(word_probe.share or 1.0, states.n_neurons)
        if word_probe.neurons == "random":
            return random_neurons(states.all_neurons(), count, trial.seed)
        return (top_neurons if word_probe.neurons == "top" else bottom_neurons)(self.order(trial), count)

    def selected(self, trial: Trial, metrics: Metrics) -> list[tuple[int, int]] | None:
        """(layer, neuron) of the top neurons that the trial's probe reads, most important first.

        None for trials that do not train a probe on the top neurons, or did not find them.

        Args:
            trial: The trial.
            metrics: Its metrics, with the number of neurons.
        """
        probe = get_word_probe(trial)
        if (
            probe.neurons != "top"
            or probe.measure not in ("accuracy", "neurons")
            or "neurons_used" not in metrics
        ):
            return None
        chosen = top_neurons(self.order(trial), int(metrics["neurons_used"]))
        return [divmod(neuron, self.dataset.train.hidden_size) for neuron in chosen.tolist()]

    def spec(self, trial: Trial, neurons: np.ndarray | None = None, task: int = 0) -> ProbeSpec:
        """The probe of a trial, by default on the trial's own set of neurons."""
        selected = self.neurons(trial) if neurons is None else neurons
        return ProbeSpec(selected, *self.lambdas, trial.seed, task)

    def test_accuracies(self, specs: Sequence[ProbeSpec]) -> list[float]:
        """Test accuracies of probes trained only on the neurons of their spec."""
        d = self.dataset
        data = (d.train, d.labels["train"], d.test, d.labels["test"], len(d.tags))
        return retrained_accuracies(*data, specs, self.training).tolist()

    def accuracy(self, trials: Sequence[Trial]) -> dict[str, Metrics]:
        """Test accuracy with the trial's set of neurons."""
        specs = [self.spec(trial) for trial in trials]
        return {
            trial.id: {"accuracy": accuracy, "neurons_used": float(len(spec.neurons))}
            for trial, spec, accuracy in zip(trials, specs, self.test_accuracies(specs), strict=True)
        }

    def spread(self, trial: Trial) -> Metrics:
        """Fraction of the trial's neurons that belong to its layer."""
        states, neurons, layer = self.dataset.train, self.neurons(trial), get_word_probe(trial).layer
        assert layer is not None
        count = int(neurons_per_layer(neurons, states.n_layers, states.hidden_size)[layer])
        return {"spread": count / len(neurons), "neurons_in_layer": float(count)}

    def minimal_sets(self, trials: Sequence[Trial]) -> Iterator[dict[str, Metrics]]:
        """Size and test accuracy of the minimal sets, as they are found; NaN if the probe on all neurons diverged."""
        d = self.dataset
        searches = [
            MinimalSetSearch(self.order(trial), *self.lambdas, trial.seed, get_word_probe(trial).delta)
            for trial in trials
        ]
        for found in minimal_sets(*d.selection_splits, len(d.tags), searches, training=self.training):
            sets = {trials[i]: minimal for i, minimal in found.items() if not math.isnan(minimal.oracle)}
            metrics = {trials[i].id: {"neurons": math.nan} for i in found}
            tested = self.test_accuracies([self.spec(t, minimal.neurons) for t, minimal in sets.items()])
            for (trial, minimal), accuracy in zip(sets.items(), tested, strict=True):
                metrics[trial.id] = {
                    "neurons": minimal.count / d.train.n_neurons,
                    "neurons_used": float(minimal.count),
                    "accuracy": accuracy,
                    "dev_accuracy": minimal.accuracy,
                    "dev_oracle": minimal.oracle,
                }
            yield metrics

    @cached_property
    def labels_with_control(self) -> dict[str, np.ndarray]:
        """Labels (1 + seeds, words) of train and test: row 0 the tags, then the control task of each seed."""
        d = self.dataset
        frequencies = tag_frequencies(d.labels["train"], len(d.tags))
        splits = {"train": d.corpus.train, "test": d.corpus.test}
        return {
            name: np.stack(
                [d.labels[name], *(control_labels(split, frequencies, seed) for seed in self.seeds)]
            )
            for name, split in splits.items()
        }

    def _specs_with_control(self, trials: Sequence[Trial]) -> list[ProbeSpec]:
        """Two probes per trial: on the tags, and on its control task."""
        tasks = {seed: 1 + i for i, seed in enumerate(self.seeds)}
        return [self.spec(trial, task=task) for trial in trials for task in (0, tasks[trial.seed])]

    def selectivity(
        self, trials: Sequence[Trial], on_progress: OnProgress | None = None
    ) -> dict[str, Metrics]:
        """Test accuracy on the tags minus test accuracy on the control task."""
        d = self.dataset
        specs = self._specs_with_control(trials)
        labels = self.labels_with_control["train"]
        probes = fit_probes(d.train, labels, len(d.tags), specs, self.training, on_progress)
        found = accuracies(d.test, self.labels_with_control["test"], probes).reshape(-1, 2).tolist()
        return {
            trial.id: {"selectivity": real - control, "accuracy": real, "control_accuracy": control}
            for trial, (real, control) in zip(trials, found, strict=True)
        }

    def compression(self, trials: Sequence[Trial]) -> dict[str, Metrics]:
        """Compression and description length of the tags and of the control task."""
        d = self.dataset
        codes = online_code(
            d.train,
            self.labels_with_control["train"],
            len(d.tags),
            self._specs_with_control(trials),
            training=self.training,
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


def count_leading_words(corpus: TaggedCorpus, fraction: float) -> int:
    """Number of words in the first fraction of the sentences, with at least one sentence on either side."""
    sentences = corpus.sentences
    if len(sentences) < 2:
        raise WhichlayersError(
            f"corpus {corpus.name}: cannot hold out a dev split of a corpus with fewer than 2 sentences; "
            "add a dev file or more training sentences"
        )
    first = min(max(1, round(fraction * len(sentences))), len(sentences) - 1)
    return sum(len(sentence.words) for sentence in sentences[:first])


def probe_training(trial: Trial) -> ProbeTraining:
    """The training settings of a trial's word probe."""
    word_probe = get_word_probe(trial)
    return ProbeTraining(
        epochs=word_probe.epochs, batch_size=word_probe.batch_size, lr=word_probe.lr, norm=word_probe.norm
    )
