"""What lambdas and sets are chosen by: dev sentences, or a part of training's, held out only if asked for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from word_models import answers, word_encoder_of, word_tokenizer_of

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.data.corpora import Corpus
from whichlayers.errors import WhichlayersError
from whichlayers.probes import word_probe as asking
from whichlayers.probes.activations import Shelf
from whichlayers.probes.elastic_net import Problem, accuracies, fit_probes
from whichlayers.probes.probing_dataset import Studied, training_of
from whichlayers.probes.steps import WORD_STEPS
from whichlayers.probes.word_probe import SHARE_OF_PASS, ask
from whichlayers.probes.word_table import WordTable
from whichlayers.trial import Trial, WordProbe

WORDS = ("the", "cat", "sat", "on", "the", "mat", "and", "dogs", "were", "running", "home", ".")


def tagged(sentences: int) -> TaggedCorpus:
    """Sentences of different length, each with tags of two kinds."""
    cut = [WORDS[: 4 + i % 5] for i in range(sentences)]
    return TaggedCorpus(
        "mine", [TaggedSentence(w, tuple("XY"[len(x) > 2] for x in w), i) for i, w in enumerate(cut)]
    )


def trial_of(**settings) -> Trial:
    words = WordProbe("mine", "c", epochs=1, **settings)
    return Trial("m", "f", None, "", "", 0, 0, word_probe=words)


def studied_of(corpus: Corpus, tmp_path) -> Studied:
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    return Studied.of(
        encoder, tokenizer, corpus, WordProbe("", ""), Shelf("cpu", tmp_path), lambda words: None
    )


@pytest.mark.parametrize(
    "words",
    [
        {"neurons": "layer", "layer": 1, "lambdas": (0.0, 0.0)},
        {"neurons": "top", "share": 0.5, "lambdas": (0.01, 0.01)},
        {"measure": "selectivity", "lambdas": (0.01, 0.01)},
    ],
)
def test_one_sentence_is_enough_where_nothing_is_chosen(words, tmp_path):
    corpus = Corpus("mine", tagged(1), tagged(2))
    (outcome,) = answers(
        [trial_of(**words)],
        *(word_encoder_of("bert"), word_tokenizer_of("bert"), corpus, Shelf("cpu", tmp_path)),
    )
    assert outcome.error is None


def test_one_sentence_is_too_few_to_choose_by(tmp_path):
    with pytest.raises(WhichlayersError, match="one sentence is too few to hold any out"):
        _ = studied_of(Corpus("mine", tagged(1), tagged(2)), tmp_path).to_choose


def test_the_last_tenth_of_the_sentences_is_held_out(tmp_path):
    corpus = Corpus("mine", tagged(20), tagged(3))
    studied = studied_of(corpus, tmp_path)
    fit, fit_labels, dev, dev_labels = studied.to_choose
    first = sum(len(s.words) for s in corpus.train.sentences[:18])
    assert (fit.n, dev.n) == (first, corpus.train.n_words - first)
    assert torch.equal(torch.cat([fit.flat, dev.flat]), studied.train.flat)
    assert (fit.layers, fit.hidden) == (studied.train.layers, studied.train.hidden)
    np.testing.assert_array_equal(np.concatenate([fit_labels, dev_labels]), studied.labels["train"])


def test_dev_sentences_leave_training_whole(tmp_path):
    studied = studied_of(Corpus("mine", tagged(20), tagged(3), tagged(4)), tmp_path)
    fit, fit_labels, dev, dev_labels = studied.to_choose
    assert fit is studied.train
    assert fit_labels is studied.labels["train"]
    assert (dev.n, len(dev_labels)) == (tagged(4).n_words,) * 2


def test_a_part_of_a_table_lies_in_its_memory():
    states = np.arange(5 * 3 * 2, dtype=np.float32).reshape(5, 3, 2)
    part = WordTable(states).part(slice(2, None))
    expected = WordTable(states[2:].copy())
    assert torch.equal(part.flat, expected.flat)
    assert (part.n, part.layers, part.hidden) == (3, 3, 2)
    states[2] = 7
    assert (part.flat[0] == 7).all()


def test_seeds_are_asked_together_as_one_by_one(tmp_path, monkeypatch):
    corpus = Corpus("mine", tagged(20), tagged(5), tagged(6))
    kinds = [
        {"neurons": "layer", "layer": 1},
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
        for kind in ({"neurons": "top", "share": 0.5}, {"measure": "selectivity"})
        for seed in (1, 2)
    ]
    model = word_encoder_of("bert"), word_tokenizer_of("bert"), corpus
    alone = answers(trials, *model, Shelf("cpu", tmp_path))
    calls = []
    monkeypatch.setattr(asking, "SEEDS_TOGETHER_ON", {"cpu"})
    real = asking.Ranked
    monkeypatch.setattr(asking, "Ranked", lambda *args: (calls.append(args[-1]), real(*args))[1])
    together = answers(trials, *model, Shelf("cpu", tmp_path))
    assert calls == [[0, 1, 2], [1, 2]]
    for one, other in zip(alone, together, strict=True):
        assert one.trial_id == other.trial_id
        assert one.error is None
        assert one.epochs[0].metrics == pytest.approx(other.epochs[0].metrics, rel=1e-4)


def test_standardized_neurons_are_those_of_the_training_words(tmp_path):
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    corpus = Corpus("mine", tagged(20), tagged(3), tagged(4))
    plain, scaled = (
        Studied.of(
            *(encoder, tokenizer, corpus, WordProbe("", "", standardize=asked)),
            *(Shelf("cpu", tmp_path / str(asked)), lambda words: None),
        )
        for asked in (False, True)
    )
    raw = plain.train.rows(slice(None)).double()
    mean, deviation = raw.mean(0), raw.std(0, correction=0)
    for name in ("train", "test", "dev"):
        expected = (getattr(plain, name).rows(slice(None)).double() - mean) / deviation
        torch.testing.assert_close(
            getattr(scaled, name).rows(slice(None)).double(), expected, rtol=1e-3, atol=1e-3
        )
    for table in scaled.to_choose[0], scaled.to_choose[2]:
        assert table.scale is not None


def test_questions_about_neurons_as_they_are_and_standardized_are_answered_apart(tmp_path):
    trials = [trial_of(neurons="layer", layer=2, standardize=s, lr=0.01) for s in (False, True)]
    corpus = Corpus("mine", tagged(30), tagged(6))
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    both = answers(trials, encoder, tokenizer, corpus, Shelf("cpu", tmp_path / "both"))
    for trial, found in zip(trials, both, strict=True):
        (alone,) = answers([trial], encoder, tokenizer, corpus, Shelf("cpu", tmp_path / trial.id))
        assert found.trial_id == trial.id
        assert found.epochs[-1].metrics == alone.epochs[-1].metrics


def test_probes_are_trained_with_the_norm_that_is_asked_for(tmp_path):
    corpus = Corpus("mine", tagged(30), tagged(6))
    studied = studied_of(corpus, tmp_path / "studied")
    trials = [trial_of(neurons="layer", layer=1, lambdas=(0.0, 0.5), norm=n) for n in ("squared", "plain")]
    probes = []
    for trial in trials:
        training = training_of(trial)
        assert training.norm == trial.word_probe.norm
        problem = Problem(studied.train.layer(1), 0.0, 0.5, trial.seed)
        probes += fit_probes(studied.train, studied.labels["train"], len(studied.tags), [problem], training)
    assert not torch.allclose(probes[0].weight, probes[1].weight, rtol=1e-3)
    expected = accuracies(studied.test, studied.labels["test"], probes).tolist()
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")
    found = answers(trials, encoder, tokenizer, corpus, Shelf("cpu", tmp_path / "asked"))
    assert [outcome.epochs[-1].metrics["accuracy"] for outcome in found] == expected


def test_a_search_tells_how_far_it_is(tmp_path):
    told: list[int] = []
    trials = [trial_of(neurons="layer", layer=1)]
    trials.append(Trial("m", "f", None, "", "", 0, 0, word_probe=WordProbe("mine", "c", lambdas=None)))
    corpus = Corpus("mine", tagged(20), tagged(3), tagged(4))
    answers(
        *(trials, word_encoder_of("bert"), word_tokenizer_of("bert"), corpus, Shelf("cpu", tmp_path)),
        on_step=told.append,
    )
    steps = len(trials) * WORD_STEPS
    after = np.cumsum(told)
    answered = round((SHARE_OF_PASS + (1 - SHARE_OF_PASS) / 2) * steps)  # the pass, and the first trial
    found = round((answered / steps + 1) / 2 * steps)
    assert after[-1] == steps
    assert {answered, found} <= set(after)
    assert ((after > answered) & (after < found)).sum() >= 3


def test_answers_are_given_as_they_are_known(tmp_path):
    """Layers first; then seed by seed what needs a ranking, kind by kind."""
    kinds = [{"neurons": "layer", "layer": 1}, {"neurons": "top", "share": 0.5}, {"measure": "selectivity"}]
    trials = [
        dataclasses.replace(trial_of(lambdas=(1e-3, 1e-3), **kind), seed=seed)
        for kind in kinds
        for seed in (0, 1)
    ]
    corpus = Corpus("mine", tagged(20), tagged(3))
    parts = list(
        ask(trials, word_encoder_of("bert"), word_tokenizer_of("bert"), corpus, Shelf("cpu", tmp_path))
    )
    by_id = {trial.id: trial for trial in trials}
    known = [
        [(by_id[o.trial_id].words.measure, by_id[o.trial_id].words.neurons) for o in part] for part in parts
    ]
    layer, top, control = ("accuracy", "layer"), ("accuracy", "top"), ("selectivity", "all")
    assert known == [[layer, layer], [top], [control], [top], [control]]
    assert [by_id[part[0].trial_id].seed for part in parts[1:]] == [0, 0, 1, 1]
    assert all(outcome.seconds > 0 for part in parts for outcome in part)
