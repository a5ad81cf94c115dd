"""Splits for the selection of lambdas and sets: dev sentences, or a part of the training sentences if needed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from word_models import word_encoder_of, word_probe_results, word_tokenizer_of

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.data.corpora import Corpus
from whichlayers.errors import WhichlayersError
from whichlayers.probes import run_word_probes as word_probe
from whichlayers.probes.activations import ActivationStore
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.neuron_ranking import rank_by_weight
from whichlayers.probes.probe_specs import ProbeSpec
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.probing_dataset import ProbingDataset, probe_training
from whichlayers.probes.progress import WORD_PROBE_STEPS
from whichlayers.probes.run_word_probes import ENCODER_FRACTION, run_word_probes
from whichlayers.trial import Trial, WordProbe

WORDS = ("the", "cat", "sat", "on", "the", "mat", "and", "dogs", "were", "running", "home", ".")


def tagged(sentences: int) -> TaggedCorpus:
    """Sentences of different length, each with two different tags."""
    cut = [WORDS[: 4 + i % 5] for i in range(sentences)]
    return TaggedCorpus(
        "custom", [TaggedSentence(w, tuple("XY"[len(x) > 2] for x in w), i) for i, w in enumerate(cut)]
    )


def trial_of(**settings) -> Trial:
    word_probe = WordProbe("custom", "c", epochs=1, **settings)
    return Trial("m", "f", "", "", 0, 0, word_probe=word_probe)


def dataset_of(corpus: Corpus, tmp_path) -> ProbingDataset:
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    return ProbingDataset.from_encoder(
        encoder, tokenizer, corpus, WordProbe("", ""), ActivationStore("cpu", tmp_path), lambda words: None
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"neurons": "layer", "layer": 1, "lambdas": (0.0, 0.0)},
        {"neurons": "top", "share": 0.5, "lambdas": (0.01, 0.01)},
        {"measure": "selectivity", "lambdas": (0.01, 0.01)},
    ],
)
def test_one_sentence_is_enough_if_nothing_is_selected(settings, tmp_path):
    corpus = Corpus("custom", tagged(1), tagged(2))
    (result,) = word_probe_results(
        [trial_of(**settings)],
        *(word_encoder_of("bert"), word_tokenizer_of("bert"), corpus, ActivationStore("cpu", tmp_path)),
    )
    assert result.error is None


def test_one_sentence_is_too_few_for_selection(tmp_path):
    with pytest.raises(
        WhichlayersError, match="cannot hold out a dev split of a corpus with fewer than 2 sentences"
    ):
        _ = dataset_of(Corpus("custom", tagged(1), tagged(2)), tmp_path).selection_splits


def test_the_last_tenth_of_the_sentences_is_held_out(tmp_path):
    corpus = Corpus("custom", tagged(20), tagged(3))
    dataset = dataset_of(corpus, tmp_path)
    fit, fit_labels, dev, dev_labels = dataset.selection_splits
    first = sum(len(s.words) for s in corpus.train.sentences[:18])
    assert (fit.n_examples, dev.n_examples) == (first, corpus.train.n_words - first)
    assert torch.equal(torch.cat([fit.flat, dev.flat]), dataset.train.flat)
    assert (fit.n_layers, fit.hidden_size) == (dataset.train.n_layers, dataset.train.hidden_size)
    np.testing.assert_array_equal(np.concatenate([fit_labels, dev_labels]), dataset.labels["train"])


def test_with_dev_sentences_nothing_is_held_out(tmp_path):
    dataset = dataset_of(Corpus("custom", tagged(20), tagged(3), tagged(4)), tmp_path)
    fit, fit_labels, dev, dev_labels = dataset.selection_splits
    assert fit is dataset.train
    assert fit_labels is dataset.labels["train"]
    assert (dev.n_examples, len(dev_labels)) == (tagged(4).n_words,) * 2


def test_a_slice_of_rows_shares_memory():
    states = np.arange(5 * 3 * 2, dtype=np.float32).reshape(5, 3, 2)
    part = HiddenStates(states).slice_rows(slice(2, None))
    expected = HiddenStates(states[2:].copy())
    assert torch.equal(part.flat, expected.flat)
    assert (part.n_examples, part.n_layers, part.hidden_size) == (3, 3, 2)
    states[2] = 7
    assert (part.flat[0] == 7).all()


def test_seeds_run_together_as_one_by_one(tmp_path, monkeypatch):
    corpus = Corpus("custom", tagged(20), tagged(5), tagged(6))
    kinds = [
        {"neurons": "layer", "layer": 1},
        {"neurons": "layer", "layer": 1, "measure": "selectivity"},
        {"neurons": "layer", "layer": 0, "measure": "compression"},
        {"neurons": "all"},
        {"neurons": "top", "share": 0.3},
        {"neurons": "bottom", "share": 0.3, "ranking": "probeless"},
        {"neurons": "random", "share": 0.3},
        {"measure": "spread", "neurons": "top", "share": 0.3, "layer": 1},
        {"measure": "neurons", "delta": 0.05},
        {"measure": "neurons", "delta": 0.05, "ranking": "probeless"},
        {"measure": "selectivity"},
        {"measure": "selectivity", "neurons": "top", "share": 0.3},
        {"measure": "compression"},
    ]
    trials = [
        dataclasses.replace(trial_of(lambdas=(1e-3, 1e-3), **kind), seed=seed)
        for kind in kinds
        for seed in (0, 1, 2)
    ] + [
        dataclasses.replace(trial_of(lambdas=None, **kind), seed=seed)  # they are searched for
        for kind in (
            {"neurons": "top", "share": 0.5},
            {"measure": "selectivity"},
            {"neurons": "layer", "layer": 2},
        )
        for seed in (1, 2)
    ]
    model = word_encoder_of("bert"), word_tokenizer_of("bert"), corpus
    alone = word_probe_results(trials, *model, ActivationStore("cpu", tmp_path))
    calls = []
    monkeypatch.setattr(word_probe, "JOINT_SEED_DEVICES", {"cpu"})
    real = word_probe.RankedNeurons
    monkeypatch.setattr(word_probe, "RankedNeurons", lambda *args: (calls.append(args[-1]), real(*args))[1])
    together = word_probe_results(trials, *model, ActivationStore("cpu", tmp_path))
    assert calls == [[0, 1, 2], [1, 2]]
    for one, other in zip(alone, together, strict=True):
        assert one.trial_id == other.trial_id
        assert one.error is None
        assert one.epochs[0].metrics == pytest.approx(other.epochs[0].metrics, rel=1e-4)
        assert (one.top_neurons is None) == (other.top_neurons is None)


def test_trials_on_top_neurons_name_them_by_layer(tmp_path):
    """Against a probe on all neurons, ranked here by the reference of test_neuron_ranking."""
    corpus = Corpus("custom", tagged(30), tagged(5), tagged(6))
    common = {"lambdas": (1e-3, 1e-3)}
    top, bottom, spread, smallest, selective = (
        trial_of(**common, **kind)
        for kind in (
            {"neurons": "top", "share": 0.3},
            {"neurons": "bottom", "share": 0.3},
            {"neurons": "top", "share": 0.3, "measure": "spread", "layer": 1},
            {"measure": "neurons", "neurons": "top", "delta": 0.02},
            {"measure": "selectivity", "neurons": "top", "share": 0.3},
        )
    )
    model = word_encoder_of("bert"), word_tokenizer_of("bert"), corpus
    trials = [top, bottom, spread, smallest, selective]
    results = dict(
        zip(trials, word_probe_results(trials, *model, ActivationStore("cpu", tmp_path)), strict=True)
    )
    dataset = dataset_of(corpus, tmp_path)
    spec = ProbeSpec(dataset.train.all_neurons(), *common["lambdas"], seed=0)
    (probe,) = fit_probes(
        dataset.train, dataset.labels["train"], len(dataset.tags), [spec], probe_training(top)
    )
    hidden = dataset.train.hidden_size
    order = [divmod(int(neuron), hidden) for neuron in rank_by_weight(probe.weight).order]
    assert results[top].top_neurons == order[: round(0.3 * len(order))]
    found = results[smallest]
    assert found.top_neurons == order[: int(found.epochs[0].metrics["neurons_used"])]
    assert [results[trial].top_neurons for trial in (bottom, spread, selective)] == [None] * 3
    in_layer = [neuron for layer, neuron in results[top].top_neurons if layer == 1]
    assert results[spread].epochs[0].metrics["neurons_in_layer"] == len(in_layer)


def test_standardized_neurons_are_those_of_the_training_words(tmp_path):
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    corpus = Corpus("custom", tagged(20), tagged(3), tagged(4))
    plain, scaled = (
        ProbingDataset.from_encoder(
            *(encoder, tokenizer, corpus, WordProbe("", "", standardize=standardize)),
            *(ActivationStore("cpu", tmp_path / str(standardize)), lambda words: None),
        )
        for standardize in (False, True)
    )
    raw = plain.train.rows(slice(None)).double()
    mean, std = raw.mean(0), raw.std(0, correction=0)
    for name in ("train", "test", "dev"):
        expected = (getattr(plain, name).rows(slice(None)).double() - mean) / std
        torch.testing.assert_close(
            getattr(scaled, name).rows(slice(None)).double(), expected, rtol=1e-3, atol=1e-3
        )
    for inputs in scaled.selection_splits[0], scaled.selection_splits[2]:
        assert inputs.scale is not None


def test_raw_and_standardized_neurons_are_probed_separately(tmp_path):
    trials = [trial_of(neurons="layer", layer=2, standardize=s, lr=0.01) for s in (False, True)]
    corpus = Corpus("custom", tagged(30), tagged(6))
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    both = word_probe_results(trials, encoder, tokenizer, corpus, ActivationStore("cpu", tmp_path / "both"))
    for trial, found in zip(trials, both, strict=True):
        (alone,) = word_probe_results(
            [trial], encoder, tokenizer, corpus, ActivationStore("cpu", tmp_path / trial.id)
        )
        assert found.trial_id == trial.id
        assert found.epochs[-1].metrics == alone.epochs[-1].metrics


def test_probes_are_trained_with_the_configured_norm(tmp_path):
    corpus = Corpus("custom", tagged(30), tagged(6))
    dataset = dataset_of(corpus, tmp_path / "dataset")
    trials = [trial_of(neurons="layer", layer=1, lambdas=(0.0, 0.5), norm=n) for n in ("squared", "plain")]
    probes = []
    for trial in trials:
        training = probe_training(trial)
        assert training.norm == trial.word_probe.norm
        spec = ProbeSpec(dataset.train.layer_neurons(1), 0.0, 0.5, trial.seed)
        probes += fit_probes(dataset.train, dataset.labels["train"], len(dataset.tags), [spec], training)
    assert not torch.allclose(probes[0].weight, probes[1].weight, rtol=1e-3)
    expected = accuracies(dataset.test, dataset.labels["test"], probes).tolist()
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    found = word_probe_results(
        trials, encoder, tokenizer, corpus, ActivationStore("cpu", tmp_path / "trials")
    )
    assert [result.epochs[-1].metrics["accuracy"] for result in found] == expected


def test_a_search_reports_progress(tmp_path):
    reported: list[int] = []
    trials = [trial_of(neurons="layer", layer=1)]
    trials.append(Trial("m", "f", "", "", 0, 0, word_probe=WordProbe("custom", "c", lambdas=None)))
    corpus = Corpus("custom", tagged(20), tagged(3), tagged(4))
    word_probe_results(
        *(
            trials,
            word_encoder_of("bert"),
            word_tokenizer_of("bert"),
            corpus,
            ActivationStore("cpu", tmp_path),
        ),
        on_step=reported.append,
    )
    steps = len(trials) * WORD_PROBE_STEPS
    after = np.cumsum(reported)
    # after the forward pass and the first trial
    first_done = round((ENCODER_FRACTION + (1 - ENCODER_FRACTION) / 2) * steps)
    search_done = round((first_done / steps + 1) / 2 * steps)
    assert after[-1] == steps
    assert {first_done, search_done} <= set(after)
    assert ((after > first_done) & (after < search_done)).sum() >= 3


@pytest.mark.parametrize("measure", ["accuracy", "selectivity"])
def test_the_training_of_probes_reports_progress(tmp_path, measure):
    """All layers are trained at once: without this, a run would show no progress for minutes."""
    reported: list[int] = []
    trials = [trial_of(neurons="layer", layer=n, measure=measure, lambdas=(0.0, 0.0)) for n in (1, 2)]
    epochs = trials[0].word_probe.epochs
    word_probe_results(
        *(
            trials,
            word_encoder_of("bert"),
            word_tokenizer_of("bert"),
            Corpus("custom", tagged(20), tagged(3)),
        ),
        ActivationStore("cpu", tmp_path),
        on_step=reported.append,
    )
    after, steps = np.cumsum(reported), len(trials) * WORD_PROBE_STEPS
    assert after[-1] == steps
    while_training = (after > round(ENCODER_FRACTION * steps)) & (after < steps)
    assert while_training.sum() >= epochs - 2


def test_results_are_yielded_as_they_are_known(tmp_path):
    """Layers first; then, seed by seed, trials that need a ranking, measure by measure."""
    kinds = [{"neurons": "layer", "layer": 1}, {"neurons": "top", "share": 0.5}, {"measure": "selectivity"}]
    trials = [
        dataclasses.replace(trial_of(lambdas=(1e-3, 1e-3), **kind), seed=seed)
        for kind in kinds
        for seed in (0, 1)
    ]
    corpus = Corpus("custom", tagged(20), tagged(3))
    parts = list(
        run_word_probes(
            trials,
            word_encoder_of("bert"),
            word_tokenizer_of("bert"),
            corpus,
            ActivationStore("cpu", tmp_path),
        )
    )
    by_id = {trial.id: trial for trial in trials}
    known = [
        [(by_id[o.trial_id].word_probe.measure, by_id[o.trial_id].word_probe.neurons) for o in part]
        for part in parts
    ]
    layer, top, control = ("accuracy", "layer"), ("accuracy", "top"), ("selectivity", "all")
    assert known == [[layer, layer], [top], [control], [top], [control]]
    assert [by_id[part[0].trial_id].seed for part in parts[1:]] == [0, 0, 1, 1]
    assert all(result.seconds > 0 for part in parts for result in part)


def test_selectivity_and_search_of_a_layer_use_the_neurons_of_that_layer(tmp_path):
    """Against probes that are trained one by one on the slice of the layer."""
    corpus = Corpus("custom", tagged(20), tagged(5), tagged(6))
    found = dataset_of(corpus, tmp_path)
    size, data = found.train.hidden_size, (found.train, found.labels["train"], len(found.tags))
    pair = (1e-3, 1e-4)
    given = {"neurons": "layer", "layer": 2, "lambdas": pair}
    trials = [
        trial_of(**given),
        trial_of(**given, measure="selectivity"),
        trial_of(**given, measure="compression"),
    ]
    trials.append(trial_of(neurons="layer", layer=2, lambdas=None))
    model = word_encoder_of("bert"), word_tokenizer_of("bert"), corpus
    search = word_probe.LambdaSearch()
    runs = list(run_word_probes(trials, *model, ActivationStore("cpu", tmp_path), lambda_search=search))
    results = {result.trial_id: result for group in runs for result in group}
    accuracy, selectivity, compression, searched = (results[trial.id].epochs[0].metrics for trial in trials)
    neurons = np.arange(2 * size, 3 * size)

    def accuracy_with(l1, l2):
        probe = fit_probes(*data, [ProbeSpec(neurons, l1, l2, 0)], probe_training(trials[0]))
        return float(accuracies(found.test, found.labels["test"], probe)[0])

    assert accuracy["accuracy"] == pytest.approx(accuracy_with(*pair))
    assert selectivity["accuracy"] == pytest.approx(accuracy["accuracy"])
    assert selectivity["selectivity"] == pytest.approx(accuracy["accuracy"] - selectivity["control_accuracy"])
    assert {"compression", "bits", "control_bits"} <= set(compression)
    (best,) = search.known.values()
    assert (searched["l1"], searched["l2"]) == best
    assert searched["accuracy"] == pytest.approx(accuracy_with(*best))
