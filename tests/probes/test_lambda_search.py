"""L1 and L2 are searched for once per model and corpus, with the pretrained model."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from test_probing_dataset import dataset_of, tagged, trial_of
from word_models import random_words

from whichlayers.data.conll import TaggedCorpus
from whichlayers.data.corpora import Corpus
from whichlayers.probes import lambda_search
from whichlayers.probes.lambda_search import (
    GridPoint,
    LambdaSearch,
    save_lambdas,
    search_key,
    search_lambdas,
)
from whichlayers.probes.probe_specs import ProbeTraining


def searched(**settings):
    """A trial whose L1 and L2 are searched for."""
    trial = trial_of(lambdas=None)
    return dataclasses.replace(trial, word_probe=dataclasses.replace(trial.word_probe, **settings))


def by_length(corpus):
    """Tags A to D by word length: a fifth of the neurons predicts them, but not for every word."""
    sentences = [
        dataclasses.replace(s, tags=tuple("ABCD"[min(len(word) // 2, 3)] for word in s.words))
        for s in corpus.sentences
    ]
    return TaggedCorpus("custom", sentences)


@pytest.fixture
def dataset(tmp_path):
    return dataset_of(Corpus("custom", tagged(20), tagged(3), tagged(4)), tmp_path)


@pytest.fixture
def searches(monkeypatch):
    """The seeds of every search."""
    seeds_of_searches = []

    def counted(*args, **options):
        seeds_of_searches.append(options["seeds"])
        return search_lambdas(*args, **options)

    monkeypatch.setattr(lambda_search, "search_lambdas", counted)
    return seeds_of_searches


def test_one_search_for_all_seeds_and_finetuned_models(dataset, searches):
    found = LambdaSearch()
    first = found.lambdas(searched(), dataset)
    others = [
        dataclasses.replace(searched(), seed=4),
        dataclasses.replace(
            searched(measure="selectivity"), task="SST-2", task_fingerprint="s", train_size=500
        ),
    ]
    assert [found.lambdas(trial, dataset) for trial in others] == [first, first]
    assert searches == [(0, 1, 2)]


def test_the_pair_with_the_best_mean_over_the_seeds(tmp_path):
    dataset = dataset_of(Corpus("custom", *(by_length(random_words(n, n)) for n in (400, 50))), tmp_path)
    training = ProbeTraining(epochs=20, batch_size=16, lr=0.05)
    found = LambdaSearch().lambdas(searched(epochs=20, batch_size=16, lr=0.05), dataset)
    alone: dict = {}
    for seed in (0, 1, 2):
        [grid] = search_lambdas(
            *dataset.selection_splits, len(dataset.tags), seeds=(seed,), training=training
        )
        for point in grid.points:
            alone.setdefault((point.l1, point.l2), []).append(point.top_accuracy)
    means = {pair: sum(accuracies) / 3 for pair, accuracies in alone.items()}
    # rounding may affect two of 120 words
    assert means[found] == pytest.approx(max(means.values()), abs=0.02)
    assert means[found] > min(means.values()) + 0.1


def test_a_pair_that_diverged_for_one_seed_is_not_selected(dataset, monkeypatch):
    def synthetic_data(*args, seeds, **options):
        scores = {0: [0.1, 0.9, 0.2], 1: [0.1, float("nan"), 0.3], 2: [0.1, 0.9, 0.2]}
        points = {s: [GridPoint(0.1, i, 0.5, score) for i, score in enumerate(scores[s])] for s in seeds}
        return [SimpleNamespace(points=points[seed]) for seed in seeds]

    monkeypatch.setattr(lambda_search, "search_lambdas", synthetic_data)
    assert LambdaSearch().lambdas(searched(), dataset) == (0.1, 2)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(searched(), model_fingerprint="another"),
        searched(fingerprint="another"),
        searched(vector="mean"),
        searched(standardize=True),
        searched(norm="plain"),
        searched(lr=1e-2),
    ],
)
def test_another_model_corpus_or_training_setting_is_searched_separately(dataset, searches, other):
    found = LambdaSearch()
    found.lambdas(searched(), dataset)
    found.lambdas(other, dataset)
    assert len(searches) == 2


def test_results_are_saved_for_other_workers_and_later_runs(dataset, searches, tmp_path):
    folder = tmp_path / "penalties"
    first = LambdaSearch(folder=folder).lambdas(searched(), dataset)
    assert [file.suffix for file in folder.iterdir()] == [".json"]
    assert (
        LambdaSearch(lambda trial: pytest.fail("searched again"), folder).lambdas(searched(), dataset)
        == first
    )
    assert len(searches) == 1


def test_saved_lambdas_are_not_searched_for_again(dataset, tmp_path):
    save_lambdas(tmp_path / "penalties", search_key(dataclasses.replace(searched(), seed=7)), (0.25, 0.5))
    found = LambdaSearch(lambda trial: pytest.fail("searched"), tmp_path / "penalties")
    assert found.lambdas(searched(measure="selectivity"), dataset) == (0.25, 0.5)


def test_configured_lambdas_are_used(dataset):
    found = LambdaSearch(lambda trial: pytest.fail("searched"))
    assert found.lambdas(trial_of(lambdas=(0.1, 0.2)), dataset) == (0.1, 0.2)
