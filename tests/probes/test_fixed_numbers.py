"""Numbers of probes and hidden states that never change: trained weights, losses, scores and metrics of trials.

`fixtures/numbers.npz` holds them by name. The inputs are small, so that neither the number of threads nor the order of
a sum changes a value by more than the tolerance. `python tests/probes/test_fixed_numbers.py` writes the file anew;
only a change that is meant to change results may do so.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from tiny import tiny_encoder, tiny_task
from word_models import corpus_of, word_encoder_of, word_probe_results, word_tokenizer_of

from whichlayers import rng
from whichlayers.data.batches import subset
from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.data.corpora import Corpus
from whichlayers.probes.activations import ActivationStore
from whichlayers.probes.evaluation import accuracies, code_lengths, predict, tag_accuracies
from whichlayers.probes.extract import extract_sentences, extract_words
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.mdl import online_code
from whichlayers.probes.probe_specs import ProbeSpec, ProbeTraining, layer_specs
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.run_sentence_probes import ProbeJob, fit_sentence_probes, run_probes
from whichlayers.trial import Probe, Trial, WordProbe

FILE = Path(__file__).parent / "fixtures" / "numbers.npz"
TOLERANCE = 1e-6
N, LAYERS, HIDDEN, CLASSES = 80, 3, 6, 3

Numbers = dict[str, np.ndarray]


# --- inputs ---


def states_of(n: int, seed: int) -> np.ndarray:
    """States (n, layers, H), on a grid that float16 holds exactly."""
    values = np.random.default_rng(seed).integers(-64, 65, (n, LAYERS, HIDDEN))
    return (values / 32).astype(np.float32)


def labels_of(states: np.ndarray, classes: int = CLASSES) -> np.ndarray:
    """Classes that depend on the states of the top layer, and on noise."""
    noise = np.random.default_rng(len(states)).integers(-32, 33, (len(states), classes)) / 32
    return (states[:, -1, :classes] + states[:, 1, classes:] + noise).argmax(1)


def fixed_weights(model: torch.nn.Module, std: float) -> torch.nn.Module:
    """Weights that do not depend on how transformers initializes the model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.copy_(rng.normal(11, name, tuple(parameter.shape), std) + offset)
    return model.eval()


TEXT = "the cat sat on the mat while unreadable dogs were running home . she read books quickly , unhappily"


def tagged(sentences: int, seed: int) -> TaggedCorpus:
    """Sentences of 3 to 9 words with three tags; the tag of a word depends on its length."""
    vocabulary, drawn = TEXT.split(), np.random.default_rng(seed)
    found = []
    for number in range(sentences):
        words = tuple(vocabulary[i] for i in drawn.integers(0, len(vocabulary), drawn.integers(3, 10)))
        found.append(TaggedSentence(words, tuple("XYZ"[min(len(w) // 3, 2)] for w in words), number))
    return TaggedCorpus("custom", found)


# --- numbers ---


def sentence_probes() -> Numbers:
    """`fit` and `predict`: layers, seeds, learning rates, weight decay, early stopping, scaling, divergence."""
    states, test = states_of(N, 0), states_of(20, 1)
    plain = Probe(2, lr=0.03, max_epochs=6, patience=2, batch_size=16)
    variants = [
        *(dataclasses.replace(plain, layer=layer) for layer in range(LAYERS)),
        dataclasses.replace(plain, lr=0.2, patience=1),
        dataclasses.replace(plain, lr=0.01, weight_decay=0.5),
        dataclasses.replace(plain, layer=1, standardize=True),
        dataclasses.replace(plain, layer=1, max_epochs=3),
    ]
    found: Numbers = {}
    for kind in ("classification", "regression"):
        labels = labels_of(states) if kind == "classification" else states[:, -1, :2].sum(1)
        outputs = CLASSES if kind == "classification" else 1
        for held_out in (0.0, 0.1):
            probes = [dataclasses.replace(probe, held_out=held_out) for probe in variants]
            if kind == "regression":
                probes.append(dataclasses.replace(probes[0], lr=1e30))  # diverges
            jobs = [ProbeJob(probe, seed, subset(N, 60, seed)) for probe in probes for seed in (0, 5)]
            fitted = fit_sentence_probes(HiddenStates(states), labels, jobs, outputs, kind)
            failed = [probe.error is not None for probe in fitted]
            assert failed == [probe.lr > 1 for probe in probes for _ in (0, 5)]
            good = [probe for probe in fitted if probe.error is None]
            found |= {
                f"sentence/{kind}/{held_out}/{name}": value
                for name, value in {
                    "weight": np.stack([probe.weight.numpy() for probe in good]),
                    "bias": np.stack([probe.bias.numpy() for probe in good]),
                    "epochs": np.array([(probe.epoch, probe.epochs_run) for probe in fitted]),
                    "losses": np.array([(probe.train_loss, probe.held_out_loss) for probe in good]),
                    "outputs": predict(HiddenStates(test), good).numpy(),
                }.items()
            }
    return found


def word_probes() -> Numbers:
    """`fit_probes` and the scores of its probes: layers x lambdas x seeds x tasks, norms, scaling, rows."""
    states, test = states_of(N, 2), states_of(30, 3)
    labels, test_labels = (
        np.stack([labels_of(part), np.random.default_rng(len(part)).integers(0, CLASSES, len(part))])
        for part in (states, test)
    )
    test_labels[:, :3] = -1  # unseen tags
    plain, half = HiddenStates(states), HiddenStates(states.astype(np.float16))
    scaled = plain.standardize(plain.compute_scale())
    specs = [
        *layer_specs(plain, seeds=(0, 3), l1=(0.0, 1e-3), l2=(0.0, 1e-2), tasks=(0, 1)),
        *(ProbeSpec(plain.all_neurons(), 1e-3, 1e-3, seed) for seed in (0, 1)),
        ProbeSpec(np.array([13, 2, 7]), seed=4, task=1),
    ]
    squared = ProbeTraining(epochs=3, batch_size=32, lr=0.01)
    norm = dataclasses.replace(squared, norm="plain")
    some = np.arange(0, N, 2)
    by_seed = {seed: rng.permutation(seed, "rows", N)[:50] for seed in (0, 1, 3, 4)}
    calls = {
        "squared": (plain, squared, None),
        "plain": (plain, norm, None),
        "float16": (half, squared, None),
        "standardized": (scaled, squared, None),
        "some": (plain, squared, some),
        "by_seed": (plain, norm, by_seed),
    }
    found: Numbers = {}
    for name, (inputs, training, rows) in calls.items():
        probes = fit_probes(inputs, labels, CLASSES, specs, training, rows=rows)
        inputs = HiddenStates(test, scale=inputs.scale)
        found |= {
            f"word/{name}/weight": np.concatenate([probe.weight.numpy() for probe in probes]),
            f"word/{name}/bias": np.stack([probe.bias.numpy() for probe in probes]),
            f"word/{name}/train_loss": np.array([probe.train_loss for probe in probes]),
            f"word/{name}/accuracy": accuracies(inputs, test_labels, probes),
            f"word/{name}/accuracy_of_rows": accuracies(inputs, test_labels, probes, np.arange(5, 25)),
            f"word/{name}/tag_accuracy": tag_accuracies(inputs, test_labels, probes, CLASSES),
            f"word/{name}/nats": code_lengths(inputs, test_labels, probes, np.arange(3, 30)),
        }
    codes = online_code(plain, labels, CLASSES, specs[-4:], portions=(0.25, 0.5, 1.0), training=squared)
    return found | {"word/online_code": np.array([code.portion_bits for code in codes])}


def extracted_states() -> Numbers:
    """Hidden states of sentences and words, for every pooling and dtype, in several batches."""
    encoder, split = fixed_weights(tiny_encoder("bert"), 0.1), tiny_task(n_train=5).train
    found: Numbers = {
        f"extract/sentences/{pooling}": extract_sentences(
            encoder, split, 0, pooling=pooling, tokens_per_batch=40
        )
        for pooling in ("mean", "summary")
    }
    encoder, tokenizer = fixed_weights(word_encoder_of("bert"), 0.2), word_tokenizer_of("bert")
    corpus = corpus_of("the unreadable cat", "dogs", "she read books quickly , unhappily")
    for pooling in ("last", "first", "mean"):
        for on_device in (False, True):
            states = extract_words(
                *(encoder, tokenizer, corpus),
                pooling=pooling,
                precision="float32",
                tokens_per_batch=20,
                on_device=on_device,
            ).states
            found[f"extract/words/{pooling}/{on_device}"] = np.asarray(states)
    return found


def sentence_trials() -> Numbers:
    """Metrics of `run_probes`: classification and regression, poolings, full and small subsets."""
    encoder = fixed_weights(tiny_encoder("bert"), 0.1)
    found: Numbers = {}
    for kind in ("classification", "regression"):
        data = tiny_task(kind=kind, n_train=48, n_dev=20)
        for pooling, size in (("mean", 40), ("summary", 16)):
            plain = Trial("tiny", "model", "tiny", "tiny", size, 0)
            trials = [
                dataclasses.replace(
                    plain, seed=seed, probe=Probe(layer, pooling=pooling, max_epochs=4, lr=0.01)
                )
                for layer in (0, 2, 3)
                for seed in (0, 1)
            ]
            results = run_probes(trials, encoder, data)
            found[f"run_probes/{kind}/{pooling}"] = np.array(
                [
                    (
                        r.epochs[0].epoch,
                        r.epochs[0].train_loss,
                        r.epochs[0].dev_loss,
                        *r.epochs[0].metrics.values(),
                    )
                    for r in results
                ]
            )
    return found


def word_trials() -> Numbers:
    """Metrics of `run_word_probes` for every measure, set of neurons and ranking; with and without dev sentences."""
    encoder, tokenizer = fixed_weights(word_encoder_of("bert"), 0.2), word_tokenizer_of("bert")
    given: dict = {"lambdas": (1e-3, 1e-3)}
    kinds: list[dict] = [
        *({"neurons": "layer", "layer": layer} for layer in range(3)),
        {"neurons": "layer", "layer": 1, "standardize": True, "vector": "mean"},
        {"neurons": "all"} | given,
        {"neurons": "top", "share": 0.25} | given,
        {"neurons": "bottom", "share": 0.25, "ranking": "probeless"} | given,
        {"neurons": "random", "share": 0.25} | given,
        {"measure": "spread", "neurons": "top", "share": 0.25, "layer": 1} | given,
        {"measure": "neurons", "delta": 0.05} | given,
        {"measure": "neurons", "delta": 0.05, "ranking": "probeless"} | given,
        {"measure": "selectivity"} | given,
        {"measure": "selectivity", "neurons": "top", "share": 0.25, "norm": "plain"} | given,
        {"measure": "compression"} | given,
        {"neurons": "top", "share": 0.5, "lambdas": None},  # searched for
    ]
    trials = [
        Trial(
            "m",
            "f",
            "",
            "",
            0,
            seed,
            word_probe=WordProbe("custom", "c", epochs=2, batch_size=64, lr=0.01, **kind),
        )
        for kind in kinds
        for seed in (0, 1)
    ]
    found: Numbers = {}
    for name, dev in (("dev", tagged(8, 3)), ("no_dev", None)):
        corpus = Corpus("custom", tagged(25, 1), tagged(8, 2), dev)
        results = word_probe_results(trials, encoder, tokenizer, corpus, ActivationStore())
        for kind in range(len(kinds)):
            one, other = (results[2 * kind + i].epochs[0].metrics for i in (0, 1))  # by seed
            key = f"run_word_probes/{name}/{kind}/{'+'.join(one)}"
            found[key] = np.array([list(one.values()), list(other.values())])
    return found


PARTS: tuple[Callable[[], Numbers], ...] = (
    sentence_probes,
    word_probes,
    extracted_states,
    sentence_trials,
    word_trials,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_numbers_are_those_of_the_file(part):
    with np.load(FILE) as file:
        names = {name for name in file.files if name.startswith(f"{part.__name__}/")}
        found = {f"{part.__name__}/{name}": value for name, value in part().items()}
        assert found.keys() == names
        for name in sorted(names):
            np.testing.assert_allclose(found[name], file[name], atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.savez_compressed(
        FILE, **{f"{part.__name__}/{name}": value for part in PARTS for name, value in part().items()}
    )
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
